"""Which slices of a video pass the vision encoder, and whose tokens the others take.

There are two rules. With `reuse`, a slice that looks like the last encoded one takes its tokens. It is compared with
that one, and not with the slice before it: slow changes add up until they exceed the tolerance. With `encode`, a share
of the slices is encoded, those that represent every group of slices best by facility location; each of the others takes
the tokens of the encoded slice of its group that looks most like it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
import torch.nn.functional as F

from floc._checks import is_number, shorten, to_float
from floc.budget import Budget, parse_ratio
from floc.selection.select import select

GROUP = 32  # consecutive slices of which `encode` chooses
LEVELS = 255  # the largest value of a pixel
AHEAD_VALUES = 1 << 23  # of pixels that are compared at once

Measure = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # slices [n, ...], slice [...] -> differences [n]
Shrink = Callable[[torch.Tensor], torch.Tensor]  # slice [...] -> thumbnail [cells, values]


@dataclass(frozen=True)
class SliceOptions:
    """The options `reuse` and `encode` of `floc.capture`, at most one of them; without them every slice is encoded."""

    reuse: float | None = None  # tolerance, in levels of a pixel
    encode: Fraction | float | str | None = None  # share of the slices

    def __post_init__(self) -> None:
        if self.reuse is not None and not (is_number(self.reuse) and 0 <= to_float(self.reuse) <= LEVELS):
            problem = f"reuse must be a number of levels of a pixel, 0 to {LEVELS}, or None to encode every slice"
            raise ValueError(f"{problem}; got {shorten(self.reuse)}")
        if self.encode is not None:
            share = parse_ratio(self.encode, "encode", "encoded / all slices")
            object.__setattr__(self, "encode", None if share == 1 else share)
            if self.reuse is not None:
                raise ValueError("reuse and encode both say which slices are encoded; leave out one of them")

    def __bool__(self) -> bool:
        return self.name != ""

    @property
    def name(self) -> str:
        """The option that is set, or nothing."""
        return "reuse" if self.reuse is not None else "encode" if self.encode is not None else ""

    def describe(self) -> dict[str, float | str]:
        """Return the option that is set, as files record it."""
        value = None if self.reuse is None else float(self.reuse)
        return {self.name: str(self.encode) if value is None else value} if self else {}

    def require_model(self, encoder: str) -> None:
        """Raise ValueError if an option is set for an encoder that is not a model's."""
        if self and not encoder.startswith("hf:"):
            problem = f"{self.name} is for the vision encoders of models, hf:<model>, not {encoder!r}"
            raise ValueError(f"{problem}; leave it out")

    def create_rule(self, measure: Measure, shrink: Shrink) -> "SliceRule":
        """Create the rule for one video; `measure` returns differences in levels."""
        if self.reuse is not None:
            return DifferenceRule(float(self.reuse), measure)
        return ShareRule(Budget(ratio=Fraction(self.encode or 1)), shrink)


ALL_SLICES = SliceOptions()


