"""FLoC: facility-location selection in blocks, then once more over what the blocks kept.

The paper (Cho et al., "FLoC: Facility Location-Based Efficient Visual Token Compression for Long Video Understanding",
ICLR 2026) selects within blocks of 32 frames by greedy facility location on cosines. That is `floc-paper` here.

`floc` goes two steps further:

* The second pass (`dedupe`). The blocks keep `dedupe` times the budget between them, then one selection over these
  survivors keeps the budget, which removes what blocks repeat from one another. A survivor stands for its cluster: the
  cosines of a cluster's tokens with u add up to exactly (the sum of its normalised tokens) . u, so the second selection
  sees every survivor as a target with the direction and the length of that sum, and needs no other token. Blocks share
  the survivors by gain, not by size: a still scene leaves room for a busy one. (The blocks of a long film do so in
  windows, which share them by size.)
* `detail`. The similarity is 1 - (1 - cos)^detail, so that what is badly covered weighs more and rare things survive.

Algorithm 1 of the paper starts lazy greedy from the bound f({v}), which negative cosines break; here the picks are
those of plain greedy in every case.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Real
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from floc import blocks, scenes
from floc._checks import check_choice, is_positive_int
from floc._system import check_memory
from floc.blocks import BlockSpec
from floc.kept import Kept
from floc.methods.base import Facts
from floc.methods.registry import register
from floc.ranking import Choice, Ranking, find_improvements, joined
from floc.selection.backends import BACKENDS, check_headroom, create_engine, resolve_backend
from floc.selection.engine import NO_HISTORY, Engine, History, Job, Solution, Targets
from floc.selection.objective import METRICS, SCALE, WEIGHT_SCALE, Metric, Similarity
from floc.tokens import TokenGrid

# Tokens that one second pass may choose from. Its matrix takes 300 MB at this size, and time grows with the square: the
# survivors of a longer film are chosen from in windows of consecutive blocks.
SURVIVORS_TOGETHER = 12_288


@register("floc")
@dataclass(frozen=True)
class Floc:
    """Keep the tokens that best stand in for all others."""

    facts: ClassVar[Facts] = Facts("Cho et al., FLoC, ICLR 2026, with a second pass and detail beyond it", "select")

    # frames chosen from together; "scene": along scenes; their first frames; None: the whole video as one set
    block: BlockSpec = 32
    dedupe: float = 2  # how many tokens for each one kept go into the second pass; 1: no second pass
    detail: float = 2  # how much more badly covered tokens weigh; 1: not at all
    metric: Metric = "cosine"  # or "gaussian"
    allocate: str = "uniform"  # the same ratio in each block, or "global": greedy over all blocks
    backend: str = "auto"
    progress: Callable[[float], None] | None = field(default=None, repr=False, compare=False)  # gets the share done

    def __post_init__(self) -> None:
        blocks.check_block(self.block)
        for name in ("dedupe", "detail"):
            value = getattr(self, name)
            if not (_is(value, Real) and 1 <= value < math.inf):
                raise ValueError(f"{name} must be a number, at least 1 (which turns it off); got {value!r}")
        check_choice("metric", self.metric, METRICS)
        check_choice("backend", self.backend, BACKENDS)
        check_choice("allocate", self.allocate, ("uniform", "global"))
        if self.allocate == "global" and self.dedupe > 1 and self.block is not None:
            raise ValueError(
                "allocate='global' needs dedupe=1: the second pass already chooses across blocks; "
                f"got dedupe={self.dedupe:g}"
            )

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        run = _Run(self, grid)
        if self.stays_on(grid.tokens.device):
            return run.on_device(budget)
        return grid.along(run.path(budget), budget)

    def indices(self, grid: TokenGrid, budget: int) -> torch.Tensor:
        """See `Naming`."""
        if self.stays_on(grid.tokens.device):
            return torch.as_tensor(_Run(self, grid).on_device(budget).indices)
        run = _Run(self, grid, with_history=False)
        return torch.from_numpy(run.path(budget).indices(budget)).to(grid.tokens.device)

    def stays_on(self, device: torch.device) -> bool:
        """Whether all is done on the device, which then nobody waits for."""
        return self.metric == "cosine" and resolve_backend(self.backend, device) == "gpu"

    def streaming(self) -> dict[str, Any] | None:
        """Blocks of some frames or along scenes, and choices across them: that is what a stream with a budget does."""
        if self.metric != "cosine" or self.dedupe == 1 or not (is_positive_int(self.block) or self.block == "scene"):
            return None
        return {name: getattr(self, name) for name in ("block", "dedupe", "detail", "backend")}

    def windows(self, tokens: torch.Tensor, budget: int) -> list[tuple[range, int]]:
        """The blocks whose survivors a second pass chooses from together, and how many survive in each such window."""
        return _Run(self, TokenGrid.from_array(tokens, check_finite=False)).windows(budget)

    def reaching(self, grid: TokenGrid, coverage: float) -> Kept:
        """Keep the fewest tokens, of this method's order, whose mean cosine to all tokens is at least `coverage`."""
        run = _Run(self, grid)
        solutions = run.first_pass(run.sizes, with_cosines=True)
        path = run.first_path(solutions)
        count = path.fewest(coverage)
        if run.has_second_pass:
            # what survives at the count that plain blocks need: the second pass hardly needs more, and may take all
            windows = run.windows(count)
            path = run.second_path(solutions, windows, run.grid.n)
            count = path.fewest(coverage)
        return grid.along(path, count)


