"""FLoC: facility-location selection in blocks, then once more over what the blocks kept.

The paper (Cho et al., "FLoC: Facility Location-Based Efficient Visual Token Compression for Long Video Understanding",
ICLR 2026) selects within blocks of 32 frames by greedy facility location on cosines. That is `floc-paper` here.

`floc` goes two steps further:

* The second pass (`dedupe`). The blocks keep `dedupe` times the budget between them, then one selection over these
  survivors keeps the budget, which removes what blocks repeat from one another. A survivor stands for its cluster: the
  cosines of a cluster's tokens with u add up to exactly (the sum of its normalised tokens) . u, so the second selection
  sees every survivor as a target with the direction and the length of that sum, and needs no other token. Blocks share
  the survivors by gain, not by size: a still scene leaves room for a busy one.
* `detail`. The similarity is 1 - (1 - cos)^detail, so that what is badly covered weighs more and rare things survive.

Algorithm 1 of the paper starts lazy greedy from the bound f({v}), which negative cosines break; here the picks are
those of plain greedy in every case.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import NamedTuple

import numpy as np
import torch

from .. import blocks
from ..machine import available_bytes, in_words
from ..naming import require_known
from ..path import Path, improvements
from ..selection import engine, require_headroom
from ..selection.engine import Engine, Job, Solution, Targets
from ..selection.objective import METRICS, SCALE, WEIGHT_SCALE, Metric, Similarity
from ..types import Kept, TokenGrid
from . import register


@register("floc")
@dataclass(frozen=True)
class Floc:
    """Keep the tokens that best stand in for all others."""

    block: int | None = 32  # frames chosen from together; None: the whole video as one set
    dedupe: float = 2  # how many tokens for each one kept go into the second pass; 1: no second pass
    detail: float = 2  # how much more badly covered tokens weigh; 1: not at all
    metric: Metric = "cosine"  # or "gaussian"
    allocate: str = "uniform"  # the same ratio in each block, or "global": greedy over all blocks
    backend: str = "auto"
    progress: Callable[[float], None] | None = field(default=None, repr=False, compare=False)  # gets the share done

    def __post_init__(self) -> None:
        if self.block is not None and not (_is(self.block, Integral) and self.block >= 1):
            raise ValueError(
                f"block must be a number of frames, at least 1, or None for the whole video; got {self.block!r}"
            )
        for name in ("dedupe", "detail"):
            value = getattr(self, name)
            if not (_is(value, Real) and 1 <= value < math.inf):
                raise ValueError(f"{name} must be a number, at least 1 (which turns it off); got {value!r}")
        require_known("metric", self.metric, METRICS)
        require_known("allocate", self.allocate, ("uniform", "global"))
        if self.allocate == "global" and self.dedupe > 1 and self.block is not None:
            raise ValueError(
                "allocate='global' needs dedupe=1: the second pass already chooses across blocks; "
                f"got dedupe={self.dedupe:g}"
            )

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        run = _Run(self, grid)
        if not run.has_second_pass or budget == grid.n:  # where all is kept there is nothing to choose across blocks
            path = run.first_path(run.first_pass(run.depths(budget), with_cosines=True))
        else:
            survivors = run.survivors(budget)
            solutions = run.first_pass(np.minimum(run.sizes, survivors), with_cosines=False)
            path = run.second_path(solutions, survivors, budget)
        return grid.keep(path, budget)

    def reaching(self, grid: TokenGrid, coverage: float) -> Kept:
        """Keep the fewest tokens, of this method's order, whose mean cosine to all tokens is at least `coverage`."""
        run = _Run(self, grid)
        solutions = run.first_pass(run.sizes, with_cosines=True)
        path = run.first_path(solutions)
        count = path.fewest(coverage)
        if run.has_second_pass:
            # what survives at the count that plain blocks need: the second pass hardly needs more, and may take all
            survivors = run.survivors(count)
            path = run.second_path(solutions, survivors, survivors)
            count = path.fewest(coverage)
        return grid.keep(path, count)


@register("floc-paper")
@dataclass(frozen=True)
class FlocPaper(Floc):
    """The paper to the letter: blocks of 32 frames, plain cosines, one pass."""

    dedupe: float = 1
    detail: float = 1


class _Clusters(NamedTuple):
    """What survived a first pass, and the clusters of tokens that the survivors stand for."""

    survivors: np.ndarray  # [M] int64 flat token index, most important first: so go ties in the second pass
    of: np.ndarray  # [n] int64, for each token its cluster: M of them, block after block


