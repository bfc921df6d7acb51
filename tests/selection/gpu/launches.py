"""Helpers of kernel tests: marks, and the layout of matrices for a launch."""

# no `from __future__ import annotations`: see tests/integrations/zoo.py
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import pytest
import torch
import triton

from floc.selection.gpu import greedy
from floc.selection.gpu.greedy import Programs
from floc.selection.gpu.sets import Sets

KERNELS: tuple[Literal["few", "many"], ...] = ("few", "many")
# the interpreter runs one program after another, so only one per set is possible
PROGRAMS = [
    Programs(kernel, per_set) for kernel in KERNELS for per_set in ([1, 2, 5, 16] if torch.cuda.is_available() else [1])
]

MARKS = [
    # in the interpreter numpy warns about unused values: masked ones, those of the other branch, NaN tokens
    pytest.mark.filterwarnings("ignore:(overflow|invalid value|divide by zero) encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION"),  # concerns rounding in a later release
    # of Triton 3.6's interpreter, which fails with numpy 2.4 and later
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning"),
    pytest.mark.skipif(
        not torch.cuda.is_available() and triton.__version__ < "3.7" and np.__version__ >= "2.4",
        reason="the interpreter of Triton 3.6 needs numpy before 2.4",
    ),
    *([pytest.mark.gpu] if torch.cuda.is_available() else []),
]


def parametrize_alternately(names: Sequence[str], *axes: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrise a test with all combinations of values; in the interpreter, every second one is a slow test.

    The others have every value, and with three axes every pair of values of two of them.

    Args:
        names: Of the arguments; a tuple in an axis has the values of several.
        axes: The values.
    """
    cases = []
    for places in itertools.product(*(range(len(axis)) for axis in axes)):
        parts = [axis[i] for axis, i in zip(axes, places, strict=True)]
        values = [value for part in parts for value in (part if type(part) is tuple else (part,))]
        is_slow = sum(places) % 2 and not torch.cuda.is_available()
        cases.append(pytest.param(*values, marks=pytest.mark.slow if is_slow else ()))
    return pytest.mark.parametrize(names, cases)


def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill new memory with NaN, or with integers that are neither a similarity nor an index."""

    def poisoning(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def poisoned(*args: Any, **options: Any) -> torch.Tensor:
            memory = allocate(*args, **options)
            if memory.is_floating_point():
                return memory.fill_(torch.nan)
            return memory if memory.dtype == torch.bool else memory.fill_(torch.iinfo(memory.dtype).max // 3 * 2)

        return poisoned

    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, poisoning(getattr(torch, name)))


def lay_out(
    matrices: Sequence[np.ndarray], depths: Sequence[int], device: torch.device, *, symmetric: bool
) -> tuple[torch.Tensor, Sets]:
    """Place [M, N] matrices in one memory, with extreme values between them, and return it with its layout."""
    rows, columns = (tuple(matrix.shape[axis] for matrix in matrices) for axis in (0, 1))
    sets = Sets(rows, columns, tuple(depths), symmetric, device)
    extremes = np.random.default_rng(0).choice(np.array([-32768, 32767], np.int16), sets.elements)
    memory = torch.from_numpy(extremes).to(device)
    for matrix, place, transpose in zip(matrices, sets.matrices(memory), sets.transposes(memory), strict=True):
        place.copy_(torch.from_numpy(matrix))
        transpose.copy_(torch.from_numpy(matrix.T.copy()))
    return memory, sets


def select_sets(
    matrices: Sequence[np.ndarray],
    depths: Sequence[int],
    device: torch.device,
    weights: Sequence[np.ndarray] | None = None,
    *,
    symmetric: bool = False,
    programs: Programs = PROGRAMS[0],
    stop_count: int = 0,
) -> list[tuple[np.ndarray, np.ndarray, int]]:
    """Return for each set its picks, gains, and the number of picks made before gains ended."""
    memory, sets = lay_out(matrices, depths, device, symmetric=symmetric)
    all_weights = None if weights is None else torch.from_numpy(np.concatenate(weights)).to(device)
    found = greedy.greedy(memory, sets, all_weights, spread=1 << 16, programs=programs, stop_count=stop_count)
    greedy.fill_up(found, sets)
    picks, gains = found.picks.cpu().numpy(), found.gains.cpu().numpy()
    ends = np.cumsum(depths)
    return [
        (picks[end - depth : end], gains[end - depth : end], int(count))
        for end, depth, count in zip(ends, depths, found.counts, strict=True)
    ]
