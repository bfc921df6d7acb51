"""Greedy kernels with several programs per set, without a GPU: one process per program, in shared memory.

The interpreter runs the programs of a launch one after the other, but the programs of a set wait for one another. So
each runs in its own process here, all at the same time, in whatever order the operating system schedules them.
"""

from __future__ import annotations

import multiprocessing
import os
from typing import Any, Literal

import numpy as np
import pytest
import torch
from triton.runtime import interpreter

from floc.selection import reference
from floc.selection.gpu import greedy_few_programs, greedy_many_programs
from floc.selection.gpu.greedy import Programs
from floc.selection.objective import SCALE
from tests.selection.gpu.launches import KERNELS, MARKS, select_sets
from tests.selection.matrices import make_matrix

pytestmark = [
    *MARKS,
    pytest.mark.skipif(torch.cuda.is_available(), reason="test_greedy.py runs them on the GPU"),
    # the child processes only run the interpreter, and exit without cleaning up
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]


class ProcessLauncher:
    """Launches a kernel with one process per program."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int]) -> Any:
        def launch(*arguments: Any, **options: Any) -> None:
            tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
            shared = {id(tensor): tensor.clone().share_memory_() for tensor in tensors}
            given = [shared.get(id(argument), argument) for argument in arguments]
            fork = multiprocessing.get_context("fork")
            programs = [
                fork.Process(target=run_one_program, args=(self.kernel, grid, i, given, options))
                for i in range(grid[0])
            ]
            for program in programs:
                program.start()
            for program in programs:
                program.join(120)
            assert [program.exitcode for program in programs] == [0] * grid[0]
            for tensor in tensors:
                tensor.copy_(shared[id(tensor)])

        return launch


def run_one_program(kernel: Any, grid: tuple[int], i: int, given: list[Any], options: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    np.seterr(all="ignore")
    names = kernel.arg_names
    constants = {name: value for name, value in options.items() if name in names}
    arguments = dict(zip(names, given, strict=False)) | constants
    scope = interpreter._patch_lang(kernel.fn)
    interpreter.interpreter_builder.set_grid_dim(*grid, 1, 1)
    interpreter.interpreter_builder.set_grid_idx(i, 0, 0)
    kernel.fn(
        **{name: value if name in constants else interpreter._implicit_cvt(value) for name, value in arguments.items()}
    )
    scope.restore()
    os._exit(0)


@pytest.fixture
def process_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (greedy_few_programs, "_greedy_few_programs"),
        (greedy_many_programs, "_greedy_many_programs"),
    ):
        monkeypatch.setattr(module, name, ProcessLauncher(getattr(module, name)))


@pytest.mark.usefixtures("process_launcher")
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("per_set", "kind"), [(2, "centred"), (3, "duplicates"), (5, "plain")])
def test_several_programs_equal_reference(kernel: Literal["few", "many"], per_set: int, kind: str) -> None:
    matrix = make_matrix(kind, 70, seed=per_set)
    [(picks, gains, _)] = select_sets(
        [matrix], [14], torch.device("cpu"), symmetric=True, programs=Programs(kernel, per_set)
    )
    want = reference.greedy(matrix, 14)
    np.testing.assert_array_equal(picks, want[0])
    np.testing.assert_array_equal(gains, want[1])


@pytest.mark.usefixtures("process_launcher")
@pytest.mark.parametrize("kernel", KERNELS)
def test_weighted_sets_with_idle_programs_equal_reference(kernel: Literal["few", "many"]) -> None:
    rng = np.random.default_rng(0)
    matrices = [rng.integers(-SCALE, SCALE + 1, shape).astype(np.int16) for shape in ((40, 21), (7, 33))]
    weights = [rng.integers(0, 9, matrix.shape[1]) for matrix in matrices]
    got = select_sets(matrices, [8, 7], torch.device("cpu"), weights, programs=Programs(kernel, 3))
    for (picks, gains, _), matrix, weight in zip(got, matrices, weights, strict=True):
        want = reference.greedy(matrix, len(picks), weight)
        np.testing.assert_array_equal(picks, want[0])
        np.testing.assert_array_equal(gains, want[1])


@pytest.mark.usefixtures("process_launcher")
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("seed", range(2))
def test_any_number_of_programs_equals_reference(kernel: Literal["few", "many"], seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, programs = int(rng.integers(20, 120)), Programs(kernel, int(rng.integers(2, 9)))
    matrix = make_matrix(str(rng.choice(["plain", "centred", "duplicates", "opposite", "zeros"])), n, seed)
    k = int(rng.integers(1, min(n, 20)))
    weights = [rng.integers(0, 1000, n)] if rng.random() < 0.5 else None
    [(picks, gains, _)] = select_sets([matrix], [k], torch.device("cpu"), weights, symmetric=True, programs=programs)
    want = reference.greedy(matrix, k, None if weights is None else weights[0])
    np.testing.assert_array_equal(picks, want[0])
    np.testing.assert_array_equal(gains, want[1])


@pytest.mark.usefixtures("process_launcher")
@pytest.mark.parametrize("kernel", KERNELS)
def test_programs_of_a_set_stop_early_together(kernel: Literal["few", "many"]) -> None:
    matrices = [make_matrix("plain", n, seed=n) for n in (60, 45, 30)]
    device, sizes = torch.device("cpu"), [60, 45, 30]
    got = select_sets(matrices, sizes, device, symmetric=True, programs=Programs(kernel, 2), stop_count=20)
    assert sum(made for *_, made in got) < sum(sizes)
    for (picks, gains, made), matrix in zip(got, matrices, strict=True):
        want = reference.greedy(matrix, len(matrix))
        np.testing.assert_array_equal(picks[:made], want[0][:made])
        np.testing.assert_array_equal(gains[:made], want[1][:made])
