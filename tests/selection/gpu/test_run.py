"""Whole compressions on the GPU against the reference backend, and representatives against their definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import floc
from examples.synthetic import make_tokens
from floc import Kept
from floc.selection.gpu import engine, run
from floc.selection.objective import SCALE
from tests.selection.gpu.launches import MARKS
from tests.selection.matrices import normalize

pytestmark = MARKS

FRAMES, CELLS = 5, 4
N = FRAMES * CELLS
BLOCK = 2  # frames: two blocks of 8 tokens, and one of 4


@pytest.fixture(scope="module")
def tokens() -> torch.Tensor:
    return torch.from_numpy(make_tokens(FRAMES, 2, 2, dim=24, seed=1, scenes=3, shot_frames=3, dtype=np.float32))


def assert_same_selection(got: Kept, want: Kept) -> None:
    assert got.settings == {**want.settings, "backend": "gpu"}
    np.testing.assert_array_equal(np.asarray(torch.as_tensor(got.indices).cpu()), want.indices)
    np.testing.assert_array_equal(np.asarray(torch.as_tensor(got.order).cpu()), want.order)
    np.testing.assert_array_equal(np.asarray(torch.as_tensor(got.positions).cpu()), want.positions)
    # a similarity may differ by one unit, and a gain adds up the similarities of a block
    np.testing.assert_allclose(np.asarray(torch.as_tensor(got.gains).cpu()), want.gains, atol=N / SCALE)
    assert got.coverage == pytest.approx(want.coverage, abs=1e-3)
    assert got.bound == pytest.approx(want.bound, abs=1e-3)


def assert_represented_by_the_closest(kept: Kept, tokens: torch.Tensor, groups: list[int]) -> None:
    """Assert that each token is represented by the closest kept token of its group, and a kept token by itself."""
    rows = normalize(tokens.double().cpu().numpy().reshape(N, -1))
    indices, represents = (np.asarray(torch.as_tensor(array).cpu()) for array in (kept.indices, kept.represents))
    np.testing.assert_array_equal(represents[indices], np.arange(len(indices)))
    group = np.repeat(np.arange(len(groups)), groups)
    cosine = rows @ rows[indices].T
    cosine[group[:, None] != group[indices][None, :]] = -2
    represented = cosine[np.arange(N), represents]
    covered = cosine.max(1) > -2
    np.testing.assert_allclose(represented[covered], cosine.max(1)[covered], atol=1e-6)
    assert kept.coverage == pytest.approx(np.where(covered, cosine.max(1), 0).mean(), abs=1e-5)


ONE_PASS = [
    dict(block=BLOCK),
    dict(method="floc-paper", block=BLOCK),
    dict(block=BLOCK, detail=2),
    dict(block="scene"),
    dict(block=[0, 1, 4]),
    dict(horizon=None),
    dict(horizon=None, detail=1),
]


@pytest.mark.parametrize("options", ONE_PASS, ids=str)
def test_one_pass_equals_reference(tokens: torch.Tensor, options: dict, device: torch.device) -> None:
    got = floc.compress(tokens.to(device), budget=11, backend="gpu", **options)
    assert_same_selection(got, floc.compress(tokens, budget=11, backend="reference", **options))
    for name in ("indices", "features", "positions", "order", "gains", "represents"):
        assert getattr(got, name).device.type == device.type


@pytest.mark.parametrize(
    "options", [dict(dedupe=2), dict(dedupe=4), dict(dedupe=2, detail=1), dict(dedupe=2, detail=2)], ids=str
)
def test_two_passes_equal_reference(tokens: torch.Tensor, options: dict, device: torch.device) -> None:
    got = floc.compress(tokens.to(device), budget=9, block=BLOCK, backend="gpu", **options)
    assert_same_selection(got, floc.compress(tokens, budget=9, block=BLOCK, backend="reference", **options))
    assert_represented_by_the_closest(got, tokens, groups=[N])


@pytest.mark.parametrize("options", [dict(dedupe=2), dict()], ids=str)
@pytest.mark.parametrize("budget", [1, 3, 9, 10], ids=["one", "less than blocks", "all but one", "all"])
def test_smallest_and_largest_budgets_equal_reference(
    tokens: torch.Tensor, options: dict, budget: int, device: torch.device
) -> None:
    five_blocks = tokens[:5, :1]
    got = floc.compress(five_blocks.to(device), budget=budget, block=1, backend="gpu", **options)
    want = floc.compress(five_blocks, budget=budget, block=1, backend="reference", **options)
    np.testing.assert_array_equal(got.indices.cpu(), want.indices)
    np.testing.assert_array_equal(got.order.cpu(), want.order)
    np.testing.assert_allclose(got.gains.cpu(), want.gains, atol=N / SCALE)
    assert got.coverage == pytest.approx(want.coverage, abs=1e-3)


def test_bound_with_windows_without_picks(
    tokens: torch.Tensor, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floc.second_pass.SURVIVORS_TOGETHER", 2)
    options = dict(budget=2, block=1)
    want = floc.compress(tokens[:5, :1], backend="reference", **options)
    got = floc.compress(tokens[:5, :1].to(device), backend="gpu", **options)
    assert len(got.ranking.group_sizes) > 2
    assert got.bound == pytest.approx(want.bound, abs=1e-3)


def test_blocks_in_several_parts_give_same_selection(
    tokens: torch.Tensor, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = dict(method="floc-paper", budget=9, block=BLOCK, backend="gpu")
    at_once = floc.compress(tokens.to(device), **options)
    monkeypatch.setattr(run, "LIMIT_BYTES", 2 * 2 * 8 * (8 + 64))  # two matrices
    in_parts = floc.compress(tokens.to(device), **options)
    assert torch.equal(in_parts.indices, at_once.indices)
    assert torch.equal(in_parts.order, at_once.order)
    assert torch.equal(in_parts.gains, at_once.gains)
    assert in_parts.bound == at_once.bound


def test_several_windows_equal_reference(
    tokens: torch.Tensor, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floc.second_pass.SURVIVORS_TOGETHER", 10)
    got = floc.compress(tokens.to(device), budget=9, block=BLOCK, backend="gpu")
    assert_same_selection(got, floc.compress(tokens, budget=9, block=BLOCK, backend="reference"))
    sizes = got.ranking.group_sizes.tolist()
    assert len(sizes) > 1
    assert_represented_by_the_closest(got, tokens, groups=sizes)


def test_every_block_has_a_survivor(device: torch.device) -> None:
    """The only token of a block gains less than the pairs of two other, identical blocks."""
    single, *others = torch.eye(5)
    pairs = [token for token in others for _ in range(2)]
    tokens = torch.stack([single, *pairs, *pairs]).reshape(17, 1, 1, 5)
    kept = floc.compress(tokens.to(device), budget=5, dedupe=1.4, block=[0, 1, 9], backend="gpu")
    assert len(kept.ranking.group_sizes) == 1
    assert kept.indices[0] == 0


def test_ties_among_survivors_go_to_the_larger_first_gain(device: torch.device) -> None:
    tokens = torch.ones(3, 1, 1, 4)
    options = dict(budget=1, dedupe=2, block=[0, 1])
    want = floc.compress(tokens, backend="reference", **options)
    assert want.indices.tolist() == [1]
    assert floc.compress(tokens.to(device), backend="gpu", **options).indices.tolist() == [1]


def test_reference_uses_the_same_windows() -> None:
    tokens = torch.rand(13, 1, 1, 5)
    kept = floc.compress(tokens, budget=4, dedupe=1.5, block=[0, 1, 7], backend="reference")
    assert len(kept.ranking.group_sizes) == 1


def test_window_matrices_fit_the_limit(
    tokens: torch.Tensor, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "LIMIT_BYTES", 2 * 2 * 8 * 8)  # two matrices
    kept = floc.compress(tokens.to(device), budget=9, block=BLOCK, backend="gpu")
    assert len(kept.ranking.group_sizes) > 1
    assert kept.ranking.group_sizes.max() <= 16


def test_one_pass_represents_tokens_within_their_block(tokens: torch.Tensor, device: torch.device) -> None:
    kept = floc.compress(tokens.to(device), budget=9, block=BLOCK, dedupe=1, backend="gpu")
    assert_represented_by_the_closest(kept, tokens, groups=[8, 8, 4])
    empty_block = floc.compress(tokens.to(device), budget=2, block=BLOCK, dedupe=1, backend="gpu")
    assert_represented_by_the_closest(empty_block, tokens, groups=[8, 8, 4])


@pytest.mark.parametrize("options", [dict(method="floc-paper"), dict()], ids=str)
def test_smaller_budgets_from_one_run_equal_reference(
    tokens: torch.Tensor, options: dict, device: torch.device
) -> None:
    got = floc.compress(tokens.to(device), budget=12, block=BLOCK, backend="gpu", **options)
    want = floc.compress(tokens, budget=12, block=BLOCK, backend="reference", **options)
    for smaller in (dict(budget=1), dict(ratio="1/6"), dict(budget=12), dict(coverage=0.8 * want.coverage)):
        assert_same_selection(got.at(**smaller), want.at(**smaller))
    assert torch.equal(got.at(budget=7).features, got.features[torch.isin(got.indices, got.at(budget=7).indices)])


@pytest.mark.parametrize("options", [dict(), dict(method="floc-paper")], ids=str)
def test_coverage_target_equals_reference(tokens: torch.Tensor, options: dict, device: torch.device) -> None:
    got = floc.compress(tokens.to(device), coverage=0.9, block=BLOCK, backend="gpu", **options)
    assert_same_selection(got, floc.compress(tokens, coverage=0.9, block=BLOCK, backend="reference", **options))
    assert got.coverage >= 0.9


@pytest.mark.parametrize(
    "options",
    [dict(block=BLOCK, dedupe=2), dict(block=BLOCK), dict(method="floc-paper", block=BLOCK), dict(horizon=None)],
    ids=str,
)
def test_identical_frames(tokens: torch.Tensor, options: dict, device: torch.device) -> None:
    """Only as many picks gain anything as there are different tokens; any copies may fill up the rest."""
    still = tokens[:1].repeat(6, 1, 1, 1)
    got = floc.compress(still.to(device), budget=12, backend="gpu", **options)
    want = floc.compress(still, budget=12, backend="reference", **options)
    assert len(set(got.indices.tolist())) == 12
    np.testing.assert_allclose(got.gains.cpu(), want.gains, atol=N / SCALE)
    assert got.coverage == pytest.approx(1, abs=1e-5)
    assert got.bound == pytest.approx(want.bound, abs=1e-3)


def test_black_frames_do_not_take_budget_from_other_blocks(device: torch.device) -> None:
    """A block of zeros makes a first pick as well, which must not count for more than its gain."""
    busy = torch.rand(16, 1, 1, 3, generator=torch.Generator().manual_seed(0))
    tokens = torch.cat([torch.zeros(15, 1, 1, 3), busy])
    options = dict(budget=16, block=list(range(16)), detail=1)
    got = floc.compress(tokens.to(device), backend="gpu", **options)
    want = floc.compress(tokens, backend="reference", **options)
    np.testing.assert_array_equal(got.indices.cpu(), want.indices)
    np.testing.assert_allclose(got.gains.cpu(), want.gains, atol=N / SCALE)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2], ids=str
)
def test_dtypes_equal_reference(tokens: torch.Tensor, dtype: torch.dtype, device: torch.device) -> None:
    given = tokens[:4].to(dtype)
    on_device = given.to(device, copy=True)
    got = floc.compress(on_device, budget=5, block=BLOCK, backend="gpu")
    want = floc.compress(given, budget=5, block=BLOCK, backend="reference")
    assert got.features.dtype == dtype
    assert torch.equal(on_device.cpu().double(), given.double()), "the input tokens were modified"
    np.testing.assert_array_equal(got.indices.cpu(), want.indices)
    np.testing.assert_allclose(got.gains.cpu(), want.gains, rtol=2e-3)  # gains are differences of fp16 sums


@pytest.mark.parametrize("dedupe", [1, 2])
def test_tokens_that_are_not_contiguous_and_require_gradients(
    tokens: torch.Tensor, dedupe: int, device: torch.device
) -> None:
    permuted = tokens.to(device).permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0).requires_grad_()
    got = floc.compress(permuted, budget=5, block=BLOCK, dedupe=dedupe, backend="gpu")
    want = floc.compress(tokens, budget=5, block=BLOCK, dedupe=dedupe, backend="reference")
    assert_same_selection(got, want)
    assert torch.equal(got.features.cpu(), want.features)


@pytest.mark.skipif(torch.cuda.is_available(), reason="numpy arrays are on the CPU, where compiled kernels cannot run")
def test_numpy_input_gives_numpy_output(tokens: torch.Tensor) -> None:
    got = floc.compress(tokens.numpy(), budget=5, block=BLOCK, backend="gpu")
    for name in ("indices", "features", "positions", "order", "gains", "represents"):
        assert isinstance(getattr(got, name), np.ndarray), name
    assert_same_selection(got, floc.compress(tokens.numpy(), budget=5, block=BLOCK, backend="reference"))


@pytest.mark.parametrize(
    ("options", "value"),
    [(dict(dedupe=2), torch.nan), (dict(method="floc-paper"), torch.inf), (dict(horizon=None), torch.nan)],
    ids=str,
)
def test_reports_tokens_that_are_not_finite_on_first_host_access(
    tokens: torch.Tensor, options: dict, value: float, device: torch.device
) -> None:
    broken = tokens.to(device, copy=True)
    broken[3, 1, 0, 7] = value
    kept = floc.compress(broken, budget=5, **options, backend="gpu")
    assert len(kept.indices) == 5
    for access in (lambda: kept.coverage, lambda: kept.represents, lambda: kept.bound, lambda: kept.at(budget=2)):
        with pytest.raises(ValueError, match="in frame 3, row 1, column 0"):
            access()


def test_coverage_target_reports_tokens_that_are_not_finite_at_once(tokens: torch.Tensor, device: torch.device) -> None:
    broken = tokens.to(device, copy=True)
    broken[3, 1, 0, 7] = torch.nan
    with pytest.raises(ValueError, match="frame 3"):
        floc.compress(broken, coverage=0.9, block=BLOCK, backend="gpu")


def test_rejects_tokens_too_small_for_float32(tokens: torch.Tensor, device: torch.device) -> None:
    with pytest.raises(ValueError, match="too small for float32"):
        floc.compress(tokens.to(device).double() * 1e-50, budget=5, block=BLOCK, dedupe=1, backend="gpu")


@pytest.mark.parametrize(("sizes", "budget"), [((4, 5), 2), ((4, 7), 2), ((10, 0), 2), ((5, 5), 0), ((5, 5), 11)])
def test_sizes_and_budgets_that_do_not_fit_are_refused(sizes: tuple[int, int], budget: int) -> None:
    with pytest.raises(ValueError, match=f"cannot select {budget} of 10 tokens in blocks of"):
        run.rank_in_blocks(torch.ones(10, 4), sizes, budget, 2.0)
    with pytest.raises(ValueError, match=f"cannot select {budget} of 10 tokens in blocks of"):
        run.rank_in_two_passes(torch.ones(10, 4), sizes, [(range(2), 6)], budget, 2.0)
