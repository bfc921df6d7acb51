"""DTD compared with outputs of the published program."""

from __future__ import annotations

import numpy as np
import pytest

import floc


@pytest.mark.parametrize("case", "abc")
def test_matches_published_program(read_golden, case: str) -> None:
    golden = read_golden(f"dtd_{case}")
    tokens = golden["tokens"]
    kept = floc.compress(tokens, method="dtd", threshold=float(golden["threshold"]))
    np.testing.assert_array_equal(kept.indices, golden["kept"])
    relative = floc.compress(tokens, method="dtd", threshold=float(golden["relative_threshold"]), relative=True)
    np.testing.assert_array_equal(relative.indices, golden["relative_kept"])
    threshold = float(golden["adaptive_threshold"])
    for options in ({"budget": int(golden["adaptive_budget"])}, {"threshold": threshold}):
        adaptive = floc.compress(tokens, method="dtd", **options)
        np.testing.assert_array_equal(adaptive.indices, golden["adaptive_kept"])


@pytest.mark.parametrize("case", "abc")
def test_matches_published_program_on_pixels(read_golden, case: str) -> None:
    golden = read_golden(f"dtd_{case}")
    t, h, w, _ = golden["tokens"].shape
    pixels = golden["pixels"].astype(np.float64) / 255
    # the second image of a pair with the first image of the pair before
    patches = np.abs(pixels[1:, 1] - pixels[:-1, 0]).mean(-1)
    difference = np.zeros((t, h * w))
    difference[1:] = patches.reshape(t - 1, h, 2, w, 2).mean((2, 4)).reshape(t - 1, -1)
    np.testing.assert_allclose(difference[1:], golden["pixel_difference"][1:], atol=1e-6)
    options = {"threshold": float(golden["pixel_threshold"]), "difference": golden["pixel_difference"]}
    kept = floc.compress(golden["tokens"], method="dtd", **options)
    np.testing.assert_array_equal(kept.indices, golden["pixel_kept"])


def test_drops_by_given_difference() -> None:
    tokens = np.random.default_rng(0).standard_normal((3, 1, 4, 2)).astype(np.float32)
    difference = np.array([[9, 9, 9, 9], [0.1, 0.5, 0.4, 0.2], [0.3, 0.3, 0.0, 0.6]])
    kept = floc.compress(tokens, method="dtd", difference=difference, threshold=0.4)
    assert kept.indices.tolist() == [0, 1, 2, 3, 5, 6, 11]
    kept = floc.compress(tokens, method="dtd", difference=difference, threshold=0.5, relative=True)
    assert kept.indices.tolist() == [0, 1, 2, 3, 5, 6, 9, 11]  # of equal changes the earlier is dropped
    kept = floc.compress(tokens, method="dtd", difference=difference, budget=6)
    assert kept.indices.tolist() == [0, 1, 2, 3, 5, 11]
    assert kept.settings["threshold"] == pytest.approx(0.45)


def test_budget_keeps_what_evs_keeps(tokens: np.ndarray) -> None:
    kept, other = (floc.compress(tokens, method=method, budget=200) for method in ("dtd", "evs"))
    assert kept.indices.tolist() == other.indices.tolist()
    again = floc.compress(tokens, method="dtd", threshold=kept.settings["threshold"])
    assert again.indices.tolist() == kept.indices.tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"difference": np.ones((4, 5))}, r"difference must be \[4, 6\].*got \(4, 5\)"),
        ({"difference": np.full((4, 6), np.nan)}, "difference must be finite"),
        ({"difference": np.ones((4, 6), int)}, "difference must be floating point, got int64"),
        ({"difference": [[1.0] * 6] * 4}, "difference must be a torch tensor or a numpy array, got list"),
        ({"relative": True, "threshold": 1.5}, r"threshold must be in \[0, 1\]"),
        ({"relative": True, "budget": 9}, "relative=True drops a fraction of every frame"),
    ],
)
def test_rejects_invalid_options(options: dict, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        floc.compress(np.ones((4, 2, 3, 5)), method="dtd", **options)
