"""What was kept of a video for a model: in memory, and in a file.

A `.floc` file is a safetensors file, K kept of n = T*H*W tokens:

    features   [K, D]  what goes into the language model, in the model's dtype
    indices    [K]     ascending flat index t*H*W + y*W + x: where in the prompt each one stands
    order      [K]     places in `indices`, most important first: a prefix is the answer for a smaller budget
    gains      [K]     what each added, in that order
    deep.I     [K, D]  what is added to them after layer I, in models that do that
    times_s    [T]     when the first frame of each slice is shown, and last_s [T] the last one, where that is known

and one metadata entry, "floc": JSON with format, shape [T, H, W], the model it is for (kind, name, revision, a hash of
its vision config and a sample of its weights), how prompts place it (frames_per_slice, fps, duration_s), and how it was
made (method, settings, coverage, nested, seconds, source, preprocessing, version).
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
from floc.files import write_atomic
from floc.integrations.transformers.families import Shape
from floc.integrations.transformers.prompts import Film, prompt

FORMAT = 1


@dataclass(frozen=True, eq=False)
class Captured:
    """What was kept of one video, ready to go into a model."""

    features: torch.Tensor  # [K, D] in the model's dtype
    indices: torch.Tensor  # [K] int64, ascending flat index t*H*W + y*W + x
    order: torch.Tensor  # [K] int64 places in `indices`, most important first
    gains: torch.Tensor  # [K] float64, what each added, in that order
    deep: tuple[torch.Tensor, ...]  # [K, D] each, what the model adds to them in its first layers
    shape: Shape  # slices, rows and columns of tokens there were
    model: Identity
    made: Mapping[str, Any]  # method, settings, coverage, seconds and more, as JSON takes it
    nested: bool  # whether `order` holds the answers for smaller budgets
    times_s: np.ndarray | None = None  # [T] when the first frame of each slice is shown
    last_s: np.ndarray | None = None  # [T] the same for its last frame
    frames_per_slice: int = 1
    fps: float | None = None  # frames a second that were taken
    duration_s: float | None = None  # of the film

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def n(self) -> int:
        """How many tokens there were."""
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
        """A smaller answer, from the order that is stored; nothing is computed again.

        Args:
            ratio, budget: exactly one; ratio is of all the tokens there were.
        """
        dial = Budget.parse(ratio, budget, None)
        count = dial.count(self.n)
        if count == len(self):
            return self
        if not self.nested:
            raise ValueError(f"method {self.made.get('method')!r} keeps no nested order; capture again at {dial}")
        if count > len(self):
            raise ValueError(f"{dial} needs {count} tokens, {len(self)} were kept; capture again with a larger budget")
        first = self.order[:count]
        places = first.sort().values
        return replace(
            self,
            features=self.features[places],
            indices=self.indices[places],
            order=torch.searchsorted(places, first),
            gains=self.gains[:count],
            deep=tuple(each[places] for each in self.deep),
            made={**self.made, "coverage": None, "bound": None} if count < len(self) else self.made,
        )

    def inputs(
        self, model: Any, tokenizer: Any, question: str, history: Sequence[tuple[str, str]] = ()
    ) -> dict[str, torch.Tensor]:
        """A question about this video, ready for `model.generate` inside `floc.replay`.

        Args:
            model: the one it is for.
            tokenizer: the model's, from `floc.integrations.transformers.tokenizer`.
            question: what to ask.
            history: earlier questions with their answers, first to last.
        """
        if self.times_s is None or self.fps is None:
            raise ValueError(
                "this video was captured from prepared inputs, so its times are not known; "
                "prepare the question with the model's processor, and leave the pixels out"
            )
        film = Film(
            self.shape, self.times_s, self.frames_per_slice, self.fps, self.duration_s or 0.0, last_s=self.last_s
        )
        inputs = prompt(model.config.model_type, tokenizer, model.config, film, question, history)
        return {name: each.to(model.device) for name, each in inputs.items()}

    def save(self, path: str | Path) -> None:
        """Write a .floc file, whole or not at all."""
        from safetensors.torch import save_file

        from floc._version import __version__

        path = Path(path)
        tensors = {name: getattr(self, name) for name in _TENSORS}
        tensors |= {f"deep.{i}": each for i, each in enumerate(self.deep)}
        for name in ("times_s", "last_s"):
            if (times := getattr(self, name)) is not None:
                tensors[name] = torch.from_numpy(np.array(times, np.float64))
        about = {
            "format": FORMAT,
            "version": __version__,
            "shape": list(self.shape),
            "model": asdict(self.model),
            "layers": len(self.deep),
            "made": dict(self.made),
            **{name: getattr(self, name) for name in _ABOUT},
        }
        ready = {name: each.detach().cpu().contiguous() for name, each in tensors.items()}
        write_atomic(path, lambda temporary: save_file(ready, temporary, {"floc": json.dumps(about)}))


_TENSORS = ("features", "indices", "order", "gains")
_ABOUT = ("nested", "frames_per_slice", "fps", "duration_s")


def load(path: str | Path) -> Captured:
    """What `save` wrote, or an error that says what is wrong with the file."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["floc"])
            if about.get("format") != FORMAT:
                raise ValueError(f"format {about.get('format')!r}, this version of floc reads {FORMAT}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        layers = [f"deep.{i}" for i in range(about["layers"])]
        if sorted(layers) != sorted(name for name in tensors if name.startswith("deep.")):
            raise ValueError(f"there should be deep features of {len(layers)} layers")
        given: dict[str, Any] = {name: tensors[name] for name in _TENSORS}
        given |= {name: tensors[name].numpy() for name in ("times_s", "last_s") if name in tensors}
        given |= {name: about[name] for name in _ABOUT}
        video = Captured(
            **given,
            deep=tuple(tensors[name] for name in layers),
            shape=tuple(about["shape"]),
            model=Identity(**about["model"]),
            made=about["made"],
        )
        require_consistent(video)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path}: not a readable .floc file ({error})") from error
    return video


