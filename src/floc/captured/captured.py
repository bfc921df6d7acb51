"""`Captured`: the tokens of a video that were kept for a model."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from floc.budget import Budget
from floc.captured.identity import Identity
from floc.families import FAMILIES
from floc.families.locate import Shape
from floc.families.preparation import Preparation
from floc.families.processing import Turns, VideoPreparer


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
    made: Mapping[str, Any]  # method, settings, coverage, seconds and more; JSON-serializable
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

    def at(self, *, ratio: float | str | None = None, budget: int | None = None) -> "Captured":
        """Return the answer for a smaller ratio (kept / total) or budget; nothing is recomputed."""
        target = Budget.parse(ratio, budget, None)
        count = target.count(self.n)
        if count == len(self):
            return self
        if not self.nested:
            raise ValueError(f"method {self.made.get('method')!r} keeps no nested order; capture again at {target}")
        if count > len(self):
            kept = f"only {len(self)} were kept"
            raise ValueError(f"{target} needs {count} tokens, but {kept}; capture again with a larger budget")
        first = self.order[:count]
        places = first.sort().values
        arrays: Any = dict(features=self.features[places], indices=self.indices[places], gains=self.gains[:count])
        order, deep = torch.searchsorted(places, first), tuple(layer[places] for layer in self.deep)
        made = {**self.made, "coverage": None, "bound": None}
        return replace(self, **arrays, order=order, deep=deep, made=made)

    def inputs(self, processor: Any, question: str, history: Turns = ()) -> Any:
        """Build the inputs of a question about this video, for `model.generate` inside `floc.replay`.

            inputs = video.inputs(processor, "What is on the table?").to(model.device)

        Args:
            processor: of the model that the video was captured with.
            history: earlier questions with their answers, oldest first.
        """
        record = self.made.get("preparation")
        if record is None:
            raise ValueError(
                "how this video was prepared is unknown; build the prompt with the model's processor, and remove pixels"
            )
        preparer = VideoPreparer(processor)
        plan = preparer.restore(Preparation.from_dict(record))
        asks_types = self.model.kind in FAMILIES and FAMILIES[self.model.kind].asks_token_types
        return preparer.write_prompt(plan, question, history, asks_token_types=asks_types)

    def save(self, path: str | Path) -> None:
        """Write a .floc file atomically."""
        from floc.captured.floc_file import save

        save(self, Path(path))
