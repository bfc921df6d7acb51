"""The report's figures as PNG files (matplotlib)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from floc.analysis.metrics import per_frame, per_second
from floc.analysis.pictures import GREEN, overlay
from floc.analysis.projection import Projection
from floc.files import write_atomic

if TYPE_CHECKING:
    from floc.analysis.compare import Comparison, Contender


class Pictures(Protocol):
    """The frames, by number."""

    def __getitem__(self, t: int) -> np.ndarray: ...


KEPT = tuple(value / 255 for value in GREEN)
DROPPED = (0.72, 0.74, 0.78)
FRAMES_SHOWN = 5


def save(
    folder: Path,
    comparison: Comparison,
    times_s: np.ndarray,
    pictures: Pictures,
    projection: Projection | None,
) -> list[Path]:
    """Write frames.png, timeline.png, scatter.png and tsne.png for the smallest ratio that was measured.

    Args:
        folder: where they go; it is made if it is not there.
        comparison: what the methods kept.
        times_s: [T] when each frame is shown.
        pictures: the frames by number, each [height, width, 3] uint8.
        projection: some tokens on a plane, or None for no tsne.png.

    Returns:
        The files written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'floc-video[report]'") from error

    place = max(at for at, stop in enumerate(comparison.stops) if stop.asked)
    shown = [contender for contender in comparison.contenders if place in contender.kept]
    label = comparison.stops[place].label
    figures: dict[str, Figure] = {
        "frames": _frames(Figure, shown, place, label, times_s, pictures),
        "timeline": _timeline(Figure, shown, place, label, times_s),
        "scatter": _scatter(Figure, shown, place, label),
    }
    if projection is not None:
        figures["tsne"] = _tsne(Figure, shown, place, label, projection)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, figure in figures.items():
        path = folder / f"{name}.png"
        write_atomic(path, partial(figure.savefig, format="png", dpi=150))
        written.append(path)
    return written


def _frames(
    new: Any, shown: Sequence[Contender], place: int, label: str, times_s: np.ndarray, pictures: Pictures
) -> Any:
    """A row for each method: the frames of which the methods together keep most, in the order of the film."""
    counts = np.sum([per_frame(contender.kept[place]) for contender in shown], 0)
    frames = np.sort(_far_apart(counts, FRAMES_SHOWN))
    height, width, _ = pictures[0].shape
    figure = new(figsize=(2.6 * len(frames), 2.6 * height / width * len(shown) + 0.35 * len(shown) + 0.6))
    figure.set_layout_engine("constrained")
    figure.suptitle(f"Kept at {label}: boxed in green, dropped: dimmed", fontsize=11)
    axes = figure.subplots(len(shown), len(frames), squeeze=False)
    for row, contender in zip(axes, shown, strict=True):
        kept = contender.kept[place]
        here = per_frame(kept)
        for axis, t in zip(row, frames, strict=True):
            axis.imshow(overlay(pictures[int(t)], kept, int(t)), interpolation="lanczos")
            axis.set_title(f"{times_s[t]:.1f} s, {here[t]} kept", fontsize=8)
            axis.set_xticks([])
            axis.set_yticks([])
        row[0].set_ylabel(contender.name, fontsize=9)
    return figure


def _timeline(new: Any, shown: Sequence[Contender], place: int, label: str, times_s: np.ndarray) -> Any:
    figure = new(figsize=(10, 0.9 * len(shown) + 1.1))
    figure.set_layout_engine("constrained")
    axes = figure.subplots(len(shown), 1, squeeze=False, sharex=True)[:, 0]
    for axis, contender in zip(axes, shown, strict=True):
        counts = per_second(contender.kept[place], times_s)
        axis.bar(np.arange(len(counts)), counts, width=1, align="edge", color=KEPT, alpha=0.8, linewidth=0)
        axis.set_ylabel(contender.name, rotation=0, ha="right", va="center", fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_title(f"Tokens kept in each second at {label}", fontsize=11)
    axes[-1].set_xlabel("seconds")
    return figure


def _scatter(new: Any, shown: Sequence[Contender], place: int, label: str) -> Any:
    figure = new(figsize=(6, 5))
    figure.set_layout_engine("constrained")
    axis = figure.subplots()
    axis.axhline(0, color=DROPPED, linewidth=0.8)
    axis.axvline(0, color=DROPPED, linewidth=0.8)
    for contender in shown:
        x, y = contender.scatter[place]
        axis.plot(x, y, "o", color=KEPT)
        axis.annotate(contender.name, (x, y), textcoords="offset points", xytext=(6, 4), fontsize=9)
    axis.margins(0.2)
    axis.set_xlabel("averaged sum coverage, z-scored (representativeness)")
    axis.set_ylabel("averaged distance, z-scored (diversity)")
    axis.set_title(f"Representativeness and diversity at {label}", fontsize=11)
    return figure


def _tsne(new: Any, shown: Sequence[Contender], place: int, label: str, projection: Projection) -> Any:
    columns = min(3, len(shown))
    rows = -(-len(shown) // columns)
    figure = new(figsize=(3.6 * columns, 3.6 * rows + 0.4))
    figure.set_layout_engine("constrained")
    figure.suptitle(f"t-SNE of {len(projection.indices)} tokens; kept at {label} in green", fontsize=11)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes[len(shown) :]:
        axis.set_visible(False)
    for axis, contender in zip(axes, shown, strict=False):
        kept = np.isin(projection.indices, np.asarray(contender.kept[place].indices))
        axis.scatter(*projection.xy[~kept].T, s=3, color=DROPPED, linewidths=0)
        axis.scatter(*projection.xy[kept].T, s=9, color=KEPT, linewidths=0)
        axis.set_title(contender.name, fontsize=9)
        axis.set_xticks([])
        axis.set_yticks([])
    return figure


def _far_apart(counts: np.ndarray, most: int) -> np.ndarray:
    """Of as many stretches of the film, in each the frame that keeps most."""
    parts = np.array_split(np.arange(len(counts)), min(most, len(counts)))
    return np.array([part[counts[part].argmax()] for part in parts])
