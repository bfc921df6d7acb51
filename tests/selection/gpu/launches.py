"""What tests of kernels share: how they are marked, and how matrices are laid out for a launch."""

# no `from __future__ import annotations`: see tests/integrations/zoo.py
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import pytest
import torch

from floc.selection.gpu import greedy
from floc.selection.gpu.greedy import Programs
from floc.selection.gpu.sets import Sets
from floc.selection.gpu.steps import Enough

KERNELS: tuple[Literal["few", "team"], ...] = ("few", "team")
# the interpreter runs one program after another, so there is only one for each set
WAYS = [
    Programs(kernel, members) for kernel in KERNELS for members in ([1, 2, 5, 16] if torch.cuda.is_available() else [1])
]

MARKS = [
    # numpy complains in the interpreter of what is not used: behind a mask, in the other branch, of NaN tokens
    pytest.mark.filterwarnings("ignore:(overflow|invalid value|divide by zero) encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION"),  # of rounding in a later release
    *([pytest.mark.gpu] if torch.cuda.is_available() else []),
]


def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill new memory with NaN, or with numbers that are no similarity and no index."""

    def poisoning(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def poisoned(*args: Any, **options: Any) -> torch.Tensor:
            memory = allocate(*args, **options)
            if memory.is_floating_point():
                return memory.fill_(torch.nan)
            return memory if memory.dtype == torch.bool else memory.fill_(torch.iinfo(memory.dtype).max // 3 * 2)

        return poisoned

    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, poisoning(getattr(torch, name)))


def laid_out(
    matrices: Sequence[np.ndarray], depths: Sequence[int], device: torch.device, *, symmetric: bool
) -> tuple[torch.Tensor, Sets]:
    """[M, N] matrices in one piece of memory, extreme numbers between them, and the table of where they are."""
    rows, columns = (tuple(matrix.shape[axis] for matrix in matrices) for axis in (0, 1))
    sets = Sets(rows, columns, tuple(depths), symmetric, device)
    extremes = np.random.default_rng(0).choice(np.array([-32768, 32767], np.int16), sets.elements)
    memory = torch.from_numpy(extremes).to(device)
    for matrix, place, turned in zip(matrices, sets.matrices(memory), sets.transposes(memory), strict=True):
        place.copy_(torch.from_numpy(matrix))
        turned.copy_(torch.from_numpy(matrix.T.copy()))
    return memory, sets


def selected(
    matrices: Sequence[np.ndarray],
    depths: Sequence[int],
    device: torch.device,
    weights: Sequence[np.ndarray] | None = None,
    *,
    symmetric: bool = False,
    by: Programs = WAYS[0],
    enough: int = 0,
) -> list[tuple[np.ndarray, np.ndarray, int]]:
    """For each set picks, gains, and how many of them were made before nothing gained any more."""
    memory, sets = laid_out(matrices, depths, device, symmetric=symmetric)
    given = None if weights is None else torch.from_numpy(np.concatenate(weights)).to(device)
    picked = greedy.greedy(memory, sets, given, spread=1 << 16, by=by, enough=Enough(enough))
    greedy.fill_up(picked, sets)
    picks, gains = picked.picks.cpu().numpy(), picked.gains.cpu().numpy()
    ends = np.cumsum(depths)
    return [
        (picks[end - depth : end], gains[end - depth : end], int(made))
        for end, depth, made in zip(ends, depths, picked.made, strict=True)
    ]
