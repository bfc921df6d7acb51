"""The past of a stream with a budget: survivors that carry the sums of the tokens they represent, in bounded memory."""

import copy
import math
from typing import Any, TypeAlias

import numpy as np
import torch

from floc._arrays import convert_like, copy_rows, take_rows, to_input_type
from floc._checked_file import LARGEST, CheckedFile, Fields
from floc._checks import require
from floc._system import release_memory
from floc.kept import Kept
from floc.ranking import find_nearest_place
from floc.representatives import SummedRepresentation
from floc.second_pass import select_survivors
from floc.selection.engine import Reach
from floc.selection.objective import SCALE
from floc.streaming.past import SavedStream, Selector, StreamBlock, is_within

DEDUPE = 1.25  # 2 would cover more, but every survivor of a block makes reductions slower
# Survivors that are stored before a reduction, per survivor that remains. The time of a reduction grows with the square
# of their number, and more room means fewer reductions. The total time is smallest at 2.
ROOM = 2.0

# Survivors are columns of one length: features [M, D], sums [M, D] float32 of the normalized tokens that each
# represents, and on the host index [M] int64 in the whole video and time_s [M] float64.
Survivors: TypeAlias = dict[str, torch.Tensor]


class _SurvivorBuffer:
    """Survivors in one contiguous buffer, which grows to its limit and is then reused."""

    def __init__(self, survivors: Survivors, limit: int) -> None:
        self.limit, self.count, self.memory = limit, 0, survivors
        self.replace(survivors)

    def view(self) -> Survivors:
        return {name: column[: self.count] for name, column in self.memory.items()}

    def add(self, new: Survivors) -> None:
        end, size = self.count + len(new["index"]), len(self.memory["index"])
        if end > size:
            held, size = self.view(), min(self.limit, max(end, 2 * size))
            self.memory = {name: column.new_empty(size, *column.shape[1:]) for name, column in held.items()}
            self.replace(held)
        for name, column in new.items():
            copy_rows(self.memory[name], self.count, column)
        self.count = end

    def replace(self, survivors: Survivors) -> None:
        self.count = 0
        self.add(survivors)


