"""FlashVID compared with outputs of the published program."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import floc
from examples.synthetic import make_tokens

SELECTIONS = {"": "attn_div_v2", "adts_": "attn_div", "div_": "div"}


def read_options(golden: dict[str, np.ndarray]) -> dict[str, Any]:
    names = ("retention_ratio", "expansion", "alpha", "temporal_threshold", "segment_threshold")
    options: dict[str, Any] = {name: float(golden[name]) for name in names}
    return options | {"min_segment_num": int(golden["min_segment_num"]), "attn": golden["attn"]}


def assert_same_rows(kept: floc.Kept, indices: np.ndarray, features: np.ndarray) -> None:
    """Compare as sets: positions may occur twice."""

    def sort(indices: np.ndarray, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        order = np.lexsort((features[:, 0], indices))
        return indices[order], features[order]

    (found, rows), (expected, expected_rows) = sort(kept.indices, kept.features), sort(indices, features)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(rows, expected_rows, atol=1e-5 * np.abs(features).max(), rtol=0)


@pytest.mark.parametrize("case", "abc")
@pytest.mark.parametrize("prefix", SELECTIONS)
def test_strict_matches_published_program(read_golden, case: str, prefix: str) -> None:
    golden = read_golden(f"flashvid_{case}")
    options = read_options(golden) | {"token_selection_method": SELECTIONS[prefix], "strict": True}
    kept = floc.compress(golden["tokens"], method="flashvid", **options)
    assert_same_rows(kept, golden[f"{prefix}position_index"], golden[f"{prefix}merged"])
    assert sorted(kept.order.tolist()) == list(range(len(kept)))
    selected = golden[f"{prefix}selected_index"]
    assert set(selected.tolist()) <= set(kept.indices.tolist())


@pytest.mark.parametrize("case", "abc")
def test_corrected_means_match_reference(read_golden, case: str) -> None:
    golden = read_golden(f"flashvid_{case}")
    kept = floc.compress(golden["tokens"], method="flashvid", **read_options(golden))
    assert_same_rows(kept, golden["corrected_position_index"], golden["corrected_merged"])


@pytest.mark.parametrize("case", "abc")
def test_without_attention_falls_back_to_diversity(read_golden, case: str) -> None:
    golden = read_golden(f"flashvid_{case}")
    options = read_options(golden) | {"attn": None, "strict": True}
    kept = floc.compress(golden["tokens"], method="flashvid", **options)
    assert_same_rows(kept, golden["div_position_index"], golden["div_merged"])
    assert kept.settings["token_selection_method"] == "div"
    assert kept.settings["fallback"] == "div, without attn"


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("method", [*SELECTIONS.values(), "attn"])
@pytest.mark.parametrize("budget", [1, 17, 45, 100, 200, 299, 300])
def test_meets_budget(budget: int, method: str, strict: bool) -> None:
    tokens = make_tokens(20, 3, 5, dim=24, seed=8, scenes=2, shot_frames=6, dtype=np.float32)
    attn = np.random.default_rng(0).random((20, 15))
    options = {"token_selection_method": method, "attn": attn, "min_segment_num": 3}
    kept = floc.compress(tokens, method="flashvid", budget=budget, strict=strict, **options)
    # published "attn_div_v2" may pick a token twice
    assert len(kept) == budget or (strict and method == "attn_div_v2" and len(kept) < budget)
    if not strict:
        assert len(set(kept.indices.tolist())) == budget


def test_attn_selects_the_most_salient(tokens: np.ndarray) -> None:
    attn = np.random.default_rng(0).random((70, 12))
    options = {"token_selection_method": "attn", "alpha": 1.0, "retention_ratio": 0.25}
    kept = floc.compress(tokens, method="flashvid", attn=attn, **options)
    expected = np.argsort(-attn, axis=1)[:, :3] + 12 * np.arange(70)[:, None]
    assert kept.indices.tolist() == sorted(expected.ravel().tolist())
    np.testing.assert_array_equal(kept.features, tokens.reshape(840, -1)[kept.indices])


def test_merged_tokens_are_means_of_what_they_represent() -> None:
    tokens = make_tokens(12, 3, 4, dim=16, seed=2, scenes=1, shot_frames=12, dtype=np.float32)
    kept = floc.compress(tokens, method="flashvid", retention_ratio=1 / 3, min_segment_num=1, segment_threshold=-1)
    rows = tokens.reshape(144, 16)
    sizes = np.bincount(kept.represents, minlength=len(kept))
    assert sizes.max() > 2
    for place in np.flatnonzero(sizes == 2):  # a mean of means is that of both tokens
        np.testing.assert_allclose(kept.features[place], rows[kept.represents == place].mean(0), atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attn": np.ones((4, 5))}, r"attn must be \[4, 6\]"),
        ({"attn": np.ones((4, 5)), "budget": 24}, r"attn must be \[4, 6\]"),
        ({"attn": -np.ones((4, 6))}, "attn must not be negative"),
        ({"token_selection_method": "dpc"}, "unknown token_selection_method"),
        ({"alpha": 1.5}, r"alpha must be in \[0, 1\]"),
        ({"expansion": 1.25, "budget": 9}, "expansion must be 1 with a budget"),
        ({"min_segment_num": 0}, "min_segment_num must be at least 1"),
        ({"retention_ratio": 0.0}, "keeps no token"),
    ],
)
def test_rejects_invalid_options(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        floc.compress(np.ones((4, 2, 3, 5)), method="flashvid", **options)
