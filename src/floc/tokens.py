"""`Frames` of a video and `TokenGrid`, the tokens of a video, which methods keep or merge."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from floc._arrays import Array, require_dense, take_rows, to_input_type, to_numpy, to_tensor
from floc._system import check_memory
from floc._text import format_bytes
from floc.kept import Kept
from floc.ranking import DeviceRanking, Ranking
from floc.representatives import (
    AssignedRepresentation,
    NearestRepresentation,
    RankedRepresentation,
    average_by_representative,
    describe_non_finite,
)

# With more values per operation torch wakes its threads, which then compete with the selecting threads for
# milliseconds. Shorter inputs are processed in up to _PARTS parts by one thread.
_ALONE = 32_768
_PARTS = 32

_LOW, _HIGH = 2.0**-20, 2.0**40  # float32 can sum the squares of tokens whose largest value is between these

_MANY = 1 << 24  # tokens; with fewer, the memory for the results is not checked
_REPEATED_BYTES = 1 << 29  # of a view that repeats values, such as torch.expand makes; operations copy it
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
    peak: float | None = None  # the largest magnitude of a value; None if it was not measured

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
        n = math.prod(tokens.shape[:-1])
        if n > _MANY:  # such as a view that repeats a frame
            device = tokens.device if isinstance(tokens, torch.Tensor) else torch.device("cpu")
            check_memory(n, n * _TOKEN_BYTES, device, "fewer frames")
        size = n * tokens.shape[-1] * tokens.itemsize
        strides = tokens.stride() if isinstance(tokens, torch.Tensor) else tokens.strides
        if size > _REPEATED_BYTES and any(not s and c > 1 for s, c in zip(strides, tokens.shape, strict=True)):
            problem = f"tokens must not be a view that repeats values to {format_bytes(size)}, which takes that memory"
            raise ValueError(f"{problem}; compress what it repeats, or copy it first")
        tensor = to_tensor(tokens).resolve_neg()
        if not tensor.is_floating_point() or str(tensor.dtype).startswith("torch.float4"):
            raise TypeError(f"tokens must be floating point, got {tokens.dtype}; convert them first: tokens.float()")
        numpy_dtype = tokens.dtype if isinstance(tokens, np.ndarray) else None
        grid = cls(tensor if tensor.ndim == 4 else tensor[:, None], numpy_dtype)
        return replace(grid, peak=grid.require_finite()) if check_finite else grid

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
    def cells(self) -> int:
        """Number of tokens in a frame."""
        return self.tokens.shape[1] * self.tokens.shape[2]

    @property
    def dim(self) -> int:
        """Features of a token."""
        return self.tokens.shape[-1]

    def frames(self, span: slice) -> torch.Tensor:
        """Return the tokens of some frames, [n, D]."""
        return self.tokens[span].reshape(-1, self.dim)

    def gather(self, indices: np.ndarray) -> torch.Tensor:
        """Return the tokens at flat indices, [K, D]."""
        if self.tokens.is_contiguous():
            return take_rows(self.tokens.view(-1, self.dim), indices)
        t, y, x = (torch.from_numpy(axis).to(self.tokens.device) for axis in np.unravel_index(indices, self.shape))
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
        representation = NearestRepresentation(self.tokens, kept, indices, ranking, ranking.band)
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
        features, representation = merged.to(self.tokens.dtype), AssignedRepresentation(self.tokens, merged, represents)
        return self._keep_on_host(features, indices, np.zeros(len(indices)), merged=True, representation=representation)

    def blend(self, kept: Kept, share: float) -> Kept:
        """Replace a share of each kept token's features by the mean of the tokens that it represents."""
        represents, own = torch.as_tensor(kept.represents), torch.as_tensor(kept.features)
        mean = average_by_representative(self.tokens.reshape(-1, self.dim), represents, len(kept))
        features = to_input_type(torch.lerp(own.float(), mean, share).to(own.dtype), self.numpy_dtype)
        settings = {**kept.settings, "merge": share}
        return replace(kept, features=features, settings=settings, merged=True, nested=False)

    def keep_all(self) -> Kept:
        """Keep every token, as merging methods do if the budget allows it."""
        everything = np.arange(self.n)
        return self.merge(everything, self.gather(everything), everything)

    def run_scaled(self, run: Callable[["TokenGrid"], Kept]) -> Kept:
        """Run a method on tokens whose squares and products fit float32; its result is for these tokens.

        Tokens with very large or small values are multiplied by a power of two, which is exact.
        """
        if not self.peak or _LOW <= self.peak <= _HIGH:
            return run(self)
        exponent = math.frexp((1 if self.peak < _LOW else _HIGH) / self.peak)[1]
        kept = run(replace(self, tokens=_multiply(self.tokens, exponent)))
        if kept.merged and len(kept) < self.n:
            features = _multiply(torch.as_tensor(kept.features), -exponent)
        else:
            features = self.gather(to_numpy(kept.indices))
        representation = kept.representation
        if isinstance(representation, NearestRepresentation | AssignedRepresentation):
            representation = replace(representation, tokens=self.tokens, kept=features)
        return replace(kept, features=to_input_type(features, self.numpy_dtype), representation=representation)

    def require_finite(self) -> float:
        """Return the largest magnitude of a value; raise ValueError unless all tokens are finite in float32."""
        low, high = _find_range(self.tokens)
        peak, largest = max(-low, high), torch.finfo(torch.float32).max
        if not peak <= largest or math.isnan(low):
            raise ValueError(f"tokens must be finite in float32: {describe_non_finite(self.tokens)}")
        if self.tokens.dtype == torch.float64 and low < high:
            self._require_float32_rows()
        return peak

    def _require_float32_rows(self) -> None:
        """Raise ValueError if a token of float64, which is not zero, would be zero or inexact in float32."""
        for t, frame in enumerate(self.tokens.detach()):
            low, high = torch.aminmax(frame, dim=-1)
            peak = torch.maximum(-low, high)
            small = torch.nonzero((peak > 0) & (peak < torch.finfo(torch.float32).tiny))
            if len(small):
                y, x = small[0].tolist()
                place = f"values of at most {float(peak[y, x]):g} in frame {t}, row {y}, column {x}"
                raise ValueError(f"tokens must not be too small for float32: {place}; scale them first")


def _multiply(tokens: torch.Tensor, exponent: int) -> torch.Tensor:
    """Multiply by 2 ** exponent, in two steps: the power itself may exceed float32."""
    return tokens.detach() * 2.0 ** (exponent // 2) * 2.0 ** (exponent - exponent // 2)


def is_finite(tokens: torch.Tensor) -> bool:
    """Return whether all values are finite."""
    return all(map(math.isfinite, _find_range(tokens)))


def _find_range(tokens: torch.Tensor) -> tuple[float, float]:
    """Return the least and the largest value; NaN if any value is."""
    # torch has no reductions for 8-bit floats
    tokens = tokens.detach() if tokens.element_size() > 1 else tokens.detach().float()
    if tokens.device.type == "cpu" and tokens.numel() <= _ALONE * _PARTS:
        tokens = torch.stack([torch.stack(torch.aminmax(part)) for part in tokens.reshape(-1).split(_ALONE)])
    low, high = torch.aminmax(tokens)
    return float(low), float(high)
