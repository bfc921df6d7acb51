"""The past of a stream with a budget: survivors that carry the sums of the tokens they represent, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from floc._arrays import convert_like, copy_rows, take_rows, to_input_type, to_numpy
from floc._system import release_memory
from floc.kept import Kept
from floc.representatives import SummedRepresentation
from floc.second_pass import SurvivorSelection, select_survivors
from floc.selection.objective import SCALE
from floc.streaming.past import Selector, StreamBlock

DEDUPE = 1.25  # less than for `floc.compress`: every survivor of a block adds to the cost of a reduction
# Survivors that are stored before a reduction, per survivor that remains. A reduction costs the square of their number,
# and more room means fewer reductions: the total cost is least at 2.
ROOM = 2.0


@dataclass(frozen=True, eq=False)
class _Survivors:
    """Tokens that represent others, and the sums of these."""

    features: torch.Tensor  # [M, D]
    sums: torch.Tensor  # [M, D] float32, of the normalised tokens that each represents
    index: np.ndarray  # [M] int64, flat index in the whole video
    time_s: np.ndarray  # [M]

    def __len__(self) -> int:
        return len(self.index)

    def head(self, count: int) -> _Survivors:
        """Return a view of the first ones."""
        return _Survivors(*(getattr(self, name)[:count] for name in _COLUMNS))


_COLUMNS = ("features", "sums", "index", "time_s")


class _SurvivorBuffer:
    """Survivors in one contiguous buffer, which grows to its limit and is then reused."""

    def __init__(self, survivors: _Survivors, limit: int) -> None:
        self.limit = limit
        self.count = 0
        self.memory = survivors
        self.replace(survivors)

    def view(self) -> _Survivors:
        return self.memory.head(self.count)

    def add(self, new: _Survivors) -> None:
        end = self.count + len(new)
        if end > len(self.memory):
            self._grow(min(self.limit, max(end, 2 * len(self.memory))))
        for name in ("features", "sums"):
            copy_rows(getattr(self.memory, name), self.count, getattr(new, name))
        for name in ("index", "time_s"):
            getattr(self.memory, name)[self.count : end] = getattr(new, name)
        self.count = end

    def replace(self, survivors: _Survivors) -> None:
        self.count = 0
        self.add(survivors)

    def _grow(self, size: int) -> None:
        held, before = self.view(), self.memory
        self.memory = _Survivors(
            before.features.new_empty(size, before.features.shape[1]),
            before.sums.new_empty(size, before.sums.shape[1]),
            np.empty(size, np.int64),
            np.empty(size),
        )
        self.replace(held)


class BoundedPast:
    """See `Past`: survivors, which are reduced to the budget by another selection whenever there are too many."""

    def __init__(self, budget: int, dedupe: float, half_life_s: float | None) -> None:
        self.budget = budget
        self.dedupe = dedupe
        self.half_life_s = half_life_s
        self.most = math.ceil(ROOM * budget)  # survivors that are stored before a reduction
        self.buffer: _SurvivorBuffer | None = None
        self.frames = 0
        self.counted = 0.0  # tokens so far, less what has decayed
        self.bar = 0.0  # the smallest gain in the last reduction, less what has decayed
        self.until_s = 0.0
        self.reductions = 0

    def add(self, selector: Selector, block: StreamBlock) -> None:
        new = self._select(selector, block)
        self._decay(block)
        if self.buffer is None:
            self.buffer = _SurvivorBuffer(new, self._limit())
        else:
            if self.buffer.count + len(new) > self.most and self.buffer.count > self.budget:
                survivors, self.bar = _reduce(selector, self.buffer.view(), self.budget)
                self.buffer.replace(survivors)
                self.reductions += 1
            self.buffer.add(new)
        self.counted += len(block.flat)
        self.frames += len(block.tokens)
        release_memory()  # selections would fragment it, block after block

    def _decay(self, block: StreamBlock) -> None:
        """Reduce the weight of the past to what it is after a block."""
        decay = self._compute_decay(block)
        if self.buffer is not None and decay < 1:
            self.buffer.view().sums.mul_(decay)
        self.counted *= decay
        self.bar *= decay
        self.until_s = float(block.times[-1])

    def _select(self, selector: Selector, block: StreamBlock) -> _Survivors:
        """Select a block's survivors: its share of the budget, and more if these gain more than the past's last."""
        flat, compared = block.flat, selector.crop(block.flat)
        n, decay = len(flat), self._compute_decay(block)
        part = n / (self.counted * decay + n)  # of all tokens, less what has decayed
        share, most = min(n, math.ceil(self.budget * part)), min(n, self._count_survivors(part))
        solution = selector.select(compared, most, with_cosines=False)
        assert solution.history is not None
        count = max(share, int(np.count_nonzero(solution.gains / SCALE > self.bar * decay)))
        cluster = solution.history.representatives(n, count)
        directions, lengths = selector.engine.sum_by_cluster([(compared, cluster)], count, unit=True)
        picks = solution.picks[:count]
        return _Survivors(
            take_rows(flat, picks),
            directions.to(flat.device) * torch.from_numpy(lengths).to(flat.device, torch.float32)[:, None],
            self.frames * block.cells + picks,
            block.times[picks // block.cells],
        )

    def _count_survivors(self, part: float) -> int:
        """Return the maximum number of survivors of a block that is this part of all tokens."""
        return math.ceil(self.dedupe * self.budget * part)

    def _limit(self) -> int:
        return max(self.most, self.budget + self._count_survivors(1.0))

    def _compute_decay(self, block: StreamBlock) -> float:
        """Return the fraction of the past's weight that is left after a block."""
        if self.half_life_s is None or self.buffer is None:
            return 1.0
        return 0.5 ** ((float(block.times[-1]) - self.until_s) / self.half_life_s)

    def keep(
        self, selector: Selector, rest: Sequence[StreamBlock], cells: tuple[int, int], numpy_dtype: np.dtype | None
    ) -> Kept:
        if rest:
            return self._copy_with(selector, rest[0]).keep(selector, rest[1:], cells, numpy_dtype)
        assert self.buffer is not None
        held = self.buffer.view()
        lengths, directions = _split_sums(held.sums)
        selection = _select_again(selector, held, directions, lengths, min(self.budget, len(held)))
        picked = held.index[selection.picks]
        places = selection.picks[np.argsort(picked)]
        indices = held.index[places]
        features = take_rows(held.features, places)
        given = to_input_type(features, numpy_dtype)
        return Kept.from_host(
            given,
            indices,
            np.searchsorted(indices, picked),
            selection.gains,
            (self.frames, *cells),
            nested=True,
            representation=SummedRepresentation(directions, lengths, self.counted, selector.crop(features)),
            times_s=convert_like(given, held.time_s[places]),
        )

    def _copy_with(self, selector: Selector, block: StreamBlock) -> BoundedPast:
        """Return a copy of the past with one more block, without a reduction."""
        new, decay = self._select(selector, block), self._compute_decay(block)
        held = new.head(0) if self.buffer is None else self.buffer.view()
        both = _Survivors(
            torch.cat([held.features, new.features]),
            torch.cat([held.sums * decay, new.sums]),
            np.concatenate([held.index, new.index]),
            np.concatenate([held.time_s, new.time_s]),
        )
        copy = BoundedPast(self.budget, self.dedupe, self.half_life_s)
        copy.buffer, copy.bar = _SurvivorBuffer(both, len(both)), self.bar * decay
        copy.frames, copy.counted = self.frames + len(block.tokens), self.counted * decay + len(block.flat)
        copy.until_s = float(block.times[-1])
        return copy

    def metadata(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _NUMBERS}

    def tensors(self) -> dict[str, torch.Tensor]:
        if self.buffer is None:
            return {}
        held = self.buffer.view()
        return {name: torch.as_tensor(getattr(held, name)) for name in _COLUMNS}

    def restore(self, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, Any]) -> None:
        for name in _NUMBERS:
            setattr(self, name, metadata[name])
        if self.frames:
            index, time_s = to_numpy(tensors["index"]), to_numpy(tensors["time_s"])
            held = _Survivors(tensors["features"], tensors["sums"], index, time_s)
            if len({len(getattr(held, name)) for name in _COLUMNS}) > 1:
                raise ValueError("the numbers of survivors, sums, indices and times differ")
            self.buffer = _SurvivorBuffer(held, self._limit())


