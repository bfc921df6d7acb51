"""Where scenes begin, from the tokens alone, and blocks that follow them.

Frames of one scene are alike cell by cell. So a frame breaks with those before it as far as the tokens at the same
place differ, on average over all places: the mean of 1 - cos. It is measured in the same mean over any two tokens of
the video, from any places and times: at 0 nothing has changed, at 1 a place tells nothing of what was there before,
which is what a cut does. So no encoder needs a threshold of its own, and a person who walks through a room stays low.

A frame begins a scene where its break is nearer to 1 than to the video's median break, so that noise and motion, which
raise all breaks, do not count as cuts. Measured on real footage this finds what multiples of the median deviation
above the median do not: those see a cut wherever a still video moves, and none where all moves.

One frame that shows something else, a flash or an insert, makes no scene: a break counts only if the frame is also
unlike the last but one, and the one after it unlike the one before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch

from . import blocks
from .arrays import Array
from .blocks import Block
from .standing import normalised
from .types import TokenGrid

SHORTEST = 4  # frames: less is no scene to choose from, but a moment of the one around it
LONGEST = 64  # frames: the matrix of a block grows with the square of its length
# A median break above this says that frames are no more alike than any two: then nothing goes on that a cut could end.
CONTINUOUS = 0.9
TILE_BYTES = 1 << 24  # of frames in float32 at a time: near the caches of a CPU, and enough for a GPU
NO_SPREAD = 1e-5  # tokens that differ less are the same but for rounding in float32
ROUNDING_S = 0.0005  # containers round times to milliseconds


def spans(grid: TokenGrid, block: Block) -> list[slice]:
    """The frames of each block of a video: of `block` frames, from given first frames on, or one or more to a scene."""
    frames = grid.shape[0]
    return blocks.split(frames, _split(grid.tokens, SHORTEST, LONGEST) if isinstance(block, str) else block)


def cuts(tokens: Array, *, shortest: int = SHORTEST) -> list[int]:
    """The frames at which another scene begins, ascending.

    Args:
        tokens: [T, H, W, D] or [T, N, D], as for `floc.compress`.
        shortest: frames that a scene has at least; of cuts that are closer, the clearest count.

    >>> here, there = torch.eye(4)[:2], torch.eye(4)[2:]  # two places of two tokens each
    >>> cuts(torch.stack([here] * 7 + [there] * 5 + [here] * 6))
    [7, 12]
    """
    _require_lengths(shortest)
    return _cuts(TokenGrid.of(tokens).tokens, shortest)


def split(tokens: Array, *, shortest: int = SHORTEST, longest: int = LONGEST) -> list[int]:
    """The first frame of each block where blocks follow scenes: what `block="scene"` does, for other lengths.

    Args:
        tokens: [T, H, W, D] or [T, N, D].
        shortest: frames that a scene has at least.
        longest: frames that a block has at most; a longer scene is cut into equal parts.

    >>> here, there = torch.eye(4)[:2], torch.eye(4)[2:]
    >>> split(torch.stack([here] * 20 + [there] * 5), longest=8)
    [0, 6, 13, 20]
    """
    _require_lengths(shortest, longest)
    return _split(TokenGrid.of(tokens).tokens, shortest, longest)


def from_scenedetect(
    path: Path | str, times_s: Sequence[float] | np.ndarray, *, shortest: int = SHORTEST, longest: int = LONGEST
) -> list[int]:
    """The first frame of each block, for `block=`, where blocks follow the scenes that PySceneDetect finds in a file.

    It looks at every frame of the file, not only at those that were sampled.

    Args:
        path: the video.
        times_s: [T] when each sampled frame is shown, ascending: `footage.load(path).footage.times_s`.
        shortest, longest: as for `split`.
    """
    _require_lengths(shortest, longest)
    times = np.asarray(times_s, np.float64)
    if times.ndim != 1 or not len(times) or not (np.diff(times) > 0).all():
        raise ValueError(f"times_s must be [T] seconds, ascending, one for each frame; got {times_s!r}")
    if not Path(path).exists():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        import scenedetect
    except ImportError as error:
        raise ImportError(
            "scenes from the file need PySceneDetect: pip install 'floc[scenes]', "
            "or pass block='scene', which finds them in the tokens"
        ) from error
    found = scenedetect.detect(str(path), scenedetect.AdaptiveDetector())
    begin = np.searchsorted(times, [start.seconds - ROUNDING_S for start, _ in found[1:]])
    return _evened([0, *_spaced(begin.tolist(), len(times), shortest)], len(times), longest)


def breaks(tokens: torch.Tensor) -> np.ndarray:
    """[T] how much each frame of [T, H, W, D] breaks with those before it: 0 not at all, 1 as any two tokens differ.

    >>> here, there = torch.eye(4)[None, :2], torch.eye(4)[None, 2:]  # two places of two tokens each
    >>> breaks(torch.stack([here, here, there, there])).round(2).tolist()
    [0.0, 0.0, 1.33, 0.0]
    """
    apart, spread = _differences(tokens)
    if spread < NO_SPREAD:
        return np.zeros(len(tokens))
    found, two_before = apart
    found[2:] = np.minimum(found[2:], two_before[2:])
    found[1:-1] = np.minimum(found[1:-1], two_before[2:])
    return found / spread


def _differences(tokens: torch.Tensor) -> tuple[np.ndarray, float]:
    """The mean of 1 - cos between same places of frames, and between any two tokens, in one pass.

    Returns:
        [2, T] of each frame with the one before it and with the last but one, 0 where there is none; and of any two.
    """
    frames, height, width, dim = tokens.shape
    cells = height * width
    apart = np.zeros((2, frames))
    total, squares = np.zeros(dim), 0.0
    step = max(1, TILE_BYTES // (4 * cells * dim))
    for start in range(0, frames, step):
        first = max(0, start - 2)
        unit = normalised(tokens[first : start + step]).flatten(1)  # [B, H*W*D]
        square = _dots(unit, unit) / cells  # 1, but less where there are zero tokens
        for lag in (1, 2):
            product = _dots(unit[lag:], unit[:-lag]) / cells
            apart[lag - 1, first + lag : start + step] = (square[lag:] + square[:-lag]) / 2 - product
        new = unit[start - first :]
        total += new.view(-1, dim).sum(0).double().cpu().numpy()
        squares += float(square[start - first :].sum())
    mean = total / (frames * cells)
    return apart, squares / frames - float(mean @ mean)


def _dots(a: torch.Tensor, b: torch.Tensor) -> np.ndarray:
    """[B] float64, of each row of [B, N] with the same row of another."""
    if a.device.type == "cpu":  # row by row it is six times as fast as in one product
        return np.array([float(torch.dot(x, y)) for x, y in zip(a, b, strict=True)])
    return torch.einsum("bn,bn->b", a, b).cpu().double().numpy()


def _cuts(tokens: torch.Tensor, shortest: int) -> list[int]:
    frames = len(tokens)
    if frames < 2 * shortest:
        return []
    found = breaks(tokens)
    usual = float(np.median(found[1:]))
    if usual > CONTINUOUS:
        return []
    clearest_first = np.argsort(-found, kind="stable")
    above = found[clearest_first] > (usual + 1) / 2
    return _spaced(clearest_first[above].tolist(), frames, shortest)


def _split(tokens: torch.Tensor, shortest: int, longest: int) -> list[int]:
    return _evened([0, *_cuts(tokens, shortest)], len(tokens), longest)


def _spaced(candidates: Iterable[int], frames: int, shortest: int) -> list[int]:
    """Of frames at which scenes may begin, best first, those that leave every scene its length; ascending.

    >>> _spaced([9, 7, 4, 18], frames=20, shortest=3)
    [4, 9]
    """
    free = np.zeros(frames + 1, bool)
    free[shortest : frames - shortest + 1] = True
    found = []
    for frame in candidates:
        if free[frame]:
            found.append(frame)
            free[max(0, frame - shortest + 1) : frame + shortest] = False
    return sorted(found)


def _evened(starts: Sequence[int], frames: int, longest: int) -> list[int]:
    """First frames with more in between, where it is long from one to the next.

    >>> _evened([0, 10], frames=24, longest=10)
    [0, 10, 17]
    """
    found = []
    for start, end in zip(starts, [*starts[1:], frames], strict=True):
        parts = -(-(end - start) // longest)
        found += [start + (end - start) * part // parts for part in range(parts)]
    return found


def _require_lengths(shortest: int, longest: int | None = None) -> None:
    if not blocks.is_count(shortest):
        raise ValueError(f"shortest must be a number of frames, at least 1; got {shortest!r}")
    if longest is not None and not (blocks.is_count(longest) and longest >= 2 * shortest - 1):
        raise ValueError(
            f"longest must be a number of frames, at least {2 * shortest - 1}, so that half of a scene that is longer "
            f"is not below shortest={shortest}; got {longest!r}"
        )
