"""On a GPU: results equal the reference, repeat exactly, and no call synchronises with the device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import floc
from examples.synthetic import make_tokens
from floc.selection import reference
from floc.selection.gpu import greedy
from floc.selection.gpu.greedy import Programs
from tests.selection.gpu.launches import KERNELS, lay_out, poison, select_sets
from tests.selection.matrices import make_matrix, make_random_matrix

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION"),  # concerns rounding in a later release
]

FORMATS = [torch.float16, torch.bfloat16, torch.float32]
OPTIONS = [
    dict(),
    dict(method="floc-paper"),
    dict(horizon=None),
    dict(block=2),  # so many blocks that each gets a few programs
    dict(block=2),
    dict(horizon=2, detail=3),
]
GPU = torch.device("cuda", 0)
# the most programs of a set: all of them must run at once
PROCESSORS = torch.cuda.get_device_properties(GPU).multi_processor_count if torch.cuda.is_available() else 132


@pytest.fixture(scope="module")
def footage() -> np.ndarray:
    """44 frames of 6 x 10 tokens, in one, two or 22 sets."""
    return make_tokens(44, 6, 10, dim=48, seed=1, scenes=3, shot_frames=15, dtype=np.float32)


def on_gpu(tokens: np.ndarray, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.from_numpy(tokens).to(GPU, dtype)


def assert_equal(got: floc.Kept, want: floc.Kept) -> None:
    for name in ("indices", "order", "gains", "features", "positions"):
        assert torch.equal(getattr(got, name), getattr(want, name)), name


@pytest.mark.parametrize("n", [1, 17, 257, 1000])
def test_select_equals_reference(n: int) -> None:
    similarity = np.random.default_rng(n).integers(-300, 300, (n, n)).astype(np.int16)
    got = floc.select(torch.from_numpy(similarity).cuda(), max(1, n // 8))
    assert got.picks.is_cuda
    want = reference.greedy(similarity, max(1, n // 8))
    np.testing.assert_array_equal(got.picks.cpu().numpy(), want[0])
    np.testing.assert_array_equal(got.gains.cpu().numpy(), want[1])


@pytest.mark.parametrize("seed", range(20))
def test_500_random_matrices_equal_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(25):
        n = int(rng.integers(1, 701))
        symmetric = bool(rng.random() < 0.5)
        m = n if symmetric else int(rng.integers(1, 701))
        matrix = make_random_matrix(rng, int(rng.integers(8)), m, n)
        if symmetric:
            matrix = np.tril(matrix) + np.tril(matrix, -1).T
        k = int(rng.integers(1, m + 1))
        weights = [rng.integers(0, 1 + 10 ** rng.integers(0, 6), n)] if rng.random() < 0.5 else None
        want = reference.greedy(matrix, k, None if weights is None else weights[0])
        # only some numbers of programs, as each is compiled separately; with some of them several threads hold copies
        # of the words they wait for
        few, many = int(rng.choice([1, 2, 5, 10, 16])), int(rng.choice([2, 5, 10, 26, 66, PROCESSORS]))
        for programs in (Programs("few", few), Programs("many", many)):
            [(picks, gains, _)] = select_sets([matrix], [k], GPU, weights, symmetric=symmetric, programs=programs)
            np.testing.assert_array_equal(picks, want[0], err_msg=f"{programs}, {m} x {n}, {k} picks")
            np.testing.assert_array_equal(gains, want[1], err_msg=f"{programs}, {m} x {n}, {k} picks")


@pytest.mark.parametrize(
    "programs", [Programs(kernel, per_set) for kernel in KERNELS for per_set in (2, 16, PROCESSORS)], ids=str
)
@pytest.mark.parametrize("n", [1, 2, 17, 65, 257])
def test_more_programs_than_work_equals_reference(programs: Programs, n: int) -> None:
    for kind in ("centred", "ties", "duplicates"):
        matrix = make_matrix(kind, n, seed=n)
        want = reference.greedy(matrix, n)
        [(picks, gains, _)] = select_sets([matrix], [n], GPU, programs=programs)
        np.testing.assert_array_equal(picks, want[0])
        np.testing.assert_array_equal(gains, want[1])


@pytest.mark.parametrize(
    ("programs", "n", "k"),
    [(Programs("few", 1), 1900, 240), (Programs("few", 5), 1900, 240), (Programs("many", PROCESSORS), 3000, 375)],
    ids=str,
)
def test_1000_repetitions_of_a_selection_are_identical(programs: Programs, n: int, k: int) -> None:
    tokens = make_tokens(n // 60, 6, 10, dim=64, seed=0, dtype=np.float32).reshape(-1, 64)
    unit = tokens / np.linalg.norm(tokens, axis=1, keepdims=True)
    matrix = np.rint(16384 * (unit @ unit.T)).astype(np.int16)
    matrix = np.tril(matrix) + np.tril(matrix, -1).T
    memory, sets = lay_out([matrix], [k], GPU, symmetric=True)
    picks, gains = (torch.from_numpy(values).to(GPU) for values in reference.greedy(matrix, k))
    differing = torch.zeros((), dtype=torch.int64, device=GPU)
    for _ in range(1000):
        found = greedy.greedy(memory, sets, programs=programs)
        greedy.fill_up(found, sets)
        differing += (found.picks != picks).any() | (found.gains != gains).any()
    assert int(differing) == 0


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_1000_repetitions_of_a_compression_are_identical(footage: np.ndarray, options: dict) -> None:
    given = on_gpu(footage)
    want = floc.compress(given, ratio=1 / 8, **options)
    differing = torch.zeros((), dtype=torch.int64, device=GPU)
    for _ in range(1000):
        got = floc.compress(given, ratio=1 / 8, **options)
        for name in ("indices", "order", "gains"):
            differing += (getattr(got, name) != getattr(want, name)).any()
    assert int(differing) == 0


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("options", [*OPTIONS, dict(metric="gaussian")], ids=str)
def test_compress_stays_on_the_device(tokens: np.ndarray, dtype: torch.dtype, options: dict) -> None:
    given = torch.from_numpy(tokens).to(dtype)
    got = floc.compress(given.to(GPU), ratio=1 / 8, **options)
    want = floc.compress(given, ratio=1 / 8, backend="reference", **options)
    assert got.settings["backend"] == "gpu"
    for name in ("indices", "features", "positions", "order", "gains", "represents"):
        assert getattr(got, name).is_cuda, name
    assert got.features.dtype == dtype
    # one unit of similarity may decide between two picks: compare the value, not the picks
    assert float(got.gains.sum()) == pytest.approx(float(want.gains.sum()), rel=1e-3)
    # after a second pass the GPU finds the closest pick of a window, the CPU one of a few candidates: with blocks this
    # short they may differ
    most = _compute_best_coverage(got, given.to(GPU)) if options == dict(block=2) else want.coverage
    assert want.coverage - 1e-3 < got.coverage < most + 1e-3
    assert got.at(ratio="1/16").features.is_cuda


def _compute_best_coverage(kept: floc.Kept, tokens: torch.Tensor) -> float:
    """Mean cosine of each token and the closest kept token."""
    unit = torch.nn.functional.normalize(tokens.flatten(0, 2).float(), dim=-1)
    return float((unit @ unit[kept.indices].T).amax(1).mean())


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_compress_does_not_synchronise(footage: np.ndarray, dtype: torch.dtype, options: dict) -> None:
    given = on_gpu(footage, dtype)
    floc.compress(given, ratio=1 / 8, **options)  # caches plans and compiles kernels
    torch.cuda.set_sync_debug_mode("error")
    try:
        floc.compress(given, ratio=1 / 8, **options)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_captured_graph_replays_on_new_tokens(footage: np.ndarray, options: dict) -> None:
    given = on_gpu(footage)
    warming_up = torch.cuda.Stream()
    warming_up.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warming_up):
        floc.compress(given, ratio=1 / 8, **options)
    torch.cuda.current_stream().wait_stream(warming_up)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = floc.compress(given, ratio=1 / 8, **options)
    for seed in (2, 3):
        fresh = on_gpu(make_tokens(44, 6, 10, dim=48, seed=seed, scenes=3, shot_frames=15, dtype=np.float32))
        given.copy_(fresh)
        graph.replay()
        torch.cuda.synchronize()
        assert_equal(captured, floc.compress(fresh, ratio=1 / 8, **options))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_side_stream_runs_in_order(footage: np.ndarray, options: dict) -> None:
    given = on_gpu(footage)
    want = floc.compress(given, ratio=1 / 8, **options)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        late = torch.zeros_like(given)
        torch.cuda._sleep(50_000_000)  # about 30 ms: work on another stream would see zeros
        late.copy_(given)
        got = floc.compress(late, ratio=1 / 8, **options)
    side.synchronize()
    assert_equal(got, want)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_reads_no_uninitialised_memory(footage: np.ndarray, options: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    given = on_gpu(footage)
    want = floc.compress(given, ratio=1 / 8, **options)
    poison(monkeypatch)
    assert_equal(floc.compress(given, ratio=1 / 8, **options), want)


def test_reports_tokens_that_are_not_finite_on_first_host_access(tokens: np.ndarray) -> None:
    broken = on_gpu(tokens)
    broken[41, 1, 2, 5] = torch.nan
    kept = floc.compress(broken, ratio=1 / 8)
    with pytest.raises(ValueError, match="nan in frame 41, row 1, column 2"):
        _ = kept.coverage


@pytest.mark.parametrize("options", [dict(), dict(dedupe=2), dict(method="floc-paper")], ids=str)
def test_long_video_equals_cpu(options: dict) -> None:
    """Blocks of 1,920 tokens, the usual size."""
    made = torch.from_numpy(make_tokens(80, 6, 10, dim=256, seed=4)).to(torch.bfloat16)
    got = floc.compress(made.to(GPU), ratio=1 / 16, **options)
    want = floc.compress(made, ratio=1 / 16, **options)
    assert float(got.gains.sum()) == pytest.approx(float(want.gains.sum()), rel=1e-3)
    assert got.coverage == pytest.approx(want.coverage, abs=2e-3)
    assert len(set(got.indices.tolist()) & set(want.indices.tolist())) > 0.9 * len(want)


@pytest.mark.parametrize(
    ("count", "n", "programs"),
    [(15, 5000, None), (3, 5000, Programs("few", 2)), (2, 8192, Programs("few", 1))],
    ids=str,
)
def test_large_sets_with_few_programs_equal_reference(count: int, n: int, programs: Programs | None) -> None:
    tokens = make_tokens(-(-n // 60), 6, 10, dim=32, seed=3, dtype=np.float32).reshape(-1, 32)[:n]
    unit = tokens / np.linalg.norm(tokens, axis=1, keepdims=True)
    matrix = np.rint(16384 * (unit @ unit.T)).astype(np.int16)
    matrix = np.tril(matrix) + np.tril(matrix, -1).T
    memory, sets = lay_out([matrix] * count, [24] * count, GPU, symmetric=True)
    found = greedy.greedy(memory, sets, programs=programs)
    want = reference.greedy(matrix, 24)
    np.testing.assert_array_equal(found.picks.cpu().reshape(count, 24), [want[0]] * count)
    np.testing.assert_array_equal(found.gains.cpu().reshape(count, 24), [want[1]] * count)


@pytest.mark.parametrize("method", floc.methods.list_methods())
def test_methods_repeat_exactly_and_agree_with_the_cpu(footage: np.ndarray, method: str) -> None:
    options = {"nearest": True} if "nearest" in floc.methods.list_options(method) else {}
    kept, again = (floc.compress(on_gpu(footage), ratio="1/4", method=method, **options) for _ in range(2))
    assert kept.features.is_cuda
    assert torch.equal(kept.indices, again.indices)
    assert torch.equal(kept.features, again.features)
    torch_too = {"backend": "torch"} if method in ("kmeans", "kmedoids") else {}
    expected = floc.compress(on_gpu(footage).cpu(), ratio="1/4", method=method, **options, **torch_too)
    assert len(kept) == len(expected)
    assert np.isin(kept.indices.cpu(), expected.indices).mean() > 0.97  # rounding decides a few picks


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_device_that_is_not_current(tokens: np.ndarray) -> None:
    want = floc.compress(on_gpu(tokens), ratio=1 / 8)
    got = floc.compress(on_gpu(tokens).to("cuda:1"), ratio=1 / 8)
    assert got.indices.device == torch.device("cuda", 1)
    assert torch.equal(got.indices.cpu(), want.indices.cpu())
