"""A whole compression by the kernels against the plain engine, and who stands for whom against its definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import floc
from floc import Kept
from floc.selection.gpu import engine, run
from floc.selection.objective import SCALE
from floc.synthetic import film
from tests.selection.gpu.launches import MARKS
from tests.selection.test_engines import unit

pytestmark = MARKS

FRAMES, CELLS = 5, 4
N = FRAMES * CELLS
BLOCK = 2  # frames: two blocks of 8 tokens, and one of 4


@pytest.fixture(scope="module")
def tokens() -> torch.Tensor:
    return torch.from_numpy(film(FRAMES, 2, 2, dim=24, seed=1, scenes=3, shot_frames=3, dtype=np.float32))


def assert_same_choice(got: Kept, want: Kept) -> None:
    assert got.settings == {**want.settings, "backend": "gpu"}
    np.testing.assert_array_equal(np.asarray(torch.as_tensor(got.indices).cpu()), want.indices)
    np.testing.assert_array_equal(np.asarray(torch.as_tensor(got.order).cpu()), want.order)
    np.testing.assert_array_equal(np.asarray(torch.as_tensor(got.positions).cpu()), want.positions)
    # a similarity may differ by a unit, and each pick of a block adds up those of its tokens
    np.testing.assert_allclose(np.asarray(torch.as_tensor(got.gains).cpu()), want.gains, atol=N / SCALE)
    assert got.coverage == pytest.approx(want.coverage, abs=1e-3)
    assert got.bound == pytest.approx(want.bound, abs=1e-3)


def assert_represented_by_the_closest(kept: Kept, tokens: torch.Tensor, groups: list[int]) -> None:
    """Each token by the kept one of its group that is most like it, a kept one by itself."""
    rows = unit(tokens.double().cpu().numpy().reshape(N, -1))
    indices, represents = (np.asarray(torch.as_tensor(each).cpu()) for each in (kept.indices, kept.represents))
    np.testing.assert_array_equal(represents[indices], np.arange(len(indices)))
    group = np.repeat(np.arange(len(groups)), groups)
    cosine = rows @ rows[indices].T
    cosine[group[:, None] != group[indices][None, :]] = -2
    mine = cosine[np.arange(N), represents]
    covered = cosine.max(1) > -2
    np.testing.assert_allclose(mine[covered], cosine.max(1)[covered], atol=1e-6)
    assert kept.coverage == pytest.approx(np.where(covered, cosine.max(1), 0).mean(), abs=1e-5)


ONE_PASS = [
    dict(dedupe=1),
    dict(method="floc-paper"),
    dict(dedupe=1, detail=3),
    dict(dedupe=1, block="scene"),
    dict(dedupe=1, block=[0, 1, 4]),
    dict(block=None),
    dict(block=None, detail=1),
]


@pytest.mark.parametrize("options", ONE_PASS, ids=str)
def test_one_pass(tokens: torch.Tensor, options: dict, device: torch.device) -> None:
    options = dict(block=BLOCK) | options
    got = floc.compress(tokens.to(device), budget=11, backend="gpu", **options)
    assert_same_choice(got, floc.compress(tokens, budget=11, backend="reference", **options))
    for name in ("indices", "features", "positions", "order", "gains", "represents"):
        assert getattr(got, name).device.type == device.type


@pytest.mark.parametrize("options", [dict(), dict(dedupe=4), dict(detail=1), dict(detail=3)], ids=str)
def test_two_passes(tokens: torch.Tensor, options: dict, device: torch.device) -> None:
    got = floc.compress(tokens.to(device), budget=9, block=BLOCK, backend="gpu", **options)
    assert_same_choice(got, floc.compress(tokens, budget=9, block=BLOCK, backend="reference", **options))
    assert_represented_by_the_closest(got, tokens, groups=[N])


@pytest.mark.parametrize("options", [dict(), dict(dedupe=1)], ids=str)
@pytest.mark.parametrize("budget", [1, 3, 9, 10], ids=["one", "less than blocks", "all but one", "all"])
def test_budgets_at_the_ends(tokens: torch.Tensor, options: dict, budget: int, device: torch.device) -> None:
    five_blocks = tokens[:5, :1]
    got = floc.compress(five_blocks.to(device), budget=budget, block=1, backend="gpu", **options)
    want = floc.compress(five_blocks, budget=budget, block=1, backend="reference", **options)
    np.testing.assert_array_equal(got.indices.cpu(), want.indices)
    np.testing.assert_array_equal(got.order.cpu(), want.order)
    np.testing.assert_allclose(got.gains.cpu(), want.gains, atol=N / SCALE)
    assert got.coverage == pytest.approx(want.coverage, abs=1e-3)


def test_bound_if_some_windows_have_no_pick(
    tokens: torch.Tensor, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floc.second_pass.SURVIVORS_TOGETHER", 2)
    options = dict(budget=2, block=1)
    want = floc.compress(tokens[:5, :1], backend="reference", **options)
    got = floc.compress(tokens[:5, :1].to(device), backend="gpu", **options)
    assert len(got.ranking.group_sizes) > 2
    assert got.bound == pytest.approx(want.bound, abs=1e-3)


def test_blocks_in_several_parts_give_the_same_result(
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


def test_several_windows(tokens: torch.Tensor, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("floc.second_pass.SURVIVORS_TOGETHER", 10)
    got = floc.compress(tokens.to(device), budget=9, block=BLOCK, backend="gpu")
    assert_same_choice(got, floc.compress(tokens, budget=9, block=BLOCK, backend="reference"))
    sizes = got.ranking.group_sizes.tolist()
    assert len(sizes) > 1
    assert_represented_by_the_closest(got, tokens, groups=sizes)


def test_every_block_has_a_survivor(device: torch.device) -> None:
    """A token that is alone in its block gains less there than pairs do, of which two blocks have the same."""
    one, *pairs = torch.eye(5)
    same = [each for each in pairs for _ in range(2)]
    tokens = torch.stack([one, *same, *same]).reshape(17, 1, 1, 5)
    kept = floc.compress(tokens.to(device), budget=5, dedupe=1.4, block=[0, 1, 9], backend="gpu")
    assert len(kept.ranking.group_sizes) == 1
    assert kept.indices[0] == 0


def test_ties_among_survivors_go_to_the_one_that_gained_more(device: torch.device) -> None:
    tokens = torch.ones(3, 1, 1, 4)
    options = dict(budget=1, dedupe=2, block=[0, 1])
    want = floc.compress(tokens, backend="reference", **options)
    assert want.indices.tolist() == [1]
    assert floc.compress(tokens.to(device), backend="gpu", **options).indices.tolist() == [1]


def test_windows_are_those_of_the_plain_engine() -> None:
    tokens = torch.rand(13, 1, 1, 5)
    kept = floc.compress(tokens, budget=4, dedupe=1.5, block=[0, 1, 7], backend="reference")
    assert len(kept.ranking.group_sizes) == 1


def test_windows_are_made_small_enough_for_their_matrices(
    tokens: torch.Tensor, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "LIMIT_BYTES", 2 * 2 * 8 * 8)  # two matrices
    kept = floc.compress(tokens.to(device), budget=9, block=BLOCK, backend="gpu")
    assert len(kept.ranking.group_sizes) > 1
    assert kept.ranking.group_sizes.max() <= 16


def test_representatives_of_one_pass_are_from_the_same_block(tokens: torch.Tensor, device: torch.device) -> None:
    kept = floc.compress(tokens.to(device), budget=9, block=BLOCK, dedupe=1, backend="gpu")
    assert_represented_by_the_closest(kept, tokens, groups=[8, 8, 4])
    empty_block = floc.compress(tokens.to(device), budget=2, block=BLOCK, dedupe=1, backend="gpu")
    assert_represented_by_the_closest(empty_block, tokens, groups=[8, 8, 4])


@pytest.mark.parametrize("options", [dict(method="floc-paper"), dict()], ids=str)
def test_smaller_budgets_from_the_same_run(tokens: torch.Tensor, options: dict, device: torch.device) -> None:
    got = floc.compress(tokens.to(device), budget=12, block=BLOCK, backend="gpu", **options)
    want = floc.compress(tokens, budget=12, block=BLOCK, backend="reference", **options)
    for dial in (dict(budget=1), dict(ratio="1/6"), dict(budget=12), dict(coverage=0.8 * want.coverage)):
        assert_same_choice(got.at(**dial), want.at(**dial))
    assert torch.equal(got.at(budget=7).features, got.features[torch.isin(got.indices, got.at(budget=7).indices)])


@pytest.mark.parametrize("options", [dict(), dict(method="floc-paper")], ids=str)
def test_as_many_as_a_coverage_takes(tokens: torch.Tensor, options: dict, device: torch.device) -> None:
    got = floc.compress(tokens.to(device), coverage=0.9, block=BLOCK, backend="gpu", **options)
    assert_same_choice(got, floc.compress(tokens, coverage=0.9, block=BLOCK, backend="reference", **options))
    assert got.coverage >= 0.9


@pytest.mark.parametrize("options", [dict(), dict(dedupe=1), dict(method="floc-paper"), dict(block=None)], ids=str)
def test_still_footage(tokens: torch.Tensor, options: dict, device: torch.device) -> None:
    """Only as many picks gain anything as there are different tokens; which copies fill up the rest is all one."""
    still = tokens[:1].repeat(6, 1, 1, 1)
    options = dict(block=BLOCK) | options
    got = floc.compress(still.to(device), budget=12, backend="gpu", **options)
    want = floc.compress(still, budget=12, backend="reference", **options)
    assert len(set(got.indices.tolist())) == 12
    np.testing.assert_allclose(got.gains.cpu(), want.gains, atol=N / SCALE)
    assert got.coverage == pytest.approx(1, abs=1e-5)
    assert got.bound == pytest.approx(want.bound, abs=1e-3)


def test_of_what_gains_nothing_the_worst_covered_comes_first(device: torch.device) -> None:
    """Tokens so alike that with detail all similarities are 1: the two that differ most are kept, not the first."""
    rng = np.random.default_rng(0)
    common = rng.standard_normal(24)
    alike = common + 1e-3 * rng.standard_normal((6, 1, 4, 24))
    alike[4, 0, 2] = common + 4e-3 * rng.standard_normal(24)
    alike[5, 0, 1] = common + 4e-3 * rng.standard_normal(24)
    tokens = torch.from_numpy(alike.astype(np.float32))
    got = floc.compress(tokens.to(device), budget=3, block=None, detail=3, backend="gpu")
    want = floc.compress(tokens, budget=3, block=None, detail=3, backend="reference")
    assert got.gains.tolist()[1:] == [0, 0]
    assert {4 * 4 + 2, 5 * 4 + 1} <= set(got.indices.tolist())
    np.testing.assert_array_equal(got.indices.cpu(), want.indices)


def test_black_frames_take_nothing_from_a_busy_block(device: torch.device) -> None:
    """A block that has nothing to offer makes a first pick all the same, which must not count for more than it is."""
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
def test_formats(tokens: torch.Tensor, dtype: torch.dtype, device: torch.device) -> None:
    given = tokens[:4].to(dtype)
    on_device = given.to(device, copy=True)
    got = floc.compress(on_device, budget=5, block=BLOCK, backend="gpu")
    want = floc.compress(given, budget=5, block=BLOCK, backend="reference")
    assert got.features.dtype == dtype
    assert torch.equal(on_device.cpu().double(), given.double()), "the tokens were changed"
    np.testing.assert_array_equal(got.indices.cpu(), want.indices)
    np.testing.assert_allclose(got.gains.cpu(), want.gains, rtol=2e-3)  # gains are differences of sums in fp16


@pytest.mark.parametrize("dedupe", [1, 2])
def test_tokens_that_are_not_contiguous_and_need_gradients(
    tokens: torch.Tensor, dedupe: int, device: torch.device
) -> None:
    turned = tokens.to(device).permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0).requires_grad_()
    got = floc.compress(turned, budget=5, block=BLOCK, dedupe=dedupe, backend="gpu")
    want = floc.compress(tokens, budget=5, block=BLOCK, dedupe=dedupe, backend="reference")
    assert_same_choice(got, want)
    assert torch.equal(got.features.cpu(), want.features)


@pytest.mark.skipif(torch.cuda.is_available(), reason="arrays are on the CPU, where a GPU does not run its kernels")
def test_arrays_come_back_as_arrays(tokens: torch.Tensor) -> None:
    got = floc.compress(tokens.numpy(), budget=5, block=BLOCK, backend="gpu")
    for name in ("indices", "features", "positions", "order", "gains", "represents"):
        assert isinstance(getattr(got, name), np.ndarray), name
    assert_same_choice(got, floc.compress(tokens.numpy(), budget=5, block=BLOCK, backend="reference"))


@pytest.mark.parametrize(
    ("options", "value"),
    [(dict(), torch.nan), (dict(method="floc-paper"), torch.inf), (dict(block=None), torch.nan)],
    ids=str,
)
def test_tokens_that_are_not_finite_are_named_when_the_device_is_waited_for(
    tokens: torch.Tensor, options: dict, value: float, device: torch.device
) -> None:
    broken = tokens.to(device, copy=True)
    broken[3, 1, 0, 7] = value
    kept = floc.compress(broken, budget=5, **dict(block=BLOCK) | options, backend="gpu")
    assert len(kept.indices) == 5
    for ask in (lambda: kept.coverage, lambda: kept.represents, lambda: kept.bound, lambda: kept.at(budget=2)):
        with pytest.raises(ValueError, match="in frame 3, row 1, column 0"):
            ask()


def test_a_coverage_waits_for_the_device_so_it_complains_at_once(tokens: torch.Tensor, device: torch.device) -> None:
    broken = tokens.to(device, copy=True)
    broken[3, 1, 0, 7] = torch.nan
    with pytest.raises(ValueError, match="frame 3"):
        floc.compress(broken, coverage=0.9, block=BLOCK, backend="gpu")


def test_tokens_that_are_too_small_for_float32_are_named(tokens: torch.Tensor, device: torch.device) -> None:
    with pytest.raises(ValueError, match="too small for float32"):
        floc.compress(tokens.to(device).double() * 1e-50, budget=5, block=BLOCK, dedupe=1, backend="gpu")
