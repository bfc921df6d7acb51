"""What one worker does with a video: cut it, keep its pieces, go on with what was begun."""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("lance", reason="Lance is not installed: pip install 'floc-video[store]'")
pytest.importorskip("av", reason="PyAV is not installed: pip install 'floc-video[video]'")

import floc
from floc import encoders
from floc.archive import Store
from floc.archive.ingest import pipeline
from floc.archive.ingest.ledger import Ledger, known
from floc.archive.ingest.order import Ended, Event, Failed, Kept, Order, Planned, Skipped, Source
from floc.archive.ingest.pipeline import Worker
from floc.archive.ingest.sources import find
from floc.encoders.load import load_tokens
from floc.video import read
from tests.archive.films import make_film

ORDER = Order("pixels", ratio="1/4", method_options={"block": 8})


@pytest.fixture(scope="module")
def film(tmp_path_factory) -> Path:
    """150 seconds."""
    return make_film(tmp_path_factory.mktemp("films") / "long.mkv", 150, seed=5)


@pytest.fixture
def small_pieces(monkeypatch) -> None:
    """Pieces of 32 frames, spans of two."""
    monkeypatch.setattr(pipeline, "PIECE_LIMIT", 32)
    monkeypatch.setattr(pipeline, "SPAN_S", 64)


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    Store(tmp_path / "store", create=True)
    return Worker(ORDER, str(tmp_path / "store"))


def events_of(worker: Worker, source: Source, have: frozenset[int] = frozenset()) -> list[Event]:
    (planned,) = worker.plan(source)
    assert isinstance(planned, Planned)
    about = {"fps": planned.fps, "duration_s": planned.duration_s}
    return [planned, *(event for span in planned.spans for event in worker.keep(span, about, have))]


def ledger_of(worker: Worker, videos: int = 1) -> Ledger:
    return Ledger(Store(worker.brief.store), worker.brief, videos)


def test_a_video_is_kept_piece_by_piece(small_pieces, worker: Worker, film: Path) -> None:
    """As `floc.compress` keeps each piece, and in the store one after another."""
    (source,) = find([film])
    ledger = ledger_of(worker)
    for event in events_of(worker, source):
        ledger.add(event)
    ledger.flush()
    (video,) = ledger.store.videos()
    tokens = load_tokens(film, encoder="pixels").tokens
    assert (video.frames, video.shape, len(video.pieces)) == (150, tokens.shape[:3], 5)
    opened = ledger.store.open(video.id)
    np.testing.assert_array_equal(opened.times_s, np.arange(150.0))
    cells = tokens.shape[1] * tokens.shape[2]
    start = 0
    for first in range(0, 150, 32):
        want = floc.compress(tokens[first : first + 32], ratio="1/4", block=8)
        mine = slice(start, start + len(want))
        np.testing.assert_array_equal(opened.indices[mine], np.asarray(want.indices) + first * cells)
        np.testing.assert_array_equal(opened.features[mine], np.asarray(want.features))
        start += len(want)
    assert start == len(opened) == video.kept
    assert ledger.store.check() == []


def test_cuts_do_not_depend_on_who_decodes(small_pieces, worker: Worker, film: Path, monkeypatch) -> None:
    """One span for all of it, or a span for each piece: the same tokens."""
    kept = []
    for span_s in (32, 1000):
        monkeypatch.setattr(pipeline, "SPAN_S", span_s)
        events = events_of(worker, *find([film]))
        kept.append(
            [(event.piece.piece, event.piece.kept, event.piece.start_s) for event in events if isinstance(event, Kept)]
        )
    assert kept[0] == kept[1]
    assert len(kept[0]) == 5


@pytest.mark.parametrize("fps", [0.3, 0.7, 1.1, 1.3, 10.0])
def test_every_frame_of_every_span_is_kept(small_pieces, worker: Worker, film: Path, fps: float) -> None:
    """Also at rates that no float is exact for, and where the film has fewer frames than a span has room for."""
    worker = Worker(replace(ORDER, fps=fps), worker.brief.store)
    ledger = ledger_of(worker)
    for event in events_of(worker, *find([film])):
        ledger.add(event)
    ledger.flush()
    assert ledger.store.check() == []
    want = np.concatenate([batch.times_s for batch in read(film, fps=fps, max_frames=None)])
    opened = ledger.store.open("long.mkv")
    assert opened.times_s is not None
    np.testing.assert_array_equal(opened.times_s, want)
    stretch = ledger.store.open("long.mkv", start_s=100, end_s=120)
    np.testing.assert_array_equal(stretch.features, opened.features[_within(opened, stretch)])


