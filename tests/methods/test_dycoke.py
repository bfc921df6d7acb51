"""DyCoke's first stage compared with outputs of the published program and with its definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import floc


def make_tokens(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal((*shape, 6)).astype(np.float32)


def select_as_published(tokens: np.ndarray, ratio: float) -> list[int]:
    """Select tokens step by step as the published program does, in the order of its output."""
    t, h, w, d = tokens.shape
    n = h * w
    x = tokens.reshape(t, n, d).astype(np.float64)
    x /= np.linalg.norm(x, axis=2, keepdims=True)
    q = int((1 - ratio) * n)
    kept: dict[int, list[int]] = {}
    for i in range(0, t - 1, 2):
        kept[i] = list(range(n))
        kept[i + 1] = np.argsort((x[i] * x[i + 1]).sum(1))[:q].tolist()
    for i in range(0, t - 4, 4):
        kept[i + 2] = np.argsort((x[i] * x[i + 2]).sum(1))[:q].tolist()
    return [f * n + p for f in sorted(kept) for p in kept[f]]


def count_per_frame(kept: floc.Kept) -> list[int]:
    return np.bincount(np.asarray(kept.positions)[:, 0], minlength=kept.shape[0]).tolist()


@pytest.mark.parametrize("case", "abc")
def test_matches_published_program(read_golden, case: str) -> None:
    reference = read_golden(f"dycoke_{case}")
    tokens, ratio = reference["tokens"], float(reference["merging_ratio"])
    strict = floc.compress(tokens, method="dycoke", merging_ratio=ratio, strict=True)
    np.testing.assert_array_equal(strict.indices, reference["kept"])
    np.testing.assert_array_equal(strict.indices[strict.order], reference["output_order"])
    assert count_per_frame(strict) == reference["kept_per_frame"].tolist()
    kept = floc.compress(tokens, method="dycoke", merging_ratio=ratio)
    whole = np.arange(tokens.size // tokens.shape[-1])
    dropped = whole[len(whole) - whole.size // len(tokens) * (len(tokens) % 2) :]
    np.testing.assert_array_equal(kept.indices, np.concatenate([reference["kept"], dropped]))


@pytest.mark.parametrize("t", [5, 6, 7, 8, 9, 11, 16, 19])
@pytest.mark.parametrize(("h", "w", "ratio"), [(3, 5, 0.7), (2, 5, 0.9), (1, 1, 0.5), (4, 1, 1.0), (2, 2, 0.0)])
def test_matches_definition(t: int, h: int, w: int, ratio: float) -> None:
    tokens = make_tokens(t, h, w)
    expected = select_as_published(tokens, ratio)
    strict = floc.compress(tokens, method="dycoke", merging_ratio=ratio, strict=True)
    assert strict.indices[strict.order].tolist() == expected
    last = range((t - t % 2) * h * w, t * h * w)  # dropped by the published program
    kept = floc.compress(tokens, method="dycoke", merging_ratio=ratio)
    assert kept.indices.tolist() == sorted([*expected, *last])


@pytest.mark.parametrize(
    ("t", "options", "expected"),
    [
        (1, {}, "W"),
        (2, {}, "Wq"),
        (3, {}, "Wqq"),
        (4, {}, "Wqqq"),
        (5, {}, "WqqqW"),
        (6, {}, "WqqqWq"),
        (7, {}, "WqqqWqW"),
        (8, {}, "WqqqWqWq"),
        (7, {"sound": True}, "WqqqWqq"),
        (8, {"sound": True}, "WqqqWqqq"),
        (9, {"sound": True}, "WqqqWqqqW"),
        (8, {"window": 8}, "Wqqqqqqq"),
        (7, {"window": 3}, "WqqWqqW"),
        (3, {"window": 1}, "WWW"),
    ],
)
def test_keeps_expected_frames_whole(t: int, options: dict, expected: str) -> None:
    kept = floc.compress(make_tokens(t, 2, 5), method="dycoke", merging_ratio=0.75, **options)
    assert count_per_frame(kept) == [{"W": 10, "q": 2}[letter] for letter in expected]


def test_compares_each_frame_with_its_reference_frame() -> None:
    tokens = np.ones((8, 1, 8, 2), np.float32)
    # each cell changes in one frame and stays changed, so only that frame's comparison sees it
    tokens[1:, 0, 1], tokens[2:, 0, 2], tokens[3:, 0, 3] = [-1, 1], [-1, 1], [-1, 1]
    kept = floc.compress(tokens, method="dycoke", merging_ratio=0.75, sound=True).indices
    assert kept[8:14].tolist() == [8, 9, 17, 18, 24, 27]  # frames 1, 2, 3; ties keep the lowest cell
    wide = floc.compress(tokens, method="dycoke", merging_ratio=0.625, window=8).indices
    assert [i - 8 * 4 for i in wide if i // 8 == 4] == [1, 2, 3]  # the fifth is compared with the first
    assert [i - 8 * 5 for i in wide if i // 8 == 5] == [0, 1, 2]  # the sixth with the fifth, which it equals


@pytest.mark.parametrize("options", [{}, {"sound": True}, {"strict": True}, {"window": 6}])
@pytest.mark.parametrize("t", [6, 8, 11])
def test_meets_budget_exactly_with_remainder_in_earliest_frames(t: int, options: dict) -> None:
    tokens = make_tokens(t, 2, 5)
    fewest = floc.compress(tokens, method="dycoke", merging_ratio=1.0, **options)
    most = floc.compress(tokens, method="dycoke", merging_ratio=0.0, **options)
    whole, pruned = len(fewest) // 10, (len(most) - len(fewest)) // 10
    assert len(most) == 10 * t or options.get("strict")
    for budget in {*range(len(fewest), len(most), 3), len(most)}:
        kept = floc.compress(tokens, budget=budget, method="dycoke", **options)
        assert len(kept) == budget
        q, left = divmod(budget - 10 * whole, pruned)
        is_pruned = np.array(count_per_frame(fewest)) == 0
        counts = np.array(count_per_frame(kept))[is_pruned][:pruned].tolist()
        assert counts == [q + 1] * left + [q] * (pruned - left)
        native = floc.compress(tokens, method="dycoke", merging_ratio=kept.settings["merging_ratio"], **options)
        assert len(native) == budget - left
        assert set(native.indices) <= set(kept.indices)


def test_quota_is_computed_in_double_precision() -> None:
    kept = floc.compress(make_tokens(5, 6, 10), method="dycoke", merging_ratio=0.9)
    assert count_per_frame(kept) == [60, 5, 5, 5, 60]  # not 6


def test_full_budget_keeps_everything() -> None:
    for t in range(1, 10):
        assert len(floc.compress(make_tokens(t, 2, 3), ratio=1, method="dycoke")) == 6 * t
    strict = floc.compress(make_tokens(9, 2, 3), ratio=1, method="dycoke", strict=True)
    assert len(strict) == 48  # all but the last frame


def test_budget_below_floor_raises_or_keeps_whole_frames_or_widens() -> None:
    tokens = make_tokens(17, 2, 2)
    with pytest.raises(
        ValueError, match=r"5 of 17 frames whole.*at least 20 of 68 tokens \(ratio 0.294\).*nearest=True"
    ):
        floc.compress(tokens, budget=19, method="dycoke")
    kept = floc.compress(tokens, budget=8, method="dycoke", nearest=True)
    assert kept.positions[::4, 0].tolist() == [0, 4, 8, 12, 16]
    assert len(kept) == 20
    wide = floc.compress(tokens, budget=10, method="dycoke", widen=True)
    assert len(wide) == 10
    assert wide.settings["window"] == 9
    assert [at for at, count in enumerate(count_per_frame(wide)) if count == 4] == [0, 9]
    with pytest.raises(ValueError, match="at least 4 of 68"):
        floc.compress(tokens, budget=3, method="dycoke", widen=True)
    assert len(floc.compress(tokens, budget=3, method="dycoke", widen=True, nearest=True)) == 4


def test_unpruned_frame_of_last_window_counts_towards_floor() -> None:
    tokens = make_tokens(8, 2, 2)
    with pytest.raises(ValueError, match="at least 12 of 32"):
        floc.compress(tokens, budget=8, method="dycoke")
    assert len(floc.compress(tokens, budget=8, method="dycoke", sound=True)) == 8
    assert len(floc.compress(tokens, budget=8, method="dycoke", widen=True)) == 8


def test_ties_keep_lowest_cell_and_zero_tokens_are_dissimilar() -> None:
    tokens = torch.from_numpy(np.tile(make_tokens(1, 3, 5), (4, 1, 1, 1)))
    tokens[1, 0, 3] = 0
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        kept = floc.compress(tokens.to(dtype), budget=15 + 3 * 2, method="dycoke")
        assert kept.indices[15:].tolist() == [15, 18, 30, 31, 45, 46]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"merging_ratio": 1.2}, r"merging_ratio must be in \[0, 1\].*1.2"),
        ({"window": 0}, "window must be at least 1 frame, got 0"),
        ({"strict": True, "sound": True}, "neither sound nor widen"),
        ({"strict": True, "window": 8}, "window=4"),
        ({"strict": True}, "fails on 4 frames or fewer, got 4"),
        ({"merging_ratio": 0.5, "budget": 9}, "budget=9 sets merging_ratio"),
    ],
)
def test_rejects_invalid_options(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        floc.compress(make_tokens(4, 2, 5), method="dycoke", **options)
