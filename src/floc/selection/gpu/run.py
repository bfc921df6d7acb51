"""Choosing from a video on its GPU: from tokens to picks in order, without once waiting for the device.

What depends on sizes and budgets alone is planned on the host, once, and kept: tables of sets and of tiles, and the
order in which blocks take turns. All else stays on the device, so a call that has run once can be captured in a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

import numpy as np
import torch

from floc import blocks
from floc.ranking import Chosen, Groups
from floc.selection.gpu import clusters, greedy, similarity
from floc.selection.gpu.greedy_steps import Picks, StopRule
from floc.selection.gpu.launch import LIMIT_BYTES, use_device
from floc.selection.gpu.sets import Sets, repeat_values
from floc.selection.gpu.similarity import Rows
from floc.selection.objective import SCALE, WEIGHT_SCALE


def in_blocks(
    tokens: torch.Tensor, sizes: Sequence[int] | np.ndarray, budget: int, detail: float, *, shared: bool
) -> Chosen:
    """One pass: choose in every block its share of the budget or, if it is not shared, the best of all blocks.

    Args:
        tokens: [n, D].
        sizes: [B] tokens in each block.
    """
    with use_device(tokens.device):
        return _in_blocks(_readable(tokens), tuple(int(size) for size in sizes), budget, detail, shared)


def _in_blocks(tokens: torch.Tensor, sizes: tuple[int, ...], budget: int, detail: float, shared: bool) -> Chosen:
    rows = Rows.measure(tokens)
    plan = block_plan(sizes, budget, shared, LIMIT_BYTES, tokens.device)
    picked = []
    for start, sets in plan.parts:
        part = rows.slice(start, start + sum(sets.tokens))
        picked.append(_first_pass(part, sets, detail, StopRule(0 if shared else budget))[0])
    picks, gains = _joined([each.picks for each in picked]), _joined([each.gains for each in picked])
    lists = plan.lists
    order, following = (plan.order, plan.following) if shared else lists.best(gains, budget)
    flat = lists.start.index_select(0, order) + picks.index_select(0, order)
    return Chosen(flat, *lists.told(gains, order, following, SCALE), rows.flags[1:], plan)


def in_two_passes(
    tokens: torch.Tensor,
    sizes: Sequence[int] | np.ndarray,
    windows: Sequence[tuple[range, int]],
    budget: int,
    detail: float,
) -> Chosen:
    """Choose survivors in blocks, then from the survivors of each window of blocks, by what they stand for.

    Args:
        tokens: [n, D].
        sizes: [B] tokens in each block.
        windows: the blocks of each, and how many survive in it.
    """
    with use_device(tokens.device):
        plan = window_plan(tuple(int(size) for size in sizes), tuple(windows), budget, tokens.device)
        return _in_two_passes(_readable(tokens), plan, budget, detail)


def _in_two_passes(tokens: torch.Tensor, plan: WindowPlan, budget: int, detail: float) -> Chosen:
    rows = Rows.measure(tokens)
    flat, picked = [], []
    for window in plan.windows:
        found = survivors(window.rows(rows), window, detail)
        chosen = greedy.greedy(found.matrix, window.second, found.weights)
        greedy.fill_up(chosen, window.second)
        flat.append(window.start + found.places)
        picked.append(chosen)
        del found  # its matrices, before the next ones are made
    gains, places = _joined([each.gains for each in picked]), _joined([each.picks for each in picked])
    lists = plan.lists
    order, following = (plan.order, plan.following) if len(plan.windows) == 1 else lists.best(gains, budget)
    # survivors of all windows end to end
    places = places.index_select(0, order) + lists.start.index_select(0, order)
    told = lists.told(gains, order, following, SCALE * WEIGHT_SCALE)
    return Chosen(_joined(flat).index_select(0, places), *told, rows.flags[1:], plan)


def _first_pass(rows: Rows, sets: Sets, detail: float, stop: StopRule) -> tuple[Picks, torch.Tensor]:
    """Picks from every set, and the matrices they were made from."""
    matrix = torch.empty(sets.elements, dtype=torch.int16, device=sets.device)
    similarity.fill(matrix, rows, rows, sets, detail)
    picked = greedy.greedy(matrix, sets, stop=stop)
    later = None
    if detail > 1:
        # all similarities near 1 snap to 1 then, so gains end while there is something to gain: see engine.py
        by = clusters.find_representatives(matrix, sets, picked.picks, picked.counts)
        later = clusters.order_worst_first(rows, sets, picked, by, stop.count)
    greedy.fill_up(picked, sets, later)
    return picked, matrix


class Survivors(NamedTuple):
    """What survived in a window, and what it stands for."""

    places: torch.Tensor  # [M] int64 of its tokens
    matrix: torch.Tensor  # their similarities to the sums of those they stand for, as laid out for one set
    weights: torch.Tensor  # [M] int64, the lengths of the sums


def survivors(rows: Rows, window: Window, detail: float) -> Survivors:
    """Choose in the blocks of a window, and prepare to choose from what they chose."""
    picked, matrix = _first_pass(rows, window.first, detail, StopRule(window.survivors, firsts=True))
    order = window.lists.best(picked.gains, window.survivors, firsts=True)[0]
    group = window.lists.group.index_select(0, order)
    counts = torch.zeros(len(window.first), dtype=torch.int32, device=order.device)
    counts.index_add_(0, group, torch.ones_like(group, dtype=torch.int32))
    by = clusters.find_representatives(matrix, window.first, picked.picks, counts)
    del matrix
    place = torch.empty_like(window.lists.group)  # of each pick among the survivors
    place[order] = window.arange
    places = window.lists.start.index_select(0, order) + picked.picks.index_select(0, order)

    # fp16 has the digits for sums of unit tokens, and the range unless a cluster is very large
    small = rows.values.element_size() == 2 and max(window.first.tokens) < 60_000
    dtype = torch.float16 if small else torch.float32
    targets = Rows.measure(clusters.sum_clusters(rows, place[by.long()], window.survivors, dtype))
    lengths = torch.where(targets.scale > 0, 1 / (targets.scale * targets.power), 0)
    weights = (lengths.double() * WEIGHT_SCALE).round().long()
    candidates = clusters.gather_rows(rows, places, dtype)
    matrix = torch.empty(window.second.elements, dtype=torch.int16, device=order.device)
    similarity.fill(matrix, candidates, targets, window.second, detail)
    return Survivors(places, matrix, weights)


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    """All parts end to end; one alone as it is."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _readable(tokens: torch.Tensor) -> torch.Tensor:
    """Tokens in a format that the kernels read."""
    tokens = tokens.detach().contiguous()
    if tokens.dtype in (torch.float16, torch.bfloat16, torch.float32):
        return tokens
    return tokens.to(torch.bfloat16 if tokens.element_size() == 1 else torch.float32)


