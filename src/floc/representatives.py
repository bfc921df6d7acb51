"""Who stands for whom: for every token, its representative among those kept, and how close the two are.

Selection by facility location knows it as it chooses. Other methods choose without looking, so for them it is found
when somebody asks: the product of all tokens with all kept ones, which can cost more than the method itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np
import torch
import torch.nn.functional as F

from floc.ranking import Chosen, Ranking, find_nearest_place

TILE_BYTES = 1 << 26  # of cosines held at a time: large enough for a fast product, small beside the tokens


@dataclass(frozen=True, eq=False)
class Representation:
    """The answer."""

    represents: np.ndarray | None  # [n] int64, for every token the place of its representative; None: forgotten
    coverage: float  # mean cosine of tokens and their representatives
    bound: float | None = None  # the certificate, where there is one
    path: Ranking | None = None  # what leads to the answers for smaller budgets, where that is known

    def find(self) -> Representation:
        """It is found already."""
        return self


class RepresentationSource(Protocol):
    """What leads to a Standing, now or later."""

    @property
    def bound(self) -> float | None: ...

    @property
    def path(self) -> Ranking | None: ...

    def find(self) -> Representation: ...


class _OfAnyChoice:
    """Of a choice that was not made along a path."""

    bound: ClassVar[None] = None
    path: ClassVar[None] = None


@dataclass(frozen=True, eq=False)
class NearestRepresentatives(_OfAnyChoice):
    """Every token is represented by the kept one that is most like it, a kept token by itself."""

    tokens: torch.Tensor  # [T, H, W, D]
    kept: torch.Tensor  # [K, D]
    indices: np.ndarray  # [K] int64, where in the video they are

    def find(self) -> Representation:
        cosine, place = find_nearest(self.tokens, self.kept)
        represents = place.cpu().numpy()
        represents[self.indices] = np.arange(len(self.indices))
        return Representation(represents, float(cosine.double().mean()))


@dataclass(frozen=True, eq=False)
class GroupedRepresentatives:
    """Chosen in groups of consecutive tokens, on a device: each is represented by the closest kept one of its group.

    Nothing is fetched from the device before it is asked for.
    """

    tokens: torch.Tensor | None  # [T, H, W, D]; None: they were let go
    kept: torch.Tensor  # [K, D]
    indices: torch.Tensor  # [K] int64, where in the video they are, ascending
    chosen: Chosen | Ranking  # on the device, or fetched from there
    sizes: np.ndarray  # [G] tokens in each group
    shared: bool  # whether a budget is shared out among groups by size

    @cached_property
    def path(self) -> Ranking:
        """The picks in order, without the history of representatives."""
        if isinstance(self.chosen, Ranking):
            return self.chosen
        if int(self.chosen.wrong):
            raise ValueError(f"tokens must be finite in float32: {self._first_wrong()}")
        picks, gains = self.chosen.picks.cpu().numpy(), self.chosen.gains.cpu().numpy()
        group, next_gains, openings = self.chosen.groups()
        n = int(self.sizes.sum())
        return Ranking(picks, gains, group, self.sizes, next_gains, self.shared, n, None, openings)

    @property
    def bound(self) -> float | None:
        """The certificate."""
        return self.path.bound(len(self.kept))

    def find(self) -> Representation:
        if self.tokens is None:
            raise ValueError(
                "who stands for whom is found from all tokens, and those were let go after the choice, to save "
                "memory on the GPU; compress them with floc.compress, or with backend='torch', to have it"
            )
        sizes = self.path.group_sizes
        indices = self.indices.cpu().numpy()
        rows = self.tokens.reshape(-1, self.tokens.shape[-1])
        represents = find_nearest_place(indices, np.arange(len(rows)))
        total = 0.0
        for start, end in itertools.pairwise([0, *sizes.cumsum()]):
            first, last = np.searchsorted(indices, [start, end])
            if first < last:  # tokens of a group that has none count 0
                cosine, place = find_nearest(rows[start:end], self.kept[first:last])
                represents[start:end] = first + place.cpu().numpy()
                total += float(cosine.double().sum())
        represents[indices] = np.arange(len(indices))
        return Representation(represents, total / len(rows))

    def smaller(self, path: Ranking, places: torch.Tensor) -> GroupedRepresentatives:
        """Of the kept ones at some places, along a path that ends earlier."""
        return replace(self, kept=self.kept[places], indices=self.indices[places], chosen=path)

    def _first_wrong(self) -> str:
        if self.tokens is None:
            return "some are not"
        return describe_non_finite(self.tokens) or "some were not"


@dataclass(frozen=True, eq=False)
class AssignedRepresentatives(_OfAnyChoice):
    """The method said itself who stands for whom; how close they are is still to be found."""

    tokens: torch.Tensor  # [T, H, W, D]
    kept: torch.Tensor  # [K, D]
    represents: np.ndarray  # [n] int64

    def find(self) -> Representation:
        places = torch.from_numpy(self.represents).to(self.kept.device)
        return Representation(self.represents, float(compute_cosines(self.tokens, self.kept, places).double().mean()))


@dataclass(frozen=True, eq=False)
class SummedRepresentatives(_OfAnyChoice):
    """Of a stream only sums are left: each of tokens that share a representative, the kept one closest to their sum."""

    directions: torch.Tensor  # [M, D] float32, at length 1
    lengths: np.ndarray  # [M]
    count: float  # tokens they are the sums of
    kept: torch.Tensor  # [K, D]
    indices: np.ndarray  # [K] int64, where in the video they are

    def find(self) -> Representation:
        cosine, _ = find_nearest(self.directions, self.kept)
        return Representation(None, float((cosine.double().cpu().numpy() * self.lengths).sum() / self.count))


def find_nearest(tokens: torch.Tensor, kept: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For every token of [..., D] the highest cosine with any of [K, D], and the place of that one: [n] and [n] int64.

    >>> find_nearest(torch.tensor([[1.0, 0.0], [1.0, 3.0]]), torch.eye(2))[1].tolist()
    [0, 1]
    """
    return find_nearest_of_prefixes(tokens, kept, [len(kept)])[0]


