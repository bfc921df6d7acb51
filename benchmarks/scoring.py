"""How much of each insert a method keeps, with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import floc
from benchmarks.inserts import PlantedVideo
from floc import methods
from floc._arrays import to_numpy, to_tensor
from floc.representatives import find_nearest

MEASURES = ("kept", "share", "similarity")
RESAMPLES = 2000


@dataclass(frozen=True)
class Score:
    """How much of an insert, and of its part of the background, was kept."""

    kept: bool  # at least one token
    share: float  # tokens kept over all its tokens
    similarity: float  # mean, over tokens, of the highest cosine with a kept token
    background_kept: bool
    background_share: float
    background_similarity: float


def get_widen_options(method: str) -> dict[str, Any]:
    """Return the options with which a method reaches any ratio."""
    return {"widen": True} if "widen" in methods.list_options(method) else {}


def score_inserts(video: PlantedVideo, kept: floc.Kept) -> list[Score]:
    """Score each insert of a video."""
    sets = [tokens for insert in video.inserts for tokens in (insert.tokens, insert.background)]
    flat = video.tokens.reshape(-1, video.tokens.shape[-1])
    cosine, _ = find_nearest(to_tensor(flat[np.concatenate(sets)]), to_tensor(kept.features))
    ends = np.cumsum([len(tokens) for tokens in sets])[:-1]
    similarities = [float(part.mean(dtype=np.float64)) for part in np.split(to_numpy(cosine), ends)]
    counts = [count_kept(kept, tokens) for tokens in sets]
    scores = [(n > 0, n / len(of), like) for n, of, like in zip(counts, sets, similarities, strict=True)]
    return [Score(*insert, *background) for insert, background in zip(scores[::2], scores[1::2], strict=True)]


def count_kept(kept: floc.Kept, tokens: np.ndarray) -> int:
    """Count the kept ones among `tokens` [m]; of a method that merges, its tokens made of these by more than half."""
    if not kept.merged:
        return int(np.isin(tokens, to_numpy(kept.indices)).sum())
    represents = to_numpy(kept.represents)
    members = np.bincount(represents, minlength=len(kept))
    inside = np.bincount(represents[tokens], minlength=len(kept))
    return int((2 * inside > members).sum())


def summarize(scores: Sequence[Score], reference: Sequence[Score], name: str) -> dict[str, Any]:
    """Return the means of all measures, and of their differences to a reference called `name`, insert by insert."""
    record: dict[str, Any] = {"inserts": len(scores)}
    for measure in MEASURES:
        ours, background, theirs = (
            np.array([float(getattr(score, attribute)) for score in group])
            for group, attribute in ((scores, measure), (scores, f"background_{measure}"), (reference, measure))
        )
        record[measure], record[f"background_{measure}"] = compute_interval(ours), compute_interval(background)
        record[f"{measure}_above_{name}"] = compute_interval(ours - theirs)
    return record


def compute_interval(values: np.ndarray, seed: int = 0) -> dict[str, float]:
    """Return the mean of values and its 95% bootstrap interval.

    >>> compute_interval(np.ones(5))
    {'mean': 1.0, 'low': 1.0, 'high': 1.0}
    """
    values = np.asarray(values, np.float64)
    draws = np.random.default_rng(seed).integers(len(values), size=(RESAMPLES, len(values)))
    low, high = np.percentile(values[draws].mean(1), (2.5, 97.5))
    return {"mean": float(values.mean()), "low": float(low), "high": float(high)}


def show_arrow(low: float, high: float) -> str:
    """Return an arrow if the interval of a difference excludes 0.

    >>> show_arrow(0.1, 0.2), show_arrow(-0.1, 0.2)
    (' ↑', '')
    """
    return " ↑" if low > 0 else " ↓" if high < 0 else ""


def show_percent(interval: Mapping[str, float]) -> str:
    """Format a share, with its interval if it has one.

    >>> show_percent({"mean": 0.953, "low": 0.92, "high": 0.98}), show_percent({"mean": 0.5})
    ('95% (92-98)', '50%')
    """
    spread = f" ({100 * interval['low']:.0f}-{100 * interval['high']:.0f})" if "low" in interval else ""
    return f"{interval['mean']:.0%}{spread}"


def show_cosine(interval: Mapping[str, float]) -> str:
    """Format a cosine, with its interval if it has one.

    >>> show_cosine({"mean": 0.953, "low": 0.92, "high": 0.98}), show_cosine({"mean": 0.5})
    ('.953 (.920-.980)', '.500')
    """
    mean, *ends = (f"{interval[key]:.3f}".removeprefix("0") for key in ("mean", "low", "high") if key in interval)
    return f"{mean} ({'-'.join(ends)})" if ends else mean
