"""Draw kept tokens on video frames, and write the figures of a comparison as PNG files with matplotlib."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from floc._arrays import to_numpy
from floc._atomic import write_atomic
from floc.analysis.metrics import count_per_frame, count_per_second
from floc.analysis.projection import Projection
from floc.kept import Kept

if TYPE_CHECKING:
    from floc.analysis.compare import Comparison
    from floc.video.thumbnails import Thumbnails

GREEN = (34, 197, 94)
DIMMED = 0.35  # brightness of dropped patches
KEPT = tuple(value / 255 for value in GREEN)
DROPPED = (0.72, 0.74, 0.78)
FRAMES_SHOWN = 5


def overlay(pixels: np.ndarray, kept: Kept, t: int) -> np.ndarray:
    """Return a copy of frame t with kept patches boxed in green and dropped patches dimmed.

    Args:
        pixels: [height, width, 3] uint8, the frame in any size.
        kept: the kept tokens of the video.
        t: frame number in the token grid, from 0.
    """
    frames, rows, columns = kept.shape
    if not 0 <= t < frames:
        raise ValueError(f"t must be one of the {frames} frames of the tokens, 0 to {frames - 1}; got {t}")
    height, width, _ = pixels.shape
    tops = np.rint(np.arange(rows + 1) * height / rows).astype(np.int64)
    lefts = np.rint(np.arange(columns + 1) * width / columns).astype(np.int64)
    line = max(1, round(min(height / rows, width / columns) / 16))
    picture = (pixels * DIMMED).astype(np.uint8)
    positions = to_numpy(kept.positions)
    for y, x in positions[positions[:, 0] == t, 1:]:
        picture[tops[y] : tops[y + 1], lefts[x] : lefts[x + 1]] = GREEN
        inside = slice(tops[y] + line, tops[y + 1] - line), slice(lefts[x] + line, lefts[x + 1] - line)
        picture[inside] = pixels[inside]
    return picture


def save_plots(
    folder: Path, comparison: Comparison, times_s: np.ndarray, thumbnails: Thumbnails, projection: Projection
) -> list[Path]:
    """Write frames.png, timeline.png, scatter.png and tsne.png for the smallest measured ratio; return the files.

    Args:
        folder: created if necessary.
        times_s: [T] the time of each frame.
        thumbnails: pictures of the T frames.
        projection: a sample of tokens in the plane.
    """
    from matplotlib.figure import Figure

    step = max(index for index, step in enumerate(comparison.steps) if step.requested)
    results = [result for result in comparison.results if step in result.kept]
    kept = {result.name: result.kept[step] for result in results}
    label = comparison.steps[step].label
    figures = {name: Figure(layout="constrained") for name in ("frames", "timeline", "scatter", "tsne")}
    _plot_frames(figures["frames"], kept, label, times_s, thumbnails)
    _plot_timeline(figures["timeline"], kept, label, times_s)
    _plot_scatter(figures["scatter"], {result.name: result.scatter[step] for result in results}, label)
    _plot_tsne(figures["tsne"], kept, label, projection)
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        write_atomic(folder / f"{name}.png", partial(figure.savefig, format="png", dpi=150))
    return [folder / f"{name}.png" for name in figures]


def _plot_frames(figure: Any, kept: dict[str, Kept], label: str, times_s: np.ndarray, thumbnails: Thumbnails) -> None:
    """Plot a row of frames per method. From each stretch of the video, show the frame with the most kept tokens."""
    counts = [count_per_frame(selection) for selection in kept.values()]
    total = np.sum(counts, 0)
    stretches = np.array_split(np.arange(len(total)), min(FRAMES_SHOWN, len(total)))
    frames = [int(stretch[total[stretch].argmax()]) for stretch in stretches]
    row_height = 2.6 * thumbnails.height / thumbnails.width + 0.35
    figure.set_size_inches(2.6 * len(frames), row_height * len(kept) + 0.6)
    figure.suptitle(f"Kept at {label}: boxed in green. Dropped: dimmed", fontsize=11)
    axes = figure.subplots(len(kept), len(frames), squeeze=False, subplot_kw={"xticks": [], "yticks": []})
    for row, (name, selection), count in zip(axes, kept.items(), counts, strict=True):
        row[0].set_ylabel(name, fontsize=9)
        for axis, t in zip(row, frames, strict=True):
            axis.imshow(overlay(thumbnails[t], selection, t), interpolation="lanczos")
            axis.set_title(f"{times_s[t]:.1f} s, {count[t]} kept", fontsize=8)


def _plot_timeline(figure: Any, kept: dict[str, Kept], label: str, times_s: np.ndarray) -> None:
    figure.set_size_inches(10, 0.9 * len(kept) + 1.1)
    axes = figure.subplots(len(kept), 1, squeeze=False, sharex=True)[:, 0]
    for axis, (name, selection) in zip(axes, kept.items(), strict=True):
        counts = count_per_second(selection, times_s)
        axis.bar(np.arange(len(counts)), counts, width=1, align="edge", color=KEPT, alpha=0.8, linewidth=0)
        axis.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_title(f"Tokens kept per second at {label}", fontsize=11)
    axes[-1].set_xlabel("seconds")


def _plot_scatter(figure: Any, points: dict[str, tuple[float, float]], label: str) -> None:
    figure.set_size_inches(6, 5)
    axis = figure.subplots()
    axis.axhline(0, color=DROPPED, linewidth=0.8)
    axis.axvline(0, color=DROPPED, linewidth=0.8)
    for name, point in points.items():
        axis.plot(*point, "o", color=KEPT)
        axis.annotate(name, point, textcoords="offset points", xytext=(6, 4), fontsize=9)
    axis.margins(0.2)
    axis.set_xlabel("averaged sum coverage, z-scored (representativeness)")
    axis.set_ylabel("averaged distance, z-scored (diversity)")
    axis.set_title(f"Representativeness and diversity at {label}", fontsize=11)


def _plot_tsne(figure: Any, kept: dict[str, Kept], label: str, projection: Projection) -> None:
    columns = min(3, len(kept))
    rows = -(-len(kept) // columns)
    figure.set_size_inches(3.6 * columns, 3.6 * rows + 0.4)
    figure.suptitle(f"t-SNE of {len(projection.indices)} tokens; kept at {label} in green", fontsize=11)
    for place, (name, selection) in enumerate(kept.items(), 1):
        axis = figure.add_subplot(rows, columns, place, title=name, xticks=[], yticks=[])
        is_kept = np.isin(projection.indices, to_numpy(selection.indices))
        axis.scatter(*projection.xy[~is_kept].T, s=3, color=DROPPED, linewidths=0)
        axis.scatter(*projection.xy[is_kept].T, s=9, color=KEPT, linewidths=0)
        axis.title.set_fontsize(9)