@dataclass(frozen=True)
class _Lists:
    """Picks of several groups, end to end, each group's in the order they were made."""

    depths: tuple[int, ...]  # picks of each group
    starts: tuple[int, ...]  # what to add to the picks of each
    device: torch.device

    @cached_property
    def group(self) -> torch.Tensor:
        """[P] int64 the group of each pick."""
        return repeat_values(range(len(self.depths)), self.depths, self.device)

    @cached_property
    def start(self) -> torch.Tensor:
        """[P] int64 what to add to each pick."""
        return repeat_values(self.starts, self.depths, self.device)

    @cached_property
    def first(self) -> torch.Tensor:
        """[P] int64 the place of the first pick of each pick's group."""
        return repeat_values(self.ends - self.counts, self.depths, self.device)

    @cached_property
    def by_rank(self) -> torch.Tensor:
        """[P] int64 all places by rank, then group."""
        rank = np.concatenate([np.arange(depth) for depth in self.depths])
        return torch.from_numpy(np.argsort(rank, kind="stable")).to(self.device)

    @property
    def counts(self) -> np.ndarray:
        """[G] picks of each group."""
        return np.array(self.depths)

    @property
    def ends(self) -> np.ndarray:
        """[G] where each group ends."""
        return self.counts.cumsum()

    @cached_property
    def begins(self) -> torch.Tensor:
        """[G] int64 where each group begins."""
        return torch.from_numpy(self.ends - self.counts).to(self.device)

    def best(self, gains: torch.Tensor, budget: int, *, firsts: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """The places of the best of all groups, as `blocks.merged` orders them, and what follows them in each group.

        Args:
            gains: [P], in each group not rising from the second on.
            firsts: let the first pick of every group come before all others.
        """
        due = torch.minimum(gains, gains.index_select(0, self.first))
        if firsts:
            due = due.long()
            due = due.index_add(0, self.begins, torch.full_like(self.begins, 1 << 40))  # above any gain
        by_due = torch.sort(due.index_select(0, self.by_rank), descending=True, stable=True).indices
        order = self.by_rank.index_select(0, by_due[:budget])
        taken = torch.zeros_like(self.begins)
        taken.index_add_(0, self.group.index_select(0, order), torch.ones_like(order))
        return order, self.begins + taken

    def told(
        self, gains: torch.Tensor, order: torch.Tensor, following: torch.Tensor, unit: int
    ) -> tuple[torch.Tensor, Callable[[], Groups]]:
        """What a `Chosen` tells beside its picks."""
        return gains.index_select(0, order).double() / unit, partial(self._groups, gains, order, following, unit)

    def _groups(self, gains: torch.Tensor, order: torch.Tensor, following: torch.Tensor, unit: int) -> Groups:
        each, begin = gains.cpu().numpy() / unit, self.ends - self.counts

        def at(places: np.ndarray) -> np.ndarray:
            """[G] the gains at places, one for each group, or 0 where a group has no more."""
            return np.where(places < self.ends, each[np.minimum(places, len(each) - 1)], 0)

        group = np.repeat(np.arange(len(self.depths)), self.depths)[order.cpu().numpy()]
        return Groups(group, at(following.cpu().numpy()), np.stack([at(begin), at(begin + 1)], 1))


@dataclass(frozen=True)
class BlockPlan:
    """What is known of a choice in blocks before any token is seen."""

    parts: list[tuple[int, Sets]]  # blocks in groups whose matrices fit the limit, and where their tokens start
    lists: _Lists
    order: torch.Tensor  # [K] places of the picks where the budget is shared out, in turns
    following: torch.Tensor  # [B] what follows them in each block


@lru_cache(maxsize=8)
def block_plan(sizes: tuple[int, ...], budget: int, shared: bool, limit: int, device: torch.device) -> BlockPlan:
    """Plan a choice in blocks; plans are kept."""
    each = np.array(sizes)
    wanted = blocks.share_budget(each, budget) if shared else np.minimum(each, budget)
    depths = np.minimum(wanted + 1, each)  # one more for the certificate
    starts = each.cumsum() - each
    parts = []
    for together in _groups(sizes, limit):
        mine = slice(together[0], together[-1] + 1)
        parts.append((int(starts[mine.start]), Sets(sizes[mine], sizes[mine], _ints(depths[mine]), True, device)))
    lists = _Lists(_ints(depths), _ints(starts), device)
    begin = lists.ends - depths
    group = np.repeat(np.arange(len(each)), wanted)
    rank = np.concatenate([np.arange(count) for count in wanted])
    turns = blocks.interleave(each, rank, group)
    order = (begin[group] + rank)[turns]
    return BlockPlan(parts, lists, torch.from_numpy(order).to(device), torch.from_numpy(begin + wanted).to(device))


@dataclass(frozen=True)
class Window:
    """Consecutive blocks whose survivors are chosen from together."""

    start: int  # of its tokens
    survivors: int
    first: Sets  # its blocks
    lists: _Lists  # of the picks in these
    second: Sets  # the survivors, as one set

    def rows(self, all_rows: Rows) -> Rows:
        """Its tokens."""
        return all_rows.slice(self.start, self.start + sum(self.first.tokens))

    @cached_property
    def arange(self) -> torch.Tensor:
        """[M] int64."""
        return torch.arange(self.survivors).to(self.first.device)


@dataclass(frozen=True)
class WindowPlan:
    """What is known of a choice in two passes before any token is seen."""

    windows: list[Window]
    lists: _Lists
    order: torch.Tensor  # [K] where there is one window: its picks
    following: torch.Tensor


@lru_cache(maxsize=8)
def window_plan(
    sizes: tuple[int, ...], windows: tuple[tuple[range, int], ...], budget: int, device: torch.device
) -> WindowPlan:
    """Plan a choice in two passes; plans are kept."""
    planned, start = [], 0
    for together, survivors in windows:
        mine = sizes[together.start : together.stop]
        depths = tuple(min(size, survivors) for size in mine)
        begins = _ints(np.cumsum(mine) - mine)
        depth = min(budget + 1, survivors)
        planned.append(
            Window(
                start,
                survivors,
                Sets(mine, mine, depths, True, device),
                _Lists(depths, begins, device),
                Sets((survivors,), (survivors,), (depth,), False, device),
            )
        )
        start += sum(mine)
    survivors_each = np.array([window.survivors for window in planned])
    lists = _Lists(
        tuple(window.second.depths[0] for window in planned), _ints(survivors_each.cumsum() - survivors_each), device
    )
    return WindowPlan(planned, lists, torch.arange(budget).to(device), torch.tensor([budget], device=device))


def _groups(sizes: Sequence[int], limit: int) -> list[range]:
    """Consecutive blocks whose matrices take at most `limit` bytes together, unless one alone takes more."""
    found, start, used = [], 0, 0
    for b, size in enumerate(sizes):
        bytes_ = 2 * size * (size + 64)
        if b > start and used + bytes_ > limit:
            found.append(range(start, b))
            start, used = b, 0
        used += bytes_
    return [*found, range(start, len(sizes))]


def _ints(values: np.ndarray) -> tuple[int, ...]:
    return tuple(int(value) for value in values)
