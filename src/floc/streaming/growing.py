"""The past of a stream with a ratio: all blocks, each with its own picks."""

from dataclasses import dataclass
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


@dataclass(frozen=True, eq=False)
class _PickedBlock:
    """The picks of a block: one more than its share, because shares can shift by one as the video grows."""

    solution: Solution
    features: torch.Tensor  # [picks, D]
    times: np.ndarray  # [frames]


class GrowingPast:
    """Stores the picks of all blocks; the methods are those of `BoundedPast`."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.blocks: list[_PickedBlock] = []

    def add(self, selector: Selector, block: StreamBlock) -> None:
        self.blocks.append(self._select(selector, block))

    def _select(self, selector: Selector, block: StreamBlock) -> _PickedBlock:
        depth = min(len(block.flat), self.budget.count(len(block.flat)) + 1)
        solution = selector.select(selector.crop(block.flat), depth, with_cosines=True)
        return _PickedBlock(solution.scale(SCALE), take_rows(block.flat, solution.picks), block.times)

    def keep(self, selector: Selector, rest: list[StreamBlock], cells: tuple[int, int], dtype: np.dtype | None) -> Kept:
        picked = [*self.blocks, *(self._select(selector, block) for block in rest)]
        frame_tokens = cells[0] * cells[1]
        sizes = np.array([len(block.times) * frame_tokens for block in picked])
        count = self.budget.count(int(sizes.sum()))
        solutions = [block.solution for block in picked]
        ranking = Ranking.merge(solutions, sizes, rising=selector.similarity.metric == "cosine").truncate(count)
        indices = np.sort(ranking.picks)
        flat = np.concatenate([start + s.picks for start, s in zip(sizes.cumsum() - sizes, solutions, strict=True)])
        by_index = np.argsort(flat)
        places = by_index[np.searchsorted(flat[by_index], indices)]
        features = to_input_type(take_rows(torch.cat([block.features for block in picked]), places), dtype)
        times = np.concatenate([block.times for block in picked])
        times_s, shape = convert_like(features, times[indices // frame_tokens]), (len(times), *cells)
        fields = dict(times_s=times_s, representation=RankedRepresentation(ranking, count))
        return Kept.from_host(features, ranking.picks, ranking.gains, shape, nested=True, **fields)

    def metadata(self) -> dict[str, Any]:
        return {"next_gains": [block.solution.next_gain for block in self.blocks]}

    def tensors(self) -> dict[str, torch.Tensor]:
        if not self.blocks:
            return {}
        rows = [(b.solution.picks, b.solution.gains, b.times, *(b.solution.history or ())) for b in self.blocks]
        columns: Any = [dict(zip(_COLUMNS, row, strict=True)) for row in rows]
        return {**concatenate_columns(columns), "features": torch.cat([block.features for block in self.blocks])}

    def restore(self, file: CheckedFile, metadata: Fields, saved: SavedStream) -> None:
        if saved.frames == 0:
            metadata.numbers("next_gains", 0)
            return
        blocks = read_columns(file, _COLUMNS)
        next_gains = metadata.numbers("next_gains", len(blocks), 0)
        times = np.concatenate([block["block_times"] for block in blocks])
        require(len(times) == saved.frames, f"its blocks have {len(times)} frames, not {saved.frames}")
        saved.require_times(times)
        counts = [len(block["picks"]) for block in blocks]
        features = saved.read_features(file, sum(counts)).split(counts)
        for i, block in enumerate(blocks):
            picks, gains, block_times, *history = block.values()
            frames = saved.block or max(1, len(block_times))
            require(len(block_times) == frames, f"block {i} must have {frames} frames, got {len(block_times)}")
            solution = Solution(picks, gains, next_gains[i], History(*history))
            _check_solution(f"block {i}", solution, frames * saved.cells, self.budget)
            self.blocks.append(_PickedBlock(solution, features[i], block_times))


# the arrays of a block, by the names under which they are saved; the last three are its history
_COLUMNS = {"picks": torch.int64, "gains": torch.float64, "block_times": torch.float64}
_COLUMNS |= {"token": torch.int64, "rank": torch.int64, "cosine": torch.float64}


def _check_solution(name: str, solution: Solution, n: int, budget: Budget) -> None:
    """Raise ValueError unless a block of `n` tokens can have this solution."""
    picks, gains = solution.picks, np.append(solution.gains, solution.next_gain or 0)
    history: Any = solution.history
    token, rank, cosine = history
    count = min(n, budget.count(n) + 1)
    require(len(picks) == len(gains) - 1 == count, f"{name} must have {count} picks and gains, got {len(picks)}")
    require(is_within(picks, n) and len(np.unique(picks)) == count, f"the picks of {name} must differ and be below {n}")
    require(abs(gains[0]) <= n and gains[1] <= 2 * n, f"the gains of {name} must be at most {2 * n}")
    require((np.diff(gains[1:]) <= 0).all(), f"the gains of {name} must not rise after the second pick")
    # every token is represented from the first pick on: with that, `n` is limited by the length of the file
    require(len(token) == len(rank) == len(cosine) >= n, f"the history of {name} must have at least {n} entries")
    require(is_within(token, n) and is_within(rank, count), f"the history of {name} names other tokens or picks")
    require((np.diff(rank) >= 0).all(), f"the ranks in the history of {name} must not descend")
    require((abs(cosine) <= 1.001).all(), f"the cosines in the history of {name} must be in [-1, 1]")
    require(len(np.unique(token[rank == 0])) == n, f"the first pick of {name} must represent every token")
    own = np.isin(picks * count + np.arange(count), token * count + rank)
    require(own.all(), f"every pick of {name} must represent itself")
