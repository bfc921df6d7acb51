"""How well the kept tokens cover a video: coverage, redundancy, and the baselines that set the floor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

import floc
from benchmarks.harness import Contender, compare
from floc.budget import Budget

FLOORS = {"random": "random", "uniform in time": "frame_uniform"}  # label -> method
SPAN = 32  # frames; redundancy is between tokens of different spans, whatever the blocks were
COVERAGE_NOTE = (
    "Coverage: mean highest cosine of all tokens with a kept token, and its mean over the worst-covered 5%; keeping "
    "all tokens would give 1."
)


@dataclass(frozen=True)
class NamedTokens:
    """A video's tokens with a name."""

    name: str
    tokens: np.ndarray  # [T, H, W, D]


def count_tokens(ratio: str, n: int) -> int:
    """Return how many of n tokens a ratio keeps."""
    return Budget.parse(ratio, None, None).count(n)


def normalize(tokens: np.ndarray) -> np.ndarray:
    """Return all tokens as [n, D] float32 rows of length 1."""
    x = tokens.reshape(-1, tokens.shape[-1]).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def measure_coverage(unit: np.ndarray, picks: np.ndarray) -> dict[str, float]:
    """Return the mean highest cosine with a pick over all tokens ("true") and over the worst-covered 5% ("worst").

    Args:
        unit: [n, D], all tokens at length 1.
        picks: [K] flat indices.
    """
    kept = unit[picks].T
    best = np.concatenate([(part @ kept).max(1) for part in np.array_split(unit, max(1, len(unit) // 2000))])
    worst = np.sort(best)[: max(1, len(best) // 20)]
    return {"true": float(best.mean(dtype=np.float64)), "worst": float(worst.mean(dtype=np.float64))}


def measure_redundancy(unit: np.ndarray, picks: np.ndarray, spans: np.ndarray) -> float | None:
    """Return the mean, over picks, of the highest cosine with a pick of another span; None if there is one span.

    Args:
        unit: [n, D], all tokens at length 1.
        picks: [K] flat indices.
        spans: [n], the span of each token.

    >>> measure_redundancy(np.eye(3)[[0, 0, 1, 2]], np.array([0, 1, 2]), np.array([0, 1, 1, 1]))
    0.6666666666666666
    """
    picked = spans[picks]
    if (picked == picked[0]).all():
        return None
    cosine = np.where(picked[:, None] == picked, -np.inf, unit[picks] @ unit[picks].T)
    return float(cosine.max(1).mean(dtype=np.float64))


def compare_quality(
    video: NamedTokens,
    ratio: str,
    calls: Mapping[str, Callable[[], floc.Kept]],
    baseline: str,
) -> list[dict[str, Any]]:
    """Time all calls once, in turn, and measure coverage and redundancy of what they keep."""
    frames, height, width, _ = video.tokens.shape
    unit = normalize(video.tokens)
    spans = np.repeat(np.arange(frames) // SPAN, height * width)
    budget = count_tokens(ratio, len(unit))
    answers: dict[str, floc.Kept] = {}

    def answer(name: str) -> None:
        answers[name] = calls[name]()

    contenders = [Contender(name, partial(answer, name)) for name in calls]
    records = []
    for timing in compare(contenders, baseline, rounds=1):
        picks = np.asarray(answers[timing.contender].indices)
        is_short_floor = timing.contender in FLOORS and len(picks) < budget  # whole frames may not fill the budget
        if len(set(picks.tolist())) != budget and not is_short_floor:
            raise AssertionError(f"{timing.contender} kept {len(picks)} tokens for {ratio} of {len(unit)}")
        measures = {**measure_coverage(unit, picks), "redundancy": measure_redundancy(unit, picks, spans)}
        records.append({"film": video.name, "frames": frames, "n": len(unit), **measures, **asdict(timing)})
    return records
