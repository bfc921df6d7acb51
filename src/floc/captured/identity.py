"""Identify the model that a captured video is for: features of one model are useless to another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from floc._checked_file import MAX_SIDE, Fields
from floc.encoders.base import Encoder
from floc.encoders.vision_tower import VisionTower
from floc.families import find_family

SAMPLED_PARAMETERS = 32  # of the vision encoder, spread evenly
SAMPLED_VALUES = 8  # of each
_WEIGHTS = range(2 * SAMPLED_PARAMETERS * SAMPLED_VALUES + 1)  # numbers of sampled values
ROUNDING = 0.008  # relative tolerance of a value: a model in bfloat16 is the same model
OUTLIERS = 0.02  # share of the values that may differ more

# Keys of a vision config that shape the features. Releases of transformers add and rename other keys.
_SHAPING_KEYS = (
    "hidden_size embed_dim depth num_hidden_layers num_heads num_attention_heads intermediate_size patch_size "
    "spatial_merge_size temporal_patch_size image_size out_hidden_size deepstack_visual_indexes"
)


@dataclass(frozen=True)
class Identity:
    """What identifies a model by its visual features."""

    kind: str  # model_type
    name: str  # where it was loaded from
    revision: str | None  # on the hub, if it was loaded from there
    config: str  # hash of what shapes visual features
    hidden_size: int  # values of a feature
    weights: list[float]  # a sample of the vision encoder's weights; empty if offloaded or quantised

    @classmethod
    def from_model(cls, model: Any) -> Identity:
        """Identify a transformers model; raise ValueError if its family is not supported."""
        config: Any = getattr(model, "config", None)
        find_family(config)
        vision = config.vision_config.to_dict()
        vision = {name: vision[name] for name in _SHAPING_KEYS.split() if name in vision}
        hidden_size = config.get_text_config().hidden_size
        shaping = {"kind": config.model_type, "vision": vision, "hidden_size": hidden_size}
        name, revision = str(getattr(model, "name_or_path", "") or ""), getattr(config, "_commit_hash", None)
        digest = hashlib.sha256(json.dumps(shaping, sort_keys=True, default=str).encode()).hexdigest()[:16]
        return cls(config.model_type, name, revision, digest, hidden_size, _sample_weights(model))

    @classmethod
    def from_checkpoint(cls, config: Any, read_rows: Callable[[str, int], torch.Tensor | None]) -> Identity:
        """Identify a model that is not loaded.

        Args:
            read_rows: returns the first rows, or as many as there are, of a weight with this name in the base model,
                or None if it is unknown; the identity then has no weights.
        """
        from transformers import AutoModelForImageTextToText

        with torch.device("meta"):
            model = AutoModelForImageTextToText.from_config(config)
        vision = _thin_out(_list_vision_weights(model))
        weights = [rows for name, _ in vision if (rows := read_rows(name, SAMPLED_VALUES)) is not None]
        is_known = len(weights) == len(vision) and all(map(_is_comparable, weights))
        return replace(cls.from_model(model), weights=_take_first_values(weights) if is_known else [])

    @classmethod
    def from_fields(cls, fields: Fields) -> Identity:
        """Read an identity from a file, with a check of every value."""
        kind, name, config = map(fields.text, ("kind", "name", "config"))
        revision = fields.text("revision") if fields.has("revision") else None
        hidden_size, weights = (
            fields.integer("hidden_size", 1, MAX_SIDE),
            fields.numbers("weights", _WEIGHTS, -1e38, 1e38),
        )
        return cls(kind, name, revision, config, hidden_size, weights)

    @classmethod
    def from_encoder(cls, encoder: Encoder) -> Identity:
        """Identify an encoder: the vision encoder of a model, or one without a language model."""
        if isinstance(encoder, VisionTower):
            return replace(cls.from_model(encoder.model), name=encoder.name.removeprefix("hf:"))
        width, height = encoder.frame_size(64, 64)
        tokens = encoder(np.zeros((encoder.frames_per_token, height, width, 3), np.uint8))
        return cls(encoder.name, encoder.name, None, encoder.name, tokens.shape[-1], [])

    def require(self, other: Identity) -> None:
        """Raise ValueError if a video for this model cannot be used with another."""
        if (self.kind, self.config) != (other.kind, other.config):
            raise ValueError(f"this video was captured for {self}, but the model is {other}; capture it again")
        if self.weights and other.weights and not _are_close(self.weights, other.weights):
            difference = "the vision encoder of this model has other weights"
            raise ValueError(f"this video was captured for {self}, but {difference}; capture it again")

    def __str__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return f"{self.kind}{name}, config {self.config}" + (f", revision {self.revision}" if self.revision else "")


def _are_close(first: list[float], second: list[float]) -> bool:
    """Compare two samples up to rounding; NaN equals nothing."""
    if len(first) != len(second):
        return False
    is_close = [abs(a - b) <= ROUNDING * max(abs(a), abs(b)) for a, b in zip(first, second, strict=True)]
    return is_close.count(False) <= OUTLIERS * len(is_close)


def _is_comparable(weight: torch.Tensor) -> bool:
    """Return whether a weight is in memory, and not quantised."""
    return not weight.is_meta and weight.is_floating_point() and type(weight.data) is torch.Tensor


def _list_vision_weights(model: Any) -> list[tuple[str, torch.Tensor]]:
    """Return the weights that make visual features, in the order of their names."""
    language = set()
    if any(hasattr(model.base_model, name) for name in ("language_model", "text_model")):
        language = {id(weight) for weight in model.get_decoder().parameters()}
        head = model.get_output_embeddings()
        language |= {id(weight) for weight in (head.parameters() if head is not None else ())}
    return [
        (name, weight) for name, weight in sorted(model.base_model.named_parameters()) if id(weight) not in language
    ]


def _sample_weights(model: Any) -> list[float]:
    vision = _list_vision_weights(model)
    is_known = all(_is_comparable(weight) for _, weight in vision)
    return _take_first_values([weight for _, weight in _thin_out(vision)]) if is_known else []


def _thin_out(vision: list[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
    return vision[:: max(1, len(vision) // SAMPLED_PARAMETERS)]


def _take_first_values(weights: list[torch.Tensor]) -> list[float]:
    sample = [weight.detach().flatten()[:SAMPLED_VALUES].float() for weight in weights]
    return torch.cat([values.to(sample[0].device) for values in sample]).tolist() if sample else []
