"""Selection from a video on its GPU: from tokens to a ranking, without waiting for the device.

Everything that depends on sizes and budgets only is planned on the host, once, and cached: the tables of sets and
tiles, and the order in which blocks take turns. All else stays on the device, so a call can be captured in a CUDA graph
after its first run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import torch

from floc import blocks
from floc.ranking import DeviceRanking, Ranking
from floc.selection.gpu import clusters, greedy, similarity
from floc.selection.gpu.greedy_steps import Picks
from floc.selection.gpu.launch import LIMIT_BYTES, use_device
from floc.selection.gpu.sets import Sets, repeat_values
from floc.selection.gpu.similarity import Rows
from floc.selection.objective import SCALE, WEIGHT_SCALE


def rank_in_blocks(tokens: torch.Tensor, sizes: blocks.Counts, budget: int, detail: float) -> DeviceRanking:
    """Select each block's share of the budget from [n, D] tokens; `sizes` are the [B] tokens in each block."""
    _check_sizes(tokens, sizes, budget)
    with use_device(tokens.device):
        tokens = convert_readable(tokens)
        plan = plan_blocks(_to_ints(sizes), budget, LIMIT_BYTES, tokens.device)
        rows = Rows.measure(tokens)
        parts = ((rows.slice(start, start + sum(sets.tokens)), sets) for start, sets in plan.parts)
        picked = [_run_first_pass(part, sets, detail)[0] for part, sets in parts]
        picks, gains = _concatenate(picked)
        flat = plan.lists.start.index_select(0, plan.order) + picks.index_select(0, plan.order)
        return _build_ranking(plan, np.asarray(sizes), flat, gains, plan.order, plan.following, rows.flags[1:])


def rank_in_two_passes(
    tokens: torch.Tensor, sizes: blocks.Counts, windows: Sequence[tuple[range, int]], budget: int, detail: float
) -> DeviceRanking:
    """Select survivors in blocks, then the budget among the survivors of each window.

    `tokens` and `sizes` as in `rank_in_blocks`, `windows` as in `floc.second_pass.plan_windows`.
    """
    _check_sizes(tokens, sizes, budget)
    with use_device(tokens.device):
        plan = plan_windows(_to_ints(sizes), tuple(windows), budget, tokens.device)
        rows = Rows.measure(convert_readable(tokens))
        flat, picked = [], []
        for window in plan.windows:
            survivors = select_survivors(window.rows(rows), window, detail)
            selected = greedy.greedy(survivors.matrix, window.second, survivors.weights)
            greedy.fill_up(selected, window.second)
            flat.append(window.start + survivors.places)
            picked.append(selected)
            del survivors  # frees its matrices before the next ones are allocated
        places, gains = _concatenate(picked)
        order, following = (plan.order, plan.following) if len(plan.windows) == 1 else plan.lists.merge(gains, budget)
        # places among the concatenated survivors of all windows
        places = places.index_select(0, order) + plan.lists.start.index_select(0, order)
        window_sizes = np.array([sum(window.first.tokens) for window in plan.windows])
        flat_picks = (flat[0] if len(flat) == 1 else torch.cat(flat)).index_select(0, places)
        return _build_ranking(plan, window_sizes, flat_picks, gains, order, following, rows.flags[1:])


def _run_first_pass(rows: Rows, sets: Sets, detail: float, stop_count: int = 0) -> tuple[Picks, torch.Tensor]:
    """Select from every set; returns the picks and the similarity matrices."""
    matrix = torch.empty(sets.elements, dtype=torch.int16, device=sets.device)
    similarity.fill(matrix, rows, rows, sets, detail)
    picked = greedy.greedy(matrix, sets, stop_count=stop_count)
    greedy.fill_up(picked, sets)
    return picked, matrix


def _check_sizes(tokens: torch.Tensor, sizes: blocks.Counts, budget: int) -> None:
    """Raise ValueError unless the blocks have all tokens and the budget is possible: kernels do not check bounds."""
    if min(sizes) < 1 or sum(sizes) != len(tokens) or not 1 <= budget <= len(tokens):
        raise ValueError(f"cannot select {budget} of {len(tokens)} tokens in blocks of {list(sizes)[:9]}")


class WindowSurvivors(NamedTuple):
    """The survivors of a window, and what they represent."""

    places: torch.Tensor  # [M] int64, places among the window's tokens
    matrix: torch.Tensor  # their similarities to the sums of the tokens they represent, laid out as one set
    weights: torch.Tensor  # [M] int64, the lengths of the sums


