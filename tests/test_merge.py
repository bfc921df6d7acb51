"""Argument `merge` of `floc.compress`: kept tokens move towards the mean of what they represent."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import floc
from floc.captured.recipe import Recipe, merge_values

SELECTING = [name for name in floc.methods.list_methods() if floc.methods.get_info(name).kind == "select"]
MERGING = [name for name in floc.methods.list_methods() if floc.methods.get_info(name).kind == "merge"]


def get_options(method: str) -> dict[str, Any]:
    return {"nearest": True} if "nearest" in floc.methods.list_options(method) else {}


def merge_by_definition(values: np.ndarray, kept: floc.Kept, share: float) -> np.ndarray:
    """[K, D] by a loop over kept tokens."""
    rows = values.reshape(-1, values.shape[-1]).astype(np.float64)
    represents = np.asarray(kept.represents)
    means = [rows[represents == place].mean(0) for place in range(len(kept))]
    return np.stack([(1 - share) * rows[i] + share * mean for i, mean in zip(kept.indices, means, strict=True)])


@pytest.mark.parametrize("method", SELECTING)
@pytest.mark.parametrize("share", [0.25, 1])
def test_equals_its_definition_for_every_method_that_selects(tokens: np.ndarray, method: str, share: float) -> None:
    plain = floc.compress(tokens, budget=105, method=method, **get_options(method))
    kept = floc.compress(tokens, budget=105, method=method, merge=share, **get_options(method))
    for name in ("indices", "positions", "order", "gains", "represents"):
        np.testing.assert_array_equal(getattr(kept, name), getattr(plain, name))
    assert (kept.coverage, kept.bound) == (plain.coverage, plain.bound)
    np.testing.assert_allclose(kept.features, merge_by_definition(tokens, plain, share), atol=1e-5)
    assert not np.allclose(kept.features, plain.features, atol=1e-3)
    assert kept.merged
    assert kept.settings["merge"] == share


@pytest.mark.parametrize("method", floc.methods.list_methods())
def test_without_merging_nothing_changes(tokens: np.ndarray, method: str) -> None:
    plain = floc.compress(tokens, budget=300, method=method, **get_options(method))
    same = floc.compress(tokens, budget=300, method=method, merge=0, **get_options(method))
    np.testing.assert_array_equal(plain.features, same.features)
    assert (plain.merged, plain.nested) == (same.merged, same.nested)
    assert "merge" not in same.settings


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_keeps_the_type_and_tokens_alone_in_their_cluster(tokens: np.ndarray, dtype: torch.dtype) -> None:
    grid = torch.from_numpy(tokens).to(dtype)
    kept = floc.compress(grid, ratio=1 / 2, merge=0.5)
    assert kept.features.dtype == dtype
    alone = kept.represents.bincount(minlength=len(kept)) == 1
    assert alone.any()
    selected = grid.reshape(-1, 48)[kept.indices]
    if dtype != torch.float64:  # merged in float32
        assert torch.equal(kept.features[alone], selected[alone])
    assert not torch.equal(kept.features, selected)


def test_large_values_do_not_overflow() -> None:
    tokens = np.full((40, 2, 2, 3), 3e38, np.float32)
    assert np.isfinite(floc.compress(tokens, budget=2, merge=1).features).all()


def test_at_refuses_merged_tokens(tokens: np.ndarray) -> None:
    kept = floc.compress(tokens, ratio=1 / 8, merge=0.5)
    with pytest.raises(ValueError, match=r"tokens were merged; call floc.compress again"):
        kept.at(ratio=1 / 16)


def test_other_features_are_merged_alike(tokens: np.ndarray) -> None:
    """As `floc.attach` and `floc.capture` do with what Qwen3-VL adds in its first layers."""
    deep = np.random.default_rng(0).standard_normal((840, 5)).astype(np.float32)
    for share in (0, 0.25, 1):
        kept = floc.compress(torch.from_numpy(tokens), ratio=1 / 8, merge=share)
        merged = merge_values(torch.from_numpy(deep), kept).numpy()
        np.testing.assert_allclose(merged, merge_by_definition(deep, kept, share), atol=1e-6)


@pytest.mark.parametrize("merge", [-0.1, 1.01, float("nan"), float("inf"), "half", None, True])
def test_rejects_other_shares(tokens: np.ndarray, merge: Any) -> None:
    message = "merge must be a number from 0 to 1"
    with pytest.raises(ValueError, match=message):
        floc.compress(tokens, ratio=1 / 8, merge=merge)
    with pytest.raises(ValueError, match=message):
        Recipe(1 / 8, options={"merge": merge})


@pytest.mark.parametrize("method", MERGING)
def test_rejects_methods_that_merge_themselves(tokens: np.ndarray, method: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"method '{method}' merges tokens itself; remove merge=0.5")):
        floc.compress(tokens, ratio=1 / 2, method=method, merge=0.5)
