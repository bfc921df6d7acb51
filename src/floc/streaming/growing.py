"""The past of a stream with a ratio: all blocks, each with its own picks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from floc._arrays import convert_like, take_rows, to_input_type, to_numpy
from floc.budget import Budget
from floc.kept import Kept
from floc.ranking import Choice, joined
from floc.streaming.past import Chooser, Piece


@dataclass(frozen=True, eq=False)
class _Block:
    """What is held of a block: picks a little further than its share goes, so that shares may shift by one."""

    choice: Choice
    features: torch.Tensor  # [picks, D]
    times: np.ndarray  # [frames]


class Growing:
    """See `Past`."""

    def __init__(self, dial: Budget) -> None:
        self.dial = dial
        self.blocks: list[_Block] = []

    def add(self, chooser: Chooser, block: Piece) -> None:
        self.blocks.append(self._chosen(chooser, block))

    def _chosen(self, chooser: Chooser, block: Piece) -> _Block:
        flat = block.flat
        depth = min(len(flat), self.dial.count(len(flat)) + 1)
        solution = chooser.choose(chooser.compared(flat), depth, with_cosines=True)
        return _Block(solution.choice(), take_rows(flat, solution.picks), block.times)

    def kept(
        self, chooser: Chooser, rest: Sequence[Piece], cells: tuple[int, int], numpy_dtype: np.dtype | None
    ) -> Kept:
        held = [*self.blocks, *(self._chosen(chooser, each) for each in rest)]
        of_a_frame = cells[0] * cells[1]
        sizes = np.array([len(each.times) * of_a_frame for each in held])
        path = joined([each.choice for each in held], sizes, shared=True, rising=chooser.similarity.is_plain_cosine)
        count = self.dial.count(int(sizes.sum()))
        path = path.upto(count)
        answer = path.answer(count)
        flat = np.concatenate([o + each.choice.picks for o, each in zip(sizes.cumsum() - sizes, held, strict=True)])
        in_order = np.argsort(flat)
        places = in_order[np.searchsorted(flat[in_order], answer.indices)]
        chosen = to_input_type(take_rows(torch.cat([each.features for each in held]), places), numpy_dtype)
        times = np.concatenate([each.times for each in held])
        kept = Kept.from_answer(answer, chosen, (len(times), *cells), path)
        return replace(kept, times_s=convert_like(chosen, times[answer.indices // of_a_frame]))

    def about(self) -> dict[str, Any]:
        return {"next_gains": [each.choice.next_gain for each in self.blocks]}

    def state(self) -> dict[str, torch.Tensor]:
        if not self.blocks:
            return {}
        columns = {name: [getattr(each.choice, name) for each in self.blocks] for name in _CHOICE}
        columns["block_times"] = [each.times for each in self.blocks]
        state = {name: torch.from_numpy(np.concatenate(parts)) for name, parts in columns.items()}
        state |= {f"{name}.lengths": torch.tensor([len(each) for each in parts]) for name, parts in columns.items()}
        return {**state, "features": torch.cat([each.features for each in self.blocks])}

    def restore(self, state: Mapping[str, torch.Tensor], about: Mapping[str, Any]) -> None:
        if not about["next_gains"]:
            return
        parts = {
            name: np.split(to_numpy(state[name]), np.cumsum(to_numpy(state[f"{name}.lengths"]))[:-1])
            for name in (*_CHOICE, "block_times")
        }
        features = state["features"].split([len(each) for each in parts["picks"]])
        for i, (next_gain, few) in enumerate(zip(about["next_gains"], features, strict=True)):
            arrays: Any = {name: parts[name][i] for name in _CHOICE}
            self.blocks.append(_Block(Choice(**arrays, next_gain=next_gain), few, parts["block_times"][i]))


_CHOICE = ("picks", "gains", "token", "rank", "cosine")  # arrays of a choice that are saved
