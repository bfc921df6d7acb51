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

In a video that goes on (`Running`) all of this is measured in what was seen until then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from floc import blocks
from floc._arrays import Array
from floc._checks import is_positive_int
from floc.blocks import BlockSpec
from floc.representatives import normalize
from floc.tokens import TokenGrid

SHORTEST = 4  # frames: less is no scene to choose from, but a moment of the one around it
LONGEST = 64  # frames: the matrix of a block grows with the square of its length
# A median break above this says that frames are no more alike than any two: then nothing goes on that a cut could end.
CONTINUOUS = 0.9
TILE_BYTES = 1 << 24  # of frames in float32 at a time: near the caches of a CPU, and enough for a GPU
RECENT = 1024  # frames of a video that goes on whose breaks are remembered for the median
NO_SPREAD = 1e-5  # tokens that differ less are the same but for rounding in float32
ROUNDING_S = 0.0005  # containers round times to milliseconds


def find_blocks(grid: TokenGrid, block: BlockSpec) -> list[slice]:
    """The frames of each block of a video: of `block` frames, from given first frames on, or one or more to a scene."""
    frames = grid.shape[0]
    return blocks.split_blocks(frames, _split(grid.tokens, SHORTEST, LONGEST) if isinstance(block, str) else block)


def find_cuts(tokens: Array, *, shortest: int = SHORTEST) -> list[int]:
    """The frames at which another scene begins, ascending.

    Args:
        tokens: [T, H, W, D] or [T, N, D], as for `floc.compress`.
        shortest: frames that a scene has at least; of cuts that are closer, the clearest count.

    >>> here, there = torch.eye(4)[:2], torch.eye(4)[2:]  # two places of two tokens each
    >>> find_cuts(torch.stack([here] * 7 + [there] * 5 + [here] * 6))
    [7, 12]
    """
    _require_lengths(shortest)
    return _cuts(TokenGrid.from_array(tokens).tokens, shortest)


def split_scenes(tokens: Array, *, shortest: int = SHORTEST, longest: int = LONGEST) -> list[int]:
    """The first frame of each block where blocks follow scenes: what `block="scene"` does, for other lengths.

    Args:
        tokens: [T, H, W, D] or [T, N, D].
        shortest: frames that a scene has at least.
        longest: frames that a block has at most; a longer scene is cut into equal parts.

    >>> here, there = torch.eye(4)[:2], torch.eye(4)[2:]
    >>> split_scenes(torch.stack([here] * 20 + [there] * 5), longest=8)
    [0, 6, 13, 20]
    """
    _require_lengths(shortest, longest)
    return _split(TokenGrid.from_array(tokens).tokens, shortest, longest)