def _within(whole: floc.Captured, stretch: floc.Captured) -> np.ndarray:
    """Of the tokens of a video, those of a stretch of it."""
    assert whole.times_s is not None
    assert stretch.times_s is not None
    times = whole.times_s[whole.indices.numpy() // (whole.shape[1] * whole.shape[2])]
    return (times >= stretch.times_s[0]) & (times <= stretch.times_s[-1])


def test_pieces_that_are_there_are_not_made_again(small_pieces, worker: Worker, film: Path) -> None:
    """After three of five, the ingest is killed: what was committed stays."""
    (source,) = find([film])
    first = ledger_of(worker)
    for event in events_of(worker, source)[:5]:  # the plan, two pieces, the end of their span, one more
        first.add(event)
    first.flush()
    assert first.store.videos() == []
    again = events_of(worker, source)
    planned = again[0]
    assert isinstance(planned, Planned)
    assert sorted(planned.pieces) == [0, 1]  # the last of those that are there is made again
    rest = [event for span in planned.spans for event in worker.keep(span, {"fps": 1.0, "duration_s": 150}, {0, 1})]
    assert [event.piece.piece for event in rest if isinstance(event, Kept)] == [2, 3, 4]
    second = ledger_of(worker)
    for event in [planned, *rest]:
        second.add(event)
    second.flush()
    assert (second.status.done, len(second.store.videos()), second.store.check()) == (1, 1, [])
    assert second.store.open("long.mkv").shape[0] == 150


def taken_in(worker: Worker, *sources: Source) -> Ledger:
    """One after another, as one process would."""
    ledger = ledger_of(worker, len(sources))
    for source in sources:
        for planned in worker.plan(source):
            ledger.add(planned)
            if isinstance(planned, Planned):
                about = {"fps": planned.fps, "duration_s": planned.duration_s}
                for span in planned.spans:
                    if ledger.wants(span):
                        for event in worker.keep(span, about, ledger.have(span.video)):
                            ledger.add(event)
    ledger.end()
    ledger.flush()
    return ledger


def test_a_video_all_of_whose_pieces_are_there(worker: Worker, tmp_path: Path) -> None:
    """Killed between the commit of its pieces and its own: it tells how it was made, as any other does."""
    (source,) = find([make_film(tmp_path / "a.mkv", 12, seed=1)])
    ledger = ledger_of(worker)
    for event in events_of(worker, source):
        ledger.add(event)
    ledger.store.commit(ledger._pieces)
    assert ledger.store.videos() == []
    (video,) = taken_in(worker, source).store.videos()
    assert (video.status, video.made["method"]) == ("done", "floc")
    assert {"encode", "choose", "write"} <= video.seconds.keys()


def test_a_film_that_is_written_to(small_pieces, worker: Worker, tmp_path: Path) -> None:
    """Nothing of the new content is kept under the hash of the old."""
    film = make_film(tmp_path / "a.mkv", 150, seed=5)
    (source,) = find([film])
    (planned,) = worker.plan(source)
    assert isinstance(planned, Planned)
    ledger = ledger_of(worker)
    ledger.add(planned)
    about = {"fps": planned.fps, "duration_s": planned.duration_s}
    for span in planned.spans:
        for event in worker.keep(span, about, set()):
            ledger.add(event)
        make_film(film, 150, seed=6)
    ledger.flush()
    (video,) = ledger.store.videos()
    assert video.status == "failed"
    assert "changed while it was read" in video.error
    assert sorted(ledger.store.pieces(planned.video)) == [0, 1]  # of the first span
    assert taken_in(worker, *find([film])).status.done == 1
    assert [each.status for each in ledger.store.videos()] == ["done"]  # it failed, and then it did not


def test_a_film_that_changed_since_it_was_found(worker: Worker, tmp_path: Path) -> None:
    (source,) = find([make_film(tmp_path / "a.mkv", 3, seed=1)])
    make_film(tmp_path / "a.mkv", 5, seed=2)
    ledger = taken_in(worker, source)
    (video,) = ledger.store.videos()
    (now,) = find([tmp_path / "a.mkv"])
    assert (video.status, video.frames, video.size) == ("done", 5, now.size)
    assert known([video], worker.brief, [source, now]) == [now]


def test_a_name_that_is_no_text(worker: Worker, tmp_path: Path) -> None:
    """An old archive has names in Latin-1."""
    film = make_film(tmp_path / "a.mkv", 3, seed=1)
    (tmp_path / "films").mkdir()
    os.rename(film, os.fsencode(tmp_path / "films") + b"/caf\xe9.mkv")
    (tmp_path / "films" / os.fsdecode(b"\xe9.mkv")).write_bytes(b"no film")
    found = find([tmp_path / "films"])
    ledger = taken_in(worker, *found)
    assert (ledger.status.done, ledger.status.failed) == (1, 1)
    (done,) = ledger.store.videos("done")
    assert done.uri.endswith("caf\\udce9.mkv")
    assert len(known([done], worker.brief, found)) == 1
    assert r"\udce9.mkv" in ledger.store.videos("failed")[0].error


def test_twins_share_what_becomes_of_them(worker: Worker, tmp_path: Path, monkeypatch) -> None:
    """Of a content that fails, no name is counted as in the store."""
    film = make_film(tmp_path / "a.mkv", 3, seed=1)
    (tmp_path / "b.mkv").write_bytes(film.read_bytes())
    (tmp_path / "c.mkv").write_bytes(film.read_bytes())
    (first,), (second,), (third,) = (worker.plan(source) for source in find([tmp_path]))
    assert isinstance(first, Planned)
    ledger = ledger_of(worker, 3)
    ledger.add(first)
    ledger.add(second)
    assert ledger.status.skipped == 1
    ledger.add(Failed(second.source, "FileNotFoundError: gone"))  # the content is in hand under its other name
    assert ledger.status.failed == 0
    ledger.add(Failed(first.source, "RuntimeError: broken"))
    ledger.add(third)
    assert (ledger.status.skipped, ledger.status.failed, ledger.status.left) == (0, 3, 0)
    ledger.flush()
    (video,) = ledger.store.videos()
    assert (video.status, video.error) == ("failed", "RuntimeError: broken")


def test_what_never_came_back_is_told(worker: Worker, film: Path) -> None:
    ledger = ledger_of(worker)
    ledger.add(*worker.plan(*find([film])))
    ledger.end()
    assert (ledger.status.failed, ledger.status.left) == (1, 0)
    assert "never came back" in ledger.status.failures[0][1]


def test_a_store_that_is_gone_is_no_fault_of_a_video(worker: Worker, film: Path) -> None:
    shutil.rmtree(worker.brief.store)
    with pytest.raises(FileNotFoundError, match="there is no store here"):
        list(worker.plan(*find([film])))


def test_any_error_is_of_one_video(worker: Worker, film: Path, monkeypatch) -> None:
    def breaks(path, **options):
        raise LookupError("no decoder")

    monkeypatch.setattr(pipeline, "read", breaks)
    (event,) = worker.plan(*find([film]))
    assert isinstance(event, Failed)
    assert event.reason == "LookupError: no decoder"


def test_a_length_that_cannot_be_is_not_cut_by(worker: Worker, film: Path) -> None:
    film_of = replace(read(film), duration_s=1e12)
    (source,) = find([film])
    (span,) = pipeline._spans(ORDER, source, "id", film_of, 1)
    assert (span.start_s, span.end_s) == (0.0, float("inf"))


def test_numbers_mean_the_same_however_they_are_written() -> None:
    assert str(replace(ORDER, fps=2).options()) == str(replace(ORDER, fps=2.0).options())
    exact = [replace(ORDER, ratio=None, coverage=each).options() for each in (1, 1.0)]
    assert str(exact[0]) == str(exact[1])


def test_what_is_in_the_store_is_skipped(worker: Worker, tmp_path: Path) -> None:
    film = make_film(tmp_path / "a.mkv", 3, seed=1)
    twin = tmp_path / "b.mkv"
    twin.write_bytes(film.read_bytes())
    sources = find([film, twin])
    ledger = ledger_of(worker, 2)
    for event in events_of(worker, sources[0]):
        ledger.add(event)
    ledger.flush()
    assert [*worker.plan(sources[1])] == [Skipped(sources[1])]  # by its content
    assert known(ledger.store.videos(), worker.brief, sources) == sources[:1]  # by its name
    other = replace(worker.brief, order=replace(ORDER, ratio="1/8"))
    assert known(ledger.store.videos(), other, sources) == []
    assert isinstance(pipeline.plan(other, sources[0]), Planned)


@given(shuffle=st.randoms(use_true_random=False), twice=st.booleans())
@settings(max_examples=20, deadline=None)
def test_events_may_come_in_any_order(scattered, shuffle: random.Random, twice: bool) -> None:
    worker, events = scattered
    ledger = ledger_of(worker, 2)
    # what was in the hands of a worker that died is done again
    mixed = [*events, *(event for event in events if twice and isinstance(event, Kept | Ended))]
    shuffle.shuffle(mixed)
    committed = []
    ledger.store.commit = lambda pieces, videos: committed.append((list(pieces), list(videos)))  # type: ignore[method-assign]
    for event in mixed:
        ledger.add(event)
    ledger.flush()
    videos = [video for _, some in committed for video in some]
    pieces = [piece for some, _ in committed for piece in some]
    assert sorted(video.status for video in videos) == ["done", "failed"]
    (done,) = (video for video in videos if video.status == "done")
    wanted = [event.piece.attempt for event in events if isinstance(event, Kept)]
    assert list(done.pieces) == wanted
    assert sorted(piece.attempt for piece in pieces) == sorted(wanted)
    assert (ledger.status.done, ledger.status.failed, ledger.status.left) == (1, 1, 0)


@pytest.fixture(scope="module")
def scattered(tmp_path_factory, film: Path):
    """A worker, and all that it tells of a film of five pieces and of one that is none."""
    folder = tmp_path_factory.mktemp("scattered")
    Store(folder / "store", create=True)
    worker = Worker(ORDER, str(folder / "store"))
    (folder / "none.mkv").write_bytes(b"no film")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "PIECE_LIMIT", 32)
        patch.setattr(pipeline, "SPAN_S", 64)
        good = events_of(worker, *find([film]))
        (bad,) = worker.plan(*find([folder / "none.mkv"]))
    assert isinstance(bad, Failed)
    return worker, [*good, bad]


