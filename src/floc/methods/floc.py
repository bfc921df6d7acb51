"""FLoC: facility-location selection in blocks, then a second pass over what the blocks kept.

The paper (Cho et al., "FLoC: Facility Location-Based Efficient Visual Token Compression for Long Video Understanding",
ICLR 2026) selects within blocks of 32 frames by greedy facility location on cosines. That is `floc-paper` here.

`floc` adds two steps:

* The second pass (`dedupe`). The blocks keep `dedupe` times the budget, by gain, so that a static scene leaves room for
  a busy one. One selection among these survivors removes what blocks repeat: see `floc.second_pass`.
* `detail`. The similarity is 1 - (1 - cos)^detail, so that badly covered tokens weigh more and rare things survive.

Algorithm 1 of the paper starts lazy greedy from the bound f({v}), which negative cosines violate; here the picks are
always those of plain greedy.
"""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from floc import blocks, scenes, second_pass
from floc._checks import check_at_least, check_choice, is_positive_int
from floc._system import check_memory
from floc.blocks import BlockSpec
from floc.kept import Kept
from floc.methods.registry import register
from floc.ranking import DeviceRanking, Ranking
from floc.second_pass import SecondPass
from floc.selection.backends import BACKENDS, create_engine, resolve_backend
from floc.selection.engine import Job, Solution
from floc.selection.objective import METRICS, SCALE, Metric, Similarity
from floc.tokens import TokenGrid


@register("floc", "Cho et al., FLoC, ICLR 2026, with a second pass and detail beyond it", "select")
@dataclass(frozen=True)
class Floc:
    """Keep the tokens that best represent all others."""

    # frames selected from together; "scene": blocks follow scenes; the first frame of each block; None: the whole video
    block: BlockSpec = 32
    dedupe: float = 2  # survivors per token kept that go into the second pass; 1: no second pass
    detail: float = 2  # how much more badly covered tokens weigh; 1: not at all
    metric: Metric = "cosine"  # or "gaussian"
    backend: str = "auto"
    progress: Callable[[float], None] | None = field(default=None, repr=False, compare=False)  # gets the fraction done

    def __post_init__(self) -> None:
        blocks.check_block(self.block)
        for name in ("dedupe", "detail"):
            check_at_least(name, getattr(self, name), 1, " (1 turns it off)")
        check_choice("metric", self.metric, METRICS)
        check_choice("backend", self.backend, BACKENDS)

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        run = _Run(self, grid)
        return run.grid.keep_ranked(run.rank(budget), budget)

    def select_indices(self, grid: TokenGrid, budget: int) -> torch.Tensor:
        run = _Run(self, grid, with_history=False)
        ranking = run.rank(budget)
        if isinstance(ranking, DeviceRanking):
            return torch.as_tensor(run.grid.keep_ranked(ranking, budget).indices)
        return torch.from_numpy(np.sort(ranking.picks[ranking.mask(budget)])).to(grid.tokens.device)

    def stays_on(self, device: torch.device) -> bool:
        """Return whether all work is done on the device without waiting for it."""
        return self.metric == "cosine" and resolve_backend(self.backend, device) == "gpu"

    def get_stream_options(self) -> dict[str, Any] | None:
        """See `Streamable`: a stream with a budget selects in blocks and among their survivors, too."""
        if self.metric != "cosine" or self.dedupe == 1 or not (is_positive_int(self.block) or self.block == "scene"):
            return None
        return {name: getattr(self, name) for name in ("block", "dedupe", "detail", "backend")}

    def plan_windows(self, tokens: torch.Tensor, budget: int) -> list[tuple[range, int]]:
        """Return the blocks of each window of the second pass, and its number of survivors."""
        return _Run(self, TokenGrid.from_array(tokens, check_finite=False)).plan_windows(budget)

    def reach_coverage(self, grid: TokenGrid, coverage: float) -> Kept:
        """Keep the fewest tokens of this method's order whose mean cosine to all tokens is at least `coverage`."""
        run = _Run(self, grid)
        solutions = run.run_first_pass(run.sizes, with_cosines=True)
        ranking = run.rank_first_pass(solutions)
        count = ranking.find_count(coverage)
        if run.has_second_pass:
            # survivors for the count that plain blocks need: the second pass hardly needs more, and may keep them all
            ranking = run.second_pass.rank(solutions, run.plan_windows(count), run.grid.n)
            count = ranking.find_count(coverage)
        return run.grid.keep_ranked(ranking, count)


@register("floc-paper", "Cho et al., FLoC, ICLR 2026", "select")
@dataclass(frozen=True)
class FlocPaper(Floc):
    """The paper's method: blocks of 32 frames, plain cosines, one pass."""

    dedupe: float = 1
    detail: float = 1


