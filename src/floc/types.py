"""The nouns that cross rooms: a grid of tokens in, what was kept out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch

from .arrays import Array, as_given, like, numpy_of, tensor_of
from .dials import Dial, fewest
from .path import Answer, Chosen, Path
from .standing import Assigned, Findable, Grouped, Nearest, Standing, Summed, first_wrong

# With more values than this at a time torch wakes threads, which then spin for milliseconds beside those that choose:
# what is short is done in a few parts by one thread.
_ALONE = 32_768
_PARTS = 32


@dataclass(frozen=True)
class Frames:
    """A few frames of a video, in order."""

    pixels: np.ndarray  # [B, height, width, 3] uint8 RGB, upright
    times_s: np.ndarray  # [B] float64, when each is shown, from the start of the video


@dataclass(frozen=True)
class TokenGrid:
    """Tokens of a video on a grid of frames, rows and columns."""

    tokens: torch.Tensor  # [T, H, W, D]
    numpy_dtype: np.dtype | None = None  # what the caller gave, and gets, where that is a numpy array

    @classmethod
    def of(cls, tokens: Array, *, look: bool = True) -> TokenGrid:
        """Take [T, H, W, D] or [T, N, D] tokens as they are, without a copy, or say what is wrong with them.

        Whether they are finite is for somebody else to find out if there is to be no `look` at them.
        """
        if not isinstance(tokens, (torch.Tensor, np.ndarray)):
            raise TypeError(f"tokens must be a torch tensor or a numpy array, got {type(tokens).__name__}")
        if tokens.ndim not in (3, 4):
            raise ValueError(
                f"tokens must be [T, H, W, D] or [T, N, D], frames first, features last; got {tuple(tokens.shape)}"
            )
        if 0 in tokens.shape:
            raise ValueError(f"tokens must not be empty, got shape {tuple(tokens.shape)}")
        if isinstance(tokens, np.ndarray) and (tokens.dtype.kind != "f" or tokens.dtype.itemsize > 8):
            raise TypeError(f"tokens must be floating point (float16, float32 or float64), got {tokens.dtype}")
        tensor = tensor_of(tokens)
        if not tensor.is_floating_point():
            raise TypeError(f"tokens must be floating point, got {tokens.dtype}; convert them first: tokens.float()")
        grid = cls(
            tensor if tensor.ndim == 4 else tensor[:, None], tokens.dtype if isinstance(tokens, np.ndarray) else None
        )
        if look:
            grid.require_finite()
        return grid

    @property
    def shape(self) -> tuple[int, int, int]:
        """Frames, rows and columns."""
        t, h, w, _ = self.tokens.shape
        return t, h, w

    @property
    def n(self) -> int:
        """Tokens there are."""
        return math.prod(self.shape)

    @property
    def dim(self) -> int:
        """Features of a token."""
        return self.tokens.shape[-1]

    def frames(self, span: slice) -> torch.Tensor:
        """[n, D] the tokens of some frames."""
        return self.tokens[span].reshape(-1, self.dim)

    def gather(self, indices: np.ndarray) -> torch.Tensor:
        """[K, D] the tokens at flat indices."""
        device = self.tokens.device
        if self.tokens.is_contiguous():
            return _rows(self.tokens.view(-1, self.dim), torch.from_numpy(indices).to(device))
        t, y, x = (torch.from_numpy(each).to(device) for each in np.unravel_index(indices, self.shape))
        return self.tokens[t, y, x]

    def along(self, path: Path, budget: int) -> Kept:
        """Keep the first `budget` tokens along a path."""
        path = path.upto(budget)
        answer = path.answer(budget)
        return Kept.from_answer(answer, self._as_given(self.gather(answer.indices)), self.shape, path)

    def keep(self, picks: torch.Tensor | np.ndarray, *, nested: bool = False) -> Kept:
        """Keep the tokens at flat indices; who stands for whom is found when it is asked for, from the tokens as they
        are then: they stay in memory until then, and must not be changed.

        Args:
            picks: [K] int64, distinct, most important first.
            nested: whether the first k picks are the method's answer for a budget of k.
        """
        picks = numpy_of(picks)
        indices = np.sort(picks)
        kept = self.gather(indices)
        features = self._as_given(kept)
        return Kept(
            indices=like(features, indices),
            features=features,
            positions=like(features, np.stack(np.unravel_index(indices, self.shape), 1)),
            order=like(features, np.searchsorted(indices, picks)),
            gains=like(features, np.zeros(len(picks))),
            standing=Nearest(self.tokens, kept, indices),
            shape=self.shape,
            nested=nested,
        )

    def chosen(self, chosen: Chosen, sizes: np.ndarray, *, shared: bool) -> Kept:
        """Keep what was chosen on the tokens' device, without waiting for it.

        Who stands for whom is found when it is asked for, from the tokens, which stay in memory and must not change.

        Args:
            sizes: [G] tokens in each of the groups that were chosen from separately.
            shared: whether a budget is shared out among groups by size.
        """
        picks = chosen.picks
        # counting marks is a third of the time of sorting
        marks = torch.zeros(self.n, dtype=torch.int32, device=picks.device).scatter_(0, picks, 1)
        order = marks.cumsum(0).index_select(0, picks) - 1
        indices = torch.empty_like(picks).scatter_(0, order, picks)
        _, rows, columns = self.shape
        frame, cell = indices // (rows * columns), indices % (rows * columns)
        kept = self.tokens.reshape(-1, self.dim).index_select(0, indices)

        def given(values: torch.Tensor) -> Array:
            return values if self.numpy_dtype is None else numpy_of(values)

        return Kept(
            indices=given(indices),
            features=self._as_given(kept),
            positions=given(torch.stack([frame, cell // columns, cell % columns], 1)),
            order=given(order),
            gains=given(chosen.gains),
            standing=Grouped(self.tokens, kept, indices, chosen, sizes, shared),
            shape=self.shape,
            nested=True,
        )

    def merge(self, indices: np.ndarray, merged: torch.Tensor, represents: np.ndarray) -> Kept:
        """Keep merged tokens.

        Args:
            indices: [K] int64, the flat index whose place each takes, ascending.
            merged: [K, D].
            represents: [n] int64, for every token the place of what it was merged into.
        """
        features = self._as_given(merged.to(self.tokens.dtype))
        return Kept(
            indices=like(features, indices),
            features=features,
            positions=like(features, np.stack(np.unravel_index(indices, self.shape), 1)),
            order=like(features, np.arange(len(indices))),
            gains=like(features, np.zeros(len(indices))),
            standing=Assigned(self.tokens, merged, represents),
            shape=self.shape,
            merged=True,
        )

    def whole(self) -> Kept:
        """Keep every token as it is; what merging methods do with a budget that has room for all."""
        everything = np.arange(self.n)
        return self.merge(everything, self.gather(everything), everything)

    def _as_given(self, features: torch.Tensor) -> Array:
        return as_given(features, self.numpy_dtype)

    def require_finite(self) -> None:
        """Complain of tokens that are not finite."""
        low, high = _least_and_largest(_reducible(self.tokens))
        largest = torch.finfo(torch.float32).max
        if -largest <= low and high <= largest:
            if 0 < max(-low, high) < torch.finfo(torch.float32).tiny and self.tokens.dtype == torch.float64:
                raise ValueError(f"tokens of at most {max(-low, high):g} are too small for float32; scale them first")
            return
        if wrong := first_wrong(self.tokens):
            raise ValueError(f"tokens must be finite in float32: {wrong}")


def _rows(tokens: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """[K, D] the rows of [n, D] tokens at [K] indices."""
    few = max(1, _ALONE // tokens.shape[1])
    if tokens.device.type != "cpu" or indices.numel() > few * _PARTS:
        return tokens.index_select(0, indices)
    tokens, out = tokens.detach(), tokens.new_empty(len(indices), tokens.shape[1])
    for here, wanted in zip(out.split(few), indices.split(few), strict=True):
        torch.index_select(tokens, 0, wanted, out=here)
    return out


def _least_and_largest(tokens: torch.Tensor) -> tuple[float, float]:
    if tokens.device.type == "cpu" and tokens.numel() <= _ALONE * _PARTS:
        found = [torch.stack(torch.aminmax(part)) for part in tokens.reshape(-1).split(_ALONE)]
        tokens = torch.stack(found)  # not a number stays what it is
    low, high = torch.aminmax(tokens)
    return float(low), float(high)


def _reducible(tokens: torch.Tensor) -> torch.Tensor:
    """Tokens in a format that torch has reductions for."""
    return tokens.detach() if tokens.element_size() > 1 else tokens.detach().float()


@dataclass(frozen=True, eq=False)
class Kept:
    """The tokens kept, and how they stand for the rest.

    Arrays are torch tensors on the tokens' device for torch input, numpy arrays for numpy input.
    """

    indices: Array  # [K] int64, ascending flat index t*H*W + y*W + x
    features: Array  # [K, D], the input's type, dtype and device
    positions: Array  # [K, 3] int64 (t, y, x)
    order: Array  # [K] int64 places in `indices`, most important first; `at` cuts it off, or each block's part of it
    gains: Array  # [K] float64, what each added to the objective, in that order
    shape: tuple[int, int, int]  # frames, rows, columns of the grid they come from
    method: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)  # how it was made
    seconds: float = 0.0  # that the call took; of a choice made on a GPU, until it was launched
    nested: bool = False  # whether `order` holds the answers for smaller budgets
    merged: bool = False  # whether features are made of several tokens, not tokens of the input
    times_s: Array | None = field(default=None, repr=False)  # [K] float64, when each is shown, where that is known
    span_s: tuple[float, float] | None = None  # of a stream, from when to when it covers
    standing: Findable = field(kw_only=True, repr=False)

    @cached_property
    def represents(self) -> Array:
        """[n] int64, for every input token the place in `indices` of its representative."""
        represents = self._stood_for.represents
        if represents is None:
            raise ValueError("a stream with a budget forgets its tokens, so who stood for each is not known any more")
        return like(self.features, represents)

    @property
    def forgets(self) -> bool:
        """Whether `represents` is not known any more."""
        return self._stood_for.represents is None

    @property
    def bound(self) -> float | None:
        """At least this share of the best choice from the same blocks or, after two passes, survivors."""
        return self.standing.bound

    @property
    def path(self) -> Path | None:
        """What leads to the answers for smaller budgets, where that is known."""
        return self.standing.path

    @property
    def coverage(self) -> float:
        """Mean cosine between every token and its representative."""
        return self._stood_for.coverage

    @cached_property
    def _stood_for(self) -> Standing:
        return self.standing.find()

    @property
    def n(self) -> int:
        """How many tokens there were."""
        return math.prod(self.shape)

    @property
    def ratio(self) -> float:
        """Kept / total."""
        return len(self) / self.n

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        # looking must not set off the search for representatives
        is_known = isinstance(self.standing, Standing) or "_stood_for" in self.__dict__
        coverage = f"coverage {self.coverage:.4f}, " if is_known else ""
        bound = "" if not is_known or self.bound is None else f"bound {self.bound:.4f}, "
        return f"Kept({len(self)} of {self.n} tokens, {coverage}{bound}method {self.method!r})"

    def without_tokens(self) -> Kept:
        """The same, but of a choice made on a GPU without the hold on all tokens that tell who stands for whom."""
        if not isinstance(self.standing, Grouped):
            return self
        return replace(self, standing=replace(self.standing, tokens=None))

    def at(self, *, ratio: float | str | None = None, budget: int | None = None, coverage: float | None = None) -> Kept:
        """The answer for a smaller budget, from the order that is stored; nothing is computed again.

        Without a second pass it is what `floc.compress` would return for that budget. One exception: largest remainders
        can give a short block a token that they take away again for a larger budget; that token was not kept here,
        and another block has one more instead.

        Args:
            ratio, budget, coverage: exactly one, as in `floc.compress`; ratio is of all the tokens there were.
        """
        dial = Dial.of(ratio, budget, coverage)
        if not self.nested:
            raise ValueError(f"method {self.method!r} does not keep a nested order; call floc.compress again")
        count = dial.count(self.n) if dial.coverage is None else self._fewest(dial.coverage)
        if count > len(self):
            raise ValueError(
                f"{dial} needs {count} tokens, {len(self)} were kept; call floc.compress with a larger budget"
            )
        smaller = self._first(count) if self.path is None else self._along(self.path.upto(count), count)
        return replace(smaller, method=self.method, settings=self.settings, span_s=self.span_s)

    def _fewest(self, coverage: float) -> int:
        path = self.path
        if path is None:
            return fewest(lambda count: self._first(count).coverage, len(self), coverage)
        if path.history is None:
            return fewest(lambda count: self._along(path.upto(count), count).coverage, len(self), coverage)
        return path.fewest(coverage)

    def _along(self, path: Path, count: int) -> Kept:
        answer = path.answer(count)
        places = like(self.features, np.searchsorted(numpy_of(self.indices), answer.indices))
        features = self.features[places]
        standing = None
        if isinstance(self.standing, Grouped):
            standing = self.standing.smaller(path, torch.as_tensor(places))
        smaller = Kept.from_answer(answer, features, self.shape, path, standing)
        return replace(smaller, times_s=None if self.times_s is None else self.times_s[places])

    def _first(self, count: int) -> Kept:
        """The `count` most important, where nothing but their order is known."""
        first = numpy_of(self.order)[:count]
        places = np.sort(first)
        mine = like(self.features, places)
        assert isinstance(self.standing, Nearest | Summed), "merged tokens have no nested order"
        device = self.standing.kept.device
        return replace(
            self,
            indices=self.indices[mine],
            features=self.features[mine],
            positions=self.positions[mine],
            order=like(self.features, np.searchsorted(places, first)),
            gains=self.gains[:count],
            times_s=None if self.times_s is None else self.times_s[mine],
            standing=replace(
                self.standing,
                kept=self.standing.kept[torch.from_numpy(places).to(device)],
                indices=self.standing.indices[places],
            ),
        )

    @classmethod
    def from_answer(
        cls,
        answer: Answer,
        features: Array,
        shape: tuple[int, int, int],
        path: Path,
        standing: Findable | None = None,
    ) -> Kept:
        """Dress a path's answer in the kind of array, and on the device, of the features."""
        if standing is None:
            assert answer.coverage is not None, "the path has a history"
            standing = Standing(answer.represents, answer.coverage, answer.bound, path)
        positions = np.stack(np.unravel_index(answer.indices, shape), 1)
        return cls(
            indices=like(features, answer.indices),
            features=features,
            positions=like(features, positions),
            order=like(features, answer.order),
            gains=like(features, answer.gains),
            standing=standing,
            shape=shape,
            nested=True,
        )
