"""FLoC: facility-location selection, within a horizon or in blocks.

The paper (Cho et al., "FLoC: Facility Location-Based Efficient Visual Token Compression for Long Video Understanding",
ICLR 2026) selects within blocks of 32 frames by greedy facility location on cosines. That is `floc-paper` here.

`floc` differs in two ways:

* `horizon` in place of blocks. A token is represented only by tokens at most `horizon` frames away, so that what
  happens again is kept again. Greedy selects from the whole video on a band of similarities.
* `detail`. Badly covered tokens weigh more, so that rare things survive: see `Similarity`.

With `block` it selects in blocks like the paper, and with `dedupe` there is a second pass. The blocks keep `dedupe`
times the budget, by gain, so that a static scene leaves room for a busy one. One selection among these survivors
removes what blocks repeat: see `floc.second_pass`.

Algorithm 1 of the paper starts lazy greedy from the bound f({v}), which negative cosines violate; here the picks are
always those of plain greedy.
"""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

from floc import blocks, scenes, second_pass
from floc._arrays import Array
from floc._checks import check_choice, check_factor, is_int, is_positive_int, shorten
from floc._system import check_memory
from floc.blocks import BlockSpec
from floc.kept import Kept
from floc.methods.registry import register
from floc.methods.shared.question import check_question, compute_relevance, read_query, scale_weight
from floc.ranking import DeviceRanking, Ranking
from floc.second_pass import SecondPass
from floc.selection.backends import BACKENDS, create_engine, resolve_backend
from floc.selection.engine import Band, Job, Question, Solution
from floc.selection.objective import METRICS, SCALE, WEIGHT_SCALE, Metric, Similarity
from floc.tokens import TokenGrid

Horizon: TypeAlias = int | Literal["auto"] | None
LEAST_HORIZON = 4  # of "auto": a window of nine frames
LARGEST_HORIZON = 16  # of "auto", as time and memory grow with it
BLOCK = 32  # frames of the paper's blocks
SMALL_BAND = 1 << 25  # bytes; not worth a check, as finding the free memory takes as long as a tenth of the selection
BLOCK_OPTIONS = ("block", "dedupe", "metric")  # exclude a horizon