class SliceRule(ABC):
    """Chooses the slices of a video to encode, a part of the video at a time."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget the video, so that the next slice is encoded."""
        self.layers: tuple[torch.Tensor, ...] = ()  # tokens and deep features of the last encoded slice, [1, ...] each

    @abstractmethod
    def find_sources(self, slices: torch.Tensor) -> np.ndarray:
        """Return the slice whose tokens each of the next slices [n, ...] takes, [n] int64.

        A slice that must be encoded is its own source. -1 is the last encoded slice of earlier parts.
        """

    def expand(
        self, slices: torch.Tensor, sources: np.ndarray, encoded: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """Return the layers of all slices [n, ...], from those [new, ...] of the encoded ones; remember the last.

        Call it with the result of `find_sources`, once encoding has succeeded.
        """
        is_new = find_new(sources)
        layers = tuple(encoded)
        if not is_new.any():
            layers = tuple(layer.expand(len(sources), *layer.shape[1:]) for layer in self.layers)
        elif not is_new.all():
            rows = np.append(np.cumsum(is_new) - 1, -1)[sources]
            if rows.min() < 0:  # the first row is that of the earlier part
                rows, layers = rows + 1, tuple(map(torch.cat, zip(self.layers, layers, strict=True)))
            layers = tuple(layer[torch.from_numpy(rows).to(layer.device)] for layer in layers)
        if is_new.any():
            newest = int(np.flatnonzero(is_new)[-1])
            self.layers = tuple(layer[newest : newest + 1].clone() for layer in layers)
        self._remember(slices, is_new)
        return layers

    @abstractmethod
    def _remember(self, slices: torch.Tensor, is_new: np.ndarray) -> None:
        """Remember what the rule needs of slices whose sources were found."""


def find_new(sources: np.ndarray) -> np.ndarray:
    """Return which slices must be encoded: those that are their own source, [n] bool."""
    return sources == np.arange(len(sources))


class DifferenceRule(SliceRule):
    """A slice is encoded if it differs from the last encoded one by more than a tolerance."""

    def __init__(self, tolerance: float, measure: Measure) -> None:
        self.tolerance, self.measure = tolerance, measure
        super().__init__()

    def forget(self) -> None:
        super().forget()
        self.last: torch.Tensor | None = None  # pixels of the last encoded slice

    def find_sources(self, slices: torch.Tensor) -> np.ndarray:
        last, is_new, ahead = self.last, list[bool](), 1
        while (start := len(is_new)) < len(slices):
            part = slices[start : start + ahead]
            if last is None or last.shape != part.shape[1:]:
                same = 0
            else:  # a difference that is not a number is a difference
                is_same = (self.measure(part, last) <= self.tolerance).tolist()
                same = is_same.index(False) if False in is_same else len(is_same)
            is_new += [False] * same
            if same < len(part):
                is_new.append(True)
                last, ahead = part[same], 1
            else:  # comparing several at once saves waiting for a GPU
                ahead = max(1, min(2 * ahead, AHEAD_VALUES // part[0].numel()))
        return np.maximum.accumulate(np.where(is_new, np.arange(len(is_new)), -1))

    def _remember(self, slices: torch.Tensor, is_new: np.ndarray) -> None:
        if is_new.any():
            self.last = slices[int(np.flatnonzero(is_new)[-1])].clone()


class ShareRule(SliceRule):
    """A share of the slices is encoded, chosen from groups of consecutive slices.

    Every part of a video but the last must be a number of groups; the choice does not depend on how many.
    """

    def __init__(self, share: Budget, shrink: Shrink) -> None:
        self.share, self.shrink = share, shrink
        super().__init__()

    def forget(self) -> None:
        super().forget()
        self.seen = 0  # slices of earlier parts

    def find_sources(self, slices: torch.Tensor) -> np.ndarray:
        sources, newest = [np.empty(0, np.int64)], -1
        for start in range(0, len(slices), GROUP):
            group = slices[start : start + GROUP]
            count = self._count(self.seen + start + len(group)) - self._count(self.seen + start)
            if count:
                own = start + choose_sources(torch.stack([self.shrink(slice_) for slice_ in group]), count)
                newest = own.max()
            else:  # of a small share, some groups have none
                own = np.full(len(group), newest)
            sources.append(own)
        return np.concatenate(sources)

    def _count(self, slices: int) -> int:
        """Return how many of the first slices of a video are encoded."""
        return self.share.count(slices) if slices else 0

    def _remember(self, slices: torch.Tensor, is_new: np.ndarray) -> None:
        self.seen += len(is_new)


def choose_sources(thumbnails: torch.Tensor, count: int) -> np.ndarray:
    """Return the slice that represents each of n slices, [n] int64: `count` slices represent themselves.

    The similarity of two slices is a Gaussian of their difference: the root mean square of the cell that differs most.
    It is half as wide as the median of the differences.

    Args:
        thumbnails: [n, cells, values].
    """
    squares = torch.stack([(thumbnails - one).square_().mean(2).amax(1) for one in thumbnails]).nan_to_num_().cpu()
    others = squares[squares > 0]
    width = float(others.median()) / 4 if len(others) else 1.0
    picks = torch.as_tensor(select(torch.exp(-squares / (2 * width)), count).picks).sort().values
    return picks[squares.fill_diagonal_(-1)[picks].argmin(0)].numpy()


def shrink_frames(slice_: torch.Tensor, patch: int) -> torch.Tensor:
    """Return the means of a slice [frames, height, width, 3] over cells of half a patch, [cells, values]."""
    means = average_cells(slice_.permute(0, 3, 1, 2).float(), -(-patch // 2))
    return means.flatten(2).flatten(0, 1).T


def measure_frames(slices: torch.Tensor, last: torch.Tensor, patch: int) -> torch.Tensor:
    """Return the differences of slices [n, frames, height, width, 3] to one: root mean square of the worst patch."""
    squares = (slices.float() - last.float()).square_().mean((1, 4))
    return average_cells(squares[:, None], patch).amax((1, 2, 3)).sqrt()


def average_cells(pictures: torch.Tensor, side: int) -> torch.Tensor:
    """Return the means of pictures [n, values, height, width] over cells; those at the edges may be smaller."""
    sides = [min(side, length) for length in pictures.shape[2:]]
    return F.avg_pool2d(pictures, sides, ceil_mode=True, count_include_pad=False)
