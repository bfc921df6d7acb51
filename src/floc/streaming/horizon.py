"""The past of a stream with a ratio and a horizon: blocks that are selected from with the frames around them.

A block waits until 2 * horizon later frames are known. Greedy starts from the tokens that the stream keeps of earlier
blocks, and selects from the block and the later frames together. Its first picks in the block, twice the block's share,
are stored; picks in the later frames are left to the next block. Of all stored picks the stream keeps those with the
largest gains, as many as the ratio says. A video that ends before its first block is complete is selected from at once:
the result is that of `floc.compress`.
"""

import heapq
import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from floc._arrays import convert_like, take_rows, to_input_type
from floc._checked_file import CheckedFile, Fields
from floc._checks import require
from floc.budget import Budget
from floc.kept import Kept
from floc.ranking import Ranking
from floc.representatives import RankedRepresentation
from floc.selection.engine import History, Solution
from floc.selection.objective import SCALE
from floc.streaming.past import SavedStream, Selector, StreamBlock, concatenate_columns, is_within, read_columns

STORED = 2  # picks of a block that are stored, per token of its share
_DEEPER = 1.5  # picks are also made in the later frames, not always in proportion


@dataclass(frozen=True)
class _StoredPicks:
    """The first picks in a block, and the tokens that they represent, numbered from the start of the video."""

    picks: np.ndarray  # [P] int64, in the order they were made
    gains: np.ndarray  # [P] int64 fixed point
    token: np.ndarray  # [E] int64, a token around the block
    pick: np.ndarray  # [E] int64, a kept token that represents it better than the one before
    cosine: np.ndarray  # [E] float64, of the two
    block_times: np.ndarray  # [frames]


