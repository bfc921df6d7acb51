"""The past of a stream with a ratio: all blocks, each with its own picks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ..arrays import as_given, like, numpy_of
from ..dials import Dial
from ..path import Choice, joined
from ..selection.engine import Engine, Job
from ..selection.objective import Similarity
from ..types import Kept


@dataclass(frozen=True, eq=False)
class _Block:
    """What is held of a block: picks a little further than its share goes, so that shares may shift by one."""

    choice: Choice
    features: torch.Tensor  # [picks, D]
    times: np.ndarray  # [frames]


class Growing:
    """The past with a ratio: all blocks, each with its own picks."""

    def __init__(self, dial: Dial) -> None:
        self.dial = dial
        self.blocks: list[_Block] = []
        self.cells: tuple[int, int] | None = None  # rows, columns

    def add(self, engine: Engine, similarity: Similarity, tokens: torch.Tensor, times: Sequence[float]) -> None:
        self.cells = (tokens.shape[1], tokens.shape[2])
        self.blocks.append(self._chosen(engine, similarity, tokens, times))

    def _chosen(self, engine: Engine, similarity: Similarity, tokens: torch.Tensor, times: Sequence[float]) -> _Block:
        flat = tokens.flatten(0, 2)
        depth = min(len(flat), self.dial.count(len(flat)) + 1)
        (solution,) = engine.solve([Job(flat, depth)], similarity, with_cosines=True)
        return _Block(solution.choice(), flat[torch.from_numpy(solution.picks).to(flat.device)], np.array(times))

    def kept(
        self,
        engine: Engine,
        similarity: Similarity,
        rest: torch.Tensor | None,
        times: Sequence[float],
        numpy_dtype: np.dtype | None,
    ) -> Kept:
        held = [*self.blocks, *([self._chosen(engine, similarity, rest, times)] if rest is not None else [])]
        rows, columns = self.cells or rest.shape[1:3]  # type: ignore[union-attr]
        cells = rows * columns
        sizes = np.array([len(each.times) * cells for each in held])
        path = joined([each.choice for each in held], sizes, shared=True, rising=similarity.is_plain_cosine)
        count = self.dial.count(int(sizes.sum()))
        path = path.upto(count)
        answer = path.answer(count)
        flat = np.concatenate([o + each.choice.picks for o, each in zip(sizes.cumsum() - sizes, held, strict=True)])
        in_order = np.argsort(flat)
        places = in_order[np.searchsorted(flat[in_order], answer.indices)]
        features = torch.cat([each.features for each in held])
        chosen = as_given(features[torch.from_numpy(places).to(features.device)], numpy_dtype)
        all_times = np.concatenate([each.times for each in held])
        kept = Kept.from_answer(answer, chosen, (len(all_times), rows, columns), path)
        return replace(kept, times_s=like(chosen, all_times[answer.indices // cells]))

    def about(self) -> dict[str, Any]:
        return {"cells": self.cells, "next_gains": [each.choice.next_gain for each in self.blocks]}

    def state(self) -> dict[str, torch.Tensor]:
        if not self.blocks:
            return {}
        columns = {
            name: [getattr(each.choice, name) for each in self.blocks]
            for name in ("picks", "gains", "token", "rank", "cosine")
        }
        columns["block_times"] = [each.times for each in self.blocks]
        state = {name: torch.from_numpy(np.concatenate(parts)) for name, parts in columns.items()}
        state |= {f"{name}.lengths": torch.tensor([len(each) for each in parts]) for name, parts in columns.items()}
        return {**state, "features": torch.cat([each.features for each in self.blocks])}

    def restore(self, state: Mapping[str, torch.Tensor], about: Mapping[str, Any]) -> None:
        if about["cells"] is None:
            return
        self.cells = tuple(about["cells"])
        parts = {
            name: np.split(numpy_of(state[name]), np.cumsum(numpy_of(state[f"{name}.lengths"]))[:-1])
            for name in ("picks", "gains", "token", "rank", "cosine", "block_times")
        }
        features = state["features"].split([len(each) for each in parts["picks"]])
        for i, (next_gain, few) in enumerate(zip(about["next_gains"], features, strict=True)):
            arrays: Any = {name: parts[name][i] for name in ("picks", "gains", "token", "rank", "cosine")}
            self.blocks.append(_Block(Choice(**arrays, next_gain=next_gain), few, parts["block_times"][i]))
