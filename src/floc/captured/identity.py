"""Which model a captured video is for: features of one mean nothing to another."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from floc.encoders.base import Encoder
from floc.encoders.vision_tower import VisionTower
from floc.integrations.transformers.families import family_of

SAMPLED = 32  # parameters of the vision tower that are looked at, spread over all of them
VALUES = 8  # of each
ROUNDING = 0.008  # how far a value may be off: a model in bfloat16 is the same model
STRAY = 0.02  # of the values, how many may be further off


@dataclass(frozen=True)
class Identity:
    """A model, as far as its visual features go."""

    kind: str  # model_type
    name: str  # where it was loaded from
    revision: str | None  # of the hub, where it was loaded from there
    config: str  # hash of what shapes visual features
    hidden_size: int  # values of a feature
    weights: list[float]  # a few values of some parameters that make them; none where they were not in memory

    @classmethod
    def of(cls, model: Any) -> Identity:
        """Look at a model."""
        family = family_of(getattr(model, "config", None))
        config = model.config
        shaping = {
            "kind": family.kind,
            "vision": _plain(config.vision_config),
            "hidden_size": config.get_text_config().hidden_size,
        }
        told = hashlib.sha256(json.dumps(shaping, sort_keys=True, default=str).encode()).hexdigest()[:16]
        return cls(
            family.kind,
            str(getattr(model, "name_or_path", "") or ""),
            getattr(config, "_commit_hash", None),
            told,
            config.get_text_config().hidden_size,
            _weights(model),
        )

    @classmethod
    def of_encoder(cls, encoder: Encoder) -> Identity:
        """Look at an encoder: the vision tower of a model, or one that belongs to no language model."""
        if isinstance(encoder, VisionTower):
            return replace(cls.of(encoder.model), name=encoder.name.removeprefix("hf:"))
        width, height = encoder.frame_size(64, 64)
        black = encoder(np.zeros((encoder.frames_per_token, height, width, 3), np.uint8))
        return cls(encoder.name, encoder.name, None, encoder.name, black.shape[-1], [])

    def require(self, other: Identity) -> None:
        """Complain where a video for this model is to go into another one."""
        if (self.kind, self.config) != (other.kind, other.config):
            raise ValueError(f"this video was captured for {self}, and the model is {other}; capture it again")
        if self.weights and other.weights and not _are_alike(self.weights, other.weights):
            raise ValueError(
                f"this video was captured for {self}, and the model has other weights in its vision tower; "
                "capture it again with this model"
            )

    def __str__(self) -> str:
        named = f" {self.name!r}" if self.name else ""
        return f"{self.kind}{named}, config {self.config}" + (f", revision {self.revision}" if self.revision else "")


def _plain(config: Any) -> dict[str, Any]:
    """What a vision config says of shapes; releases of transformers add and rename other things."""
    told = config.to_dict()
    return {name: told[name] for name in sorted(_SHAPING & told.keys())}


_SHAPING = {
    "hidden_size",
    "embed_dim",
    "depth",
    "num_hidden_layers",
    "num_heads",
    "num_attention_heads",
    "intermediate_size",
    "patch_size",
    "spatial_merge_size",
    "temporal_patch_size",
    "image_size",
    "out_hidden_size",
    "deepstack_visual_indexes",
}


def _are_alike(some: list[float], others: list[float]) -> bool:
    """The same but for rounding; what is not a number is like nothing."""
    if len(some) != len(others):
        return False
    close = [abs(a - b) <= ROUNDING * max(abs(a), abs(b)) for a, b in zip(some, others, strict=True)]
    return close.count(False) <= STRAY * len(close)


def _vision(model: Any) -> list[torch.Tensor]:
    """The parameters that make visual features, in the order of their names; of a bare tower that is all of them."""
    language = set()
    if _has_language(model):
        language = {id(each) for each in model.get_decoder().parameters()}
        head = model.get_output_embeddings()
        language |= {id(each) for each in (head.parameters() if head is not None else ())}
    return [each for _, each in sorted(model.base_model.named_parameters()) if id(each) not in language]


def _has_language(model: Any) -> bool:
    return any(hasattr(model.base_model, name) for name in ("language_model", "text_model"))


def _weights(model: Any) -> list[float]:
    vision = _vision(model)
    if not vision or any(each.is_meta for each in vision):
        return []  # moved out of memory: a replay does without
    step = max(1, len(vision) // SAMPLED)
    few = [each.detach().flatten()[:VALUES].float() for each in vision[::step]]
    return torch.cat([each.to(few[0].device) for each in few]).tolist()
