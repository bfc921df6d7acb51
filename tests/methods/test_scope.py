"""SCOPE compared with outputs of the published program and with its definition."""

from __future__ import annotations

import numpy as np
import pytest

import floc


@pytest.mark.parametrize("case", "abc")
def test_matches_published_program(read_golden, case: str) -> None:
    golden = read_golden(f"scope_{case}")
    tokens, alpha, attn = golden["tokens"], float(golden["alpha"]), golden["attn"]
    kept = floc.compress(tokens, method="scope", budget=int(golden["budget"]), alpha=alpha, attn=attn, block=None)
    np.testing.assert_array_equal(kept.indices, golden["kept"])
    np.testing.assert_array_equal(kept.indices[kept.order], golden["pick_order"])
    budget = len(tokens) * int(golden["per_frame"])
    kept = floc.compress(tokens, method="scope", budget=budget, alpha=alpha, attn=attn, per_frame=True)
    np.testing.assert_array_equal(kept.indices, golden["per_frame_kept"])
    kept = floc.compress(tokens, method="scope", budget=len(golden["uniform_kept"]), alpha=alpha, block=None)
    np.testing.assert_array_equal(kept.indices, golden["uniform_kept"])
    np.testing.assert_array_equal(kept.indices[kept.order], golden["uniform_pick_order"])


def select_by_definition(x: np.ndarray, weights: np.ndarray, k: int) -> list[int]:
    """Select tokens step by step, every gain computed anew."""
    x = x.astype(np.float64)
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    cosine, best, picks = x @ x.T, np.zeros(len(x)), []
    for _ in range(k):
        gains = weights * np.maximum(cosine - best[:, None], 0).sum(0)
        gains[picks] = -1
        picks.append(int((gains >= gains.max() - 1e-12).argmax()))
        best = np.maximum(best, cosine[:, picks[-1]])
    return picks


@pytest.mark.parametrize("alpha", [None, 0.0, 0.5, 2.0])
def test_matches_definition(alpha: float | None) -> None:
    rng = np.random.default_rng(1)
    tokens, attn = rng.standard_normal((7, 3, 4, 6)).astype(np.float32), rng.random((7, 12))
    options = {} if alpha is None else {"alpha": alpha, "attn": attn}
    weights = np.ones(84) if alpha is None else attn.ravel() ** alpha
    kept = floc.compress(tokens, method="scope", budget=70, **options)
    assert kept.indices[kept.order].tolist() == select_by_definition(tokens.reshape(84, 6), weights, 70)
    assert ("fallback" in kept.settings) == (alpha is None)


def test_tokens_without_salience_follow_in_order() -> None:
    tokens = np.random.default_rng(2).standard_normal((2, 2, 3, 4)).astype(np.float32)
    attn = np.zeros((2, 6))
    attn[1, 2] = 1
    kept = floc.compress(tokens, method="scope", budget=4, attn=attn)
    assert kept.indices[kept.order].tolist() == [8, 0, 1, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attn": np.ones((4, 2, 3))}, r"attn must be \[4, 6\], to fit the tokens; got \(4, 2, 3\)"),
        ({"attn": -np.ones((4, 6))}, "attn must not be negative, got a least value of -1"),
        ({"attn": np.full((4, 6), np.nan)}, "attn must be finite"),
        ({"alpha": -1}, "alpha must be at least 0"),
    ],
)
def test_rejects_invalid_options(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        floc.compress(np.ones((4, 2, 3, 5)), method="scope", budget=3, **options)
