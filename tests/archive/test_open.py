"""What comes out of a store is what was put in, of any stretch, and nothing else is read for it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("lance", reason="a store needs pip install 'floc-video[store]'")

import floc
from floc import Captured, Store
from floc.archive.cutting import Stretch, cut, joined
from floc.captured.identity import Identity
from floc.captured.segments import FrameLog, join_segments
from tests.archive.making import MODEL, film, piece, put, row


def as_captured(parts: Sequence[Captured]) -> Captured:
    """What `floc.capture` makes of segments."""
    log = FrameLog(1, [part.times_s for part in parts], 1.0, 0.0)  # type: ignore[misc]
    return join_segments(parts, log, {})


def by_hand(parts: Sequence[Captured], start_s: float, end_s: float) -> list[tuple[Any, ...]]:
    """(slice, cell, feature, gain) of the tokens on screen in a stretch, the most important first, one by one."""
    slices = [(number, t) for number, part in enumerate(parts) for t in range(part.shape[0])]
    shown = [float(parts[number].times_s[t]) for number, t in slices]  # type: ignore[index]
    gone = [*shown[1:], math.inf]
    there = [each for each, on, off in zip(slices, shown, gone, strict=True) if on < end_s and off > start_s]
    if start_s < shown[0] < end_s and slices[0] not in there:
        there = [slices[0], *there]
    found = []
    for number, part in enumerate(parts):
        cells = part.shape[1] * part.shape[2]
        size = cells * sum(1 for each in there if each[0] == number)
        rank = 0
        for place, gain in zip(part.order.tolist(), part.gains.tolist(), strict=True):
            t, cell = divmod(int(part.indices[place]), cells)
            if (number, t) in there:
                token = (there.index((number, t)), cell, tuple(part.features[place].tolist()), gain)
                found.append(((rank + 0.5) / size, number, token))
                rank += 1
    return [token for _, _, token in sorted(found, key=lambda each: each[:2])]


def tokens(video: Captured) -> list[tuple[Any, ...]]:
    cells = video.shape[1] * video.shape[2]
    return [
        (*divmod(int(video.indices[place]), cells), tuple(video.features[place].tolist()), gain)
        for place, gain in zip(video.order.tolist(), video.gains.tolist(), strict=True)
    ]


def rows_of(parts: Sequence[Captured]) -> list[dict[str, Any]]:
    return [each for number, part in enumerate(parts) for each in cut(part, "v", number, f"a{number}", 0.0)]


@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_cutting_and_joining_gives_what_was_put_in(data: st.DataObject) -> None:
    step = data.draw(st.sampled_from([0.5, 1.0, 3.0, 25.0]))
    parts, start = [], data.draw(st.sampled_from([0.0, 3.25]))
    for seed in range(data.draw(st.integers(1, 4))):
        slices = data.draw(st.integers(1, 40))
        parts.append(piece(slices, start, seed=seed, kept=data.draw(st.integers(1, slices * 6)), step_s=step))
        start += slices * step
    whole = joined(rows_of(parts), row(parts, ()), None)
    expected = as_captured(parts)
    for name in ("features", "indices", "order", "gains"):
        assert torch.equal(getattr(whole, name), getattr(expected, name)), name
    assert whole.shape == expected.shape
    np.testing.assert_array_equal(whole.times_s, expected.times_s)
    first = data.draw(st.floats(0, start))
    last = data.draw(st.floats(0, start).filter(lambda value: abs(value - first) > 1e-6))
    stretch = Stretch(min(first, last), max(first, last))
    wanted = by_hand(parts, stretch.start_s, stretch.end_s)
    if not wanted:
        return
    assert tokens(joined(rows_of(parts), row(parts, ()), stretch)) == wanted


def test_rows_are_about_ten_seconds_and_hold_every_slice() -> None:
    rows = cut(piece(33, 57.0, kept=1), "v", 0, "a", 0.0)
    assert [each["start_s"] for each in rows] == [57.0, 60.0, 70.0, 80.0]
    assert [each["end_s"] for each in rows] == [60.0, 70.0, 80.0, 90.0]
    assert [each["slices"] for each in rows] == [3, 10, 10, 10]
    assert sum(each["kept"] for each in rows) == 1
    assert [each["last"] for each in rows] == [False, False, False, True]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("layers", [0, 2])
def test_a_whole_video_is_what_capture_would_havejoin(store: Store, dtype: torch.dtype, layers: int) -> None:
    parts = film(dtype=dtype, layers=layers)
    video, expected = store.open(put(store, parts).id), as_captured(parts)
    for name in ("features", "indices", "order", "gains"):
        assert torch.equal(getattr(video, name), getattr(expected, name)), name
        assert getattr(video, name).dtype == getattr(expected, name).dtype
    assert len(video.deep) == layers
    assert all(map(torch.equal, video.deep, expected.deep))
    assert (video.shape, video.model, video.nested) == (expected.shape, MODEL, True)
    assert (video.fps, video.duration_s, video.frames_per_slice) == (1.0, 75.0, 1)
    assert video.made["source"] == "/films/talk.mp4"
    assert video.made["coverage"] == pytest.approx(expected.made["coverage"])
    np.testing.assert_array_equal(video.times_s, np.arange(75.0))
    np.testing.assert_array_equal(video.last_s, np.arange(75.0))


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize(
    ("start_s", "end_s"), [(0, 75), (20, 60), (24, 26), (24.5, 24.75), (49.5, 50.25), (60, 900), (None, 12), (70, None)]
)
def test_a_stretch_is_the_tokens_on_screen_in_it(store: Store, start_s: Any, end_s: Any, compacted: bool) -> None:
    parts = film(kept=120)
    name = put(store, parts).id
    if compacted:
        store.compact()
    start, end = 0.0 if start_s is None else start_s, 75.0 if end_s is None else end_s
    video = store.open(name, start_s=start_s, end_s=end_s)
    assert tokens(video) == by_hand(parts, start, end)
    assert video.times_s is not None
    assert video.shape[0] == len(video.times_s) == len(video.last_s)  # type: ignore[arg-type]
    assert video.times_s[0] == math.floor(start)
    assert video.duration_s == min(end, 75) - start
    assert video.made["coverage"] is None or (start_s, end_s) == (None, None)


def test_a_picture_that_stays_between_two_pieces_is_on_screen_until_the_next(store: Store) -> None:
    parts = [piece(12, 0.0, kept=72), piece(12, 600.0, kept=72)]
    video = store.open(put(store, parts).id, start_s=13, end_s=14)
    assert video.times_s.tolist() == [11.0]  # type: ignore[union-attr]
    assert tokens(video) == by_hand(parts, 13, 14)


def test_pieces_of_slices_of_two_frames(store: Store) -> None:
    parts = film(step_s=1.0, joined=2)
    video = store.open(put(store, parts).id, start_s=30, end_s=40)
    assert (video.frames_per_slice, video.fps) == (2, 2.0)
    np.testing.assert_allclose(video.last_s, video.times_s + 0.5)


@pytest.mark.parametrize("budget", [1, 7, 30])
def test_fewer_tokens_of_a_stretch_are_a_prefix_of_its_order(store: Store, budget: int) -> None:
    name = put(store, film()).id
    whole, few = store.open(name, start_s=10, end_s=60), store.open(name, start_s=10, end_s=60, budget=budget)
    assert tokens(few) == tokens(whole)[:budget]
    assert len(store.open(name, ratio=1 / 8)) == round(75 * 6 / 8)


def test_a_quiet_stretch_gives_what_it_has(store: Store) -> None:
    quiet = piece(100, 0.0, kept=200)
    busy = piece(100, 100.0, kept=2)
    name = put(store, [quiet, busy]).id
    assert len(store.open(name, start_s=100, end_s=200, ratio=1 / 8)) == 2
    with pytest.raises(ValueError, match="needs 300 tokens, 2 were kept"):
        store.open(name, start_s=100, end_s=200, ratio=1 / 2)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (dict(start_s=75, end_s=80), "outside of it: it goes from 0 s to 75 s"),
        (dict(start_s=-1, end_s=80), "outside of it"),
        (dict(start_s=20, end_s=20), "start_s must be before end_s"),
        (dict(start_s=20, end_s=10), "start_s must be before end_s"),
        (dict(end_s=0), "start_s must be before end_s"),
        (dict(start_s=math.nan, end_s=10), "must be numbers of seconds"),
        (dict(start_s=1, end_s=math.nan), "must be numbers of seconds"),
        (dict(start_s=math.inf), "must be numbers of seconds"),
        (dict(ratio=1 / 8, budget=3), "exactly one"),
        (dict(ratio=2), "ratio must be"),
        (dict(budget=10**6), "were kept"),
    ],
)
def test_what_cannot_be_opened_is_told(store: Store, asked: dict[str, Any], said: str) -> None:
    put(store, film())
    with pytest.raises(ValueError, match=said):
        store.open("talk.mp4", **asked)


def test_a_stretch_without_tokens_is_told(store: Store) -> None:
    put(store, [piece(60, 0.0, kept=1)])
    there = store.open("talk.mp4").times_s[store.open("talk.mp4").positions[0, 0]]  # type: ignore[index]
    other = 0 if there > 30 else 40
    with pytest.raises(ValueError, match="nothing was kept between"):
        store.open("talk.mp4", start_s=other, end_s=other + 10)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (dict(times_s=None, last_s=None), "times are not known"),
        (dict(times_s=np.zeros(25)), "times_s must ascend"),
        (dict(indices=torch.zeros(37, dtype=torch.int64)), "ascending"),
        (dict(features=torch.full((37, 8), torch.nan)), "not finite"),
        (dict(features=torch.zeros(37, 9)), "the model takes 8"),
    ],
)
def test_what_cannot_be_written_is_told(store: Store, change: dict[str, Any], said: str) -> None:
    import dataclasses

    with pytest.raises(ValueError, match=said):
        store.write_piece("v", 0, dataclasses.replace(piece(), **change))


def test_files_go_in_and_come_out_as_they_were(store: Store, tmp_path: Path) -> None:
    video = as_captured(film(layers=1))
    video = floc.Captured(**{**vars(video), "duration_s": 75.0, "made": {"method": "floc", "coverage": 0.5}})
    video.save(tmp_path / "talk.floc")
    entry = store.add(tmp_path / "talk.floc")
    assert store.add(tmp_path / "talk.floc") == entry
    assert len(store.videos()) == 1
    assert (entry.kept, entry.tokens, entry.uri) == (len(video), video.n, str(tmp_path / "talk.floc"))
    store.export(entry.id, tmp_path / "again.floc")
    again = floc.load(tmp_path / "again.floc")
    for name in ("features", "indices", "order", "gains"):
        assert torch.equal(getattr(video, name), getattr(again, name)), name
    assert torch.equal(video.deep[0], again.deep[0])
    assert (again.shape, again.model, again.made["coverage"]) == (video.shape, video.model, 0.5)
    assert store.add(video, uri="in memory").uri == "in memory"
    assert not store.check()


def read_bytes() -> int:
    """That this process has asked the system for, from anywhere."""
    return int(Path("/proc/self/io").read_text().split()[1])


def opened(store: Store, name: str, start_s: float) -> tuple[float, float, float]:
    """Of opening a minute: milliseconds, and read for each of its bytes, as the system and as Lance count them."""
    table = store._held.segments.latest()
    table.io_stats_incremental()
    before, began = read_bytes(), time.perf_counter()
    size = store.open(name, start_s=start_s, end_s=start_s + 60).features.nbytes
    took = time.perf_counter() - began
    return 1000 * took, (read_bytes() - before) / size, table.io_stats_incremental().read_bytes / size


@pytest.mark.parametrize("compacted", [False, True])
def test_a_minute_of_ten_hours_reads_little_more_than_its_bytes(store: Store, compacted: bool, capsys: Any) -> None:
    model = Identity("wide", "", None, "0", 1024, [])
    parts = [piece(300, 300.0 * each, seed=each, kept=562, grid=(6, 10), model=model) for each in range(120)]
    name = put(store, parts).id
    if compacted:
        store.compact()
    minutes = (0, 3600, 7205, 20010.5, 35940)
    cold = [opened(Store(store.path), name, each) for each in minutes]  # one that remembers nothing
    opened(store, name, 12345)
    warm = [opened(store, name, each) for each in minutes]
    assert all(0.9 < read <= 1.5 for _, *both in warm for read in both), warm
    # the first time it looks where rows are in a large file, and what its columns look like: some 100 kB
    assert all(read <= 1.5 + compacted * 0.5 for _, *both in cold for read in both), cold
    with capsys.disabled():
        for state, measured in (("first", cold), ("later", warm)):
            ms, read, _ = np.median(measured, axis=0)
            print(
                f"\n{'compacted' if compacted else 'as written'}, {state}: {ms:.1f} ms, {read:.2f} x its bytes", end=""
            )
