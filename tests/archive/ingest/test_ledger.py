"""The ledger records events in any order, and counts every file once."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("lance", reason="Lance is not installed: pip install 'floc-video[store]'")
pytest.importorskip("av", reason="PyAV is not installed: pip install 'floc-video[video]'")

from floc.archive import Store
from floc.archive.ingest import worker as worker_module
from floc.archive.ingest.ingest import find_ingested
from floc.archive.ingest.job import PieceWritten, SpanFinished, VideoFailed, VideoFile, VideoPlan, VideoSkipped
from floc.archive.ingest.sources import find_videos
from floc.archive.ingest.worker import Worker, plan_video, report_failure
from tests.archive.films import make_film
from tests.archive.ingest.running import (
    OPTIONS,
    collect_events,
    ingest_files,
    make_ledger,
    make_plan,
    record_events,
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, film: Path):
    """A worker, and its events for a video of five pieces and for a file that is not a video."""
    folder = tmp_path_factory.mktemp("recorded")
    Store(folder / "store", create=True)
    worker = Worker(OPTIONS, str(folder / "store"))
    (folder / "none.mkv").write_bytes(b"not a video")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_module, "PIECE_LIMIT", 32)
        patch.setattr(worker_module, "SPAN_S", 64)
        events = collect_events(worker, *find_videos([film]))
        failure = plan_video(worker.job, *find_videos([folder / "none.mkv"]))
    assert isinstance(failure, VideoFailed)
    return worker, [*events, failure]


@given(shuffle=st.randoms(use_true_random=False), twice=st.booleans())
@settings(max_examples=20, deadline=None)
def test_events_may_arrive_in_any_order(recorded, shuffle: random.Random, twice: bool) -> None:
    worker, events = recorded
    ledger = make_ledger(worker, 2)
    # the task of a worker that died is repeated
    mixed = [*events, *(event for event in events if twice and isinstance(event, PieceWritten | SpanFinished))]
    shuffle.shuffle(mixed)
    commits = []
    ledger.store.commit = lambda pieces, videos: commits.append((list(pieces), list(videos)))  # type: ignore[method-assign]
    for event in mixed:
        ledger.add(event)
    ledger.flush()
    videos = [video for _, committed in commits for video in committed]
    pieces = [piece for committed, _ in commits for piece in committed]
    assert sorted(video.status for video in videos) == ["done", "failed"]
    (done,) = (video for video in videos if video.status == "done")
    attempts = [event.piece.attempt for event in events if isinstance(event, PieceWritten)]
    assert list(done.pieces) == attempts
    assert sorted(piece.attempt for piece in pieces) == sorted(attempts)
    assert (ledger.status.done, ledger.status.failed, ledger.status.left) == (1, 1, 0)


def test_video_in_the_store_is_skipped(worker: Worker, tmp_path: Path) -> None:
    film = make_film(tmp_path / "a.mkv", 3, seed=1)
    copy = tmp_path / "b.mkv"
    copy.write_bytes(film.read_bytes())
    files = find_videos([film, copy])
    ledger = record_events(worker, collect_events(worker, files[0]), 2)
    assert plan_video(worker.job, files[1]) == VideoSkipped(files[1])  # by its content
    assert find_ingested(ledger.store.videos(), worker.job, files) == files[:1]  # by its name
    other = replace(worker.job, options=replace(OPTIONS, ratio="1/8"))
    assert find_ingested(ledger.store.videos(), other, files) == []
    assert isinstance(plan_video(other, files[0]), VideoPlan)


def test_file_changed_since_it_was_found_is_ingested_as_it_is(worker: Worker, tmp_path: Path) -> None:
    (file,) = find_videos([make_film(tmp_path / "a.mkv", 3, seed=1)])
    make_film(tmp_path / "a.mkv", 5, seed=2)
    ledger = ingest_files(worker, file)
    (video,) = ledger.store.videos()
    (now,) = find_videos([tmp_path / "a.mkv"])
    assert (video.status, video.frames, video.size) == ("done", 5, now.size)
    assert find_ingested([video], worker.job, [file, now]) == [now]


def test_file_name_need_not_be_text(worker: Worker, tmp_path: Path) -> None:
    """Old archives have names in Latin-1."""
    film = make_film(tmp_path / "a.mkv", 3, seed=1)
    (tmp_path / "films").mkdir()
    os.rename(film, os.fsencode(tmp_path / "films") + b"/caf\xe9.mkv")
    (tmp_path / "films" / os.fsdecode(b"\xe9.mkv")).write_bytes(b"not a video")
    files = find_videos([tmp_path / "films"])
    ledger = ingest_files(worker, *files)
    assert (ledger.status.done, ledger.status.failed) == (1, 1)
    (done,) = ledger.store.videos("done")
    assert done.uri.endswith("caf\\udce9.mkv")
    assert len(find_ingested([done], worker.job, files)) == 1
    assert r"\udce9.mkv" in ledger.store.videos("failed")[0].error


def test_files_with_the_same_content_share_their_outcome(worker: Worker, tmp_path: Path) -> None:
    """If the content fails, none of its files counts as skipped."""
    film = make_film(tmp_path / "a.mkv", 3, seed=1)
    (tmp_path / "b.mkv").write_bytes(film.read_bytes())
    (tmp_path / "c.mkv").write_bytes(film.read_bytes())
    first, second, third = (make_plan(worker, file) for file in find_videos([tmp_path]))
    ledger = make_ledger(worker, 3)
    ledger.add(first)
    ledger.add(second)
    assert ledger.status.skipped == 1
    # the content is being ingested from the other file
    ledger.add(VideoFailed(second.file, "FileNotFoundError: gone"))
    assert ledger.status.failed == 0
    ledger.add(VideoFailed(first.file, "RuntimeError: broken"))
    ledger.add(third)
    assert (ledger.status.skipped, ledger.status.failed, ledger.status.left) == (0, 3, 0)
    ledger.flush()
    (video,) = ledger.store.videos()
    assert (video.status, video.error) == ("failed", "RuntimeError: broken")


def test_incomplete_video_fails_at_the_end(worker: Worker, film: Path) -> None:
    ledger = make_ledger(worker)
    ledger.add(make_plan(worker, *find_videos([film])))
    ledger.finish()
    assert (ledger.status.failed, ledger.status.left) == (1, 0)
    assert "some pieces are missing" in ledger.status.failures[0][1]


def test_video_that_cannot_be_stored_fails_alone(worker: Worker, tmp_path: Path) -> None:
    make_film(tmp_path / "good.mkv", 3, seed=0)
    make_film(tmp_path / "bad.mkv", 3, seed=1)
    good, bad = (collect_events(worker, *find_videos([tmp_path / name])) for name in ("good.mkv", "bad.mkv"))
    assert isinstance(bad[0], VideoPlan)
    ledger = record_events(worker, [replace(bad[0], duration_s=1e300), *bad[1:], *good], 2)
    assert (ledger.status.done, ledger.status.failed) == (1, 1)
    assert "duration_s must be a number" in ledger.status.failures[0][1]
    assert sorted(video.status for video in ledger.store.videos()) == ["done", "failed"]


def test_secrets_and_odd_names_are_not_stored(worker: Worker) -> None:
    names = ["s3://KEY:SECRET@bucket/a.mp4", "/films/caf\udce9.mp4", "/films/" + "\udce9" * 4000]
    failures = [VideoFailed(VideoFile(name, 1, 0.0), f"OSError: {name[:99]}") for name in names]
    failures[0] = report_failure(failures[0].file, OSError(f"cannot open '{names[0]}'"))
    ledger = record_events(worker, failures, 3)
    stored = ledger.store.videos("failed")
    assert {"s3://bucket/a.mp4", r"/films/caf\udce9.mp4"} <= {video.uri for video in stored}
    assert len(stored) == 3
    for text in (str(stored), str(ledger.status.summary())):
        assert "SECRET" not in text
        text.encode()
