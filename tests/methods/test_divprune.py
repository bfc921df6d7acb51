"""DivPrune compared with outputs of the published program and with its definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import floc
from floc.methods import divprune


def select_by_definition(x: np.ndarray, k: int) -> list[int]:
    """Select tokens step by step as defined."""
    x = x.astype(np.float64)
    x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    distance = 1 - x @ x.T
    alone = distance + np.diag(np.full(len(x), np.inf))
    picks = [int(alone.min(1).argmax())]
    while len(picks) < k:
        nearest = distance[picks].min(0)
        nearest[picks] = -np.inf
        picks.append(int(nearest.argmax()))
    return picks


@pytest.mark.parametrize("case", "abc")
def test_matches_published_program(read_golden, case: str) -> None:
    golden = read_golden(f"divprune_{case}")
    kept = floc.compress(golden["tokens"], budget=len(golden["kept"]), method="divprune", block=None)
    np.testing.assert_array_equal(kept.indices, golden["kept"])
    np.testing.assert_array_equal(kept.indices[kept.order], golden["pick_order"])


@pytest.mark.parametrize(("n", "k"), [(1, 1), (2, 2), (63, 7), (257, 257)])
@pytest.mark.parametrize("in_memory", [True, False])
def test_matches_definition(n: int, k: int, in_memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not in_memory:
        monkeypatch.setattr(divprune, "MATRIX_BYTES", 0)
        monkeypatch.setattr(divprune, "TILE_BYTES", 5000)  # several tiles
    tokens = np.random.default_rng(n).standard_normal((n, 1, 1, 24)).astype(np.float32)
    kept = floc.compress(tokens, budget=k, method="divprune", block=None)
    assert kept.indices[kept.order].tolist() == select_by_definition(tokens.reshape(n, 24), k)


def test_blocks_are_independent(tokens: np.ndarray) -> None:
    kept = floc.compress(tokens, budget=70, method="divprune")
    for start, stop in ((0, 32), (32, 64), (64, 70)):
        block_indices = kept.indices[(kept.indices >= 12 * start) & (kept.indices < 12 * stop)]
        assert (
            sorted(12 * start + np.array(select_by_definition(tokens[start:stop].reshape(-1, 48), len(block_indices))))
            == block_indices.tolist()
        )


def test_keeps_zero_and_duplicate_tokens_once() -> None:
    tokens = torch.zeros(4, 3, 8)
    tokens[0, 0] = 1
    kept = floc.compress(tokens, budget=12, method="divprune", block=None)
    assert kept.indices.tolist() == list(range(12))