class _Run:
    """One grid on its way through the passes."""

    def __init__(self, options: Floc, grid: TokenGrid, *, with_history: bool = True) -> None:
        self.grid = grid
        self.options = options
        self.with_history = with_history  # whether to find representatives
        self.similarity = Similarity(options.metric, options.detail)
        self.engine = create_engine(options.backend, grid.tokens.device)
        self.spans = scenes.find_blocks(grid, options.block)
        cells = grid.shape[1] * grid.shape[2]
        self.sizes = np.array([(span.stop - span.start) * cells for span in self.spans])
        self.has_second_pass = options.dedupe > 1 and len(self.spans) > 1
        if self.has_second_pass and not grid.tokens.is_contiguous():
            # every block is read three times: one copy costs less
            self.grid = replace(grid, tokens=grid.tokens.contiguous())
        self.progress = _Progress(options.progress, float((self.sizes.astype(float) ** 2).sum() * grid.dim / 2))
        self._check_memory(int(self.sizes.max()), "block=32, or fewer frames")

    @property
    def second_pass(self) -> SecondPass:
        tick, with_history = self.progress.tick, self.with_history
        return SecondPass(self.grid, self.spans, self.sizes, self.engine, self.similarity, tick, with_history)

    def rank(self, count: int) -> Ranking | DeviceRanking:
        """Rank at least `count` tokens; on a GPU exactly `count`, without waiting for it."""
        # a selection of everything needs no second pass
        windows = self.plan_windows(count) if self.has_second_pass and count < self.grid.n else None
        if self.options.stays_on(self.grid.tokens.device):
            from floc.selection.gpu import run

            tokens, detail = self.grid.tokens.reshape(-1, self.grid.dim), float(self.options.detail)
            if windows is None:
                ranking = run.rank_in_blocks(tokens, self.sizes, count, detail)
            else:
                ranking = run.rank_in_two_passes(tokens, self.sizes, windows, count, detail)
            self.progress.tick(self.progress.total)
            return ranking
        with self.engine.share_setup():
            if windows is None:
                shares = blocks.share_budget(self.sizes, count)
                return self.rank_first_pass(self.run_first_pass(shares, with_cosines=self.with_history))
            depths = [np.minimum(self.sizes[window.start : window.stop], survivors) for window, survivors in windows]
            solutions = self.run_first_pass(np.concatenate(depths), with_cosines=False)
            return self.second_pass.rank(solutions, windows, count)

    def plan_windows(self, count: int) -> list[tuple[range, int]]:
        """Plan the windows of a second pass that keeps `count` tokens; raise MemoryError if they do not fit."""
        survivors = math.ceil(min(self.grid.n, max(self.options.dedupe * count, len(self.spans))))
        together = min(second_pass.SURVIVORS_TOGETHER, self.engine.limit_survivors(self.sizes, survivors))
        windows = second_pass.plan_windows(self.sizes, survivors, together)
        numbers = [number for _, number in windows]
        self.progress.total += sum(number**2 for number in numbers) * self.grid.dim
        self._check_memory(max(numbers), "dedupe=1, which has no second pass, or keep fewer tokens", weighted=True)
        return windows

    def run_first_pass(self, depths: np.ndarray, *, with_cosines: bool) -> list[Solution | None]:
        """Select `depths` tokens in each block; None in a block that gets none."""
        jobs = (Job(self.grid.frames(span), int(k)) for span, k in zip(self.spans, depths, strict=True) if k > 0)
        # to the end, so that the engine's threads end here: garbage collection would swallow an interrupt
        solved = [*self.engine.solve(jobs, self.similarity, with_cosines=with_cosines, tick=self.progress.tick)][::-1]
        return [solved.pop() if k > 0 else None for k in depths]

    def rank_first_pass(self, solutions: list[Solution | None]) -> Ranking:
        """Merge the picks of all blocks if there is no second pass."""
        scaled = [None if solution is None else solution.scale(SCALE) for solution in solutions]
        is_rising = self.similarity.is_plain_cosine  # with other metrics the more similar need not have a higher cosine
        return Ranking.merge(scaled, self.sizes, rising=is_rising, with_history=self.with_history)

    def _check_memory(self, n: int, remedy: str, *, weighted: bool = False) -> None:
        needed = self.engine.estimate_bytes(n, self.grid.dim, self.similarity, weighted=weighted)
        check_memory(n, needed, self.grid.tokens.device, remedy)


class _Progress:
    """Adds up the work done by several threads, and reports its fraction of the total."""

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