def find_nearest_of_prefixes(
    tokens: torch.Tensor, kept: torch.Tensor, ends: Sequence[int]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """`nearest` for each of kept[:end], for rising ends, at the cost of the last."""
    rows = tokens.reshape(-1, tokens.shape[-1])
    columns = normalize(kept[: ends[-1]]).T.contiguous()  # [D, K]
    cosine = torch.empty(len(ends), len(rows), device=rows.device)
    place = torch.empty(len(ends), len(rows), dtype=torch.int64, device=rows.device)
    step = max(1, TILE_BYTES // (4 * max(columns.shape)))
    for start in range(0, len(rows), step):
        mine = slice(start, start + step)
        tile = normalize(rows[mine]) @ columns  # [step, K]
        for at, (first, end) in enumerate(itertools.pairwise([0, *ends])):
            best = tile[:, first:end].max(1)
            if at == 0:
                cosine[at, mine], place[at, mine] = best
            else:
                better = best.values > cosine[at - 1, mine]
                cosine[at, mine] = torch.where(better, best.values, cosine[at - 1, mine])
                place[at, mine] = torch.where(better, first + best.indices, place[at - 1, mine])
    return list(zip(cosine, place, strict=True))


def compute_cosines(tokens: torch.Tensor, kept: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """[n] the cosine of every token of [..., D] with the one of [K, D] at its place."""
    rows, others = tokens.reshape(-1, tokens.shape[-1]), normalize(kept)
    step = max(1, TILE_BYTES // (4 * rows.shape[1]))
    return torch.cat(
        [
            (normalize(part) * others[mine]).sum(-1)
            for part, mine in zip(rows.split(step), place.split(step), strict=True)
        ]
    )


def find_principal_directions(tokens: torch.Tensor, count: int, sample: int = 20_000) -> torch.Tensor:
    """[D, count] the directions in which tokens at length 1 are longest, from an even sample of them."""
    rows = tokens.reshape(-1, tokens.shape[-1])
    some = normalize(rows[:: max(1, len(rows) // sample)])
    return torch.linalg.eigh(some.T @ some).eigenvectors[:, -count:].contiguous()


def project(tokens: torch.Tensor, directions: torch.Tensor) -> torch.Tensor:
    """[n, count] tokens of [..., D] at length 1, in these directions only."""
    rows = tokens.reshape(-1, tokens.shape[-1])
    step = max(1, TILE_BYTES // (4 * rows.shape[1]))
    return torch.cat([normalize(part) @ directions for part in rows.split(step)])


def normalize(tokens: torch.Tensor) -> torch.Tensor:
    """Tokens at length 1, in float32: half precision has too few digits for a cosine."""
    return F.normalize(tokens.detach().float(), dim=-1)


def describe_non_finite(tokens: torch.Tensor) -> str | None:
    """Where in [T, H, W, D] the first value is that float32 cannot hold, and what to do; None where all can be held."""
    largest = torch.finfo(torch.float32).max
    for t in range(tokens.shape[0]):
        frame = tokens[t].detach().double()
        wrong = torch.nonzero(~(frame.abs() <= largest).all(-1))
        if len(wrong):
            y, x = wrong[0].tolist()
            cell = frame[y, x]
            bad = float(cell[~(cell.abs() <= largest)][0])
            return f"{bad:g} in frame {t}, row {y}, column {x}; drop or repair that frame first"
    return None
