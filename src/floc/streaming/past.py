"""What both kinds of a stream's past share: blocks of frames, how they select from them, and checks of saved states."""

from typing import NamedTuple

import numpy as np
import torch

from floc._checked_file import CheckedFile
from floc._checks import require
from floc.selection.engine import Job, Solution
from floc.selection.objective import Similarity
from floc.selection.torch.engine import TorchEngine


class StreamBlock(NamedTuple):
    """Consecutive frames that are selected from together."""

    tokens: torch.Tensor  # [t, H, W, D]
    times: np.ndarray  # [t] seconds

    @property
    def flat(self) -> torch.Tensor:
        """[t * H * W, D]"""
        return self.tokens.flatten(0, 2)

    @property
    def cells(self) -> int:
        """Tokens of a frame."""
        return self.tokens.shape[1] * self.tokens.shape[2]


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


class SavedStream(NamedTuple):
    """What all parts of a saved stream must agree on."""

    frames: int  # in complete blocks
    block: int | None  # frames of each block; None if blocks follow scenes
    waiting: int  # frames that do not form a block yet
    cells: int  # tokens of a frame
    dim: int  # features of a token
    compared: int  # features that are compared
    dtype: torch.dtype
    device: torch.device
    first_s: float
    last_s: float
    end_s: float  # the times of complete blocks are below it

    def read_features(self, file: CheckedFile, count: int) -> torch.Tensor:
        """Read the [count, dim] tokens of the past."""
        features = file.tensor("features", (count, self.dim), self.dtype)
        require_float32_range("features", features)
        return features.to(self.device)

    def require_order(self, name: str, times: np.ndarray) -> None:
        """Raise ValueError unless ascending times of complete blocks are between the first and the waiting frames."""
        fits = self.first_s <= times[0] and times[-1] < self.end_s
        require(fits, f"{name} must be in the span of the stream, before the times of the waiting frames")


def require_float32_range(name: str, tensor: torch.Tensor) -> None:
    """Raise ValueError if a value of a finite tensor is too large for float32, as `push` does."""
    if tensor.dtype == torch.float64 and tensor.numel():
        require(float(tensor.abs().max()) <= torch.finfo(torch.float32).max, f"tensor {name} is too large for float32")


def is_within(values: np.ndarray, end: int) -> bool:
    """Return whether all values are in [0, end)."""
    return len(values) == 0 or bool(values.min() >= 0 and values.max() < end)