class BoundedPast:
    """Stores survivors, which another selection reduces to the budget whenever there are too many."""

    def __init__(self, budget: int, dedupe: float, half_life_s: float | None, horizon: int | None = None) -> None:
        self.budget = budget
        self.dedupe, self.half_life_s = dedupe, half_life_s
        self.horizon = horizon  # of a block; it grows when the past is reduced
        self.most = math.ceil(ROOM * budget)  # survivors that are stored before a reduction
        self.buffer: _SurvivorBuffer | None = None
        self.frames = self.reductions = 0
        self.counted = 0.0  # tokens so far, less what has decayed
        self.bar = 0.0  # the smallest gain in the last reduction, less what has decayed
        self.until_s = 0.0

    def add(self, selector: Selector, block: StreamBlock) -> None:
        """Add a complete block."""
        new, decay = self._select(selector, block), self._compute_decay(block)
        if self.buffer is not None and decay < 1:
            self.buffer.view()["sums"].mul_(decay)
        self._decay(block, decay)
        if self.buffer is None:
            self.buffer = _SurvivorBuffer(new, self._limit())
        else:
            if self.buffer.count + len(new["index"]) > self.most and self.buffer.count > self.budget:
                held = self.buffer.view()
                survivors, self.bar = _reduce(selector, held, self.budget, self._get_reach(held, block.cells))
                self.buffer.replace(survivors)
                self.reductions += 1
            self.buffer.add(new)
        self._count(block)
        release_memory()  # selections would fragment it, block after block

    def _decay(self, block: StreamBlock, decay: float) -> None:
        self.counted *= decay
        self.bar *= decay
        self.until_s = float(block.times[-1])

    def _count(self, block: StreamBlock) -> None:
        self.counted += len(block.flat)
        self.frames += len(block.tokens)

    def _select(self, selector: Selector, block: StreamBlock) -> Survivors:
        """Select a block's survivors: its share of the budget, and more if these gain more than the past's last."""
        flat, compared = block.flat, selector.crop(block.flat)
        n, decay = len(flat), self._compute_decay(block)
        part = n / (self.counted * decay + n)  # of all tokens, less what has decayed
        share, most = (math.ceil(min(n, factor * self.budget * part)) for factor in (1, self.dedupe))
        if self.horizon is None:
            solution = selector.select(compared, most, with_cosines=False)
        else:
            solution = selector.select_within(self.horizon, compared, block.cells, most, with_cosines=False)
        assert solution.history is not None
        count = max(share, int(np.count_nonzero(solution.gains / SCALE > self.bar * decay)))
        cluster = solution.history.representatives(n, count)
        by_index = np.argsort(solution.picks[:count])
        nearest = find_nearest_place(solution.picks[:count][by_index], np.flatnonzero(cluster < 0))
        cluster[cluster < 0] = by_index[nearest]  # what resembles no survivor within the horizon
        directions, lengths = selector.engine.sum_by_cluster([(compared, cluster)], count, unit=True)
        picks = solution.picks[:count]
        sums = directions.to(flat.device) * torch.from_numpy(lengths).to(flat.device, torch.float32)[:, None]
        index, time_s = self.frames * block.cells + picks, block.times[picks // block.cells]
        host = {"index": torch.from_numpy(index), "time_s": torch.from_numpy(time_s)}
        return {"features": take_rows(flat, picks), "sums": sums, **host}

    def _limit(self) -> int:
        return max(self.most, self.budget + math.ceil(min(self.dedupe * self.budget, LARGEST)))

    def _compute_decay(self, block: StreamBlock) -> float:
        """Return the fraction of the past's weight that is left after a block."""
        if self.half_life_s is None or self.buffer is None:
            return 1.0
        # a selection that failed for lack of memory is repeated: the past has decayed already
        return 0.5 ** (max(0.0, float(block.times[-1]) - self.until_s) / self.half_life_s)

    def keep(self, selector: Selector, rest: list[StreamBlock], cells: tuple[int, int], dtype: np.dtype | None) -> Kept:
        """Return the kept tokens of all blocks and of `rest`, which is not added.

        `cells` are rows and columns, `dtype` that of the caller's numpy arrays; None for torch.
        """
        if rest:
            return self._copy_with(selector, rest[0]).keep(selector, rest[1:], cells, dtype)
        assert self.buffer is not None
        held = self.buffer.view()
        index = held["index"].numpy()
        count = min(self.budget, len(index))
        reach = self._get_reach(held, cells[0] * cells[1])
        selection = select_survivors(*selector[:2], held["features"], held["sums"], count, reach)
        picked = index[selection.picks]
        places = selection.picks[np.argsort(picked)]
        kept = take_rows(held["features"], places)
        features, shape = to_input_type(kept, dtype), (self.frames, *cells)
        representation = SummedRepresentation(*selection.targets, self.counted, selector.crop(kept))
        fields = dict(times_s=convert_like(features, held["time_s"].numpy()[places]), representation=representation)
        return Kept.from_host(features, picked, selection.gains, shape, nested=True, **fields)

    def _get_reach(self, held: Survivors, cells: int) -> Reach | None:
        """Return how far apart survivors may represent each other: the horizon, or more if less of the past is kept."""
        if self.horizon is None:
            return None
        grown = (round(self.counted) + 4 * self.budget) // (8 * self.budget)
        return Reach(held["index"].numpy() // cells, max(self.horizon, grown))

    def _copy_with(self, selector: Selector, block: StreamBlock) -> "BoundedPast":
        """Return a copy of the past with one more block, without a reduction."""
        both, decay = self._select(selector, block), self._compute_decay(block)
        if self.buffer is not None:
            held = self.buffer.view()
            held["sums"] = held["sums"] * decay
            both = {name: torch.cat([held[name], both[name]]) for name in held}
        past = copy.copy(self)
        past.buffer = _SurvivorBuffer(both, len(both["index"]))
        past._decay(block, decay)
        past._count(block)
        return past

    def metadata(self) -> dict[str, Any]:
        """Return the JSON-serialisable part of the state to save."""
        return {name: getattr(self, name) for name in ("frames", "counted", "bar", "until_s", "reductions")}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors to save; none before the first block."""
        return {} if self.buffer is None else self.buffer.view()

    def restore(self, file: CheckedFile, metadata: Fields, saved: SavedStream) -> None:
        """Restore a saved state; raise ValueError if no stream can have it."""
        total = saved.frames * saved.cells
        self.frames = metadata.integer("frames", saved.frames, saved.frames)
        if not self.frames:
            return
        require(self.frames % (saved.block or 1) == 0, f"{self.frames} frames do not form blocks of {saved.block}")
        self.counted = metadata.number("counted", saved.cells if self.half_life_s else total, total)
        self.bar = metadata.number("bar", -2 * total, 2 * total)
        self.until_s = metadata.number("until_s", saved.first_s, saved.last_s)
        self.reductions = metadata.integer("reductions", 0, self.frames)
        index = file.tensor("index", (None,), torch.int64)
        count, most = len(index), min(total, self._limit())
        require(1 <= count <= most, f"it must have 1 to {most} survivors, got {count}")
        time_s = file.tensor("time_s", (count,), torch.float64)
        sums = file.tensor("sums", (count, saved.compared), torch.float32)
        by_index = np.argsort(index.numpy())
        places, times = index.numpy()[by_index], time_s.numpy()[by_index]
        require(is_within(places, total) and (np.diff(places) > 0).all(), f"index must differ and be below {total}")
        frame = places // saved.cells
        ascends = (np.sign(np.diff(frame)) == np.sign(np.diff(times))).all()
        require(ascends, "time_s must ascend with the frames of index")
        require(frame[0] > 0 or times[0] == saved.first_s, "time_s of the first frame must be the first time")
        saved.require_order("time_s", times)
        # a sum of normalized tokens is no longer than their number
        weight = float(torch.linalg.vector_norm(sums.double(), dim=1).sum())
        require(weight <= 1.01 * self.counted, f"sums of {self.counted:g} tokens have a length of {weight:g}")
        held = {
            "features": saved.read_features(file, count),
            "sums": sums.to(saved.device),
            "index": index,
            "time_s": time_s,
        }
        self.buffer = _SurvivorBuffer(held, self._limit())


def _reduce(selector: Selector, held: Survivors, count: int, reach: Reach | None) -> tuple[Survivors, float]:
    """Select `count` survivors, add the sums of the others to their representatives', return also the smallest gain."""
    selection = select_survivors(*selector[:2], held["features"], held["sums"], count, reach)
    representatives = torch.from_numpy(selection.representatives).to(held["sums"].device)
    sums = held["sums"].new_zeros(count, held["sums"].shape[1]).index_add(0, representatives, held["sums"])
    by_index = np.argsort(held["index"].numpy()[selection.picks])
    remaining = {name: take_rows(held[name], selection.picks[by_index]) for name in ("features", "index", "time_s")}
    return remaining | {"sums": take_rows(sums, by_index)}, float(selection.gains.min())
