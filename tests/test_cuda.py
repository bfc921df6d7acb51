"""On a GPU: the same answers as the plain greedy, always the same, and nobody waits for the device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import floc
from floc.selection import reference
from floc.selection.gpu import greedy
from floc.selection.gpu.greedy import Programs
from floc.synthetic import film
from tests.selection.gpu.launches import KERNELS, laid_out, poison, selected
from tests.selection.test_fuzz import similarity_of
from tests.selection.test_greedy import case

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION"),  # of rounding in a later release
]

FORMATS = [torch.float16, torch.bfloat16, torch.float32]
WAYS = [
    dict(),
    dict(method="floc-paper"),
    dict(block=None),
    dict(block=2),  # so many blocks that there are a few programs for each
    dict(block=2, dedupe=1),
]
GPU = torch.device("cuda", 0)
# the largest team: all of it has to run at once
PROCESSORS = torch.cuda.get_device_properties(GPU).multi_processor_count if torch.cuda.is_available() else 132


@pytest.fixture(scope="module")
def footage() -> np.ndarray:
    """44 frames of 6 x 10 cells, which make one set, two or 22."""
    return film(44, 6, 10, dim=48, seed=1, scenes=3, shot_frames=15, dtype=np.float32)


def on_gpu(tokens: np.ndarray, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.from_numpy(tokens).to(GPU, dtype)


def assert_equal(got: floc.Kept, want: floc.Kept) -> None:
    for name in ("indices", "order", "gains", "features", "positions"):
        assert torch.equal(getattr(got, name), getattr(want, name)), name


@pytest.mark.parametrize("n", [1, 17, 257, 1000])
def test_select_equals_the_reference(n: int) -> None:
    similarity = np.random.default_rng(n).integers(-300, 300, (n, n)).astype(np.int16)
    got = floc.select(torch.from_numpy(similarity).cuda(), max(1, n // 8))
    assert got.picks.is_cuda
    want = reference.greedy(similarity, max(1, n // 8))
    np.testing.assert_array_equal(got.picks.cpu().numpy(), want[0])
    np.testing.assert_array_equal(got.gains.cpu().numpy(), want[1])


@pytest.mark.parametrize("seed", range(20))
def test_500_cases_equal_the_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(25):
        n = int(rng.integers(1, 701))
        symmetric = bool(rng.random() < 0.5)
        m = n if symmetric else int(rng.integers(1, 701))
        matrix = similarity_of(rng, int(rng.integers(8)), m, n)
        if symmetric:
            matrix = np.tril(matrix) + np.tril(matrix, -1).T
        k = int(rng.integers(1, m + 1))
        weights = [rng.integers(0, 1 + 10 ** rng.integers(0, 6), n)] if rng.random() < 0.5 else None
        want = reference.greedy(matrix, k, None if weights is None else weights[0])
        # few teams, as each is compiled for anew; some that leave threads to copies of what they wait for
        few, team = int(rng.choice([1, 2, 5, 10, 16])), int(rng.choice([2, 5, 10, 26, 66, PROCESSORS]))
        for by in (Programs("few", few), Programs("team", team)):
            [(picks, gains, _)] = selected([matrix], [k], GPU, weights, symmetric=symmetric, by=by)
            np.testing.assert_array_equal(picks, want[0], err_msg=f"{by}, {m} x {n}, {k} picks")
            np.testing.assert_array_equal(gains, want[1], err_msg=f"{by}, {m} x {n}, {k} picks")


@pytest.mark.parametrize(
    "by", [Programs(kernel, members) for kernel in KERNELS for members in (2, 16, PROCESSORS)], ids=str
)
@pytest.mark.parametrize("n", [1, 2, 17, 65, 257])
def test_more_programs_than_there_is_work_for(by: Programs, n: int) -> None:
    for kind in ("centred", "ties", "duplicates"):
        matrix = case(kind, n, seed=n)
        want = reference.greedy(matrix, n)
        [(picks, gains, _)] = selected([matrix], [n], GPU, by=by)
        np.testing.assert_array_equal(picks, want[0])
        np.testing.assert_array_equal(gains, want[1])


@pytest.mark.parametrize(
    ("by", "n", "k"),
    [(Programs("few", 1), 1900, 240), (Programs("few", 5), 1900, 240), (Programs("team", PROCESSORS), 3000, 375)],
    ids=str,
)
def test_1000_repetitions_of_a_selection_are_identical(by: Programs, n: int, k: int) -> None:
    tokens = film(n // 60, 6, 10, dim=64, seed=0, dtype=np.float32).reshape(-1, 64)
    unit = tokens / np.linalg.norm(tokens, axis=1, keepdims=True)
    matrix = np.rint(16384 * (unit @ unit.T)).astype(np.int16)
    matrix = np.tril(matrix) + np.tril(matrix, -1).T
    memory, sets = laid_out([matrix], [k], GPU, symmetric=True)
    picks, gains = (torch.from_numpy(each).to(GPU) for each in reference.greedy(matrix, k))
    differing = torch.zeros((), dtype=torch.int64, device=GPU)
    for _ in range(1000):
        picked = greedy.greedy(memory, sets, by=by)
        greedy.fill_up(picked, sets)
        differing += (picked.picks != picks).any() | (picked.gains != gains).any()
    assert int(differing) == 0


@pytest.mark.parametrize("options", WAYS, ids=str)
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
@pytest.mark.parametrize("options", [*WAYS, dict(metric="gaussian")], ids=str)
def test_compress_stays_on_the_device(tokens: np.ndarray, dtype: torch.dtype, options: dict) -> None:
    given = torch.from_numpy(tokens).to(dtype)
    got = floc.compress(given.to(GPU), ratio=1 / 8, **options)
    want = floc.compress(given, ratio=1 / 8, backend="reference", **options)
    assert got.settings["backend"] == "gpu"
    for name in ("indices", "features", "positions", "order", "gains", "represents"):
        assert getattr(got, name).is_cuda, name
    assert got.features.dtype == dtype
    # a unit of similarity may decide between two picks: not the choice but its value is compared
    assert float(got.gains.sum()) == pytest.approx(float(want.gains.sum()), rel=1e-3)
    # after a second pass the closest of a window is found here, on a CPU one of the few that may be: of blocks so
    # short, not always the same
    most = _closest(got, given.to(GPU)) if options == dict(block=2) else want.coverage
    assert want.coverage - 1e-3 < got.coverage < most + 1e-3
    assert got.at(ratio="1/16").features.is_cuda


def _closest(kept: floc.Kept, tokens: torch.Tensor) -> float:
    """Mean cosine of all tokens with whichever kept one is closest."""
    unit = torch.nn.functional.normalize(tokens.flatten(0, 2).float(), dim=-1)
    return float((unit @ unit[kept.indices].T).amax(1).mean())


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("options", WAYS, ids=str)
def test_nobody_waits_for_the_device(footage: np.ndarray, dtype: torch.dtype, options: dict) -> None:
    given = on_gpu(footage, dtype)
    floc.compress(given, ratio=1 / 8, **options)  # plans are made and kept, kernels compiled
    torch.cuda.set_sync_debug_mode("error")
    try:
        floc.compress(given, ratio=1 / 8, **options)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_a_captured_graph_chooses_from_new_tokens(footage: np.ndarray, options: dict) -> None:
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
        fresh = on_gpu(film(44, 6, 10, dim=48, seed=seed, scenes=3, shot_frames=15, dtype=np.float32))
        given.copy_(fresh)
        graph.replay()
        torch.cuda.synchronize()
        assert_equal(captured, floc.compress(fresh, ratio=1 / 8, **options))


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_a_side_stream_runs_after_what_was_put_on_it(footage: np.ndarray, options: dict) -> None:
    given = on_gpu(footage)
    want = floc.compress(given, ratio=1 / 8, **options)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        late = torch.zeros_like(given)
        torch.cuda._sleep(50_000_000)  # cycles, some 30 ms: who does not wait on this stream sees zeros
        late.copy_(given)
        got = floc.compress(late, ratio=1 / 8, **options)
    side.synchronize()
    assert_equal(got, want)


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_memory_that_nobody_wrote_does_not_matter(
    footage: np.ndarray, options: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = on_gpu(footage)
    want = floc.compress(given, ratio=1 / 8, **options)
    poison(monkeypatch)
    assert_equal(floc.compress(given, ratio=1 / 8, **options), want)


def test_tokens_that_are_not_finite_are_named_when_the_device_is_waited_for(tokens: np.ndarray) -> None:
    broken = on_gpu(tokens)
    broken[41, 1, 2, 5] = torch.nan
    kept = floc.compress(broken, ratio=1 / 8)
    with pytest.raises(ValueError, match="nan in frame 41, row 1, column 2"):
        _ = kept.coverage


@pytest.mark.parametrize("options", [dict(), dict(dedupe=1), dict(method="floc-paper")], ids=str)
def test_a_longer_film_in_blocks_equals_the_reference(options: dict) -> None:
    """Blocks of 1,920 tokens, which is what the engine is for."""
    made = torch.from_numpy(film(80, 6, 10, dim=256, seed=4)).to(torch.bfloat16)
    got = floc.compress(made.to(GPU), ratio=1 / 16, **options)
    want = floc.compress(made, ratio=1 / 16, backend="cpu", **options)
    assert float(got.gains.sum()) == pytest.approx(float(want.gains.sum()), rel=1e-3)
    assert got.coverage == pytest.approx(want.coverage, abs=2e-3)
    assert len(set(got.indices.tolist()) & set(want.indices.tolist())) > 0.9 * len(want)


@pytest.mark.parametrize(
    ("count", "n", "by"), [(15, 5000, None), (3, 5000, Programs("few", 2)), (2, 8192, Programs("few", 1))], ids=str
)
def test_large_sets_with_few_programs_each(count: int, n: int, by: Programs | None) -> None:
    tokens = film(-(-n // 60), 6, 10, dim=32, seed=3, dtype=np.float32).reshape(-1, 32)[:n]
    unit = tokens / np.linalg.norm(tokens, axis=1, keepdims=True)
    matrix = np.rint(16384 * (unit @ unit.T)).astype(np.int16)
    matrix = np.tril(matrix) + np.tril(matrix, -1).T
    memory, sets = laid_out([matrix] * count, [24] * count, GPU, symmetric=True)
    picked = greedy.greedy(memory, sets, by=by)
    want = reference.greedy(matrix, 24)
    np.testing.assert_array_equal(picked.picks.cpu().reshape(count, 24), [want[0]] * count)
    np.testing.assert_array_equal(picked.gains.cpu().reshape(count, 24), [want[1]] * count)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_device_that_is_not_the_current_one(tokens: np.ndarray) -> None:
    want = floc.compress(on_gpu(tokens), ratio=1 / 8)
    got = floc.compress(on_gpu(tokens).to("cuda:1"), ratio=1 / 8)
    assert got.indices.device == torch.device("cuda", 1)
    assert torch.equal(got.indices.cpu(), want.indices.cpu())
