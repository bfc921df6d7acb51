"""Rows joined again equal the pieces they were split from, for the whole video and for any time range."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("lance", reason="Lance is not installed: pip install 'floc-video[store]'")

from floc import Captured
from floc.archive.token_rows import TimeRange, join_rows, split_rows
from floc.captured import pieces as captured_pieces
from floc.captured.pieces import FrameLog
from tests.archive.builders import make_piece, make_video


def join_pieces(pieces: Sequence[Captured]) -> Captured:
    """Join pieces as `floc.capture` joins them."""
    log = FrameLog(1, [piece.times_s for piece in pieces], 1.0, 0.0)  # type: ignore[misc]
    return captured_pieces.join_pieces(pieces, log, {})


def select_by_hand(pieces: Sequence[Captured], start_s: float, end_s: float) -> list[tuple[Any, ...]]:
    """Return (slice, cell, feature, gain) of the tokens visible in a time range, the most important first."""
    slices = [(number, t) for number, piece in enumerate(pieces) for t in range(piece.shape[0])]
    starts = [float(pieces[number].times_s[t]) for number, t in slices]  # type: ignore[index]
    ends = [*starts[1:], math.inf]
    visible = [place for place, on, off in zip(slices, starts, ends, strict=True) if on < end_s and off > start_s]
    if start_s < starts[0] < end_s and slices[0] not in visible:
        visible = [slices[0], *visible]
    tokens = []
    for number, piece in enumerate(pieces):
        cells = piece.shape[1] * piece.shape[2]
        size = cells * sum(1 for place in visible if place[0] == number)
        rank = 0
        for index, gain in zip(piece.order.tolist(), piece.gains.tolist(), strict=True):
            t, cell = divmod(int(piece.indices[index]), cells)
            if (number, t) in visible:
                token = (visible.index((number, t)), cell, tuple(piece.features[index].tolist()), gain)
                tokens.append(((rank + 0.5) / size, number, token))
                rank += 1
    return [token for _, _, token in sorted(tokens, key=lambda entry: entry[:2])]


def list_tokens(video: Captured) -> list[tuple[Any, ...]]:
    """Return (slice, cell, feature, gain) of all tokens, the most important first."""
    cells = video.shape[1] * video.shape[2]
    return [
        (*divmod(int(video.indices[index]), cells), tuple(video.features[index].tolist()), gain)
        for index, gain in zip(video.order.tolist(), video.gains.tolist(), strict=True)
    ]


def split_pieces(pieces: Sequence[Captured]) -> list[dict[str, Any]]:
    return [row for number, piece in enumerate(pieces) for row in split_rows(piece, "v", number, f"a{number}", 0.0)]


@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_join_inverts_split(data: st.DataObject) -> None:
    step = data.draw(st.sampled_from([0.5, 1.0, 3.0, 25.0]))
    pieces, start = [], data.draw(st.sampled_from([0.0, 3.25]))
    for seed in range(data.draw(st.integers(1, 4))):
        slices = data.draw(st.integers(1, 40))
        pieces.append(make_piece(slices, start, seed=seed, kept=data.draw(st.integers(1, slices * 6)), step_s=step))
        start += slices * step
    whole = join_rows(split_pieces(pieces), make_video(pieces, ()), None)
    expected = join_pieces(pieces)
    for name in ("features", "indices", "order", "gains"):
        assert torch.equal(getattr(whole, name), getattr(expected, name)), name
    assert whole.shape == expected.shape
    np.testing.assert_array_equal(whole.times_s, expected.times_s)
    first = data.draw(st.floats(0, start))
    last = data.draw(st.floats(0, start).filter(lambda value: abs(value - first) > 1e-6))
    time_range = TimeRange(min(first, last), max(first, last))
    selected = select_by_hand(pieces, time_range.start_s, time_range.end_s)
    if selected:
        assert list_tokens(join_rows(split_pieces(pieces), make_video(pieces, ()), time_range)) == selected


def test_rows_are_about_ten_seconds_and_hold_every_slice() -> None:
    rows = split_rows(make_piece(33, 57.0, kept=1), "v", 0, "a", 0.0)
    assert [row["start_s"] for row in rows] == [57.0, 60.0, 70.0, 80.0]
    assert [row["end_s"] for row in rows] == [60.0, 70.0, 80.0, 90.0]
    assert [row["slices"] for row in rows] == [3, 10, 10, 10]
    assert sum(row["kept"] for row in rows) == 1
    assert [row["last"] for row in rows] == [False, False, False, True]


def test_a_range_without_rows_is_damage() -> None:
    with pytest.raises(ValueError, match="no row is found"):
        join_rows([], make_video([make_piece()], []), None)
