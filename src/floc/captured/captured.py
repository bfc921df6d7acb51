"""`Captured`: the tokens of a video that were kept for a model, in memory and in a file.

A `.floc` file is a safetensors file with the arrays of `Captured` as tensors, "deep.0" and so on for `deep`, and one
metadata entry, "floc": JSON with the other values, the format and the version (docs/reference/files.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from floc.budget import Budget
from floc.captured.identity import Identity
from floc.captured.prompts import prompt
from floc.families.locate import Shape
from floc.families.writers import SampledVideo
from floc.files import write_atomic

FORMAT = 1
_TENSORS = {"features": 2, "indices": 1, "order": 1, "gains": 1}  # number of axes
_TIMES = ("times_s", "last_s")
_VALUES = ("nested", "frames_per_slice", "fps", "duration_s")


@dataclass(frozen=True, eq=False)
class Captured:
    """K tokens of T x H x W, kept of one video, ready for a model."""

    features: torch.Tensor  # [K, D] in the model's dtype
    indices: torch.Tensor  # [K] int64, ascending flat index t*H*W + y*W + x
    order: torch.Tensor  # [K] int64 positions in `indices`, most important first
    gains: torch.Tensor  # [K] float64, what each token added, in that order
    deep: tuple[torch.Tensor, ...]  # [K, D] each, what the model adds to the tokens in its first layers
    shape: Shape  # T, H, W: slices, rows and columns of all tokens
    model: Identity
    made: Mapping[str, Any]  # method, settings, coverage, seconds and more; JSON-serialisable
    nested: bool  # whether `order` holds the answers for smaller budgets
    times_s: np.ndarray | None = None  # [T] time of the first frame of each slice
    last_s: np.ndarray | None = None  # [T] time of its last frame
    frames_per_slice: int = 1
    fps: float | None = None  # sampled frames per second
    duration_s: float | None = None  # of the video

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def n(self) -> int:
        """Number of tokens before compression."""
        return math.prod(self.shape)

    @property
    def ratio(self) -> float:
        """Kept / total."""
        return len(self) / self.n

    @property
    def positions(self) -> torch.Tensor:
        """[K, 3] int64 (t, y, x)."""
        return torch.stack(torch.unravel_index(self.indices, self.shape), 1)

    def __repr__(self) -> str:
        return f"Captured({len(self)} of {self.n} tokens, for {self.model}, method {self.made.get('method')!r})"

    def at(self, *, ratio: float | str | None = None, budget: int | None = None) -> Captured:
        """Return the answer for a smaller ratio (kept / total) or budget; nothing is recomputed."""
        target = Budget.parse(ratio, budget, None)
        count = target.count(self.n)
        if count == len(self):
            return self
        if not self.nested:
            raise ValueError(f"method {self.made.get('method')!r} keeps no nested order; capture again at {target}")
        if count > len(self):
            raise ValueError(
                f"{target} needs {count} tokens, but only {len(self)} were kept; capture again with a larger budget"
            )
        first = self.order[:count]
        places = first.sort().values
        return replace(
            self,
            features=self.features[places],
            indices=self.indices[places],
            order=torch.searchsorted(places, first),
            gains=self.gains[:count],
            deep=tuple(layer[places] for layer in self.deep),
            made={**self.made, "coverage": None, "bound": None},
        )

    def inputs(
        self, model: Any, tokenizer: Any, question: str, history: Sequence[tuple[str, str]] = ()
    ) -> dict[str, torch.Tensor]:
        """Build the inputs of a question about this video, for `model.generate` inside `floc.replay`.

        Args:
            model: the model that the video was captured with.
            tokenizer: of the model, from `floc.integrations.transformers.tokenizer`.
            history: earlier questions with their answers, oldest first.
        """
        if self.times_s is None or self.fps is None:
            raise ValueError(
                "its times are unknown; build the prompt with the model's processor, and remove the pixels"
            )
        duration_s = self.duration_s or 0.0
        video = SampledVideo(self.shape, self.times_s, self.frames_per_slice, self.fps, duration_s, self.last_s)
        inputs = prompt(model.config.model_type, tokenizer, model.config, video, question, history)
        return {name: tensor.to(model.device) for name, tensor in inputs.items()}

    def save(self, path: str | Path) -> None:
        """Write a .floc file atomically."""
        from safetensors.torch import save_file

        from floc._version import __version__

        tensors = {name: getattr(self, name) for name in _TENSORS}
        tensors |= {f"deep.{i}": layer for i, layer in enumerate(self.deep)}
        for name in _TIMES:
            if (times := getattr(self, name)) is not None:
                tensors[name] = torch.from_numpy(np.array(times, np.float64))
        metadata = {
            "format": FORMAT,
            "version": __version__,
            "shape": list(self.shape),
            "model": asdict(self.model),
            "layers": len(self.deep),
            "made": dict(self.made),
            **{name: getattr(self, name) for name in _VALUES},
        }
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        write_atomic(Path(path), lambda temporary: save_file(tensors, temporary, {"floc": json.dumps(metadata)}))


def load(path: str | Path) -> Captured:
    """Load a .floc file."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = json.loads((file.metadata() or {})["floc"])
            if metadata.get("format") != FORMAT:
                raise ValueError(f"format {metadata.get('format')!r}, but this version of floc reads {FORMAT}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        layers = [f"deep.{i}" for i in range(metadata["layers"])]
        if sorted(layers) != sorted(name for name in tensors if name.startswith("deep.")):
            raise ValueError(f"there should be deep features of {len(layers)} layers")
        values: dict[str, Any] = {name: tensors[name] for name in _TENSORS}
        values |= {name: tensors[name].numpy() for name in _TIMES if name in tensors}
        values |= {name: metadata[name] for name in _VALUES}
        video = Captured(
            **values,
            deep=tuple(tensors[name] for name in layers),
            shape=tuple(metadata["shape"]),
            model=Identity(**metadata["model"]),
            made=metadata["made"],
        )
        require_consistent(video)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path}: not a readable .floc file ({error})") from error
    return video


