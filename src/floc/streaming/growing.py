"""The past of a stream with a ratio: all blocks, each with its own picks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from floc._arrays import convert_like, take_rows, to_input_type, to_numpy
from floc.budget import Budget
from floc.kept import Kept
from floc.ranking import Ranking
from floc.representatives import RankedRepresentation
from floc.selection.engine import History, Solution
from floc.selection.objective import SCALE
from floc.streaming.past import Selector, StreamBlock


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

    def keep(
        self, selector: Selector, rest: Sequence[StreamBlock], cells: tuple[int, int], numpy_dtype: np.dtype | None
    ) -> Kept:
        picked = [*self.blocks, *(self._select(selector, block) for block in rest)]
        frame_tokens = cells[0] * cells[1]
        sizes = np.array([len(block.times) * frame_tokens for block in picked])
        count = self.budget.count(int(sizes.sum()))
        solutions = [block.solution for block in picked]
        ranking = Ranking.merge(solutions, sizes, rising=selector.similarity.is_plain_cosine).truncate(count)
        indices = np.sort(ranking.picks)
        flat = np.concatenate([start + s.picks for start, s in zip(sizes.cumsum() - sizes, solutions, strict=True)])
        by_index = np.argsort(flat)
        places = by_index[np.searchsorted(flat[by_index], indices)]
        features = to_input_type(take_rows(torch.cat([block.features for block in picked]), places), numpy_dtype)
        times = np.concatenate([block.times for block in picked])
        return Kept.from_host(
            features,
            ranking.picks,
            ranking.gains,
            (len(times), *cells),
            nested=True,
            representation=RankedRepresentation(ranking, count),
            times_s=convert_like(features, times[indices // frame_tokens]),
        )

    def metadata(self) -> dict[str, Any]:
        return {"next_gains": [block.solution.next_gain for block in self.blocks]}

    def tensors(self) -> dict[str, torch.Tensor]:
        if not self.blocks:
            return {}
        rows = [_to_columns(block) for block in self.blocks]
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        tensors = {name: torch.from_numpy(np.concatenate(parts)) for name, parts in columns.items()}
        tensors |= {f"{name}.lengths": torch.tensor([len(part) for part in parts]) for name, parts in columns.items()}
        return {**tensors, "features": torch.cat([block.features for block in self.blocks])}

    def restore(self, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, Any]) -> None:
        if not metadata["next_gains"]:
            return
        picks, gains, token, rank, cosine, times = (
            np.split(to_numpy(tensors[name]), np.cumsum(to_numpy(tensors[f"{name}.lengths"]))[:-1])
            for name in ("picks", "gains", "token", "rank", "cosine", "block_times")
        )
        features = tensors["features"].split([len(part) for part in picks])
        for i, (next_gain, part) in enumerate(zip(metadata["next_gains"], features, strict=True)):
            solution = Solution(picks[i], gains[i], next_gain, History(token[i], rank[i], cosine[i]))
            self.blocks.append(_PickedBlock(solution, part, times[i]))


def _to_columns(block: _PickedBlock) -> dict[str, np.ndarray]:
    """Return the arrays of a block by the names under which they are saved."""
    solution = block.solution
    assert solution.history is not None
    columns = {"picks": solution.picks, "gains": solution.gains, "block_times": block.times}
    return columns | solution.history._asdict()  # token, rank, cosine
