"""Scene detection from tokens, and blocks that follow scenes.

Frames of one scene are similar cell by cell. So the break at a frame is the mean of 1 - cos between tokens of the same
cell in this frame and in the previous one, relative to the same mean over any two tokens of the video. A break of 0
means that nothing changed, a break of 1 that a cell says nothing about its previous content, as after a cut. This
relative measure needs no threshold per encoder, and a person who walks through a room keeps it low.

A frame starts a scene if its break is closer to 1 than to the video's median break, so that noise and motion, which
raise all breaks, do not count as cuts. A single different frame, such as a flash, does not make a scene: a break counts
only if the frame also differs from the last but one, and the next frame from the previous one.
"""

import itertools
import math
from collections.abc import Iterable

import numpy as np
import torch

from floc import blocks
from floc._arrays import Array, iterate_tiles
from floc._checks import check_count, is_positive_int
from floc.blocks import BlockSpec
from floc.representatives import normalize
from floc.tokens import TokenGrid

SHORTEST = 4  # frames; a shorter scene belongs to the scene around it
LONGEST = 64  # frames: the similarity matrix of a block grows with the square of its length
# With a median break above this, frames are no more similar than any two tokens: there are no scenes to separate.
CONTINUOUS = 0.9
TILE_BYTES = 1 << 24  # of frames in float32 at a time: about the size of CPU caches, and enough for a GPU
NO_SPREAD = 1e-5  # tokens that differ less are equal up to float32 rounding


def find_blocks(grid: TokenGrid, block: BlockSpec) -> list[slice]:
    """Return the frames of each block of a video; see `BlockSpec`."""
    starts = _split(grid.tokens, SHORTEST, LONGEST) if isinstance(block, str) else block
    return blocks.split_blocks(grid.shape[0], starts)


def find_cuts(tokens: Array, *, shortest: int = SHORTEST) -> list[int]:
    """Find the frames at which a new scene starts, ascending.

    Args:
        tokens: [T, H, W, D] or [T, N, D], as for `floc.compress`.
        shortest: Minimum length of a scene in frames; of cuts that are closer, the clearest count.

    >>> a, b = torch.eye(4)[:2], torch.eye(4)[2:]  # two scenes of two tokens each
    >>> find_cuts(torch.stack([a] * 7 + [b] * 5 + [a] * 6))
    [7, 12]
    """
    check_count("shortest", shortest, "frames")
    return _find_cuts(TokenGrid.from_array(tokens).tokens, shortest)


def split_scenes(tokens: Array, *, shortest: int = SHORTEST, longest: int = LONGEST) -> list[int]:
    """Return the first frame of each block if blocks follow scenes, as `block="scene"` does, for other lengths.

    Args:
        tokens: [T, H, W, D] or [T, N, D].
        shortest: Minimum length of a scene in frames.
        longest: Maximum length of a block in frames; a longer scene is split into equal parts.

    >>> a, b = torch.eye(4)[:2], torch.eye(4)[2:]
    >>> split_scenes(torch.stack([a] * 20 + [b] * 5), longest=8)
    [0, 6, 13, 20]
    """
    check_count("shortest", shortest, "frames")
    if not (is_positive_int(longest) and longest >= 2 * shortest - 1):
        least = f"at least {2 * shortest - 1}, so that half of a longer scene is not below shortest={shortest}"
        raise ValueError(f"longest must be a whole number of frames, {least}; got {longest!r}")
    return _split(TokenGrid.from_array(tokens).tokens, shortest, longest)


def measure_breaks(tokens: torch.Tensor) -> np.ndarray:
    """Return [T], the break at each frame of [T, H, W, D]: 0 for no change, 1 for as much as between any two tokens.

    >>> a, b = torch.eye(4)[None, :2], torch.eye(4)[None, 2:]  # two scenes of two tokens each
    >>> measure_breaks(torch.stack([a, a, b, b])).round(2).tolist()
    [0.0, 0.0, 1.33, 0.0]
    """
    (breaks, two_before), total, squares = measure_differences(tokens)
    spread = compute_spread(total, squares, len(tokens), tokens.shape[1] * tokens.shape[2])
    if spread < NO_SPREAD:
        return np.zeros(len(tokens))
    breaks[2:] = np.minimum(breaks[2:], two_before[2:])
    breaks[1:-1] = np.minimum(breaks[1:-1], two_before[2:])
    return breaks / spread


