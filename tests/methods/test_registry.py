"""The contract of every registered method."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import floc
from tests.fuzz.oracles import check_coverage

each_method = pytest.mark.parametrize("name", floc.methods.list_methods())


def compress(tokens: Any, name: str, **budget_options: Any) -> floc.Kept:
    """Compress with a method; a budget below its floor keeps the floor."""
    options = {"nearest": True} if "nearest" in floc.methods.list_options(name) else {}
    return floc.compress(tokens, method=name, **budget_options, **options)


def find_floor(tokens: np.ndarray, name: str) -> int:
    return len(compress(tokens, name, budget=1)) if floc.methods.get_info(name).floor else 1


@each_method
@pytest.mark.parametrize("budget", [13, 105, 300, 840, 5000])
def test_meets_budget_in_video_order_and_is_deterministic(tokens: np.ndarray, name: str, budget: int) -> None:
    before = tokens.copy()
    kept, again = (compress(tokens, name, budget=budget) for _ in range(2))
    np.testing.assert_array_equal(tokens, before)
    most = max(min(budget, 840), find_floor(tokens, name))
    assert 0 < len(kept) <= most
    if floc.methods.get_info(name).exact:
        assert len(kept) == most
    assert (np.diff(kept.indices) > 0).all()
    np.testing.assert_array_equal(kept.positions, np.stack(np.unravel_index(kept.indices, (70, 3, 4)), 1))
    assert sorted(kept.order) == list(range(len(kept)))
    np.testing.assert_array_equal(kept.indices, again.indices)
    np.testing.assert_array_equal(kept.features, again.features)
    assert kept.method == name


@each_method
def test_coverage_is_the_mean_cosine_to_representatives(tokens: np.ndarray, name: str) -> None:
    kept = compress(tokens, name, budget=105)
    assert kept.represents.shape == (840,)
    assert 0 <= kept.represents.min() <= kept.represents.max() < len(kept)
    rows, kept_rows = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (tokens.reshape(840, -1), kept.features))
    assert kept.coverage == pytest.approx((rows * kept_rows[kept.represents]).sum(1).mean(), abs=1e-4)


@each_method
def test_selected_tokens_are_unchanged_and_merged_tokens_are_bounded(tokens: np.ndarray, name: str) -> None:
    kept = compress(tokens, name, budget=105)
    rows = tokens.reshape(840, -1)
    if floc.methods.get_info(name).kind == "select":
        np.testing.assert_array_equal(kept.features, rows[kept.indices])
        np.testing.assert_array_equal(kept.represents[kept.indices], np.arange(len(kept)))
    else:
        assert np.isfinite(kept.features).all()
        assert np.abs(kept.features).max() <= np.abs(rows).max() * (1 + 1e-6)


@each_method
def test_nested_order_contains_smaller_budgets(tokens: np.ndarray, name: str) -> None:
    kept = compress(tokens, name, budget=105)
    if not kept.nested:
        with pytest.raises(ValueError, match="does not keep a nested order"):
            kept.at(budget=50)
        return
    subset = kept.at(budget=50)
    assert len(subset) == 50
    assert set(subset.indices) < set(kept.indices)
    np.testing.assert_array_equal(subset.features, tokens.reshape(840, -1)[subset.indices])
    np.testing.assert_array_equal(subset.positions, np.stack(np.unravel_index(subset.indices, (70, 3, 4)), 1))
    assert subset.represents.max() < 50
    assert kept.at(coverage=subset.coverage).coverage >= subset.coverage - 1e-9


@each_method
def test_repr_does_not_compute_coverage(tokens: np.ndarray, name: str) -> None:
    kept = compress(tokens, name, budget=105)
    known = "coverage" in repr(kept)
    assert known == (kept.ranking is not None)
    assert f"coverage {kept.coverage:.4f}" in repr(kept)


@each_method
def test_reaches_coverage(name: str) -> None:
    small = np.random.default_rng(0).standard_normal((12, 2, 3, 8)).astype(np.float32)
    assert compress(small, name, coverage=0.9).coverage >= 0.9


@each_method
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_output_has_the_input_dtype(tokens: np.ndarray, name: str, dtype: torch.dtype) -> None:
    converted = torch.from_numpy(tokens).to(dtype)
    kept = compress(converted, name, budget=300)
    assert kept.features.dtype == dtype
    assert kept.features.isfinite().all()
    assert len(kept) == len(compress(tokens, name, budget=300)) or not floc.methods.get_info(name).exact


@each_method
def test_half_precision_selects_the_same_tokens_as_float32(tokens: np.ndarray, name: str) -> None:
    converted = torch.from_numpy(tokens).bfloat16()
    kept, same = compress(converted, name, budget=300), compress(converted.float(), name, budget=300)
    assert kept.indices.tolist() == same.indices.tolist()


@each_method
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (1, 4, 5), (2, 1, 7), (3, 5, 1), (5, 2, 2), (7, 3, 3), (9, 4, 7), (33, 1, 2)]
)
def test_awkward_sizes(name: str, shape: tuple[int, int, int]) -> None:
    small = np.random.default_rng(1).standard_normal((*shape, 6)).astype(np.float32)
    n = small[..., 0].size
    for budget in sorted({1, max(1, n // 3), n}):
        kept = compress(small, name, budget=budget)
        assert 1 <= len(kept) <= n
        assert np.isfinite(kept.features).all()
        assert kept.represents.shape == (n,)


@each_method
def test_ratio_one_keeps_everything_unchanged(tokens: np.ndarray, name: str) -> None:
    kept = floc.compress(tokens, ratio=1, method=name)
    assert kept.indices.tolist() == list(range(840))
    np.testing.assert_array_equal(kept.features, tokens.reshape(840, -1))
    np.testing.assert_array_equal(kept.represents, np.arange(840))


@each_method
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_equal_tokens(name: str, value: float) -> None:
    same = np.full((10, 3, 4, 5), value, np.float32)
    kept = compress(same, name, budget=40)
    assert 1 <= len(kept) <= max(40, find_floor(same, name))
    if floc.methods.get_info(name).exact:
        assert len(kept) == max(40, find_floor(same, name))
    np.testing.assert_allclose(kept.features, value, atol=1e-6)
    assert len(set(kept.indices.tolist())) == len(kept)


@each_method
def test_memory_layout_does_not_change_the_result(tokens: np.ndarray, name: str) -> None:
    strided = torch.from_numpy(tokens).permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0)
    assert not strided.is_contiguous()
    kept, same = compress(strided, name, budget=300), compress(tokens, name, budget=300)
    assert kept.indices.tolist() == same.indices.tolist()


@each_method
def test_budget_below_floor_raises(tokens: np.ndarray, name: str) -> None:
    if not floc.methods.get_info(name).floor:
        assert len(floc.compress(tokens, budget=1, method=name)) == 1
        return
    least = find_floor(tokens, name)
    with pytest.raises(ValueError, match=f"at least {least} of 840 tokens.*got a budget of 1.*nearest=True"):
        floc.compress(tokens, budget=1, method=name)
    assert len(floc.compress(tokens, budget=least, method=name)) <= least


@each_method
def test_runs_without_budget_if_native_and_raises_otherwise(tokens: np.ndarray, name: str) -> None:
    chosen = floc.methods.get(name)()
    if not isinstance(chosen, floc.methods.SelfSizing):
        with pytest.raises(ValueError, match="exactly one of ratio"):
            floc.compress(tokens, method=name)
        return
    own = {"stride": 2} if name == "pooling" else {}  # it has no default size
    if own:
        with pytest.raises(ValueError, match=f"{name} needs"):
            floc.compress(tokens, method=name)
    assert 0 < len(floc.compress(tokens, method=name, **own)) <= 840


@each_method
def test_rejects_budget_together_with_options_it_sets(tokens: np.ndarray, name: str) -> None:
    for option in floc.methods.get_info(name).searched:
        with pytest.raises(ValueError, match=f"ratio=1/8 sets {option} of method '{name}'; give one or the other"):
            floc.compress(tokens, ratio=1 / 8, method=name, **{option: 1})


def test_accepts_array_scalars_as_options(tokens: np.ndarray) -> None:
    plain = floc.compress(tokens, method="sttm", spatial_threshold=0.8, temporal_threshold=0.7, root_level=1)
    stored = {"spatial_threshold": np.array(0.8), "temporal_threshold": torch.tensor(0.7, dtype=torch.float64)}
    kept = floc.compress(tokens, method="sttm", root_level=np.int64(1), **stored)
    assert kept.indices.tolist() == plain.indices.tolist()
    assert kept.settings == plain.settings


@each_method
def test_describes_itself(name: str) -> None:
    info = floc.methods.get_info(name)
    assert floc.methods.describe(name)
    assert info.paper
    assert info.kind in ("select", "merge")
    assert set(floc.methods.get_defaults(name)) == set(floc.methods.list_options(name))
    assert set(info.searched) <= set(floc.methods.list_options(name))
    assert bool(info.floor) == ("nearest" in floc.methods.list_options(name))
    with pytest.raises(ValueError, match="unknown option"):
        floc.compress(np.ones((2, 2, 2)), budget=1, method=name, no_such_option=1)


@each_method
def test_manual_and_page_contain_docstring_and_options(name: str) -> None:
    manual, page = floc.methods.format_manual(name), floc.methods.format_markdown()
    assert manual.startswith(f"{name}: {floc.methods.get_info(name).paper}")
    assert floc.methods.describe(name) in manual
    assert f"## {name}\n\n{floc.methods.describe(name)}" in page
    for option, default in floc.methods.get_defaults(name).items():
        assert (f"{option}={default!r}" in manual) == (option != "progress")


def test_parses_options_as_python_values_or_text() -> None:
    spec = floc.methods.parse(" kmedoids:block=none:seed=3:init=build ")
    assert spec == ("kmedoids:block=none:seed=3:init=build", "kmedoids", {"block": None, "seed": 3, "init": "build"})
    assert floc.methods.parse("dycoke:sound=True:merging_ratio=0.5").options == {"sound": True, "merging_ratio": 0.5}
    assert floc.methods.runs_alone(floc.methods.parse("dycoke"))
    assert not floc.methods.runs_alone(floc.methods.parse("random"))


def test_registered_methods_are_listed_and_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("floc.methods.registry._registry", {"random": floc.methods.get("random")})
    floc.methods.register("other", "paper", "select")(floc.methods.get("random"))
    assert floc.methods.list_methods() == ["other", "random"]
    assert floc.methods.make("other", {"seed": np.int64(3)}) == floc.methods.make("random", {"seed": 3})
    with pytest.raises(ValueError, match="unknown method 'othr'; did you mean 'other'"):
        floc.methods.get("othr")


@pytest.mark.parametrize(
    ("method", "option", "value", "message"),
    [
        ("dycoke", "window", "x", "window must be a whole number below 2**53 for method 'dycoke', got 'x'"),
        ("dycoke", "window", 10**30, "must be a whole number below 2**53"),
        ("dycoke", "strict", 1, "strict must be true or false for method 'dycoke', got 1"),
        ("sttm", "spatial_threshold", float("nan"), "must be a finite number for method 'sttm', got nan"),
        ("sttm", "spatial_threshold", None, "must be a finite number for method 'sttm', got nothing"),
        ("longvu", "max_visual_len", 0.5, "must be a whole number"),
        ("kmedoids", "init", 3, "init must be text for method 'kmedoids', got 3"),
        ("floc", "metric", np.ones(3), "must be text"),
        ("floc", "progress", 3, "progress must be a function for method 'floc', got 3"),
        ("pooling", "adaptive_size", 3, r"adaptive_size must be (rows, columns)"),
        ("pooling", "adaptive_size", ["a", 2], r"adaptive_size must be (rows, columns)"),
    ],
)
def test_rejects_options_of_another_type(method: str, option: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        floc.compress(np.ones((4, 2, 3, 2)), method=method, **{option: value})


@pytest.mark.parametrize("name", ["fastvid", "pooling", "prunevid"])
def test_rejects_tokens_too_large_to_average(name: str) -> None:
    tokens = np.full((8, 4, 4, 3), 3e38, np.float32)
    try:
        kept = floc.compress(tokens, ratio=1 / 4, method=name)
    except ValueError as error:
        assert "divide all by" in str(error)  # noqa: PT017
    else:
        assert np.isfinite(kept.features).all()


@each_method
@pytest.mark.parametrize("exponent", [-120, -66, 70, 123])
def test_coverage_does_not_depend_on_the_scale(tokens: np.ndarray, name: str, exponent: int) -> None:
    scaled = tokens * np.float32(2.0**exponent)
    kept, large = compress(tokens, name, budget=300), compress(scaled, name, budget=300)
    check_coverage(large, scaled)
    if name not in ("fastvid", "flashvid", "holitom", "prunevid"):  # their densities weigh distances, as published
        np.testing.assert_array_equal(large.indices, kept.indices)
        assert large.coverage == pytest.approx(kept.coverage, abs=1e-6)
        np.testing.assert_allclose(large.features / np.float32(2.0**exponent), kept.features, rtol=1e-5, atol=1e-5)


@each_method
def test_coverage_of_tokens_of_different_scales(tokens: np.ndarray, name: str) -> None:
    scaled = tokens * np.float32(10.0) ** np.arange(-35, 35).astype(np.float32)[:, None, None, None]
    check_coverage(compress(scaled, name, budget=300), scaled)
    assert compress(scaled, name, ratio=1.0).coverage == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("value", ["-" * 5000 + "1", "(" * 5000, "[" * 200 + "]" * 200, "9" * 5000])
def test_parse_refuses_values_that_python_cannot_parse(value: str) -> None:
    with pytest.raises(ValueError, match=r"block.* must .*; got"):
        floc.methods.parse(f"floc:block={value}")
