"""The nouns that cross rooms: a grid of tokens in, what was kept out."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from floc._arrays import Array, convert_like, to_input_type, to_numpy, to_tensor
from floc.kept import Kept
from floc.ranking import Chosen, Ranking
from floc.representatives import (
    AssignedRepresentatives,
    GroupedRepresentatives,
    NearestRepresentatives,
    describe_non_finite,
)

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
    def from_array(cls, tokens: Array, *, check_finite: bool = True) -> TokenGrid:
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
        tensor = to_tensor(tokens)
        if not tensor.is_floating_point():
            raise TypeError(f"tokens must be floating point, got {tokens.dtype}; convert them first: tokens.float()")
        grid = cls(
            tensor if tensor.ndim == 4 else tensor[:, None], tokens.dtype if isinstance(tokens, np.ndarray) else None
        )
        if check_finite:
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

    def along(self, path: Ranking, budget: int) -> Kept:
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
        picks = to_numpy(picks)
        indices = np.sort(picks)
        kept = self.gather(indices)
        features = self._as_given(kept)
        return Kept(
            indices=convert_like(features, indices),
            features=features,
            positions=convert_like(features, np.stack(np.unravel_index(indices, self.shape), 1)),
            order=convert_like(features, np.searchsorted(indices, picks)),
            gains=convert_like(features, np.zeros(len(picks))),
            standing=NearestRepresentatives(self.tokens, kept, indices),
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
            return values if self.numpy_dtype is None else to_numpy(values)

        return Kept(
            indices=given(indices),
            features=self._as_given(kept),
            positions=given(torch.stack([frame, cell // columns, cell % columns], 1)),
            order=given(order),
            gains=given(chosen.gains),
            standing=GroupedRepresentatives(self.tokens, kept, indices, chosen, sizes, shared),
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
            indices=convert_like(features, indices),
            features=features,
            positions=convert_like(features, np.stack(np.unravel_index(indices, self.shape), 1)),
            order=convert_like(features, np.arange(len(indices))),
            gains=convert_like(features, np.zeros(len(indices))),
            standing=AssignedRepresentatives(self.tokens, merged, represents),
            shape=self.shape,
            merged=True,
        )

    def keep_all(self) -> Kept:
        """Keep every token as it is; what merging methods do with a budget that has room for all."""
        everything = np.arange(self.n)
        return self.merge(everything, self.gather(everything), everything)

    def _as_given(self, features: torch.Tensor) -> Array:
        return to_input_type(features, self.numpy_dtype)

    def require_finite(self) -> None:
        """Complain of tokens that are not finite."""
        low, high = _least_and_largest(_reducible(self.tokens))
        largest = torch.finfo(torch.float32).max
        if -largest <= low and high <= largest:
            if 0 < max(-low, high) < torch.finfo(torch.float32).tiny and self.tokens.dtype == torch.float64:
                raise ValueError(f"tokens of at most {max(-low, high):g} are too small for float32; scale them first")
            return
        if wrong := describe_non_finite(self.tokens):
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
