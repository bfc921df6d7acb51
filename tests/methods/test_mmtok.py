"""MMTok compared with outputs of the published program and with its definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import floc


def softmax(x: np.ndarray) -> np.ndarray:
    exponential = np.exp(x - x.max(1, keepdims=True))
    return exponential / exponential.sum(1, keepdims=True)


def select_by_definition(x: np.ndarray, y: np.ndarray, z: np.ndarray, k: int, alpha: float) -> list[int]:
    """Select tokens step by step, every gain computed anew."""
    x, y, z = (a / np.linalg.norm(a, axis=1, keepdims=True) for a in (x.astype(np.float64), y, z))
    coverage = alpha * softmax(y @ y.T / 0.2) / len(x)
    if len(z):
        coverage = np.concatenate([softmax(z @ x.T / 0.02) / len(z), coverage])
    best, picks = np.zeros(len(coverage)), []
    for _ in range(k):
        gains = np.maximum(coverage - best[:, None], 0).sum(0)
        gains[picks] = -1
        picks.append(int(gains.argmax()))
        best = np.maximum(best, coverage[:, picks[-1]])
    return picks


@pytest.mark.parametrize("case", "abc")
def test_matches_published_program(read_golden, case: str) -> None:
    golden = read_golden(f"mmtok_{case}")
    names = ("alpha", "text_temperature", "vision_temperature")
    options: dict[str, Any] = {name: float(golden[name]) for name in names}
    options |= {"vision_features": golden.get("vision_features"), "budget": int(golden["budget"]), "block": None}
    for prefix, query in (("", golden["query"]), ("vision_only_", None), ("vision_only_", golden["query"][:0])):
        kept = floc.compress(golden["tokens"], method="mmtok", query=query, **options)
        np.testing.assert_array_equal(kept.indices, golden[f"{prefix}kept"])
        np.testing.assert_array_equal(kept.indices[kept.order], golden[f"{prefix}pick_order"])


@pytest.mark.parametrize("m", [0, 1, 4])
def test_matches_definition(m: int) -> None:
    rng = np.random.default_rng(m)
    tokens, query = rng.standard_normal((6, 3, 5, 8)).astype(np.float32), rng.standard_normal((m, 8))
    features = rng.standard_normal((6, 15, 5))
    options = {"query": query, "vision_features": features, "alpha": 0.4}
    kept = floc.compress(tokens, method="mmtok", budget=60, **options)
    expected = select_by_definition(tokens.reshape(90, 8), features.reshape(90, 5), query, 60, 0.4)
    assert kept.indices[kept.order].tolist() == expected


def test_blocks_share_the_budget_and_the_query(tokens: np.ndarray) -> None:
    query = np.random.default_rng(0).standard_normal((3, 48))
    kept = floc.compress(tokens, method="mmtok", budget=70, query=query)
    for start, stop in ((0, 32), (32, 64), (64, 70)):
        block = kept.indices[(kept.indices >= 12 * start) & (kept.indices < 12 * stop)]
        alone = floc.compress(tokens[start:stop], method="mmtok", budget=len(block), query=query)
        assert (block - 12 * start).tolist() == alone.indices.tolist()


def test_settings_name_what_was_missing(tokens: np.ndarray) -> None:
    query = np.ones((2, 48), np.float32)
    kept = floc.compress(tokens, method="mmtok", budget=9)
    assert kept.settings["fallback"] == "vision tokens only, without query; the tokens as vision_features"
    kept = floc.compress(tokens, method="mmtok", budget=9, query=query, vision_features=tokens)
    assert "fallback" not in kept.settings
    assert kept.settings["query"] == "array (2, 48)"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"query": np.ones((2, 4))}, r"query must be \[m, 5\], to fit the tokens; got \(2, 4\)"),
        ({"query": np.full((2, 5), np.inf)}, "query must be finite"),
        ({"vision_features": np.ones((4, 5, 3))}, r"vision_features must be \[4, 2, 3, C\] or \[4, 6, C\].*got"),
        ({"vision_features": np.ones((4, 6, 0))}, "vision_features must be"),
        ({"vision_features": np.ones((4, 6, 2), bool)}, "vision_features must be floating point"),
        ({"alpha": -1}, "alpha must be at least 0"),
        ({"text_temperature": 0}, "text_temperature must be above 0"),
        ({"block": 0}, "block must be"),
    ],
)
def test_rejects_invalid_options(options: dict, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        floc.compress(np.ones((4, 2, 3, 5)), method="mmtok", budget=3, **options)
