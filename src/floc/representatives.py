"""Representatives: which kept token represents each input token, and how similar the two are.

Facility-location selection knows them when it is done. For other methods they are computed on first use, by a product
of all tokens with all kept ones.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch

from floc._arrays import TILE_BYTES, Array, iterate_tiles, to_numpy
from floc.ranking import DeviceRanking, Ranking, find_nearest_place
from floc.selection.engine import Band

SAMPLE = 20_000  # tokens from which principal directions are computed
_SHORTEST, _LONGEST = 1e-10, 1e17  # of tokens whose squares float32 can sum


class Representation:
    """How kept tokens, numbered by ascending index, represent all tokens. Subclasses compute `coverage`."""

    represents: Any  # [n] int64, the place of every token's representative; None if it is not known any more
    coverage: Any  # mean cosine of tokens and their representatives
    bound: Any  # lower bound on f(kept) / f(best selection), or None
    ranking: Any  # the nested order, which holds the results for smaller budgets, or None

    @property
    def is_known(self) -> bool:
        """True if `coverage` is stored, so that reading it needs no computation."""
        return "coverage" in self.__dict__  # a field, or cached

    def shrink(self, places: np.ndarray, ranking: Ranking | None) -> "Representation":
        """Return the representation by the kept tokens at some places only; `ranking` is truncated to them."""
        raise ValueError("these tokens have no nested order; call floc.compress again")


@dataclass(frozen=True, eq=False)
class KnownRepresentation(Representation):
    """Representatives that were computed before, such as those read from a file."""

    represents: np.ndarray | None
    coverage: float
    bound: float | None = None
    ranking = None


@dataclass(frozen=True, eq=False)
class RankedRepresentation(Representation):
    """Representatives from the history of a ranking, by its first `count` tokens."""

    ranking: Ranking
    count: int
    is_known = True

    @cached_property
    def represents(self) -> np.ndarray:
        return self.ranking.represents(self.count)

    @cached_property
    def coverage(self) -> float:
        return self.ranking.coverage(self.count)

    @cached_property
    def bound(self) -> float | None:
        return self.ranking.bound(self.count)

    def shrink(self, places: np.ndarray, ranking: Ranking | None) -> "Representation":
        assert ranking is not None
        return RankedRepresentation(ranking, len(places))


@dataclass(frozen=True, eq=False)
class NearestRepresentation(Representation):
    """A token is represented by the most similar kept token of its group, and a kept token by itself.

    Both are computed on first use. Until then the tokens must not change, and nothing is copied from a GPU.
    """

    tokens: torch.Tensor | None  # [T, H, W, D]; None: released
    kept: torch.Tensor  # [K, D]
    indices: Array  # [K] int64, ascending
    source: DeviceRanking | Ranking | None = None  # where selection made groups; None: all tokens are one group
    band: Band | None = None  # with a horizon: the slices within which tokens represent each other

    @cached_property
    def ranking(self) -> Ranking | None:
        if not isinstance(self.source, DeviceRanking):
            return self.source
        if int(self.source.non_finite):
            place = "some are not" if self.tokens is None else describe_non_finite(self.tokens) or "some were not"
            raise ValueError(f"tokens must be finite in float32: {place}")
        return self.source.fetch()

    @property
    def bound(self) -> float | None:
        return None if self.ranking is None else self.ranking.bound(len(self.kept))

    @property
    def represents(self) -> np.ndarray:
        return self._nearest[0]

    @cached_property
    def coverage(self) -> float:
        return self._nearest[1]

    @cached_property
    def _nearest(self) -> tuple[np.ndarray, float]:
        if self.tokens is None:
            problem = "representatives need all tokens, which were released after the selection to save GPU memory"
            raise ValueError(f"{problem}; compress them with floc.compress, or with backend='torch'")
        rows = self.tokens.reshape(-1, self.tokens.shape[-1])
        sizes = np.array([len(rows)]) if self.ranking is None else self.ranking.group_sizes
        indices = to_numpy(self.indices)
        represents = find_nearest_place(indices, np.arange(len(rows)))
        if self.band is not None:
            cosine, place = _find_nearest_in_band(rows, self.kept, indices, self.band)
            is_similar = to_numpy(cosine) > 0
            represents[is_similar] = to_numpy(place)[is_similar]
            represents[indices] = np.arange(len(indices))
            return represents, float(cosine.double().clamp_min(0).mean())
        total = 0.0
        for start, end in itertools.pairwise([0, *sizes.cumsum()]):
            first, last = np.searchsorted(indices, [start, end])
            if first < last:  # tokens of a group without kept ones count 0
                cosine, place = find_nearest(rows[start:end], self.kept[first:last])
                represents[start:end] = first + to_numpy(place)
                total += float(cosine.double().sum())
        represents[indices] = np.arange(len(indices))
        return represents, total / len(rows)

    def shrink(self, places: np.ndarray, ranking: Ranking | None) -> "Representation":
        kept, indices = self.kept[torch.from_numpy(places).to(self.kept.device)], to_numpy(self.indices)[places]
        return replace(self, kept=kept, indices=indices, source=ranking)


@dataclass(frozen=True, eq=False)
class AssignedRepresentation(Representation):
    """Representatives that a method assigned itself, by merging; only their similarity is computed on first use."""

    tokens: torch.Tensor  # [T, H, W, D]
    kept: torch.Tensor  # [K, D]
    represents: np.ndarray  # [n] int64
    bound = ranking = None

    @cached_property
    def coverage(self) -> float:
        places = torch.from_numpy(self.represents).to(self.kept.device)
        return float(compute_cosines(self.tokens, self.kept, places).double().mean())


@dataclass(frozen=True, eq=False)
class SummedRepresentation(Representation):
    """The coverage of a stream that holds only sums of tokens; the kept token nearest to a sum represents all of it."""

    directions: torch.Tensor  # [M, D] float32 unit vectors
    lengths: np.ndarray  # [M] float64, of the sums
    weight: float  # number of tokens in the sums, less what has decayed
    kept: torch.Tensor  # [K, D]
    represents = bound = ranking = None

    @cached_property
    def coverage(self) -> float:
        cosine, _ = find_nearest(self.directions, self.kept)
        return float((cosine.double().cpu().numpy() * self.lengths).sum() / self.weight)

    def shrink(self, places: np.ndarray, ranking: Ranking | None) -> "Representation":
        return replace(self, kept=self.kept[torch.from_numpy(places).to(self.kept.device)])


Nearest: TypeAlias = tuple[torch.Tensor, torch.Tensor]  # [n] cosines, and [n] int64 places among the kept tokens


def find_nearest(tokens: torch.Tensor, kept: torch.Tensor) -> Nearest:
    """Find which of [K, D] kept tokens has the highest cosine to each of n tokens, [..., D]; see `Nearest`.

    >>> find_nearest(torch.tensor([[1.0, 0.0], [1.0, 3.0]]), torch.eye(2))[1].tolist()
    [0, 1]
    """
    return find_nearest_of_prefixes(tokens, kept, [len(kept)])[0]


def find_nearest_of_prefixes(tokens: torch.Tensor, kept: torch.Tensor, ends: Sequence[int]) -> list[Nearest]:
    """Run `find_nearest` on kept[:end] for several ascending ends, in the time of the last one."""
    rows = tokens.reshape(-1, tokens.shape[-1])
    columns = normalize(kept[: ends[-1]]).T.contiguous()  # [D, K]
    cosine = torch.empty(len(ends), len(rows), device=rows.device)
    place = torch.empty(len(ends), len(rows), dtype=torch.int64, device=rows.device)
    for part in iterate_tiles(len(rows), 4 * max(columns.shape), TILE_BYTES):
        tile = normalize(rows[part]) @ columns  # [part, K]
        for at, (first, end) in enumerate(itertools.pairwise([0, *ends])):
            values, indices = tile[:, first:end].max(1)
            if at > 0:
                better = values > cosine[at - 1, part]
                values = torch.where(better, values, cosine[at - 1, part])
                indices = torch.where(better, first + indices, place[at - 1, part])
            cosine[at, part], place[at, part] = values, indices
    return list(zip(cosine, place, strict=True))


def _find_nearest_in_band(rows: torch.Tensor, kept: torch.Tensor, indices: np.ndarray, band: Band) -> Nearest:
    """Run `find_nearest` among the kept tokens, at ascending `indices`, within the horizon; cosine 0 without any."""
    cosine = torch.zeros(len(rows), device=rows.device)
    place = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
    kept_slice = torch.from_numpy(indices // band.cells).to(rows.device)
    step = max(16, band.horizon)  # slices
    for first in range(0, band.frames, step):
        tokens = slice(first * band.cells, min(first + step, band.frames) * band.cells)
        low, high = np.searchsorted(indices, [tokens.start - band.reach, tokens.stop + band.reach])
        if low < high:
            tile = normalize(rows[tokens]) @ normalize(kept[low:high]).T
            own_slice = torch.arange(tokens.start, tokens.stop, device=rows.device) // band.cells
            is_near = (own_slice[:, None] - kept_slice[low:high]).abs() <= band.horizon
            cosine[tokens], place[tokens] = torch.where(is_near, tile, -2).max(1)
            place[tokens] += low
    return cosine, place


def compute_cosines(tokens: torch.Tensor, kept: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """Return [n], the cosine of every token of [..., D] with the token of [K, D] at its place."""
    rows, others = tokens.reshape(-1, tokens.shape[-1]), normalize(kept)
    tiles = iterate_tiles(len(rows), 4 * rows.shape[1], TILE_BYTES)
    return torch.cat([(normalize(rows[part]) * others[place[part]]).sum(-1) for part in tiles])


def average_by_representative(values: torch.Tensor, represents: torch.Tensor, count: int) -> torch.Tensor:
    """Return [count, D] float32, the mean of the [n, D] values of the tokens that each kept token represents."""
    represents = represents.to(values.device)
    members = represents.bincount(minlength=count).clamp(min=1)
    mean = torch.zeros(count, values.shape[-1], device=values.device)
    for part in iterate_tiles(len(values), 4 * values.shape[1], TILE_BYTES):
        # divided before they are added: the sum of large values would overflow
        mean.index_add_(0, represents[part], values[part].float() / members[represents[part], None])
    return mean


def find_principal_directions(tokens: torch.Tensor, count: int) -> torch.Tensor:
    """Return [D, count], the principal directions of the normalized tokens, from an even sample of them."""
    rows = tokens.reshape(-1, tokens.shape[-1])
    unit = normalize(rows[:: max(1, len(rows) // SAMPLE)])
    return torch.linalg.eigh(unit.T @ unit).eigenvectors[:, -count:].contiguous()


def project(tokens: torch.Tensor, directions: torch.Tensor) -> torch.Tensor:
    """Return [n, count], the normalized tokens of [..., D] projected on [D, count] directions."""
    rows = tokens.reshape(-1, tokens.shape[-1])
    tiles = iterate_tiles(len(rows), 4 * rows.shape[1], TILE_BYTES)
    return torch.cat([normalize(rows[part]) @ directions for part in tiles])


def normalize(tokens: torch.Tensor) -> torch.Tensor:
    """Scale tokens to unit length, in float32: half precision has too few digits for a cosine. Zero tokens stay."""
    tokens = tokens.detach().float()
    length = tokens.norm(dim=-1, keepdim=True)
    if not have_squares(length):
        tokens = divide_by_peak(tokens)
        length = tokens.norm(dim=-1, keepdim=True).clamp_min(_SHORTEST)
    return tokens / length


def have_squares(values: torch.Tensor) -> bool:
    """Return whether float32 can sum the squares of tokens with these lengths; False if any length is 0."""
    return bool(((values > _SHORTEST) & (values < _LONGEST)).all())


def divide_by_peak(tokens: torch.Tensor) -> torch.Tensor:
    """Divide tokens whose squares overflow or underflow float32 by their largest magnitude; others do not change."""
    peak = tokens.abs().amax(-1, keepdim=True)
    return tokens / torch.where((peak < _SHORTEST) | (peak > _LONGEST), peak, 1).where(peak > 0, 1)


def describe_non_finite(tokens: torch.Tensor) -> str | None:
    """Describe the first value of [T, H, W, D] tokens that is not finite in float32; None if there is none."""
    largest = torch.finfo(torch.float32).max
    for t, frame in enumerate(tokens.detach()):
        wrong = torch.nonzero(~(frame.double().abs() <= largest))
        if len(wrong):
            y, x, feature = wrong[0].tolist()
            return f"{float(frame[y, x, feature]):g} in frame {t}, row {y}, column {x}; drop or repair that frame first"
    return None
