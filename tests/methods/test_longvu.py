"""LongVU's spatial compression compared with outputs of the published program and with its definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import floc
from floc.methods.shared import frames

SHAPES = [(1, 2, 3), (2, 1, 1), (8, 3, 3), (9, 2, 5), (17, 4, 1), (31, 1, 7)]
each_shape = pytest.mark.parametrize("shape", SHAPES)


def make_tokens(shape: tuple[int, int, int], dim: int = 6) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal((*shape, dim)).astype(np.float32)


def compute_cosines(tokens: np.ndarray, window: int) -> dict[int, float]:
    """Return each later token's cosine with the same cell in the first frame of its window, by flat index."""
    t, h, w, d = tokens.shape
    x = tokens.reshape(t, h * w, d).astype(np.float64)
    return {
        f * h * w + p: float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))
        for f in range(t)
        if f % window
        for p, (a, b) in enumerate(zip(x[f - f % window], x[f], strict=True))
    }


@pytest.mark.parametrize("case", "abc")
def test_matches_published_program(read_golden, case: str) -> None:
    reference = read_golden(f"longvu_{case}")
    tokens = reference["tokens"]
    native = {"threshold": float(reference["threshold"]), "window": int(reference["window"])}
    kept = floc.compress(tokens, method="longvu", **native)
    np.testing.assert_array_equal(kept.indices, reference["kept"])
    if "kept_capped" in reference:
        limit = int(reference["max_visual_len"])
        capped = floc.compress(tokens, method="longvu", **native, max_visual_len=limit)
        np.testing.assert_array_equal(capped.indices, reference["kept_capped"])


@pytest.mark.parametrize("case", "abc")
def test_budget_matches_published_program_with_its_threshold(read_golden, case: str) -> None:
    reference = read_golden(f"longvu_{case}")
    kept = floc.compress(reference["tokens"], budget=int(reference["adaptive_budget"]), method="longvu")
    np.testing.assert_array_equal(kept.indices, reference["adaptive_kept"])
    assert kept.settings["threshold"] == pytest.approx(float(reference["adaptive_threshold"]), abs=1e-6)


@each_shape
@pytest.mark.parametrize(("window", "threshold"), [(8, 0.0), (3, 0.4), (1, 0.8), (40, -2.0), (5, 2.0)])
def test_keeps_first_frames_and_tokens_below_threshold(
    shape: tuple[int, int, int], window: int, threshold: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "PRODUCT_BYTES", 300)  # several tiles
    tokens = make_tokens(shape)
    later = compute_cosines(tokens, window)
    expected = [i for i in range(np.prod(shape)) if later.get(i, -9) < threshold]
    kept = floc.compress(tokens, method="longvu", threshold=threshold, window=window)
    assert kept.indices.tolist() == expected


@each_shape
@pytest.mark.parametrize("window", [3, 8])
def test_meets_budget_exactly_and_reports_its_threshold(shape: tuple[int, int, int], window: int) -> None:
    tokens = make_tokens(shape)
    n, later = int(np.prod(shape)), compute_cosines(tokens, window)
    floor = n - len(later)
    least = sorted(later, key=lambda i: later[i])
    for budget in {floor, floor + 1, (floor + n) // 2, n - 1, n} & set(range(floor, n + 1)):
        kept = floc.compress(tokens, budget=budget, method="longvu", window=window)
        assert kept.indices.tolist() == sorted({*range(n)} - {*later} | {*least[: budget - floor]})
        native = {name: kept.settings[name] for name in ("threshold", "window", "max_visual_len")}
        np.testing.assert_array_equal(floc.compress(tokens, method="longvu", **native).indices, kept.indices)


def test_ties_keep_earliest_tokens() -> None:
    tokens = np.tile(make_tokens((1, 3, 5), dim=37), (8, 1, 1, 1))
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        kept = floc.compress(torch.from_numpy(tokens).to(dtype), budget=20, method="longvu")
        assert kept.indices.tolist() == list(range(20))
        assert len(floc.compress(torch.from_numpy(tokens).to(dtype), method="longvu", threshold=1.0)) == 15


def test_zero_tokens_have_cosine_zero() -> None:
    tokens = np.ones((4, 1, 2, 3), np.float32)
    tokens[1:3, 0, 1] = 0
    assert floc.compress(tokens, method="longvu", threshold=0.1).indices.tolist() == [0, 1, 3, 5]
    tokens[0] = 0
    assert floc.compress(tokens, method="longvu", threshold=0.0).indices.tolist() == [0, 1]


@pytest.mark.parametrize("limit", [1, 2, 7, 8, 23, 24, 30, 31, 40, 47])
def test_max_visual_len_cuts_the_end_of_every_window(limit: int) -> None:
    tokens = make_tokens((12, 2, 2))
    windows = [
        [i for i in floc.compress(tokens, method="longvu", threshold=0.3).indices if i // 32 == k] for k in (0, 1)
    ]
    excess = max(0, sum(map(len, windows)) - limit)
    expected = [i for kept in windows for i in kept[: max(0, len(kept) - -(-excess // 2))]][:limit]
    kept = floc.compress(tokens, method="longvu", threshold=0.3, max_visual_len=limit)
    assert kept.indices.tolist() == expected


def test_video_within_max_visual_len_is_not_compressed() -> None:
    assert len(floc.compress(make_tokens((12, 2, 2)), method="longvu", max_visual_len=48)) == 48


def test_budget_below_floor_raises_or_keeps_first_frames_or_widens() -> None:
    tokens = make_tokens((17, 2, 2))
    with pytest.raises(
        ValueError, match=r"first frame of every 8.*at least 12 of 68 tokens \(ratio 0.176\).*nearest=True"
    ):
        floc.compress(tokens, budget=11, method="longvu")
    kept = floc.compress(tokens, budget=11, method="longvu", nearest=True)
    assert kept.positions[::4, 0].tolist() == [0, 8, 16]
    assert len(kept) == 12
    wide = floc.compress(tokens, budget=11, method="longvu", widen=True)
    assert len(wide) == 11
    assert wide.settings["window"] == 9
    assert {0, 9} < set(wide.positions[:, 0].tolist())
    with pytest.raises(ValueError, match="at least 4 of 68"):
        floc.compress(tokens, budget=3, method="longvu", widen=True)
    assert floc.compress(tokens, budget=3, method="longvu", widen=True, nearest=True).indices.tolist() == [0, 1, 2, 3]
    assert floc.compress(tokens, budget=20, method="longvu", widen=True).settings["window"] == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window must be at least 1 frame, got 0"),
        ({"max_visual_len": 0}, "max_visual_len must be at least 1"),
        ({"threshold": 0.5, "budget": 9}, "budget=9 sets threshold"),
        ({"max_visual_len": 5, "budget": 9}, "budget=9 sets max_visual_len"),
    ],
)
def test_rejects_invalid_options(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        floc.compress(make_tokens((9, 2, 5)), method="longvu", **options)
