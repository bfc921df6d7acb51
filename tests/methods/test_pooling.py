"""Pooling compared with reference outputs and with means computed cell by cell."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import floc
from floc.methods.shared import frames

WAYS = {
    "avg_stride2_floor": {"stride": 2, "ceil": False},
    "avg_stride2_ceil": {"stride": 2},
    "bilinear_stride2": {"stride": 2, "pool": "bilinear"},
}
SHAPES = [(1, 1, 1), (3, 1, 7), (5, 7, 1), (4, 5, 6), (2, 8, 3), (9, 2, 2)]
each_shape = pytest.mark.parametrize("shape", SHAPES)


def make_tokens(*shape: int, dim: int = 3) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal((*shape, dim)).astype(np.float32)


def find_spans(side: int, pooled: int) -> list[range]:
    """Return the source rows, or columns, of each pooled one."""
    return [range(i * side // pooled, -(-(i + 1) * side // pooled)) for i in range(pooled)]


def average(tokens: np.ndarray, rows: list[range], columns: list[range]) -> np.ndarray:
    """Average cell by cell: [T, rows, columns, D]."""
    return np.stack(
        [[[frame[np.ix_(r, c)].mean((0, 1)) for c in columns] for r in rows] for frame in tokens.astype(np.float64)]
    )


@pytest.mark.parametrize("case", "abc")
def test_matches_reference_outputs(read_golden, case: str) -> None:
    golden = read_golden(f"pooling_{case}")
    ways = WAYS | {"adaptive": {"adaptive_size": golden["adaptive_size"].tolist()}}
    for name, options in ways.items():
        kept = floc.compress(golden["tokens"], method="pooling", **options)
        np.testing.assert_allclose(
            kept.features, golden[name].reshape(kept.features.shape), rtol=0, atol=1e-5, err_msg=name
        )


@each_shape
def test_adaptive_pooling_averages_rows_and_columns(
    shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "CPU_BYTES", 600)  # several tiles
    t, h, w = shape
    tokens = make_tokens(*shape)
    for rows in range(1, h + 1):
        for columns in range(1, w + 1):
            kept = floc.compress(tokens, method="pooling", adaptive_size=(rows, columns))
            tall, wide = find_spans(h, rows), find_spans(w, columns)
            np.testing.assert_allclose(kept.features, average(tokens, tall, wide).reshape(-1, 3), atol=1e-6)
            starts = [(f, r[0], c[0]) for f in range(t) for r in tall for c in wide]
            assert kept.positions.tolist() == [list(start) for start in starts]
            # every token contributes to its representative
            for token, place in enumerate(kept.represents):
                f, y, x = np.unravel_index(token, shape)
                g, i, j = np.unravel_index(place, (t, rows, columns))
                assert f == g
                assert y in tall[i]
                assert x in wide[j]


@each_shape
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("ceil", [True, False])
def test_stride_averages_squares(shape: tuple[int, int, int], stride: int, ceil: bool) -> None:
    t, h, w = shape
    sides = []
    for side in (h, w):
        full = [range(i, min(i + stride, side)) for i in range(0, side, stride)]
        sides.append([span for span in full if ceil or len(span) == min(stride, side)])
    tokens = make_tokens(*shape)
    kept = floc.compress(tokens, method="pooling", stride=stride, ceil=ceil)
    np.testing.assert_allclose(kept.features, average(tokens, *sides).reshape(-1, 3), atol=1e-6)
    assert kept.positions.tolist() == [[f, r[0], c[0]] for f in range(t) for r in sides[0] for c in sides[1]]
    expected = [
        (f * len(sides[0]) + min(y // stride, len(sides[0]) - 1)) * len(sides[1]) + min(x // stride, len(sides[1]) - 1)
        for f, y, x in np.ndindex(*shape)
    ]
    assert kept.represents.tolist() == expected


@each_shape
@pytest.mark.parametrize("stride", [1, 2])
def test_bilinear_weights_at_most_four_cells(shape: tuple[int, int, int], stride: int) -> None:
    t, h, w = shape

    def weights(side: int) -> np.ndarray:
        pooled = math.ceil(side / stride)
        matrix = np.zeros((pooled, side))
        for i in range(pooled):
            at = max(0.0, (i + 0.5) * side / pooled - 0.5)
            low = min(int(at), side - 1)
            matrix[i, low] += 1 - (at - low)
            matrix[i, min(low + 1, side - 1)] += at - low
        return matrix

    tall, wide = weights(h), weights(w)
    tokens = make_tokens(*shape)
    kept = floc.compress(tokens, method="pooling", stride=stride, pool="bilinear")
    expected = np.einsum("iy,jx,tyxd->tijd", tall, wide, tokens)
    np.testing.assert_allclose(kept.features, expected.reshape(-1, 3), atol=1e-5)
    first = [[int(np.flatnonzero(row)[0]) for row in matrix] for matrix in (tall, wide)]
    assert kept.positions.tolist() == [[f, y, x] for f in range(t) for y in first[0] for x in first[1]]
    # every token contributes to its representative
    for token, place in enumerate(kept.represents):
        f, y, x = np.unravel_index(token, shape)
        g, i, j = np.unravel_index(place, (t, len(tall), len(wide)))
        assert f == g
        assert tall[i, y] * wide[j, x] > 0


@each_shape
def test_budget_sets_the_size_and_is_never_exceeded(shape: tuple[int, int, int]) -> None:
    t, h, w = shape
    tokens = make_tokens(*shape)
    for budget in range(1, t * h * w + 1):
        kept = floc.compress(tokens, budget=budget, method="pooling")
        if budget < t:
            assert len(kept) == budget
        else:
            r = budget / (t * h * w)
            rows = min(h, budget // t, max(1, math.floor(h * math.sqrt(r) + 0.5)))
            columns = min(w, max(1, budget // t // rows))
            assert kept.settings["adaptive_size"] == (rows, columns)
            assert len(kept) == t * rows * columns <= budget
        native = {name: kept.settings[name] for name in ("adaptive_size", "frames")}
        again = floc.compress(tokens, method="pooling", **native)
        np.testing.assert_array_equal(again.features, kept.features)
        np.testing.assert_array_equal(again.indices, kept.indices)
        np.testing.assert_array_equal(again.represents, kept.represents)
    np.testing.assert_array_equal(kept.features, tokens.reshape(-1, 3))  # the full budget


def test_quarter_of_an_even_grid_is_stride_two() -> None:
    tokens = make_tokens(3, 6, 8)
    kept = floc.compress(tokens, ratio="1/4", method="pooling")
    np.testing.assert_array_equal(kept.features, floc.compress(tokens, method="pooling", stride=2).features)


def test_budget_below_frames_averages_some_frames() -> None:
    tokens = make_tokens(9, 2, 3)
    kept = floc.compress(tokens, budget=3, method="pooling")
    assert kept.positions.tolist() == [[0, 0, 0], [4, 0, 0], [8, 0, 0]]
    np.testing.assert_allclose(kept.features, tokens[[0, 4, 8]].mean((1, 2)), atol=1e-6)
    frames = kept.represents.reshape(9, 6)
    assert (frames == frames[:, :1]).all()
    assert frames[:, 0].tolist() == [0, 0, 0, 1, 1, 1, 1, 2, 2]  # the nearest, the earlier of two


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_averages_in_float32_or_float64(dtype: torch.dtype) -> None:
    tokens = torch.from_numpy(make_tokens(2, 16, 16)).to(dtype) + 100
    kept = floc.compress(tokens.transpose(1, 2), budget=2, method="pooling")
    assert kept.features.dtype == dtype
    exact = tokens.double().mean((1, 2))
    assert torch.equal(kept.features, exact.to(dtype)) or (kept.features - exact).abs().max() < 1e-12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"needs adaptive_size=\(rows, columns\), stride="),
        ({"adaptive_size": (0, 1)}, r"at most \(2, 5\); got \[0, 1\]"),
        ({"adaptive_size": (2, 6)}, r"got \[2, 6\]"),
        ({"adaptive_size": (2,)}, r"got \[2\]"),
        ({"adaptive_size": (2, 2), "stride": 2}, "not both"),
        ({"stride": 0}, "stride must be at least 1 cell, got 0"),
        ({"stride": 2, "frames": 10}, r"frames must be in 1..9.*got 10"),
        ({"stride": 2, "pool": "max"}, "unknown pool 'max'"),
        ({"stride": 2, "budget": 9}, "budget=9 sets stride"),
    ],
)
def test_rejects_invalid_options(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        floc.compress(make_tokens(9, 2, 5), method="pooling", **options)