def select_survivors(rows: Rows, window: DeviceWindow, detail: float) -> WindowSurvivors:
    """Select in the blocks of a window, and prepare the second pass over the survivors."""
    picked, matrix = _run_first_pass(rows, window.first, detail, window.survivors)
    order = window.lists.merge(picked.gains, window.survivors, firsts=True)[0]
    group = window.lists.group.index_select(0, order)
    counts = torch.zeros(len(window.first), dtype=torch.int32, device=order.device)
    counts.index_add_(0, group, torch.ones_like(group, dtype=torch.int32))
    by = clusters.find_representatives(matrix, window.first, picked.picks, counts)
    del matrix
    place = torch.empty_like(window.lists.group)  # of each pick among the survivors
    place[order] = window.arange
    places = window.lists.start.index_select(0, order) + picked.picks.index_select(0, order)

    # float16 is precise enough for sums of unit tokens, and has the range unless a cluster is very large
    is_small = rows.values.element_size() == 2 and max(window.first.tokens) < 60_000
    dtype = torch.float16 if is_small else torch.float32
    targets = Rows.measure(clusters.sum_clusters(rows, place[by.long()], window.survivors, dtype))
    lengths = torch.where(targets.scale > 0, 1 / (targets.scale * targets.power), 0)
    weights = (lengths.double() * WEIGHT_SCALE).round().long()
    candidates = clusters.gather_rows(rows, places, dtype)
    matrix = torch.empty(window.second.elements, dtype=torch.int16, device=order.device)
    similarity.fill(matrix, candidates, targets, window.second, detail)
    return WindowSurvivors(places, matrix, weights)


def _concatenate(parts: list[Picks]) -> tuple[torch.Tensor, torch.Tensor]:
    picks, gains = [part.picks for part in parts], [part.gains for part in parts]
    return (picks[0], gains[0]) if len(parts) == 1 else (torch.cat(picks), torch.cat(gains))


def convert_readable(tokens: torch.Tensor) -> torch.Tensor:
    """Convert tokens to a contiguous tensor of a dtype that the kernels read."""
    tokens = tokens.detach().contiguous()
    if tokens.dtype in (torch.float16, torch.bfloat16, torch.float32):
        return tokens
    return tokens.to(torch.bfloat16 if tokens.element_size() == 1 else torch.float32)


