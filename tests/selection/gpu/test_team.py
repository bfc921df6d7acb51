"""Several programs for a set without a GPU: a process for each, all in one memory.

The interpreter runs the programs of a launch one after the other, and those of a set wait for one another. So each
runs in a process of its own here, at the same time as the others, in whatever order the machine comes up with.
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
from floc.selection.gpu import few, team
from floc.selection.gpu.greedy import Programs
from floc.selection.objective import SCALE
from tests.selection.gpu.launches import KERNELS, MARKS, selected
from tests.selection.test_greedy import case

pytestmark = [
    *MARKS,
    pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU runs them as they are: see test_greedy.py"),
    # the children only run the interpreter, and leave without cleaning up
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]


class InProcesses:
    """Stands in for a kernel whose programs wait for one another."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int]) -> Any:
        def launch(*arguments: Any, **options: Any) -> None:
            tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
            shared = {id(each): each.clone().share_memory_() for each in tensors}
            given = [shared.get(id(each), each) for each in arguments]
            fork = multiprocessing.get_context("fork")
            members = [
                fork.Process(target=run_one_program, args=(self.kernel, grid, i, given, options))
                for i in range(grid[0])
            ]
            for member in members:
                member.start()
            for member in members:
                member.join(120)
            assert [member.exitcode for member in members] == [0] * grid[0]
            for each in tensors:
                each.copy_(shared[id(each)])

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
def in_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few, "_few", InProcesses(few._few))
    monkeypatch.setattr(team, "_team", InProcesses(team._team))


@pytest.mark.usefixtures("in_processes")
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("members", "kind"), [(2, "centred"), (3, "duplicates"), (5, "plain")])
def test_several_programs_equal_the_reference(kernel: Literal["few", "team"], members: int, kind: str) -> None:
    matrix = case(kind, 70, seed=members)
    [(picks, gains, _)] = selected([matrix], [14], torch.device("cpu"), symmetric=True, by=Programs(kernel, members))
    want = reference.greedy(matrix, 14)
    np.testing.assert_array_equal(picks, want[0])
    np.testing.assert_array_equal(gains, want[1])


@pytest.mark.usefixtures("in_processes")
@pytest.mark.parametrize("kernel", KERNELS)
def test_two_sets_with_weights_and_members_that_have_nothing_to_do(kernel: Literal["few", "team"]) -> None:
    rng = np.random.default_rng(0)
    matrices = [rng.integers(-SCALE, SCALE + 1, shape).astype(np.int16) for shape in ((40, 21), (7, 33))]
    weights = [rng.integers(0, 9, matrix.shape[1]) for matrix in matrices]
    got = selected(matrices, [8, 7], torch.device("cpu"), weights, by=Programs(kernel, 3))
    for (picks, gains, _), matrix, weight in zip(got, matrices, weights, strict=True):
        want = reference.greedy(matrix, len(picks), weight)
        np.testing.assert_array_equal(picks, want[0])
        np.testing.assert_array_equal(gains, want[1])


@pytest.mark.usefixtures("in_processes")
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("seed", range(4))
def test_any_number_of_programs_on_any_matrix(kernel: Literal["few", "team"], seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, by = int(rng.integers(20, 300)), Programs(kernel, int(rng.integers(2, 12)))
    matrix = case(str(rng.choice(["plain", "centred", "duplicates", "opposite", "zeros"])), n, seed)
    k = int(rng.integers(1, min(n, 40)))
    weights = [rng.integers(0, 1000, n)] if rng.random() < 0.5 else None
    [(picks, gains, _)] = selected([matrix], [k], torch.device("cpu"), weights, symmetric=True, by=by)
    want = reference.greedy(matrix, k, None if weights is None else weights[0])
    np.testing.assert_array_equal(picks, want[0])
    np.testing.assert_array_equal(gains, want[1])


@pytest.mark.usefixtures("in_processes")
@pytest.mark.parametrize("kernel", KERNELS)
def test_programs_stop_together_where_enough_was_chosen(kernel: Literal["few", "team"]) -> None:
    matrices = [case("plain", n, seed=n) for n in (60, 45, 30)]
    device, sizes = torch.device("cpu"), [60, 45, 30]
    got = selected(matrices, sizes, device, symmetric=True, by=Programs(kernel, 2), enough=20)
    assert sum(made for *_, made in got) < sum(sizes)
    for (picks, gains, made), matrix in zip(got, matrices, strict=True):
        want = reference.greedy(matrix, len(matrix))
        np.testing.assert_array_equal(picks[:made], want[0][:made])
        np.testing.assert_array_equal(gains[:made], want[1][:made])