def require_consistent(video: Captured) -> None:
    """Complain of what does not belong together: of a file that was changed."""
    shape = video.shape
    if len(shape) != 3 or not all(type(side) is int and 0 < side < 1 << 24 for side in shape):
        raise ValueError(f"shape {shape} is not slices, rows and columns")
    k, n = len(video.indices), math.prod(shape)
    kinds = {"features": (2, True), "indices": (1, False), "order": (1, False), "gains": (1, True)}
    for name, (axes, is_float) in kinds.items():
        found = getattr(video, name)
        if found.ndim != axes or len(found) != k:
            raise ValueError(f"{name} has shape {tuple(found.shape)}, which is not that of {k} tokens")
        if found.is_floating_point() != is_float or (not is_float and found.dtype != torch.int64):
            raise ValueError(f"{name} has dtype {found.dtype}")
    if video.features.shape[1] != video.model.hidden_size:
        raise ValueError(f"features have {video.features.shape[1]} values, the model takes {video.model.hidden_size}")
    if any(each.shape != video.features.shape or each.dtype != video.features.dtype for each in video.deep):
        raise ValueError("deep features are not like the features")
    for each in (video.features, video.gains, *video.deep):
        if not bool(torch.isfinite(each).all()):
            raise ValueError("there are values that are not finite")
    if not k or int(video.indices[0]) < 0 or int(video.indices[-1]) >= n or bool((video.indices.diff() <= 0).any()):
        raise ValueError(f"indices are not ascending within 0..{n - 1}")
    if not torch.equal(video.order.sort().values, torch.arange(k)):
        raise ValueError("order is not an order of the tokens")
    for name in ("times_s", "last_s"):
        times = getattr(video, name)
        if times is not None and (times.shape != (shape[0],) or not np.isfinite(times).all()):
            raise ValueError(f"{name} is not a time for each of {shape[0]} slices")
    for name in ("fps", "duration_s"):
        value = getattr(video, name)
        if value is not None and not (isinstance(value, float | int) and 0 <= value < math.inf):
            raise ValueError(f"{name} is {value!r}")
    if type(video.nested) is not bool or type(video.frames_per_slice) is not int or not isinstance(video.made, dict):
        raise ValueError("what it says of itself is of the wrong kind")