def from_scenedetect(
    path: Path | str, times_s: Sequence[float] | np.ndarray, *, shortest: int = SHORTEST, longest: int = LONGEST
) -> list[int]:
    """The first frame of each block, for `block=`, where blocks follow the scenes that PySceneDetect finds in a file.

    It looks at every frame of the file, not only at those that were sampled.

    Args:
        path: the video.
        times_s: [T] when each sampled frame is shown, ascending: `load_tokens(path).times_s`.
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
            "scenes from the file need PySceneDetect: pip install 'floc-video[scenes]', "
            "or pass block='scene', which finds them in the tokens"
        ) from error
    found = scenedetect.detect(str(path), scenedetect.AdaptiveDetector())
    begin = np.searchsorted(times, [start.seconds - ROUNDING_S for start, _ in found[1:]])
    return _evened([0, *_spaced(begin.tolist(), len(times), shortest)], len(times), longest)


def measure_breaks(tokens: torch.Tensor) -> np.ndarray:
    """[T] how much each frame of [T, H, W, D] breaks with those before it: 0 not at all, 1 as any two tokens differ.

    >>> here, there = torch.eye(4)[None, :2], torch.eye(4)[None, 2:]  # two places of two tokens each
    >>> measure_breaks(torch.stack([here, here, there, there])).round(2).tolist()
    [0.0, 0.0, 1.33, 0.0]
    """
    (found, two_before), total, squares = _differences(tokens)
    spread = _spread(total, squares, len(tokens), tokens.shape[1] * tokens.shape[2])
    if spread < NO_SPREAD:
        return np.zeros(len(tokens))
    found[2:] = np.minimum(found[2:], two_before[2:])
    found[1:-1] = np.minimum(found[1:-1], two_before[2:])
    return found / spread


def _differences(tokens: torch.Tensor) -> tuple[np.ndarray, np.ndarray, float]:
    """The mean of 1 - cos between same places of frames, and what the same between any two tokens is found from.

    Returns:
        [2, T] of each frame with the one before it and with the last but one, 0 where there is none; [D] the sum of all
        tokens at length 1; and the sum over frames of the mean square of these lengths.
    """
    frames, height, width, dim = tokens.shape
    cells = height * width
    apart = np.zeros((2, frames))
    total, squares = np.zeros(dim), 0.0
    step = max(1, TILE_BYTES // (4 * cells * dim))
    for start in range(0, frames, step):
        first = max(0, start - 2)
        unit = normalize(tokens[first : start + step]).flatten(1)  # [B, H*W*D]
        square = _dots(unit, unit) / cells  # 1, but less where there are zero tokens
        for lag in (1, 2):
            product = _dots(unit[lag:], unit[:-lag]) / cells
            apart[lag - 1, first + lag : start + step] = (square[lag:] + square[:-lag]) / 2 - product
        new = unit[start - first :]
        total += new.view(-1, dim).sum(0).double().cpu().numpy()
        squares += float(square[start - first :].sum())
    return apart, total, squares


def _spread(total: np.ndarray, squares: float, frames: int, cells: int) -> float:
    """The mean of 1 - cos between any two tokens."""
    mean = total / (frames * cells)
    return squares / frames - float(mean @ mean)


def _dots(a: torch.Tensor, b: torch.Tensor) -> np.ndarray:
    """[B] float64, of each row of [B, N] with the same row of another."""
    if a.device.type == "cpu":  # row by row it is six times as fast as in one product
        return np.array([float(torch.dot(x, y)) for x, y in zip(a, b, strict=True)])
    return torch.einsum("bn,bn->b", a, b).cpu().double().numpy()


class RunningScenes:
    """Blocks that follow scenes while a video goes on: where they end shows a few frames later, or when they are long.

    A break is held against those of the last `RECENT` frames, in the spread of all tokens until then, and counts when
    no clearer one can come that is too close to it. A scene that does not end is cut in two when it has `LONGEST`
    frames, so parts of a long one have half of that, and its last part up to all of it.
    """

    room = LONGEST

    def __init__(self, dim: int | None = None) -> None:
        """Args:
        dim: how many features are compared, the first ones; None: all.
        """
        self.dim = dim
        self.frames = 0
        self.apart: list[tuple[float, float]] = []  # of each frame that waits, with the one before and the last but one
        self.recent: deque[float] = deque(maxlen=RECENT)  # breaks, not yet measured in the spread
        self.total: np.ndarray | None = None  # [D] the sum of all tokens at length 1
        self.squares = 0.0
        self.cells = 0

    def see(self, room: torch.Tensor, waiting: int) -> None:
        """Look at the first frames of a [room, H, W, D], those that wait; the last of them is new."""
        latest = room[max(0, waiting - 3) : waiting, ..., : self.dim]
        (_, total, squares), (apart, _, _) = _differences(latest[-1:]), _differences(latest)
        self.total = total if self.total is None else self.total + total
        self.squares += squares
        self.frames += 1
        self.cells = latest.shape[1] * latest.shape[2]
        one, two = apart[:, -1].tolist()
        self.apart.append((one, two if self.frames > 2 else np.inf))
        if self.frames > 2:  # the first frame breaks with nothing, and the latest is not known yet
            self.recent.append(float(self._breaks()[-1]))

    def complete(self, waiting: int) -> int:
        """How many of the frames that wait are a block; 0 where that cannot be told yet."""
        begin = self._begin()
        if begin and (waiting > max(begin) + SHORTEST or waiting == self.room):
            cuts = _spaced(begin, waiting, SHORTEST)
            if cuts:
                return cuts[0]
        return self.room // 2 if waiting == self.room else 0

    def forget(self, frames: int) -> None:
        """The first ones do not wait any more."""
        self.apart = self.apart[frames:]

    def rest(self, waiting: int) -> list[int]:
        """How many frames each block would have if no more came."""
        cuts = _spaced(self._begin(), waiting, SHORTEST)
        return np.diff([0, *cuts, waiting]).tolist() if waiting else []

    def about(self) -> dict[str, Any]:
        """What is saved of it, as JSON takes it."""
        total = None if self.total is None else self.total.tolist()
        return {**{name: getattr(self, name) for name in _NUMBERS}, "recent": [*self.recent], "total": total}

    def restore(self, about: Mapping[str, Any]) -> None:
        """Become what was saved."""
        for name in _NUMBERS:
            setattr(self, name, about[name])
        self.apart = [(one, two) for one, two in about["apart"]]
        self.recent.extend(about["recent"])
        self.total = None if about["total"] is None else np.array(about["total"])

    def _breaks(self) -> np.ndarray:
        """[t - 1] of all frames that wait but the last, whose break the next one tells."""
        one, two = np.array(self.apart).T
        return np.minimum(np.minimum(one, two)[:-1], two[1:])

    def _begin(self) -> list[int]:
        """Frames that wait at which a scene may begin, the clearest first."""
        if not self.recent or len(self.apart) < 2:
            return []
        assert self.total is not None, "something was seen"
        spread, usual = _spread(self.total, self.squares, self.frames, self.cells), float(np.median(self.recent))
        if spread < NO_SPREAD or usual > CONTINUOUS * spread:
            return []
        return _clearest(self._breaks(), (usual + spread) / 2)


_NUMBERS = ("frames", "apart", "squares", "cells")  # of `Running`, that are saved as they are


def _cuts(tokens: torch.Tensor, shortest: int) -> list[int]:
    frames = len(tokens)
    if frames < 2 * shortest:
        return []
    found = measure_breaks(tokens)
    usual = float(np.median(found[1:]))
    if usual > CONTINUOUS:
        return []
    return _spaced(_clearest(found, (usual + 1) / 2), frames, shortest)


def _clearest(breaks: np.ndarray, least: float) -> list[int]:
    """The frames whose break is above some level, the largest first."""
    order = np.argsort(-breaks, kind="stable")
    return order[breaks[order] > least].tolist()


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
    if not is_positive_int(shortest):
        raise ValueError(f"shortest must be a number of frames, at least 1; got {shortest!r}")
    if longest is not None and not (is_positive_int(longest) and longest >= 2 * shortest - 1):
        raise ValueError(
            f"longest must be a number of frames, at least {2 * shortest - 1}, so that half of a scene that is longer "
            f"is not below shortest={shortest}; got {longest!r}"
        )