_NUMBERS = ("frames", "counted", "bar", "until_s", "reductions")  # that are saved


def _reduce(selector: Selector, held: _Survivors, count: int) -> tuple[_Survivors, float]:
    """Select `count` survivors, and add the sums of the others to those of their heirs.

    Returns:
        The remaining survivors, and their smallest gain.
    """
    lengths, directions = _split_sums(held.sums)
    selection = _select_again(selector, held, directions, lengths, count)
    heir = torch.from_numpy(selection.heir).to(held.sums.device)
    sums = torch.zeros(count, held.sums.shape[1], device=held.sums.device).index_add(0, heir, held.sums)
    by_index = np.argsort(held.index[selection.picks])
    picks = selection.picks[by_index]
    remaining = _Survivors(
        take_rows(held.features, picks), take_rows(sums, by_index), held.index[picks], held.time_s[picks]
    )
    return remaining, float(selection.gains.min())


def _select_again(
    selector: Selector, held: _Survivors, directions: torch.Tensor, lengths: np.ndarray, count: int
) -> SurvivorSelection:
    return select_survivors(selector.engine, selector.similarity, held.features, directions, lengths, count)


def _split_sums(sums: torch.Tensor) -> tuple[np.ndarray, torch.Tensor]:
    """Return the [M] lengths and [M, D] directions of sums."""
    lengths = torch.linalg.vector_norm(sums, dim=1)
    return to_numpy(lengths).astype(np.float64), sums / lengths.clamp(min=1e-30)[:, None]
