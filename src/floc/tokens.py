"""`Frames` of a video and `TokenGrid`, the tokens of a video, which methods keep or merge."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from floc._arrays import Array, require_dense, to_input_type, to_numpy, to_tensor
from floc._system import check_memory
from floc.kept import Kept
from floc.ranking import DeviceRanking, Ranking
from floc.representatives import (
    AssignedRepresentation,
    NearestRepresentation,
    RankedRepresentation,
    describe_non_finite,
)

# Above this many values per operation torch wakes its threads, which then spin for milliseconds beside the selecting
# threads. Shorter inputs are processed in up to _PARTS parts by one thread.
_ALONE = 32_768
_PARTS = 32

_MANY = 1 << 24  # tokens; the memory for the results of fewer is not worth a check
_TOKEN_BYTES = 64  # of results for each token, at least: its representative and the history of it


@dataclass(frozen=True)
class Frames:
    """Consecutive frames of a video."""

    pixels: np.ndarray  # [B, height, width, 3] uint8 RGB, upright
    times_s: np.ndarray  # [B] float64, when each frame is shown, from the start of the video


@dataclass(frozen=True)
class TokenGrid:
    """Tokens of a video on a grid of frames, rows and columns."""

    tokens: torch.Tensor  # [T, H, W, D]
    numpy_dtype: np.dtype | None = None  # the dtype of the caller's numpy array; None for torch input

    @classmethod
    def from_array(cls, tokens: Array, *, check_finite: bool = True) -> "TokenGrid":
        """Check [T, H, W, D] or [T, N, D] tokens, if wanted also that they are finite; wrap them without a copy."""
        require_dense(tokens)
        if tokens.ndim not in (3, 4):
            layout = "[T, H, W, D] or [T, N, D], frames first, features last"
            raise ValueError(f"tokens must be {layout}; got {tuple(tokens.shape)}")
        if 0 in tokens.shape:
            raise ValueError(f"tokens must not be empty, got shape {tuple(tokens.shape)}")
        if isinstance(tokens, np.ndarray) and (tokens.dtype.kind != "f" or tokens.dtype.itemsize > 8):
            raise TypeError(f"tokens must be floating point (float16, float32 or float64), got {tokens.dtype}")
        tensor = to_tensor(tokens).resolve_neg()
        if not tensor.is_floating_point() or str(tensor.dtype).startswith("torch.float4"):
            raise TypeError(f"tokens must be floating point, got {tokens.dtype}; convert them first: tokens.float()")
        n = math.prod(tensor.shape[:-1])
        if n > _MANY:  # such as a view that repeats a frame
            check_memory(n, n * _TOKEN_BYTES, tensor.device, "fewer frames")
        numpy_dtype = tokens.dtype if isinstance(tokens, np.ndarray) else None
        grid = cls(tensor if tensor.ndim == 4 else tensor[:, None], numpy_dtype)
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
        """Number of tokens."""
        return math.prod(self.shape)

    @property
    def dim(self) -> int:
        """Features of a token."""
        return self.tokens.shape[-1]

    def frames(self, span: slice) -> torch.Tensor:
        """Return the tokens of some frames, [n, D]."""
        return self.tokens[span].reshape(-1, self.dim)

    def gather(self, indices: np.ndarray) -> torch.Tensor:
        """Return the tokens at flat indices, [K, D]."""
        device = self.tokens.device
        if self.tokens.is_contiguous():
            return _gather_rows(self.tokens.view(-1, self.dim), torch.from_numpy(indices).to(device))
        t, y, x = (torch.from_numpy(axis).to(device) for axis in np.unravel_index(indices, self.shape))
        return self.tokens[t, y, x]

    def keep_ranked(self, ranking: Ranking | DeviceRanking, count: int) -> Kept:
        """Keep the first `count` tokens of a ranking; a DeviceRanking has exactly `count` and stays on the GPU."""
        if isinstance(ranking, DeviceRanking):
            return self._keep_on_device(ranking)
        ranking = ranking.truncate(count)
        kept = ranking.mask(count)
        picks, representation = ranking.picks[kept], RankedRepresentation(ranking, count)
        features = self.gather(np.sort(picks))
        return self._keep_on_host(features, picks, ranking.gains[kept], nested=True, representation=representation)

    def _keep_on_host(self, features: torch.Tensor, picks: np.ndarray, gains: np.ndarray, **fields: Any) -> Kept:
        return Kept.from_host(to_input_type(features, self.numpy_dtype), picks, gains, self.shape, **fields)

    def _keep_on_device(self, ranking: DeviceRanking) -> Kept:
        picks, (_, rows, columns) = ranking.picks, self.shape
        # counting marks takes a third of the time of sorting
        marks = torch.zeros(self.n, dtype=torch.int32, device=picks.device).scatter_(0, picks, 1)
        order = marks.cumsum(0).index_select(0, picks) - 1
        indices = torch.empty_like(picks).scatter_(0, order, picks)
        frame, cell = indices // (rows * columns), indices % (rows * columns)
        positions = torch.stack([frame, cell // columns, cell % columns], 1)
        kept = self.tokens.reshape(-1, self.dim).index_select(0, indices)
        features = to_input_type(kept, self.numpy_dtype)
        representation = NearestRepresentation(self.tokens, kept, indices, ranking)
        arrays: Any = dict(indices=indices, positions=positions, order=order, gains=ranking.gains)
        if self.numpy_dtype is not None:
            arrays = {name: to_numpy(array) for name, array in arrays.items()}
        return Kept(features=features, shape=self.shape, nested=True, representation=representation, **arrays)

    def keep(self, picks: torch.Tensor | np.ndarray, *, nested: bool = False) -> Kept:
        """Keep the tokens at [K] distinct flat indices, most important first.

        Representatives are computed on first use, from the tokens: they stay in memory and must not be changed.
        `nested` means that the first k picks are the method's result for a budget of k.
        """
        picks = to_numpy(picks)
        indices = np.sort(picks)
        kept = self.gather(indices)
        representation = NearestRepresentation(self.tokens, kept, indices)
        return self._keep_on_host(kept, picks, np.zeros(len(picks)), nested=nested, representation=representation)

    def merge(self, indices: np.ndarray, merged: torch.Tensor, represents: np.ndarray) -> Kept:
        """Keep [K, D] merged tokens at [K] ascending flat indices; token i of n went into number `represents[i]`."""
        features = merged.to(self.tokens.dtype)
        if not bool(features.isfinite().all()):
            raise ValueError("the tokens are too large to average: their sums overflow; divide all by the same number")
        representation = AssignedRepresentation(self.tokens, merged, represents)
        return self._keep_on_host(features, indices, np.zeros(len(indices)), merged=True, representation=representation)

    def keep_all(self) -> Kept:
        """Keep every token, as merging methods do if the budget allows it."""
        everything = np.arange(self.n)
        return self.merge(everything, self.gather(everything), everything)

    def require_finite(self) -> None:
        """Raise ValueError unless all tokens are finite in float32."""
        low, high = _find_range(self.tokens)
        largest = torch.finfo(torch.float32).max
        if -largest <= low and high <= largest:
            if 0 < max(-low, high) < torch.finfo(torch.float32).tiny and self.tokens.dtype == torch.float64:
                raise ValueError(f"tokens of at most {max(-low, high):g} are too small for float32; scale them first")
            return
        if wrong := describe_non_finite(self.tokens):
            raise ValueError(f"tokens must be finite in float32: {wrong}")


def _gather_rows(tokens: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    part = max(1, _ALONE // tokens.shape[1])
    if tokens.device.type != "cpu" or indices.numel() > part * _PARTS:
        return tokens.index_select(0, indices)
    tokens, out = tokens.detach(), tokens.new_empty(len(indices), tokens.shape[1])
    for out_part, index_part in zip(out.split(part), indices.split(part), strict=True):
        torch.index_select(tokens, 0, index_part, out=out_part)
    return out


def _find_range(tokens: torch.Tensor) -> tuple[float, float]:
    """Return the least and the largest value; NaN if any value is."""
    # torch has no reductions for 8-bit floats
    tokens = tokens.detach() if tokens.element_size() > 1 else tokens.detach().float()
    if tokens.device.type == "cpu" and tokens.numel() <= _ALONE * _PARTS:
        tokens = torch.stack([torch.stack(torch.aminmax(part)) for part in tokens.reshape(-1).split(_ALONE)])
    low, high = torch.aminmax(tokens)
    return float(low), float(high)