class HorizonPast:
    """Stores the first picks of all blocks; the methods are those of `BoundedPast`."""

    def __init__(self, budget: Budget, horizon: int) -> None:
        self.budget, self.horizon = budget, horizon
        self.blocks: list[_StoredPicks] = []
        self.features: list[torch.Tensor] = []  # [P, D] of each block's picks
        self.frames = 0
        # gains of the picks that would be kept if the stream had ended now, and the others, negative: two heaps
        self._kept_gains: list[int] = []
        self._other_gains: list[int] = []

    def add(self, selector: Selector, block: StreamBlock) -> None:
        stored = self._select(selector, block)
        self.features.append(self._take_features(stored, block))
        self._append(stored, block.cells)

    def _append(self, stored: _StoredPicks, cells: int) -> None:
        history = {name: getattr(stored, name).astype(dtype) for name, dtype in _SHORT.items()}
        self.blocks.append(replace(stored, **history))
        self.frames += len(stored.block_times)
        for gain in stored.gains.tolist():
            heapq.heappush(self._other_gains, -heapq.heappushpop(self._kept_gains, gain))
        for _ in range(self.budget.count(self.frames * cells) - len(self._kept_gains)):
            heapq.heappush(self._kept_gains, -heapq.heappop(self._other_gains))

    def _select(self, selector: Selector, block: StreamBlock) -> _StoredPicks:
        cells, first = block.cells, block.before * block.cells
        stop = len(block.flat) - block.after * cells
        start = self.frames * cells - first  # of the frames before the block, in the video
        compared = selector.crop(block.flat)
        given = self._list_kept(start, cells) - start
        count = min(stop - first, STORED * self.budget.count(stop - first))
        depth = count if not block.after else math.ceil(_DEEPER * count * (len(compared) - first) / (stop - first))
        frames: Any = dict(given=given, first=first, stop=stop if block.after else None)
        while True:
            depth = min(depth, len(compared) - first)
            solution = selector.select_within(self.horizon, compared, cells, depth, with_cosines=True, **frames)
            if len(solution.picks) >= len(given) + count:
                break
            depth *= 2
        own, picks = slice(len(given), len(given) + count), start + solution.picks
        assert solution.history is not None
        token, rank, cosine = solution.history
        assert cosine is not None
        entries = rank < own.stop
        times = block.times[block.before : len(block.times) - block.after]
        changes = start + token[entries], picks[rank[entries]], cosine[entries]
        return _StoredPicks(picks[own], solution.gains[own], *changes, times)

    def _take_features(self, stored: _StoredPicks, block: StreamBlock) -> torch.Tensor:
        return take_rows(block.flat, stored.picks - (self.frames - block.before) * block.cells)

    def _list_kept(self, start: int, cells: int) -> np.ndarray:
        """Return the tokens from number `start` on that would be kept if the stream had ended after the last block."""
        if not self.blocks:
            return np.zeros(0, np.int64)
        last = self.blocks[-1]
        return np.sort(last.picks[(last.picks >= start) & (last.gains >= self._kept_gains[0])])

    def keep(self, selector: Selector, rest: list[StreamBlock], cells: tuple[int, int], dtype: np.dtype | None) -> Kept:
        blocks, features, frame_tokens = self.blocks, self.features, cells[0] * cells[1]
        for block in rest:  # at most one
            stored = self._select(selector, block)
            blocks, features = [*blocks, stored], [*features, self._take_features(stored, block)]
        times = np.concatenate([stored.block_times for stored in blocks])
        n = len(times) * frame_tokens
        count = self.budget.count(n)
        picks, order = np.concatenate([stored.picks for stored in blocks]), _order_by_gain(blocks, frame_tokens)
        ranking = _rank(blocks, picks, order, count, n)
        places = order[:count][np.argsort(picks[order[:count]])]
        kept = to_input_type(take_rows(torch.cat(features), places), dtype)
        times_s, shape = convert_like(kept, times[picks[places] // frame_tokens]), (len(times), *cells)
        fields = dict(times_s=times_s, representation=RankedRepresentation(ranking, count))
        return Kept.from_host(kept, ranking.picks, ranking.gains, shape, nested=True, **fields)

    def metadata(self) -> dict[str, Any]:
        return {}

    def tensors(self) -> dict[str, torch.Tensor]:
        if not self.blocks:
            return {}
        columns = concatenate_columns([asdict(stored) for stored in self.blocks])
        columns |= {name: columns[name].to(dtype) for name, dtype in _COLUMNS.items()}
        return {**columns, "features": torch.cat(self.features)}

    def restore(self, file: CheckedFile, metadata: Fields, saved: SavedStream) -> None:
        if saved.complete == 0:
            return
        assert saved.block is not None
        for columns in read_columns(file, _COLUMNS):
            stored = _StoredPicks(**columns)
            self._check(f"block {len(self.blocks)}", stored, saved)
            self._append(stored, saved.cells)
        require(self.frames == saved.complete, f"its blocks have {self.frames} frames, not {saved.complete}")
        saved.require_times(np.concatenate([stored.block_times for stored in self.blocks]))
        counts = [len(stored.picks) for stored in self.blocks]
        self.features = [*saved.read_features(file, sum(counts)).split(counts)]

    def _check(self, name: str, stored: _StoredPicks, saved: SavedStream) -> None:
        """Raise ValueError unless the next block can have these picks."""
        assert saved.block is not None
        size, total = saved.block * saved.cells, saved.complete * saved.cells
        picks, gains = stored.picks - self.frames * saved.cells, stored.gains
        count = min(size, STORED * self.budget.count(size))
        frames = len(stored.block_times)
        require(frames == saved.block, f"{name} must have {saved.block} frames, got {frames}")
        require(len(picks) == len(gains) == count, f"{name} must have {count} picks and gains, got {len(picks)}")
        require(
            is_within(picks, size) and len(np.unique(picks)) == count, f"the picks of {name} must differ and be in it"
        )
        is_falling = (np.diff(gains) <= 0).all() and gains[-1] >= 0 and gains[0] <= 2 * SCALE * total
        require(is_falling, f"the gains of {name} must not rise, and be from 0 to {2 * total}")
        lengths = {len(stored.token), len(stored.pick), len(stored.cosine)}
        require(len(lengths) == 1, f"the history of {name} must have as many tokens as picks and cosines")
        known = (saved.frames + saved.waiting) * saved.cells
        is_known = is_within(stored.token, known) and is_within(stored.pick, total)
        require(is_known, f"the history of {name} names other tokens")
        require((abs(stored.cosine) <= 1.001).all(), f"the cosines in the history of {name} must be in [-1, 1]")


# the types of a stored history, which is most of a stream's memory besides features
_SHORT = {"token": np.int32, "pick": np.int32, "cosine": np.float32}
# how the arrays of a block are saved
_COLUMNS = dict.fromkeys(("picks", "gains", "token", "pick"), torch.int64)
_COLUMNS |= dict.fromkeys(("cosine", "block_times"), torch.float64)


def _order_by_gain(blocks: list[_StoredPicks], frame_tokens: int) -> np.ndarray:
    """Return the places of all stored picks, the largest gain first; picks without a gain are shared evenly."""
    # a pick cannot come before those it builds on: without a horizon the first gain can be smaller than the second
    due = np.concatenate([np.minimum.accumulate(stored.gains) for stored in blocks])
    share = np.concatenate([np.arange(len(s.picks)) / (len(s.block_times) * frame_tokens) for s in blocks])
    return np.lexsort((np.where(due > 0, 0, share), -due))  # equal ones stay in the order of blocks, and of their picks


def _rank(blocks: list[_StoredPicks], picks: np.ndarray, order: np.ndarray, count: int, n: int) -> Ranking:
    """Rank the first `count` picks, with their history; the bound of one block is that of `floc.compress`."""
    gains = np.concatenate([stored.gains for stored in blocks])
    token, pick, cosine = (
        np.concatenate([getattr(stored, name) for stored in blocks]) for name in ("token", "pick", "cosine")
    )
    kept = picks[order[:count]]
    by_index = np.argsort(kept)
    place = np.searchsorted(kept[by_index], pick).clip(max=count - 1)
    is_kept = kept[by_index[place]] == pick
    rank = by_index[place]
    history = History(token[is_kept], rank[is_kept], cosine[is_kept])
    next_gain = None
    if len(blocks) == 1:
        next_gain = float(gains[order[count]]) if count < len(order) else 0.0
    solution = Solution(kept, gains[order[:count]], next_gain, history)
    # what represents a token at a border may be recorded twice, and in another order
    return Ranking.merge([solution.scale(SCALE)], np.array([n]), rising=len(blocks) == 1)