def choose_horizon(n: int, count: int) -> int:
    """Return the horizon "auto" for `count` of `n` tokens: 1 / (8 ratio) frames, but 4 at least and 16 at most.

    >>> choose_horizon(6400, 800), choose_horizon(6400, 100), choose_horizon(6400, 10)
    (4, 8, 16)
    """
    return min(LARGEST_HORIZON, max(LEAST_HORIZON, (n + 4 * count) // (8 * count)))  # rounds half up


def check_horizon(horizon: object) -> None:
    """Raise ValueError unless a horizon is a number of frames, at least 0, or "auto"."""
    is_auto = isinstance(horizon, str) and horizon == "auto"
    if not is_auto and not (is_int(horizon) and int(horizon) >= 0):  # type: ignore[call-overload]  # a number
        allowed = "a whole number of frames, at least 0, 'auto', or None for no limit"
        raise ValueError(f"horizon must be {allowed}; got {shorten(horizon)}")


@register(
    "floc",
    "Cho et al., FLoC, ICLR 2026, with a horizon and detail beyond it",
    "select",
    needs="embeddings of a question (query=), with a weight (query_weight=)",
)
@dataclass(frozen=True)
class Floc:
    """Keep the tokens that best represent all others."""

    horizon: Horizon = "auto"  # frames between a token and its representative at most; "auto": by ratio; None: no limit
    detail: float = 3  # how much more badly covered tokens weigh; 1: not at all
    # blocks in place of a horizon: frames selected from together; "scene": as scenes change; or their first frames
    block: BlockSpec = None
    dedupe: float = 1  # with blocks: survivors per token kept that go into a second pass; 1: no second pass
    metric: Metric = "cosine"  # or "gaussian", with blocks
    query: Array | None = field(default=None, compare=False)  # [Q, D] embeddings of a question
    query_weight: float = 0  # of the question; all tokens of the video together have 1
    backend: str = "auto"
    progress: Callable[[float], None] | None = field(default=None, repr=False, compare=False)  # gets the fraction done

    def __post_init__(self) -> None:
        blocks.check_block(self.block)
        for name in ("dedupe", "detail"):
            check_factor(name, getattr(self, name), " (1 turns it off)")
        check_choice("metric", self.metric, METRICS)
        check_choice("backend", self.backend, BACKENDS)
        check_question(self.query is not None, self.query_weight)
        if self.query is not None and (self.dedupe > 1 or self.metric != "cosine"):
            given = f"dedupe={shorten(self.dedupe)}, metric={self.metric!r}"
            raise ValueError(f"query needs dedupe=1 and metric='cosine'; got {given}")
        if self.horizon is not None:
            check_horizon(self.horizon)
            values = {name: getattr(self, name) for name in BLOCK_OPTIONS}
            if wrong := [f"{name}={shorten(values[name])}" for name in values if values[name] != getattr(Floc, name)]:
                raise ValueError(f"horizon={shorten(self.horizon)} excludes blocks; remove {', '.join(wrong)}")

    @classmethod
    def complete_options(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Turn the horizon off if options of blocks are given, and add the length of blocks if only others are."""
        has_blocks = any(name in given for name in BLOCK_OPTIONS)
        return {"block": BLOCK, **given, "horizon": None} if has_blocks and "horizon" not in given else given

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        run = self._resolve(grid, budget)._start(grid)
        return self._keep(run, run.rank(budget), budget)

    def _resolve(self, grid: TokenGrid, count: int) -> "Floc":
        """Replace the horizon "auto" by that of `count` tokens."""
        return replace(self, horizon=choose_horizon(grid.n, count)) if self.horizon == "auto" else self

    def _start(self, grid: TokenGrid, *, with_history: bool = True) -> "_Run":
        options = self
        if self.horizon is not None and int(self.horizon) >= grid.shape[0] - 1:  # every frame is within the horizon
            options = replace(self, horizon=None, block=None, dedupe=1)
        return _Run(options, grid, with_history=with_history)

    def _keep(self, run: "_Run", ranking: Ranking | DeviceRanking, count: int) -> Kept:
        kept = run.grid.keep_ranked(ranking, count)
        if self.horizon is None:
            return kept
        return replace(kept, settings={"block": None, "dedupe": 1, "horizon": run.options.horizon})

    def select_indices(self, grid: TokenGrid, budget: int) -> torch.Tensor:
        run = self._resolve(grid, budget)._start(grid, with_history=False)
        ranking = run.rank(budget)
        if isinstance(ranking, DeviceRanking):
            return torch.as_tensor(run.grid.keep_ranked(ranking, budget).indices)
        return torch.from_numpy(np.sort(ranking.picks[ranking.mask(budget)])).to(grid.tokens.device)

    def stays_on(self, device: torch.device) -> bool:
        """Return whether all work is done on the device without waiting for it."""
        return self.query is None and self.metric == "cosine" and resolve_backend(self.backend, device) == "gpu"

    def get_stream_options(self, *, by_ratio: bool) -> dict[str, Any] | None:
        """See `Streamable`: a stream with a budget selects in blocks and among their survivors, too."""
        if self.query is not None:
            return None
        if self.horizon is not None:
            return {name: getattr(self, name) for name in ("horizon", "detail", "backend")}
        if by_ratio or self.metric != "cosine" or self.dedupe == 1:
            return None
        if not (is_positive_int(self.block) or self.block == "scene"):
            return None
        return {name: getattr(self, name) for name in ("block", "dedupe", "detail", "backend")}

    def plan_windows(self, tokens: torch.Tensor, budget: int) -> list[tuple[range, int]]:
        """Return the blocks of each window of the second pass, and its number of survivors."""
        grid = TokenGrid.from_array(tokens, check_finite=False)
        return _Run(self._resolve(grid, budget), grid).plan_windows(budget)

    def reach_coverage(self, grid: TokenGrid, coverage: float) -> Kept:
        """Keep the fewest tokens of this method's order whose mean cosine to all tokens is at least `coverage`.

        With the horizon "auto" it is the order within the horizon of the ratio that the least horizon needs.
        """
        options = self
        if self.horizon == "auto":
            options = replace(self, horizon=LEAST_HORIZON, progress=_show_part(self.progress, 0, 0.5))
        run = options._start(grid)
        solutions = run.run_first_pass(run.sizes, with_cosines=True)
        ranking = run.rank_first_pass(solutions)
        count = ranking.find_count(coverage)
        if self.horizon == "auto":
            second_half = _show_part(self.progress, 0.5, 1)
            if (horizon := choose_horizon(grid.n, count)) > LEAST_HORIZON:
                # the ratio that the least horizon needs sets the horizon, which then needs fewer tokens
                return replace(self, horizon=horizon, progress=second_half).reach_coverage(grid, coverage)
            if second_half is not None:
                second_half(1)
        if run.has_second_pass:
            # survivors for the count that plain blocks need: the second pass hardly needs more, and may keep them all
            ranking = run.second_pass.rank(solutions, run.plan_windows(count), run.grid.n)
            count = ranking.find_count(coverage)
        return self._keep(run, ranking, count)


@register("floc-paper", "Cho et al., FLoC, ICLR 2026", "select")
@dataclass(frozen=True)
class FlocPaper(Floc):
    """The paper's method: blocks of 32 frames, plain cosines, one pass."""

    block: BlockSpec = BLOCK
    detail: float = 1
    horizon: None = field(default=None, init=False)  # not in the paper, as the following
    query: None = field(default=None, init=False)
    query_weight: float = field(default=0, init=False)

    @classmethod
    def complete_options(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Return the options as they are: this method has no horizon."""
        return given


class _Run:
    """One grid on its way through the passes."""

    def __init__(self, options: Floc, grid: TokenGrid, *, with_history: bool = True) -> None:
        self.grid = grid
        self.options = options
        self.with_history = with_history  # whether to find representatives
        self.similarity = Similarity(options.metric, options.detail)
        self.engine = create_engine(options.backend, grid.tokens.device)
        self.band: Band | None = None
        if options.horizon is not None:
            self.band = Band(grid.shape[0], grid.cells, int(options.horizon))
        self.spans = scenes.find_blocks(grid, None if self.band else options.block)
        self.sizes = np.array([(span.stop - span.start) * grid.cells for span in self.spans])
        self.has_second_pass = options.dedupe > 1 and len(self.spans) > 1  # never with a horizon
        query = read_query(options.query, grid.tokens)
        self.relevance = None if query is None else compute_relevance(grid.frames(slice(None)), query)
        if self.has_second_pass and not grid.tokens.is_contiguous():
            # every block is read three times: one copy costs less
            self.grid = replace(grid, tokens=grid.tokens.contiguous())
        pairs = self.band.n * self.band.width if self.band else (self.sizes.astype(float) ** 2).sum()
        self.progress = _Progress(options.progress, float(pairs * grid.dim / 2))
        if self.band is None:
            self._check_memory(int(self.sizes.max()), "block=32, or fewer frames")
        else:
            needed = self.engine.estimate_band_bytes(self.band, grid.dim)
            if needed > SMALL_BAND:
                remedy = f"a horizon below {self.band.horizon}, or fewer frames"
                check_memory(grid.n, needed, grid.tokens.device, remedy)

    @property
    def second_pass(self) -> SecondPass:
        tick, with_history = self.progress.tick, self.with_history
        return SecondPass(self.grid, self.spans, self.sizes, self.engine, self.similarity, tick, with_history)

    def rank(self, count: int) -> Ranking | DeviceRanking:
        """Rank at least `count` tokens; on a GPU exactly `count`, without waiting for it."""
        # a selection of everything needs no second pass
        windows = self.plan_windows(count) if self.has_second_pass and count < self.grid.n else None
        if self.options.stays_on(self.grid.tokens.device):
            from floc.selection.gpu import band_selection, run

            tokens, detail = self.grid.tokens.reshape(-1, self.grid.dim), float(self.options.detail)
            if self.band is not None:
                ranking = band_selection.rank_in_band(tokens, self.band, count, detail)
            elif windows is None:
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
        """Select `depths` tokens in each block; None in a block that gets none. With a horizon there is one block."""
        if self.band is not None:
            job = replace(self._make_job(slice(None), int(depths[0])), with_history=self.with_history)
            similarity, tick = self.similarity, self.progress.tick
            return [self.engine.solve_band(job, self.band, similarity, with_cosines=with_cosines, tick=tick)]
        jobs = (self._make_job(span, int(k)) for span, k in zip(self.spans, depths, strict=True) if k > 0)
        # to the end, so that the engine's threads end here: garbage collection would swallow an interrupt
        solved = [*self.engine.solve(jobs, self.similarity, with_cosines=with_cosines, tick=self.progress.tick)][::-1]
        return [solved.pop() if k > 0 else None for k in depths]

    def _make_job(self, span: slice, k: int) -> Job:
        tokens, question = self.grid.frames(span), None
        if self.relevance is not None:
            relevance = self.relevance.unflatten(0, (-1, self.grid.cells))[span].flatten(0, 1)
            question = Question(relevance, scale_weight(self.options.query_weight, *relevance.shape))
        return Job(tokens, k, question=question)

    def rank_first_pass(self, solutions: list[Solution | None]) -> Ranking:
        """Merge the picks of all blocks if there is no second pass."""
        unit = SCALE if self.relevance is None else SCALE * WEIGHT_SCALE
        scaled = [None if solution is None else solution.scale(unit) for solution in solutions]
        is_rising = self.similarity.metric == "cosine"  # else the more similar need not have a higher cosine
        return Ranking.merge(scaled, self.sizes, rising=is_rising, with_history=self.with_history)

    def _check_memory(self, n: int, remedy: str, *, weighted: bool = False) -> None:
        needed = self.engine.estimate_bytes(n, self.grid.dim, self.similarity, weighted=weighted)
        if self.relevance is not None:
            needed += 2 * n * (n + self.relevance.shape[1])  # a copy of the matrix, with the question
        check_memory(n, needed, self.grid.tokens.device, remedy)


def _show_part(show: Callable[[float], None] | None, start: float, stop: float) -> Callable[[float], None] | None:
    """Return a function that shows the fraction of one part of the work as that of the whole."""
    return show and (lambda fraction: show(start + (stop - start) * fraction))


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
