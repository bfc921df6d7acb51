"""A choice of tokens, with what there is to log of it noted while all tokens are still at hand."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from floc.captured.recipe import Recipe
from floc.integrations.lmms_eval.log import Figures
from floc.kept import Kept


@dataclass(frozen=True)
class Note:
    """On one video."""

    shape: tuple[int, int, int]  # frames, rows and columns of tokens there were
    kept: int
    coverage: float
    select_s: float
    measure_s: float  # what it took to know the coverage

    @property
    def tokens(self) -> int:
        """How many there were."""
        frames, rows, columns = self.shape
        return frames * rows * columns


@dataclass(frozen=True)
class Measured(Recipe):
    """A recipe that keeps notes."""

    notes: list[Note] = field(default_factory=list)  # since they were last taken

    def __call__(self, tokens: torch.Tensor) -> Kept:
        started = _now(tokens.device)
        kept = super().__call__(tokens)
        chosen = _now(tokens.device)
        coverage = kept.coverage
        self.notes.append(Note(kept.shape, len(kept), coverage, chosen - started, _now(tokens.device) - chosen))
        return kept

    def take(self, total_s: float) -> Figures:
        """The figures of a sample that took so long, of all that was noted since the last."""
        notes = [*self.notes]
        self.notes.clear()
        return figures(notes, total_s)


def figures(notes: Sequence[Note], total_s: float) -> Figures:
    """Add up what was noted of a sample's videos; coverage is the mean over their tokens."""
    tokens = sum(each.tokens for each in notes)
    return Figures(
        tokens=tokens,
        kept=sum(each.kept for each in notes),
        coverage=sum(each.coverage * each.tokens for each in notes) / tokens if tokens else None,
        select_s=sum(each.select_s for each in notes),
        total_s=total_s - sum(each.measure_s for each in notes),
        shapes=[each.shape for each in notes],
    )


def _now(device: torch.device) -> float:
    """The time when all that was asked of a device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