def measure_differences(tokens: torch.Tensor) -> tuple[np.ndarray, np.ndarray, float]:
    """Measure the mean of 1 - cos between equal cells of frames, and the sums that `compute_spread` needs.

    Returns:
        [2, T] differences of each frame to the previous one and to the last but one, 0 for the first frames; [D] the
        sum of all normalized tokens; the sum over frames of the mean squared length of these, 0 for zero tokens.
    """
    frames, height, width, dim = tokens.shape
    cells = height * width
    differences = np.zeros((2, frames))
    total, squares = np.zeros(dim), 0.0
    for part in iterate_tiles(frames, 4 * cells * dim, TILE_BYTES):
        first = max(0, part.start - 2)
        unit = normalize(tokens[first : part.stop]).flatten(1)  # [B, H*W*D]
        square = _dot_rows(unit, unit) / cells  # 1, or less if there are zero tokens
        for lag in (1, 2):
            product = _dot_rows(unit[lag:], unit[:-lag]) / cells
            differences[lag - 1, first + lag : part.stop] = (square[lag:] + square[:-lag]) / 2 - product
        new = unit[part.start - first :]
        total += new.reshape(-1, dim).sum(0).double().cpu().numpy()
        squares += float(square[part.start - first :].sum())
    return differences, total, squares


def compute_spread(total: np.ndarray, squares: float, frames: int, cells: int) -> float:
    """Return the mean of 1 - cos between any two tokens, from the sums of `measure_differences`."""
    mean = total / (frames * cells)
    return squares / frames - float(mean @ mean)


def _dot_rows(a: torch.Tensor, b: torch.Tensor) -> np.ndarray:
    """Return [B] float64, the dot product of each row of [B, N] with the same row of another."""
    if a.device.type == "cpu":  # six times as fast row by row as in one product
        return np.array([float(torch.dot(x, y)) for x, y in zip(a, b, strict=True)])
    return torch.einsum("bn,bn->b", a, b).cpu().double().numpy()


def _find_cuts(tokens: torch.Tensor, shortest: int) -> list[int]:
    if len(tokens) < 2 * shortest:
        return []
    breaks = measure_breaks(tokens)
    median = float(np.median(breaks[1:]))
    if median > CONTINUOUS:
        return []
    return space_cuts(find_clearest(breaks, (median + 1) / 2), len(tokens), shortest)


def find_clearest(breaks: np.ndarray, least: float) -> list[int]:
    """Return the frames whose break is above `least`, the largest first."""
    order = np.argsort(-breaks, kind="stable")
    return order[breaks[order] > least].tolist()


def space_cuts(candidates: Iterable[int], frames: int, shortest: int) -> list[int]:
    """Keep those cuts, best first, that leave every scene at least `shortest` frames; returns them ascending.

    >>> space_cuts([9, 7, 4, 18], frames=20, shortest=3)
    [4, 9]
    """
    free = np.zeros(frames + 1, bool)
    free[shortest : frames - shortest + 1] = True
    cuts = []
    for frame in candidates:
        if free[frame]:
            cuts.append(frame)
            free[max(0, frame - shortest + 1) : frame + shortest] = False
    return sorted(cuts)


def _split(tokens: torch.Tensor, shortest: int, longest: int) -> list[int]:
    starts = []
    for start, end in itertools.pairwise([0, *_find_cuts(tokens, shortest), len(tokens)]):
        parts = math.ceil((end - start) / longest)
        starts += [start + (end - start) * part // parts for part in range(parts)]
    return starts