class _Run:
    """One grid on its way through the passes."""

    def __init__(self, options: Floc, grid: TokenGrid) -> None:
        self.grid = grid
        self.options = options
        self.similarity = Similarity(options.metric, options.detail)
        self.engine: Engine = engine(options.backend, grid.tokens.device)
        self.spans = blocks.split(grid.tokens.shape[0], options.block)
        cells = grid.shape[1] * grid.shape[2]
        self.sizes = np.array([(span.stop - span.start) * cells for span in self.spans])
        self.offsets = self.sizes.cumsum() - self.sizes
        self.places = [slice(start, start + size) for start, size in zip(self.offsets, self.sizes, strict=True)]
        self.has_second_pass = options.dedupe > 1 and len(self.spans) > 1
        if self.has_second_pass and not grid.tokens.is_contiguous():
            # every block is read three times: one copy is better than three
            self.grid = replace(grid, tokens=grid.tokens.contiguous())
        self.progress = _Progress(options.progress, float((self.sizes.astype(float) ** 2).sum() * grid.dim / 2))
        self._require_memory(int(self.sizes.max()), "block=32, or fewer frames")

    def depths(self, budget: int) -> np.ndarray:
        """[B] how far to choose in each block when there is no second pass."""
        if self.options.allocate == "global":
            return np.minimum(self.sizes, budget)  # one block may win them all
        return blocks.shares(self.sizes, budget)

    def survivors(self, budget: int) -> int:
        """How many tokens go into a second pass that keeps `budget`; an error where they would not fit in memory."""
        count = math.ceil(min(self.grid.n, max(self.options.dedupe * budget, len(self.spans))))
        self.progress.total += count * count * self.grid.dim
        self._require_memory(count, f"dedupe=1, which has no second pass over {count} survivors, or keep fewer tokens")
        return count

    def first_pass(self, depths: np.ndarray, *, with_cosines: bool) -> list[Solution | None]:
        """Choose `depths` tokens in each block; None in a block that gets none."""
        jobs = (Job(self.grid.frames(span), int(k)) for span, k in zip(self.spans, depths, strict=True) if k > 0)
        solved = self.engine.solve(jobs, self.similarity, with_cosines=with_cosines, tick=self.progress.tick)
        return [next(solved) if k > 0 else None for k in depths]

    def first_path(self, solutions: Sequence[Solution | None]) -> Path:
        """The order of all blocks' picks, where no second pass follows."""
        present = [(b, solution) for b, solution in enumerate(solutions) if solution is not None]
        shared = self.options.allocate == "uniform"
        if shared:
            group = np.concatenate([np.full(len(s.picks), b) for b, s in present])
            rank = np.concatenate([np.arange(len(s.picks)) for _, s in present])
            order = blocks.interleaved(self.sizes, rank, group)
            group, rank = group[order], rank[order]
        else:
            group, rank = blocks.merged([s.gains for _, s in present])
        starts = np.zeros(len(solutions), np.int64)  # where each block's picks start when they are laid end to end
        starts[[b for b, _ in present]] = np.cumsum([0] + [len(s.picks) for _, s in present])[:-1]
        laid_out = starts[group] + rank  # [P] from order to end-to-end
        place = np.empty(len(group), np.int64)
        place[laid_out] = np.arange(len(group))  # and back

        token = np.concatenate([self.offsets[b] + s.history.token for b, s in present])
        at = np.concatenate([place[starts[b] + s.history.rank] for b, s in present])
        cosine = np.concatenate([s.history.cosine for _, s in present])
        if self.similarity.is_plain_cosine:
            in_time = np.argsort(at, kind="stable")
            token, at, cosine = token[in_time], at[in_time], cosine[in_time]
        else:  # what is more similar need not have the higher cosine
            token, at, cosine = improvements(token, at, cosine)
        next_gains = np.zeros(len(solutions))
        next_gains[[b for b, _ in present]] = [s.next_gain / SCALE for _, s in present]
        return Path(
            picks=np.concatenate([self.offsets[b] + s.picks for b, s in present])[laid_out],
            gains=np.concatenate([s.gains for _, s in present])[laid_out] / SCALE,
            group=group,
            group_sizes=self.sizes,
            next_gains=next_gains,
            shared=shared,
            token=token,
            place=at,
            cosine=cosine,
            n=self.grid.n,
        )

    def second_path(self, solutions: Sequence[Solution | None], survivors: int, budget: int) -> Path:
        """Choose `budget` from the `survivors` best picks of all blocks."""
        present = [solution for solution in solutions if solution is not None]
        clusters = self._clusters(present, survivors)
        sets = [(self.grid.frames(span), clusters.of[mine]) for span, mine in zip(self.spans, self.places, strict=True)]
        count = len(clusters.survivors)
        if self.similarity.metric == "cosine":
            directions, lengths = self.engine.sum_by_cluster(sets, count, unit=True)
            weights, sigma = np.rint(lengths * WEIGHT_SCALE).astype(np.int64), None
        else:
            # distances do not add up like cosines: a cluster is taken as its mean, and counts once for each member
            members = np.bincount(clusters.of, minlength=count)
            directions, lengths = self.engine.sum_by_cluster(sets, count, unit=False)
            lengths = lengths / np.maximum(members, 1)  # of two that are the same, one stands for both
            weights, sigma = members * WEIGHT_SCALE, float(np.mean([solution.sigma for solution in present]))
        require_headroom(weights, count)

        candidates = self.grid.gather(clusters.survivors)
        chosen = self.engine.solve_weighted(
            candidates,
            Targets(directions, lengths, weights),
            budget,
            self.similarity,
            sigma=sigma,
            tick=self.progress.tick,
        )
        token, place, cosine = self._representatives(clusters, candidates, chosen)
        return Path(
            picks=clusters.survivors[chosen.picks],
            gains=chosen.gains / (SCALE * WEIGHT_SCALE),
            group=np.zeros(len(chosen.picks), np.int64),
            group_sizes=np.array([self.grid.n]),
            next_gains=np.array([chosen.next_gain / (SCALE * WEIGHT_SCALE)]),
            shared=False,
            token=token,
            place=place,
            cosine=cosine,
            n=self.grid.n,
        )

    def _clusters(self, solutions: Sequence[Solution], survivors: int) -> _Clusters:
        """Share the survivors among the blocks by what they gain, and give every token to its representative."""
        block, rank = blocks.merged([solution.gains for solution in solutions])
        # a block without a survivor would have nothing that stands for its tokens
        taken = (np.arange(len(block)) < survivors) | (rank == 0)
        counts = np.bincount(block[taken], minlength=len(solutions))
        starts = counts.cumsum() - counts
        of = np.empty(self.grid.n, np.int64)
        for solution, k, start, mine in zip(solutions, counts, starts, self.places, strict=True):
            of[mine] = start + solution.history.representatives(mine.stop - mine.start, k)
        picks = np.concatenate([mine.start + s.picks for mine, s in zip(self.places, solutions, strict=True)])
        depths = np.array([len(solution.picks) for solution in solutions])
        first = depths.cumsum() - depths  # where each block's picks start
        return _Clusters(picks[first[block[taken]] + rank[taken]], of)

    def _representatives(
        self, clusters: _Clusters, candidates: torch.Tensor, chosen: Solution
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Who represents each token, and from when on: [E] token, [E] place in the order of picks, [E] cosine.

        Those that represented its cluster along the way, the few picks that are closest to its cluster, and, for a
        token that was picked, itself: whichever is closest to the token.
        """
        history, closest = chosen.history, chosen.closest
        assert closest is not None, "a weighted selection names them"
        changes = np.argsort(history.token, kind="stable")
        first = np.searchsorted(history.token[changes], np.arange(len(clusters.survivors) + 1))  # of each cluster
        picked = clusters.survivors[chosen.picks]
        found = []
        for mine, span in zip(self.places, self.spans, strict=True):
            cluster = clusters.of[mine]
            n = len(cluster)
            many = first[cluster + 1] - first[cluster]
            nth = np.arange(many.sum()) - np.repeat(many.cumsum() - many, many)
            itself = np.flatnonzero((picked >= mine.start) & (picked < mine.stop))
            token = np.concatenate(
                [np.repeat(np.arange(n), many), np.repeat(np.arange(n), closest.shape[1]), picked[itself] - mine.start]
            )
            place = np.concatenate(
                [history.rank[changes[np.repeat(first[cluster], many) + nth]], closest[cluster].ravel(), itself]
            )
            by_place = np.argsort(place, kind="stable")
            token, place = token[by_place], place[by_place]
            cosine = self.engine.cosines(self.grid.frames(span), token, candidates, chosen.picks[place])
            found.append((mine.start + token, place, cosine))
        return improvements(*(np.concatenate(each) for each in zip(*found, strict=True)))

    def _require_memory(self, n: int, remedy: str) -> None:
        needed = self.engine.bytes_needed(n, self.grid.dim, self.similarity)
        available = available_bytes(self.grid.tokens.device)
        if available is not None and needed > available:
            raise MemoryError(
                f"choosing from {n} tokens together needs {in_words(needed)}, {in_words(available)} are free; "
                f"pass {remedy}"
            )


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
