"""What each sample costs: measured while the model answers, and logged by lmms-eval.

lmms-eval's samples log holds it as `token_counts`, under the key "floc".
"""

import math
import time
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from floc.captured.recipe import Recipe
from floc.kept import Kept

KEY = "floc"


@dataclass(frozen=True)
class SampleCost:
    """Tokens and seconds of one sample."""

    tokens: int  # of its videos
    kept: int
    coverage: float | None  # mean cosine between tokens and their representatives; None without a video
    select_s: float  # selection
    total_s: float  # from the request to the answer, decoding included
    shapes: list[tuple[int, int, int]]  # frames, rows and columns of tokens of each video


class VideoCost(NamedTuple):
    """Tokens and seconds of one video."""

    shape: tuple[int, int, int]
    kept: int
    coverage: float
    select_s: float
    coverage_s: float  # to compute the coverage


@dataclass(frozen=True)
class MeasuredRecipe(Recipe):
    """A recipe that measures every video."""

    videos: list[VideoCost] = field(default_factory=list)  # since the last sample

    def __call__(self, tokens: torch.Tensor, query: torch.Tensor | None = None) -> Kept:
        started = _read_clock(tokens.device)
        kept = super().__call__(tokens, query)
        selected = _read_clock(tokens.device)
        coverage = kept.coverage
        coverage_s = _read_clock(tokens.device) - selected
        self.videos.append(VideoCost(kept.shape, len(kept), coverage, selected - started, coverage_s))
        return kept

    def pop_cost(self, total_s: float) -> SampleCost:
        """Return the cost of a sample from its videos, and forget them. Coverage is the mean over all tokens."""
        videos = [*self.videos]
        self.videos.clear()
        tokens = sum(math.prod(video.shape) for video in videos)
        covered = sum(video.coverage * math.prod(video.shape) for video in videos)
        return SampleCost(
            tokens=tokens,
            kept=sum(video.kept for video in videos),
            coverage=covered / tokens if tokens else None,
            select_s=sum(video.select_s for video in videos),
            total_s=total_s - sum(video.coverage_s for video in videos),
            shapes=[video.shape for video in videos],
        )


def _read_clock(device: torch.device) -> float:
    """Return the time once all work on `device` is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
