"""The past of a stream with a budget: survivors that carry the sums of what they stand for, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from floc import blocks
from floc._arrays import convert_like, copy_rows, take_rows, to_input_type, to_numpy
from floc._system import release_memory
from floc.kept import Kept
from floc.representatives import SummedRepresentatives
from floc.selection.engine import Targets
from floc.selection.objective import SCALE
from floc.streaming.past import Chooser, Piece

DEDUPE = 1.25  # less than `floc.compress` takes: every survivor of a block costs a choice from all there are
# Survivors held before they are chosen from again, for each one that stays. A choice costs the square of what is held,
# and there are fewer the more is held: 2 makes the sum of it least.
ROOM = 2.0
TOGETHER = 12_288  # survivors that are chosen from together, as in a second pass: their matrix takes 300 MB
WEIGHT_LIMIT = 2.0**30  # weights add up to no more, so that exact gains fit 64 bits


@dataclass(frozen=True, eq=False)
class _Survivors:
    """Tokens that stand for others, and the sums of those."""

    features: torch.Tensor  # [M, D]
    sums: torch.Tensor  # [M, D] float32, of the normalised tokens each stands for
    index: np.ndarray  # [M] int64, flat index in the whole video
    time_s: np.ndarray  # [M]

    def __len__(self) -> int:
        return len(self.index)

    def upto(self, count: int) -> _Survivors:
        """The first ones, in the same memory."""
        return _Survivors(*(getattr(self, name)[:count] for name in _COLUMNS))


_COLUMNS = ("features", "sums", "index", "time_s")


class _Room:
    """Survivors one after another in one piece of memory, which grows to its limit and then stays where it is."""

    def __init__(self, few: _Survivors, limit: int) -> None:
        self.limit = limit
        self.count = 0
        self.memory = few
        self.put(few)

    def held(self) -> _Survivors:
        return self.memory.upto(self.count)

    def add(self, new: _Survivors) -> None:
        until = self.count + len(new)
        if until > len(self.memory):
            self._grow(min(self.limit, max(until, 2 * len(self.memory))))
        for name in ("features", "sums"):
            copy_rows(getattr(self.memory, name), self.count, getattr(new, name))
        for name in ("index", "time_s"):
            getattr(self.memory, name)[self.count : until] = getattr(new, name)
        self.count = until

    def put(self, few: _Survivors) -> None:
        """Put these in the place of all there were."""
        self.count = 0
        self.add(few)

    def _grow(self, room: int) -> None:
        held, before = self.held(), self.memory
        self.memory = _Survivors(
            before.features.new_empty(room, before.features.shape[1]),
            before.sums.new_empty(room, before.sums.shape[1]),
            np.empty(room, np.int64),
            np.empty(room),
        )
        self.put(held)


class _Choice(NamedTuple):
    """Some of the survivors, chosen from all of them."""

    picks: np.ndarray  # [count] int64 places, most important first
    gains: np.ndarray  # [count] what each added, in tokens
    heir: np.ndarray  # [M] int64, for every survivor the rank of the pick that stands for it


class Bounded:
    """See `Past`: survivors, chosen from again whenever they are too many."""

    def __init__(self, budget: int, dedupe: float, half_life_s: float | None) -> None:
        self.budget = budget
        self.dedupe = dedupe
        self.half_life_s = half_life_s
        self.most = math.ceil(ROOM * budget)  # survivors that are held before they are chosen from again
        self.room: _Room | None = None
        self.frames = 0
        self.counted = 0.0  # tokens there were, as far as they have not faded
        self.bar = 0.0  # what the last survivor that stayed had gained, as far as it has not faded
        self.until_s = 0.0
        self.reductions = 0

    def add(self, chooser: Chooser, block: Piece) -> None:
        new = self._survivors(chooser, block)
        self._fade(block)
        if self.room is None:
            self.room = _Room(new, max(self.most, self.budget + self._handed_on(1.0)))
        else:
            if self.room.count + len(new) > self.most and self.room.count > self.budget:
                few, self.bar = _reduced(chooser, self.room.held(), self.budget)
                self.room.put(few)
                self.reductions += 1
            self.room.add(new)
        self.counted += len(block.flat)
        self.frames += len(block.tokens)
        release_memory()  # what choices took would else scatter, block after block

    def _fade(self, block: Piece) -> None:
        """Let the past weigh what it weighs after a block."""
        fading = self._fading(block)
        if self.room is not None and fading < 1:
            self.room.held().sums.mul_(fading)
        self.counted *= fading
        self.bar *= fading
        self.until_s = float(block.times[-1])

    def _survivors(self, chooser: Chooser, block: Piece) -> _Survivors:
        """What one more block hands on: its share of the budget, and more of what gains more than the past's last."""
        flat, compared = block.flat, chooser.compared(block.flat)
        n, fading = len(flat), self._fading(block)
        part = n / (self.counted * fading + n)  # of all there was, as far as it has not faded
        share, most = min(n, math.ceil(self.budget * part)), min(n, self._handed_on(part))
        solution = chooser.choose(compared, most, with_cosines=False)
        worthy = int(np.count_nonzero(solution.gains / SCALE > self.bar * fading))
        count = max(share, worthy)
        cluster = solution.history.representatives(n, count)
        directions, lengths = chooser.engine.sum_by_cluster([(compared, cluster)], count, unit=True)
        picks = solution.picks[:count]
        return _Survivors(
            take_rows(flat, picks),
            directions.to(flat.device) * torch.from_numpy(lengths).to(flat.device, torch.float32)[:, None],
            self.frames * block.cells + picks,
            block.times[picks // block.cells],
        )

    def _handed_on(self, part: float) -> int:
        """The most that a block hands on which is such a part of all."""
        return math.ceil(self.dedupe * self.budget * part)

    def _fading(self, block: Piece) -> float:
        """What is left of the past's weight after a block."""
        if self.half_life_s is None or self.room is None:
            return 1.0
        return 0.5 ** ((float(block.times[-1]) - self.until_s) / self.half_life_s)

    def kept(
        self, chooser: Chooser, rest: Sequence[Piece], cells: tuple[int, int], numpy_dtype: np.dtype | None
    ) -> Kept:
        if rest:
            return self._and(chooser, rest[0]).kept(chooser, rest[1:], cells, numpy_dtype)
        assert self.room is not None, "there was a frame"
        held, shape = self.room.held(), (self.frames, *cells)
        lengths, directions = _split(held.sums)
        chosen = _chosen(chooser, held, directions, lengths, min(self.budget, len(held)))
        picked = held.index[chosen.picks]
        places = chosen.picks[np.argsort(picked)]
        indices = held.index[places]
        features = take_rows(held.features, places)
        given = to_input_type(features, numpy_dtype)
        return Kept(
            indices=convert_like(given, indices),
            features=given,
            positions=convert_like(given, np.stack(np.unravel_index(indices, shape), 1)),
            order=convert_like(given, np.searchsorted(indices, picked)),
            gains=convert_like(given, chosen.gains),
            shape=shape,
            nested=True,
            standing=SummedRepresentatives(directions, lengths, self.counted, chooser.compared(features), indices),
            times_s=convert_like(given, held.time_s[places]),
        )

    def _and(self, chooser: Chooser, block: Piece) -> Bounded:
        """What the past would be with one more block, without a reduction."""
        new, fading = self._survivors(chooser, block), self._fading(block)
        held = [] if self.room is None else [self.room.held()]
        both = _Survivors(
            torch.cat([*(each.features for each in held), new.features]),
            torch.cat([*(each.sums * fading for each in held), new.sums]),
            np.concatenate([*(each.index for each in held), new.index]),
            np.concatenate([*(each.time_s for each in held), new.time_s]),
        )
        more = Bounded(self.budget, self.dedupe, self.half_life_s)
        more.room, more.bar = _Room(both, len(both)), self.bar * fading
        more.frames, more.counted = self.frames + len(block.tokens), self.counted * fading + len(block.flat)
        more.until_s = float(block.times[-1])
        return more

    def about(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _NUMBERS}

    def state(self) -> dict[str, torch.Tensor]:
        if self.room is None:
            return {}
        held = self.room.held()
        return {
            "features": held.features,
            "sums": held.sums,
            "index": torch.from_numpy(held.index),
            "time_s": torch.from_numpy(held.time_s),
        }

    def restore(self, state: Mapping[str, torch.Tensor], about: Mapping[str, Any]) -> None:
        for name in _NUMBERS:
            setattr(self, name, about[name])
        if self.frames:
            held = _Survivors(state["features"], state["sums"], to_numpy(state["index"]), to_numpy(state["time_s"]))
            if len({len(getattr(held, name)) for name in _COLUMNS}) > 1:
                raise ValueError("survivors, their sums, places and times are not equally many")
            self.room = _Room(held, max(self.most, self.budget + self._handed_on(1.0)))


_NUMBERS = ("frames", "counted", "bar", "until_s", "reductions")  # that are saved


def _reduced(chooser: Chooser, held: _Survivors, stay: int) -> tuple[_Survivors, float]:
    """Choose who stays, and what the last of them gains; the sums of those who go are added to those of their heirs."""
    lengths, directions = _split(held.sums)
    chosen = _chosen(chooser, held, directions, lengths, stay)
    heir = torch.from_numpy(chosen.heir).to(held.sums.device)
    sums = torch.zeros(stay, held.sums.shape[1], device=held.sums.device).index_add(0, heir, held.sums)
    in_time = np.argsort(held.index[chosen.picks])
    picks = chosen.picks[in_time]
    few = _Survivors(take_rows(held.features, picks), take_rows(sums, in_time), held.index[picks], held.time_s[picks])
    return few, float(chosen.gains.min())


def _chosen(chooser: Chooser, held: _Survivors, directions: torch.Tensor, lengths: np.ndarray, count: int) -> _Choice:
    """Choose from survivors; of many, in windows of some that follow one another, by what each gains in its own."""
    scale = _scale(lengths)
    weights = np.rint(lengths * scale).astype(np.int64)
    parts = min(count, math.ceil(len(held) / TOGETHER))
    windows = blocks.split_blocks(len(held), math.ceil(len(held) / parts))
    solutions = [
        chooser.engine.solve_weighted(
            chooser.compared(held.features[here]),
            Targets(directions[here], lengths[here], weights[here]),
            min(count, here.stop - here.start),
            chooser.similarity,
        )
        for here in windows
    ]
    window, rank = blocks.merge_by_gain([each.gains for each in solutions])
    # a window without a pick would have no heirs: first picks go before all others
    order = np.concatenate([np.flatnonzero(rank == 0), np.flatnonzero(rank > 0)])[:count]
    window, rank = window[order], rank[order]
    picks, gains = np.empty(count, np.int64), np.empty(count)
    heir = np.empty(len(held), np.int64)
    for w, (here, solution) in enumerate(zip(windows, solutions, strict=True)):
        mine = np.flatnonzero(window == w)
        picks[mine] = here.start + solution.picks[rank[mine]]
        gains[mine] = solution.gains[rank[mine]] / (SCALE * scale)
        heir[here] = mine[solution.history.representatives(here.stop - here.start, len(mine))]
    return _Choice(picks, gains, heir)


def _split(sums: torch.Tensor) -> tuple[np.ndarray, torch.Tensor]:
    """[M] lengths and [M, D] directions."""
    lengths = torch.linalg.vector_norm(sums, dim=1)
    return to_numpy(lengths).astype(np.float64), sums / lengths.clamp(min=1e-30)[:, None]


def _scale(lengths: np.ndarray) -> float:
    """What makes lengths into whole numbers: fine, and as small as their sum requires."""
    return min(256.0, WEIGHT_LIMIT / max(1.0, float(lengths.sum())))