@register("floc-paper")
@dataclass(frozen=True)
class FlocPaper(Floc):
    """The paper to the letter: blocks of 32 frames, plain cosines, one pass."""

    facts: ClassVar[Facts] = Facts("Cho et al., FLoC, ICLR 2026", "select")

    dedupe: float = 1
    detail: float = 1


class _Window(NamedTuple):
    """What survived in some consecutive blocks, and the clusters of tokens that the survivors stand for."""

    blocks: range
    tokens: slice  # where the blocks' tokens are, as flat indices
    survivors: np.ndarray  # [M] int64 flat token index, most important first: so go ties in the second pass
    cluster: np.ndarray  # [tokens] int64, for each token its cluster: M of them, block after block


class _Run:
    """One grid on its way through the passes."""

    def __init__(self, options: Floc, grid: TokenGrid, *, with_history: bool = True) -> None:
        self.grid = grid
        self.options = options
        self.with_history = with_history  # whether to find out who stands for whom
        self.similarity = Similarity(options.metric, options.detail)
        self.engine: Engine = create_engine(options.backend, grid.tokens.device)
        self.spans = scenes.find_blocks(grid, options.block)
        cells = grid.shape[1] * grid.shape[2]
        self.sizes = np.array([(span.stop - span.start) * cells for span in self.spans])
        self.has_second_pass = options.dedupe > 1 and len(self.spans) > 1
        if self.has_second_pass and not grid.tokens.is_contiguous():
            # every block is read three times: one copy is better than three
            self.grid = replace(grid, tokens=grid.tokens.contiguous())
        self.progress = _Progress(options.progress, float((self.sizes.astype(float) ** 2).sum() * grid.dim / 2))
        self._require_memory(int(self.sizes.max()), "block=32, or fewer frames")

    @cached_property
    def places(self) -> list[slice]:
        """Where each block's tokens are, as flat indices."""
        return [slice(end - size, end) for end, size in zip(self.sizes.cumsum(), self.sizes, strict=True)]

    def path(self, budget: int) -> Ranking:
        """The order of what is kept, up to `budget` at least."""
        with self.engine.at_work():
            if not self.has_second_pass or budget == self.grid.n:  # where all is kept nothing is chosen across blocks
                return self.first_path(self.first_pass(self.depths(budget), with_cosines=self.with_history))
            windows = self.windows(budget)
            return self.second_path(self.first_pass(self.depths_in(windows), with_cosines=False), windows, budget)

    def depths(self, budget: int) -> np.ndarray:
        """[B] how far to choose in each block when there is no second pass."""
        if self.options.allocate == "global":
            return np.minimum(self.sizes, budget)  # one block may win them all
        return blocks.share_budget(self.sizes, budget)

    def windows(self, budget: int) -> list[tuple[range, int]]:
        """The blocks whose survivors are chosen from together in a second pass that keeps `budget`, and how many.

        An error where they would not fit in memory.
        """
        count = math.ceil(min(self.grid.n, max(self.options.dedupe * budget, len(self.spans))))
        together = min(SURVIVORS_TOGETHER, self.engine.survivors_together(self.sizes, count))
        found = blocks.plan_windows(self.sizes, count, together)
        largest = max(survivors for _, survivors in found)
        self.progress.total += sum(survivors**2 for _, survivors in found) * self.grid.dim
        self._require_memory(largest, "dedupe=1, which has no second pass, or keep fewer tokens", weighted=True)
        return found

    def depths_in(self, windows: Sequence[tuple[range, int]]) -> np.ndarray:
        """[B] how far to choose in each block when that many survive in its window."""
        return np.concatenate(
            [np.minimum(self.sizes[mine.start : mine.stop], survivors) for mine, survivors in windows]
        )

    def on_device(self, budget: int) -> Kept:
        """Choose without waiting for the device."""
        kept = self._on_device(budget)
        if self.options.progress is not None:
            self.options.progress(1.0)
        return kept

    def _on_device(self, budget: int) -> Kept:
        from floc.selection.gpu import run

        tokens = self.grid.tokens.reshape(-1, self.grid.dim)
        detail = float(self.options.detail)
        if not self.has_second_pass or budget == self.grid.n:
            shared = self.options.allocate == "uniform"
            chosen = run.in_blocks(tokens, self.sizes, budget, detail, shared=shared)
            return self.grid.chosen(chosen, self.sizes, shared=shared)
        windows = self.windows(budget)
        chosen = run.in_two_passes(tokens, self.sizes, windows, budget, detail)
        sizes = np.array([self.sizes[mine.start : mine.stop].sum() for mine, _ in windows])
        return self.grid.chosen(chosen, sizes, shared=False)

    def first_pass(self, depths: np.ndarray, *, with_cosines: bool) -> list[Solution | None]:
        """Choose `depths` tokens in each block; None in a block that gets none."""
        jobs = (Job(self.grid.frames(span), int(k)) for span, k in zip(self.spans, depths, strict=True) if k > 0)
        solved = self.engine.solve(jobs, self.similarity, with_cosines=with_cosines, tick=self.progress.tick)
        return [next(solved) if k > 0 else None for k in depths]

    def first_path(self, solutions: Sequence[Solution | None]) -> Ranking:
        """The order of all blocks' picks, where no second pass follows."""
        return joined(
            [None if each is None else each.choice(with_history=self.with_history) for each in solutions],
            self.sizes,
            shared=self.options.allocate == "uniform",
            # of other metrics what is more similar need not have the higher cosine
            rising=self.similarity.is_plain_cosine or not self.with_history,
        )

    def second_path(
        self, solutions: Sequence[Solution | None], windows: Sequence[tuple[range, int]], budget: int
    ) -> Ranking:
        """Choose `budget` from the best picks of all blocks, so many in each window."""
        found = [self._window(mine, solutions, survivors) for mine, survivors in windows]
        choices = [self._second_pass(window, solutions, budget) for window in found]
        sizes = np.array([window.tokens.stop - window.tokens.start for window in found])
        return joined(choices, sizes, shared=False)

    def _window(self, together: range, solutions: Sequence[Solution | None], survivors: int) -> _Window:
        """Share survivors among blocks by what they gain, and give every token to its representative."""
        mine = [solutions[b] for b in together]
        present = [solution for solution in mine if solution is not None]
        assert len(present) == len(mine), "every block has survivors"
        block, rank = blocks.merge_by_gain([solution.gains for solution in present])
        # a block without a survivor would have nothing that stands for its tokens: first picks go before all others
        order = np.concatenate([np.flatnonzero(rank == 0), np.flatnonzero(rank > 0)])[:survivors]
        block, rank = block[order], rank[order]
        counts = np.bincount(block, minlength=len(present))
        tokens = slice(self.places[together[0]].start, self.places[together[-1]].stop)
        flat = np.empty(len(order), np.int64)
        cluster = np.empty(tokens.stop - tokens.start, np.int64)
        start = 0
        for b, solution in enumerate(present):
            here, place = block == b, self.places[together[b]]
            flat[here] = place.start + solution.picks[rank[here]]
            represented = solution.history.representatives(place.stop - place.start, int(counts[b]))
            cluster[place.start - tokens.start : place.stop - tokens.start] = start + represented
            start += counts[b]
        return _Window(together, tokens, flat, cluster)

    def _second_pass(self, window: _Window, solutions: Sequence[Solution | None], budget: int) -> Choice:
        """Choose from the survivors of a window."""
        count = len(window.survivors)
        sets = [(self.grid.frames(self.spans[b]), window.cluster[self._within(window, b)]) for b in window.blocks]
        if self.similarity.metric == "cosine":
            directions, lengths = self.engine.sum_by_cluster(sets, count, unit=True)
            weights, sigma = np.rint(lengths * WEIGHT_SCALE).astype(np.int64), None
        else:
            # distances do not add up like cosines: a cluster is taken as its mean, and counts once for each member
            members = np.bincount(window.cluster, minlength=count)
            directions, lengths = self.engine.sum_by_cluster(sets, count, unit=False)
            lengths = lengths / np.maximum(members, 1)  # of two that are the same, one stands for both
            present = [solution for solution in solutions if solution is not None]
            weights, sigma = members * WEIGHT_SCALE, float(np.mean([solution.sigma for solution in present]))
        check_headroom(weights, count)

        candidates = self.grid.gather(window.survivors)
        chosen = self.engine.solve_weighted(
            candidates,
            Targets(directions, lengths, weights),
            min(budget, count),
            self.similarity,
            sigma=sigma,
            with_history=self.with_history,
            tick=self.progress.tick,
        )
        history = self._representatives(window, candidates, chosen) if self.with_history else NO_HISTORY
        assert history.cosine is not None, "a second pass names them"
        return Choice(
            window.survivors[chosen.picks] - window.tokens.start,
            chosen.gains / (SCALE * WEIGHT_SCALE),
            history.token,
            history.rank,
            history.cosine,
            chosen.next_gain / (SCALE * WEIGHT_SCALE),
        )

    def _representatives(self, window: _Window, candidates: torch.Tensor, chosen: Solution) -> History:
        """Who may represent each token, and from when on.

        Those that represented its cluster along the way, the few picks that are closest to its cluster, and, for a
        token that was picked, itself: whichever is closest to the token.
        """
        history, closest = chosen.history, chosen.closest
        assert closest is not None, "a weighted selection names them"
        changes = np.argsort(history.token, kind="stable")
        first = np.searchsorted(history.token[changes], np.arange(len(window.survivors) + 1))  # of each cluster
        picked = window.survivors[chosen.picks] - window.tokens.start
        found = []
        for b in window.blocks:
            mine = self._within(window, b)
            cluster = window.cluster[mine]
            n = len(cluster)
            many = first[cluster + 1] - first[cluster]
            nth = np.arange(many.sum()) - np.repeat(many.cumsum() - many, many)
            itself = np.flatnonzero((picked >= mine.start) & (picked < mine.stop))
            token = np.concatenate(
                [np.repeat(np.arange(n), many), np.repeat(np.arange(n), closest.shape[1]), picked[itself] - mine.start]
            )
            rank = np.concatenate(
                [history.rank[changes[np.repeat(first[cluster], many) + nth]], closest[cluster].ravel(), itself]
            )
            by_rank = np.argsort(rank, kind="stable")
            token, rank = token[by_rank], rank[by_rank]
            cosine = self.engine.cosines(self.grid.frames(self.spans[b]), token, candidates, chosen.picks[rank])
            found.append(find_improvements(mine.start + token, rank, cosine))
        return History(*(np.concatenate(each) for each in zip(*found, strict=True)))

    def _within(self, window: _Window, block: int) -> slice:
        """Where a block's tokens are among those of its window."""
        place = self.places[block]
        return slice(place.start - window.tokens.start, place.stop - window.tokens.start)

    def _require_memory(self, n: int, remedy: str, *, weighted: bool = False) -> None:
        needed = self.engine.bytes_needed(n, self.grid.dim, self.similarity, weighted=weighted)
        check_memory(n, needed, self.grid.tokens.device, remedy)


class _Progress:
    """Adds up what is done, by several threads, and shows its share of the total."""

    def __init__(self, show: Callable[[float], None] | None, total: float) -> None:
        self.total = total
        self._show = show
        self._done = 0.0
        self._lock = threading.Lock()

    def tick(self, amount: float) -> None:
        if self._show is not None:
            with self._lock:
                self._done += amount
                self._show(min(1.0, self._done / self.total))


def _is(value: object, kind: type) -> bool:
    """Whether a value is such a number; True and False are none."""
    return isinstance(value, kind) and not isinstance(value, bool)