def require_consistent(video: Captured) -> None:
    """Raise ValueError if the parts of a video do not fit together, as in a file that was changed."""
    shape = video.shape
    if len(shape) != 3 or not all(type(side) is int and 0 < side < 1 << 24 for side in shape):
        raise ValueError(f"shape {shape} is not slices, rows and columns")
    k, n = len(video), video.n
    for name, axes in _TENSORS.items():
        tensor = getattr(video, name)
        if tensor.ndim != axes or len(tensor) != k:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, which does not fit {k} tokens")
        if not (tensor.dtype == torch.int64 if name in ("indices", "order") else tensor.is_floating_point()):
            raise ValueError(f"{name} has dtype {tensor.dtype}")
    if video.features.shape[1] != video.model.hidden_size:
        raise ValueError(f"features have {video.features.shape[1]} values, the model takes {video.model.hidden_size}")
    if any(layer.shape != video.features.shape or layer.dtype != video.features.dtype for layer in video.deep):
        raise ValueError("deep features differ from the features in shape or dtype")
    if not all(tensor.isfinite().all() for tensor in (video.features, video.gains, *video.deep)):
        raise ValueError("some values are not finite")
    if not k or int(video.indices[0]) < 0 or int(video.indices[-1]) >= n or bool((video.indices.diff() <= 0).any()):
        raise ValueError(f"indices are not ascending within 0..{n - 1}")
    if not torch.equal(video.order.sort().values, torch.arange(k)):
        raise ValueError("order is not a permutation of the tokens")
    for name in _TIMES:
        times = getattr(video, name)
        if times is not None and (times.shape != (shape[0],) or not np.isfinite(times).all()):
            raise ValueError(f"{name} does not have a finite time for each of {shape[0]} slices")
    for name in ("fps", "duration_s"):
        value = getattr(video, name)
        if value is not None and not (isinstance(value, float | int) and 0 <= value < math.inf):
            raise ValueError(f"{name} is {value!r}")
    if type(video.nested) is not bool or type(video.frames_per_slice) is not int or not isinstance(video.made, dict):
        raise ValueError("nested, frames_per_slice or made has the wrong type")
