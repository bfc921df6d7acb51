"""CDPruner compared with outputs of the published program and with determinants."""

from __future__ import annotations

import numpy as np
import pytest

import floc


@pytest.mark.parametrize("case", "abc")
def test_matches_published_program(read_golden, case: str) -> None:
    golden = read_golden(f"cdpruner_{case}")
    tokens, budget, per_frame = golden["tokens"], int(golden["budget"]), int(golden["per_frame"])
    for prefix, relevance in (("", golden["relevance"]), ("uniform_", None)):
        kept = floc.compress(tokens, method="cdpruner", budget=budget, relevance=relevance, block=None)
        np.testing.assert_array_equal(kept.indices, golden[f"{prefix}kept"])
        np.testing.assert_array_equal(kept.indices[kept.order], golden[f"{prefix}pick_order"])
        assert kept.settings["rounds"] == 1
        flat = None if relevance is None else relevance.reshape(len(tokens), -1)
        options = {"budget": len(tokens) * per_frame, "per_frame": True, "relevance": flat}
        kept = floc.compress(tokens, method="cdpruner", **options)
        np.testing.assert_array_equal(kept.indices, golden[f"{prefix}per_frame_kept"])


@pytest.mark.parametrize("case", "abc")
def test_documented_relevance_is_the_published_one(read_golden, case: str) -> None:
    golden = read_golden(f"cdpruner_{case}")
    image, text = (golden[f"{name}_embeds"].astype(np.float64) for name in ("image", "text"))
    image, text = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (image, text))
    r = -(image @ text.T).mean(-1)
    np.testing.assert_allclose((r - r.min() + 1e-6) / (r.max() - r.min()), golden["relevance"], atol=1e-5)


def test_every_pick_has_the_largest_determinant() -> None:
    rng = np.random.default_rng(0)
    tokens, relevance = rng.standard_normal((4, 2, 3, 12)).astype(np.float32), rng.random((4, 6)) + 0.1
    kept = floc.compress(tokens, method="cdpruner", budget=9, relevance=relevance)
    x = tokens.reshape(24, 12).astype(np.float64)
    x *= (relevance.ravel() / np.linalg.norm(x, axis=1))[:, None]
    picks: list[int] = []
    for pick in kept.indices[kept.order].tolist():
        others = [i for i in range(24) if i not in picks]
        volumes = [np.linalg.det(x[[*picks, i]] @ x[[*picks, i]].T) for i in others]
        assert pick == others[int(np.argmax(volumes))]
        picks.append(pick)


def test_starts_a_new_round_when_the_rank_is_used_up() -> None:
    tokens = np.random.default_rng(0).standard_normal((5, 2, 4, 3)).astype(np.float32)
    kept = floc.compress(tokens, method="cdpruner", budget=7)
    assert len(kept) == 7
    assert kept.settings["rounds"] == 3
    assert kept.settings["fallback"] == "equal relevance, without relevance"
    first = set(kept.indices[kept.order[:3]].tolist())
    left = [i for i in range(40) if i not in first]
    assert kept.indices[kept.order[3]] == left[0]  # the first of the tokens not yet picked


def test_irrelevant_tokens_follow_in_order() -> None:
    tokens = np.random.default_rng(0).standard_normal((2, 1, 4, 8)).astype(np.float32)
    relevance = np.zeros((2, 1, 4))
    relevance[1, 0, 1] = 1
    kept = floc.compress(tokens, method="cdpruner", budget=3, relevance=relevance)
    assert kept.indices[kept.order].tolist() == [5, 0, 1]


@pytest.mark.parametrize(
    ("relevance", "message"),
    [
        (np.ones((4, 5)), r"relevance must be \[4, 2, 3\] or \[4, 6\], to fit the tokens; got \(4, 5\)"),
        (-np.ones((4, 6)), "relevance must not be negative"),
        (np.full((4, 6), np.inf), "relevance must be finite"),
    ],
)
def test_rejects_invalid_relevance(relevance: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        floc.compress(np.ones((4, 2, 3, 5)), method="cdpruner", budget=3, relevance=relevance)
