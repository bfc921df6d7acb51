"""The jobs and solutions of a backend's engine, and the steps that all engines share.

An engine computes a fixed-point similarity matrix, selects greedily on it, and records which pick represents each token
after every step. With that history one run holds the result for every smaller budget.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch

from floc.selection.objective import SCALE, WEIGHT_SCALE, Similarity

Tick = Callable[[float], None]  # called with the multiply-adds done since the last call
Matrices = Sequence[torch.Tensor]  # [M, N] int16 similarities of each set
TokenSets = Sequence[tuple[torch.Tensor, np.ndarray]]  # [n, D] tokens of each set, and the [n] cluster of each token
Choice = tuple[np.ndarray, np.ndarray, int]  # picks, gains, and the gain of the next pick
Raises = tuple[np.ndarray, np.ndarray, np.ndarray]  # every time a pick raised a token's cover: [E] token, rank, cover
Cosines = Callable[[np.ndarray, np.ndarray], np.ndarray]  # computes the cosines of tokens i and j of a set

_NEAR = 8  # levels below similarity 1


def no_tick(_: float) -> None:
    """Ignore progress."""


class Question(NamedTuple):
    """The tokens of a question as further targets of a set, which every token can represent, whatever the horizon."""

    relevance: torch.Tensor  # [n, Q] int16 of at least 0, how well each token represents each token of the question
    weight: int  # of a token of the question, in units of 1 / WEIGHT_SCALE of a token of the video


@dataclass(frozen=True, eq=False)
class Job:
    """One set of tokens to select from."""

    tokens: torch.Tensor  # [n, D]
    budget: int  # 1 <= budget <= n - first
    # within a horizon only:
    given: np.ndarray = field(
        default_factory=lambda: np.zeros(0, np.int64)
    )  # [G] int64 tokens below `first`, kept already
    first: int = 0  # the tokens before it are to be represented, but cannot be picked
    stop: int | None = None  # picks from this token on are made, but not returned
    question: Question | None = None  # gains are then in units of 1 / (SCALE * WEIGHT_SCALE)
    with_history: bool = True  # whether representatives are needed

    def __post_init__(self) -> None:
        if self.tokens.ndim != 2 or not 1 <= self.budget <= len(self.tokens) - self.first:
            raise ValueError(
                f"cannot select {self.budget} of tokens of shape {list(self.tokens.shape)} from {self.first} on"
            )
        check_indices("given", self.given, (len(self.given),), self.first)
        if self.question is not None:
            self._check_question(self.question)

    def _check_question(self, question: Question) -> None:
        relevance = question.relevance
        if relevance.dtype != torch.int16 or relevance.ndim != 2 or len(relevance) != len(self.tokens):
            raise ValueError(
                f"relevance is {relevance.dtype} of shape {list(relevance.shape)}; it must be [n, Q] int16"
            )
        if question.weight < 0 or self.first or len(self.given) or self.stop is not None:
            raise ValueError("a question needs a weight of at least 0, and all tokens must be candidates")

    def list_returned(self, picks: torch.Tensor) -> torch.Tensor:
        """Return the given tokens, and those of the picks that are returned."""
        picks = picks[: self.budget]
        returned = picks if self.stop is None else picks[picks < self.stop]
        return torch.cat([torch.from_numpy(self.given).to(picks.device), returned])

    def split_choice(self, picks: np.ndarray, gains: np.ndarray) -> "Choice":
        """Split off the gain that follows the budget, and drop the picks that are not returned."""
        picks, gains, next_gain = split_next_gain(picks, gains, self.budget)
        is_returned = picks < (len(self.tokens) if self.stop is None else self.stop)
        return picks[is_returned], gains[is_returned], next_gain


@dataclass(frozen=True, eq=False)
class Targets:
    """What the candidates must cover if each target represents several tokens."""

    directions: torch.Tensor  # [N, D] float32 unit vectors
    lengths: np.ndarray  # [N] float64, the vectors' lengths; the Gaussian metric needs them
    weights: np.ndarray  # [N] int64

    def __post_init__(self) -> None:
        if len({len(self.directions), len(self.lengths), len(self.weights)}) > 1:
            raise ValueError("every target needs one direction, one length and one weight")


@dataclass(frozen=True)
class Band:
    """The sizes of the band of a similarity matrix: the similarities of all tokens at most `horizon` slices apart.

    It is stored as [n, width] int16. Row v has the similarities to the tokens from (t_v - horizon) * cells on, where
    t_v is the slice of v; those outside of the video, and negative ones, are 0.
    """

    frames: int  # token slices
    cells: int  # tokens in each
    horizon: int  # slices, at least 0

    @property
    def n(self) -> int:
        """Number of tokens."""
        return self.frames * self.cells

    @property
    def reach(self) -> int:
        """Number of tokens in `horizon` slices."""
        return self.horizon * self.cells

    @property
    def width(self) -> int:
        """Number of tokens that may represent a token."""
        return 2 * self.reach + self.cells


class Reach(NamedTuple):
    """A limit to the frames between a candidate and a target that it represents; target i belongs to candidate i."""

    frames: np.ndarray  # [M] int64, of the candidates
    horizon: int  # frames

    def split(self, part: slice) -> "Reach":
        """Return the limit for some of the candidates."""
        return Reach(self.frames[part], self.horizon)


class History(NamedTuple):
    """The changes of representatives: when pick number `rank` was made, it became the representative of `token`."""

    token: np.ndarray  # [E] int64
    rank: np.ndarray  # [E] int64, never decreasing
    cosine: np.ndarray | None  # [E] float64, of the token and that pick; None if not requested

    def representatives(self, n: int, kept: int | np.ndarray) -> np.ndarray:
        """Return [n] int64, the rank of each token's representative; -1 if it has none.

        `kept` is the number of picks to use, the first ones, or [P] bool for each pick.
        """
        last = np.full(n, -1, np.int64)
        used = self.rank < kept if isinstance(kept, int) else kept[self.rank]
        last[self.token[used]] = self.rank[used]  # for a repeated index the last value counts, and ranks never decrease
        return last


@dataclass(frozen=True)
class Solution:
    """The picks from one set, as indices into the set; first the tokens that were given, with a gain of 0."""

    picks: np.ndarray  # [k] int64, in the order they were made
    gains: np.ndarray  # [k] int64 fixed point; float64 after `scale`
    next_gain: float | None  # gain of the best further pick, which the bound needs; None if unknown
    history: History | None  # None if not requested
    sigma: float | None = None  # width of the Gaussian metric
    closest: np.ndarray | None = None  # [N, r] int64 ranks of the picks most similar to each target, if weighted

    def scale(self, unit: int) -> "Solution":
        """Divide the gains by `unit`, which converts fixed point to units of similarity."""
        next_gain = None if self.next_gain is None else self.next_gain / unit
        return replace(self, gains=self.gains / unit, next_gain=next_gain)


# Compiled code and GPU kernels do not check bounds. These checks run once before them, in every engine.


def check_indices(name: str, indices: np.ndarray, shape: tuple[int, ...], end: int) -> None:
    """Raise ValueError unless `indices` are int64 of this shape in [0, end)."""
    if indices.dtype != np.int64 or indices.shape != shape:
        raise ValueError(f"{name} must be int64 of shape {shape}, got {indices.dtype} of shape {indices.shape}")
    if indices.size and not (indices.min() >= 0 and indices.max() < end):
        raise ValueError(f"{name} must be in 0..{end - 1}, got {indices.min()} to {indices.max()}")


def check_width(left: torch.Tensor, right: torch.Tensor) -> None:
    """Raise ValueError unless rows of both have the same number of features."""
    if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[1]:
        raise ValueError(f"tokens must have the same features, got {list(left.shape)} and {list(right.shape)}")


def check_matrices(matrices: Sequence[torch.Tensor], depths: Sequence[int], weights: np.ndarray | None) -> None:
    """Raise ValueError unless `depths[b]` picks can be made from each matrix b, and all gains fit 64 bits.

    Backends sort by int64 keys of a gain and a candidate index. Similarities are below 2**15 in magnitude, so a gain is
    below 2**16 per unit of weight. The first pick has the largest sum, so no later gain exceeds half of that range. The
    GPU kernels use three more bits of each key.
    """
    for matrix, depth in zip(matrices, depths, strict=True):
        if matrix.ndim != 2 or matrix.dtype != torch.int16 or not 1 <= depth <= len(matrix):
            raise ValueError(f"cannot make {depth} picks from a {matrix.dtype} matrix of shape {list(matrix.shape)}")
    if weights is None:
        return
    candidates, tokens = matrices[0].shape
    if weights.dtype != np.int64 or weights.shape != (tokens,) or len(matrices) > 1 or weights.min(initial=0) < 0:
        raise ValueError(f"weights must be one int64 of at least 0 for each of {tokens} tokens of one matrix")
    largest = float(weights.sum(dtype=np.float64)) * (1 << 18) * (1 << max(1, (candidates - 1).bit_length()))
    if largest >= 2.0**63:
        total = f"weights add up to {weights.sum(dtype=np.float64):.3g}"
        raise ValueError(f"{total}, too much for exact 64-bit gains with {candidates} candidates; scale them down")


def join_targets(matrix: torch.Tensor, question: Question) -> tuple[torch.Tensor, np.ndarray]:
    """Append a question to the targets of a set: [n, n + Q] int16 similarities, and [n + Q] int64 weights."""
    relevance = question.relevance.to(matrix.device)
    weights = np.repeat(np.array([WEIGHT_SCALE, question.weight], np.int64), [matrix.shape[1], relevance.shape[1]])
    return torch.cat([matrix, relevance], 1), weights


def split_next_gain(picks: np.ndarray, gains: np.ndarray, budget: int) -> Choice:
    """Cut `min(budget + 1, candidates)` picks and gains at the budget; also returns the gain that follows, or 0."""
    return picks[:budget], gains[:budget], int(gains[budget]) if len(gains) > budget else 0


def build_solution(
    choice: Choice,
    raises: Raises,
    own: np.ndarray,
    similarity: Similarity,
    cosines: Cosines,
    *,
    with_cosines: bool,
    job: Job,
) -> "Solution":
    """Build the solution for greedy's picks from the set of a job; all engines share it.

    `own` is [n] int16, the similarity of each token to itself. `with_cosines` says whether the history needs cosines;
    those that can be read off the matrix are always included.
    """
    picks, gains, next_gain = choice
    picks, gains = np.append(job.given, picks), np.append(np.zeros_like(job.given), gains)
    if not job.with_history:
        return Solution(picks, gains, next_gain, None)
    token, rank, cover = raises
    # a pick represents itself from its own turn on; if it was fully covered before, `raises` does not contain that
    rank = np.concatenate([rank, np.arange(len(picks))])
    by_rank = np.argsort(rank, kind="stable")
    token, rank = np.concatenate([token, picks])[by_rank], rank[by_rank]
    cover, cosine = np.concatenate([cover, own[picks]])[by_rank], None
    if similarity.is_plain_cosine:
        cosine = cover / SCALE
    elif with_cosines and similarity.metric == "cosine":
        cosine = _find_cosines(cover, token, picks[rank], similarity, cosines)
    elif with_cosines:
        cosine = cosines(token, picks[rank])
    return Solution(picks, gains, next_gain, History(token, rank, cosine))


def _find_cosines(
    cover: np.ndarray, token: np.ndarray, pick: np.ndarray, similarity: Similarity, cosines: Cosines
) -> np.ndarray:
    """Read the cosines of tokens and picks off their similarities, to within 1 / (2 PLAIN SCALE).

    Computed from the tokens are those that are not positive, and those so near 1 that the error matters there.
    """
    cosine = similarity.tabulate_cosines()[cover.clip(0)]
    unclear = ((cover <= 0) | (cover > SCALE - _NEAR)) & (token != pick)
    cosine[unclear] = cosines(token[unclear], pick[unclear])
    return cosine