@dataclass(frozen=True)
class _PickLists:
    """The picks of several groups, concatenated, each group's in the order they were made."""

    depths: tuple[int, ...]  # picks of each group
    starts: tuple[int, ...]  # offset of each group's picks
    device: torch.device

    @cached_property
    def group(self) -> torch.Tensor:
        """[P] int64, the group of each pick."""
        return repeat_values(range(len(self.depths)), self.depths, self.device)

    @cached_property
    def start(self) -> torch.Tensor:
        """[P] int64, the offset of each pick."""
        return repeat_values(self.starts, self.depths, self.device)

    @cached_property
    def first(self) -> torch.Tensor:
        """[P] int64, the place of the first pick of each pick's group."""
        return repeat_values(_to_ints(self.host_begins), self.depths, self.device)

    @cached_property
    def by_rank(self) -> torch.Tensor:
        """[P] int64, all places by rank, then group."""
        rank = np.concatenate([np.arange(depth) for depth in self.depths])
        return torch.from_numpy(np.argsort(rank, kind="stable")).to(self.device)

    @property
    def host_begins(self) -> np.ndarray:
        """[G] int64, the place of the first pick of each group."""
        return np.cumsum(self.depths) - self.depths

    @cached_property
    def begins(self) -> torch.Tensor:
        """`host_begins` on the device."""
        return torch.from_numpy(self.host_begins).to(self.device)

    def merge(self, gains: torch.Tensor, count: int, *, firsts: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Select the best picks of all groups, in the order of `blocks.merge_by_gain`.

        Takes [P] gains, in each group never rising from the second on. With `firsts` every group's first pick comes
        before all others. Returns [count] int64 places of these picks, and [G] int64 places after them in each group.
        """
        due = torch.minimum(gains, gains.index_select(0, self.first))
        if firsts:
            due = due.long().index_add(0, self.begins, torch.full_like(self.begins, 1 << 40))  # above any gain
        by_due = torch.sort(due.index_select(0, self.by_rank), descending=True, stable=True).indices
        order = self.by_rank.index_select(0, by_due[:count])
        taken = torch.zeros_like(self.begins)
        taken.index_add_(0, self.group.index_select(0, order), torch.ones_like(order))
        return order, self.begins + taken


def _build_ranking(
    plan: BlockPlan | WindowPlan,
    sizes: np.ndarray,
    flat: torch.Tensor,
    gains: torch.Tensor,
    order: torch.Tensor,
    following: torch.Tensor,
    non_finite: torch.Tensor,
) -> DeviceRanking:
    """Build a ranking that stays on the device; it keeps `plan` alive, whose tensors a CUDA graph reads when replayed.

    Takes the [G] tokens in each block or window, the [K] int64 flat token indices of the picks, the [P] fixed-point
    gains of all groups, the [K] int64 places of the picks in these, and the [G] int64 place after each group's picks.
    """
    shared = isinstance(plan, BlockPlan)
    unit = SCALE if shared else SCALE * WEIGHT_SCALE
    picked_gains = gains.index_select(0, order).double() / unit

    def fetch() -> Ranking:
        begins, depths = plan.lists.host_begins, plan.lists.depths
        values, places = gains.cpu().numpy() / unit, order.cpu().numpy()
        group = np.repeat(np.arange(len(begins)), depths)[places]

        def take(places: np.ndarray) -> np.ndarray:
            """Return [G], the gain at one place per group; 0 past the end of the group."""
            return np.where(places < begins + depths, values[np.minimum(places, len(values) - 1)], 0)

        columns = flat.cpu().numpy(), picked_gains.cpu().numpy(), group, places - begins[group]
        openings = np.stack([take(begins), take(begins + 1)], 1)
        return Ranking(*columns, sizes, take(following.cpu().numpy()), shared, history=None, openings=openings)

    return DeviceRanking(flat, picked_gains, non_finite, fetch)


@dataclass(frozen=True)
class BlockPlan:
    """What is known about a selection in blocks before the tokens are."""

    parts: list[tuple[int, Sets]]  # blocks in groups whose matrices fit the limit, and where their tokens start
    lists: _PickLists
    order: torch.Tensor  # [K] places of the picks, blocks taking turns
    following: torch.Tensor  # [B] the place that follows them in each block


@lru_cache(maxsize=8)
def plan_blocks(sizes: tuple[int, ...], budget: int, limit_bytes: int, device: torch.device) -> BlockPlan:
    """Plan a selection in blocks; plans are cached."""
    counts = np.array(sizes)
    shares = blocks.share_budget(counts, budget)
    depths = np.minimum(shares + 1, counts)  # one more for the bound
    starts = counts.cumsum() - counts
    parts = []
    for group in blocks.pack_blocks(2 * counts * (counts + 64), limit_bytes):  # by the bytes of their matrices
        part = slice(group[0], group[-1] + 1)
        sets = Sets(sizes[part], sizes[part], _to_ints(depths[part]), True, device)
        parts.append((int(starts[part.start]), sets))
    lists = _PickLists(_to_ints(depths), _to_ints(starts), device)
    block = np.repeat(np.arange(len(counts)), shares)
    rank = np.concatenate([np.arange(share) for share in shares])
    order = (lists.host_begins[block] + rank)[blocks.interleave(counts, rank, block)]
    following = torch.from_numpy(lists.host_begins + shares).to(device)
    return BlockPlan(parts, lists, torch.from_numpy(order).to(device), following)


@dataclass(frozen=True)
class DeviceWindow:
    """Consecutive blocks whose survivors are selected from together."""

    start: int  # of its tokens
    survivors: int
    first: Sets  # its blocks
    lists: _PickLists  # the picks in these
    second: Sets  # the survivors, as one set

    def rows(self, all_rows: Rows) -> Rows:
        return all_rows.slice(self.start, self.start + sum(self.first.tokens))

    @cached_property
    def arange(self) -> torch.Tensor:
        """[M] int64."""
        return torch.arange(self.survivors).to(self.first.device)


@dataclass(frozen=True)
class WindowPlan:
    """What is known about a selection in two passes before the tokens are."""

    windows: list[DeviceWindow]
    lists: _PickLists
    order: torch.Tensor  # [K] the picks, if there is one window
    following: torch.Tensor


@lru_cache(maxsize=8)
def plan_windows(
    sizes: tuple[int, ...], windows: tuple[tuple[range, int], ...], budget: int, device: torch.device
) -> WindowPlan:
    """Plan a selection in two passes; plans are cached."""
    planned, start = [], 0
    for window, survivors in windows:
        block_sizes = sizes[window.start : window.stop]
        depths = tuple(min(size, survivors) for size in block_sizes)
        first = Sets(block_sizes, block_sizes, depths, True, device)
        lists = _PickLists(depths, _to_ints(np.cumsum(block_sizes) - block_sizes), device)
        second = Sets((survivors,), (survivors,), (min(budget + 1, survivors),), False, device)
        planned.append(DeviceWindow(start, survivors, first, lists, second))
        start += sum(block_sizes)
    counts = np.array([window.survivors for window in planned])
    depths = tuple(window.second.depths[0] for window in planned)
    lists = _PickLists(depths, _to_ints(counts.cumsum() - counts), device)
    return WindowPlan(planned, lists, torch.arange(budget).to(device), torch.tensor([budget], device=device))


def _to_ints(values: blocks.Counts) -> tuple[int, ...]:
    return tuple(int(value) for value in values)
