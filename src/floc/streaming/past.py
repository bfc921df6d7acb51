"""What all kinds of a stream's past share: blocks of frames, selection from them, and checks of saved states."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from floc._checked_file import CheckedFile
from floc._checks import require
from floc.selection.engine import Band, Job, Solution
from floc.selection.objective import Similarity
from floc.selection.torch.engine import TorchEngine


class StreamBlock(NamedTuple):
    """Consecutive frames that are selected from together; with a horizon also the frames around them."""

    tokens: torch.Tensor  # [t, H, W, D]
    times: np.ndarray  # [t] seconds
    before: int = 0  # frames before the block
    after: int = 0  # frames after it

    @property
    def flat(self) -> torch.Tensor:
        """[t * H * W, D]"""
        return self.tokens.flatten(0, 2)

    @property
    def cells(self) -> int:
        """Tokens of a frame."""
        return self.tokens.shape[1] * self.tokens.shape[2]


_NO_TOKENS = np.zeros(0, np.int64)


class Selector(NamedTuple):
    """The engine and the similarity that a stream selects with."""

    engine: TorchEngine
    similarity: Similarity
    dim: int | None  # number of features to compare, the first ones; None: all

    def crop(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the features of [n, D] tokens that are compared."""
        return tokens if self.dim is None else tokens[:, : self.dim].contiguous()

    def select(self, tokens: torch.Tensor, count: int, *, with_cosines: bool) -> Solution:
        """Select from one set of [n, D] tokens."""
        (solution,) = self.engine.solve([Job(tokens, count)], self.similarity, with_cosines=with_cosines)
        return solution

    def select_within(
        self,
        horizon: int,
        tokens: torch.Tensor,
        cells: int,
        count: int,
        *,
        with_cosines: bool,
        given: np.ndarray = _NO_TOKENS,
        first: int = 0,
        stop: int | None = None,
    ) -> Solution:
        """Select from [n, D] tokens of consecutive frames; for `given`, `first` and `stop` see `Job`."""
        frames = len(tokens) // cells
        if horizon >= frames - 1 and first == 0 and stop is None:  # as `floc.compress` does
            return self.select(tokens, count, with_cosines=with_cosines)
        job, band = Job(tokens, count, given, first, stop), Band(frames, cells, min(horizon, frames - 1))
        return self.engine.solve_band(job, band, self.similarity, with_cosines=with_cosines)


class SavedStream(NamedTuple):
    """What all parts of a saved stream must agree on."""

    frames: int  # that are no longer waiting
    block: int | None  # frames of each block; None if blocks follow scenes
    waiting: int  # frames that do not form a block yet, and those before them
    cells: int  # tokens of a frame
    dim: int  # features of a token
    compared: int  # features that are compared
    dtype: torch.dtype
    device: torch.device
    first_s: float
    last_s: float
    end_s: float  # the times of complete blocks are below it
    before: int = 0  # frames of complete blocks that still wait, for the horizon of the next block

    @property
    def complete(self) -> int:
        """Number of frames in complete blocks."""
        return self.frames + self.before

    def read_features(self, file: CheckedFile, count: int) -> torch.Tensor:
        """Read the [count, dim] tokens of the past."""
        features = file.tensor("features", (count, self.dim), self.dtype)
        require_float32_range("features", features)
        return features.to(self.device)

    def require_order(self, name: str, times: np.ndarray) -> None:
        """Raise ValueError unless ascending times of complete blocks are between the first and the waiting frames."""
        fits = self.first_s <= times[0] and times[-1] < self.end_s
        require(fits, f"{name} must be in the span of the stream, before the times of the waiting frames")

    def require_times(self, times: np.ndarray) -> None:
        """Raise ValueError unless these can be the times of the frames in complete blocks."""
        ascends = (np.diff(times) > 0).all() and times[0] == self.first_s
        require(ascends, "block_times must ascend from the first time")
        is_last = self.waiting > self.before or times[-1] == self.last_s
        require(is_last, "block_times must end at the last time")
        self.require_order("block_times", times)


def concatenate_columns(blocks: Sequence[Mapping[str, np.ndarray]]) -> dict[str, torch.Tensor]:
    """Concatenate the arrays of all blocks, by name, to be saved; also return their lengths."""
    columns = {name: [block[name] for block in blocks] for name in blocks[0]}
    tensors = {name: torch.from_numpy(np.concatenate(parts)) for name, parts in columns.items()}
    return tensors | {f"{name}.lengths": torch.tensor([len(part) for part in parts]) for name, parts in columns.items()}


def read_columns(file: CheckedFile, dtypes: Mapping[str, torch.dtype]) -> list[dict[str, np.ndarray]]:
    """Read the arrays of all blocks, and split them into those of each."""
    count = len(file.tensor(f"{next(iter(dtypes))}.lengths", (None,), torch.int64))
    columns = {name: _read_column(file, name, dtype, count) for name, dtype in dtypes.items()}
    return [dict(zip(columns, parts, strict=True)) for parts in zip(*columns.values(), strict=True)]


def _read_column(file: CheckedFile, name: str, dtype: torch.dtype, blocks: int) -> list[np.ndarray]:
    lengths = file.tensor(f"{name}.lengths", (blocks,), torch.int64).tolist()
    require(min(lengths, default=1) >= 0, f"tensor {name}.lengths must not be negative")
    values = file.tensor(name, (sum(lengths),), dtype).numpy()
    return np.split(values, np.cumsum(lengths)[:-1])


def require_float32_range(name: str, tensor: torch.Tensor) -> None:
    """Raise ValueError if a value of a finite tensor is too large for float32, as `push` does."""
    if tensor.dtype == torch.float64 and tensor.numel():
        require(float(tensor.abs().max()) <= torch.finfo(torch.float32).max, f"tensor {name} is too large for float32")


def is_within(values: np.ndarray, end: int) -> bool:
    """Return whether all values are in [0, end)."""
    return len(values) == 0 or bool(values.min() >= 0 and values.max() < end)