def test_a_video_that_fails_in_the_middle(small_pieces, worker: Worker, film: Path, monkeypatch) -> None:
    """What came before is not shown, and what comes later is not asked for."""
    (source,) = find([film])
    encode, calls = type(worker.keeper.encoder).__call__, []

    def breaks(encoder, pixels):
        calls.append(len(pixels))
        if len(calls) == 4:
            raise RuntimeError("out of memory\nwith a long story")
        return encode(encoder, pixels)

    monkeypatch.setattr(type(worker.keeper.encoder), "__call__", breaks)
    ledger = ledger_of(worker)
    events = events_of(worker, source)
    assert [type(event) for event in events] == [Planned, Kept, Failed, Kept, Kept, Ended, Kept, Ended]
    for event in events:
        ledger.add(event)
    ledger.flush()
    (video,) = ledger.store.videos()
    assert (video.status, video.error) == ("failed", "RuntimeError: out of memory")
    assert (ledger.status.failed, ledger.status.done, ledger.status.left) == (1, 0, 0)


def test_a_cut_off_film_keeps_what_there_is_and_warns(worker: Worker, tmp_path: Path) -> None:
    whole = make_film(tmp_path / "whole.mkv", 40, seed=3).read_bytes()
    (tmp_path / "cut.mkv").write_bytes(whole[: len(whole) // 2])
    ledger = ledger_of(worker)
    for event in events_of(worker, *find([tmp_path / "cut.mkv"])):
        ledger.add(event)
    assert ledger.status.done == 1
    assert 10 < ledger.status.frames < 35
    assert "cut off" in ledger.status.warnings[0][1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ratio": None}, "ratio"),
        ({"ratio": "1/4", "coverage": 0.9}, "ratio"),
        ({"ratio": "2"}, "ratio"),
        ({"method": "flock"}, "did you mean 'floc'"),
        ({"encoder": "pixel"}, "did you mean 'pixels'"),
        ({"fps": 0}, "fps must be a number above 0"),
        ({"method_options": {"blok": 3}}, "blok"),
    ],
)
def test_orders_that_cannot_be_carried_out(options: dict, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        Order(**({"encoder": "pixels", "ratio": "1/4"} | options))


def test_layouts_are_those_of_the_encoders() -> None:
    layout, encoder = encoders.get_layout("pixels"), encoders.get("pixels")
    assert layout.frames_per_token == encoder.frames_per_token
    assert layout.frame_size(1920, 1080) == encoder.frame_size(1920, 1080)
    assert torch.as_tensor(encoder(np.zeros((1, *encoder.frame_size(64, 64)[::-1], 3), np.uint8))).ndim == 4
