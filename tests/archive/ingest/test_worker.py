"""A worker splits a video, writes its pieces, and resumes what was interrupted."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("lance", reason="Lance is not installed: pip install 'floc-video[store]'")
pytest.importorskip("av", reason="PyAV is not installed: pip install 'floc-video[video]'")

import floc
from floc import encoders
from floc.archive.ingest import worker as worker_module
from floc.archive.ingest.job import IngestOptions, PieceWritten, SpanFinished, VideoFailed, VideoPlan
from floc.archive.ingest.sources import find_videos
from floc.archive.ingest.worker import Worker, plan_video, split_spans
from floc.encoders.load import load_tokens
from floc.video import read
from tests.archive.films import make_film
from tests.archive.ingest.running import (
    OPTIONS,
    collect_events,
    ingest_files,
    make_ledger,
    make_plan,
    record_events,
)


def test_every_piece_equals_compress(small_pieces, worker: Worker, film: Path) -> None:
    ledger = record_events(worker, collect_events(worker, *find_videos([film])))
    (video,) = ledger.store.videos()
    tokens = load_tokens(film, encoder="pixels").tokens
    assert (video.frames, video.shape, len(video.pieces)) == (150, tokens.shape[:3], 5)
    opened = ledger.store.open(video.id)
    np.testing.assert_array_equal(opened.times_s, np.arange(150.0))
    cells = tokens.shape[1] * tokens.shape[2]
    start = 0
    for first in range(0, 150, 32):
        expected = floc.compress(tokens[first : first + 32], ratio="1/4", block=8)
        part = slice(start, start + len(expected))
        np.testing.assert_array_equal(opened.indices[part], np.asarray(expected.indices) + first * cells)
        np.testing.assert_array_equal(opened.features[part], np.asarray(expected.features))
        start += len(expected)
    assert start == len(opened) == video.kept
    assert ledger.store.check() == []


def test_pieces_do_not_depend_on_spans(small_pieces, worker: Worker, film: Path, monkeypatch) -> None:
    """One span for the whole video, or one span per piece: the same tokens."""
    runs = []
    for span_s in (32, 1000):
        monkeypatch.setattr(worker_module, "SPAN_S", span_s)
        events = collect_events(worker, *find_videos([film]))
        pieces = [event.piece for event in events if isinstance(event, PieceWritten)]
        runs.append([(piece.piece, piece.kept, piece.start_s) for piece in pieces])
    assert runs[0] == runs[1]
    assert len(runs[0]) == 5


def test_pieces_with_a_horizon_are_nearly_as_good_as_the_whole(small_pieces, worker: Worker, film: Path) -> None:
    options = IngestOptions("pixels", ratio="1/4", method_options={"horizon": 1, "detail": 1})
    worker = Worker(options, worker.job.store)
    ledger = record_events(worker, collect_events(worker, *find_videos([film])))
    (video,) = ledger.store.videos()
    tokens = load_tokens(film, encoder="pixels").tokens
    whole = floc.compress(tokens, ratio="1/4", horizon=1, detail=1)
    flat = torch.nn.functional.normalize(torch.as_tensor(tokens).float().flatten(0, 2), dim=1)
    frame = torch.arange(len(flat)) // (tokens.shape[1] * tokens.shape[2])

    def measure_objective(indices: torch.Tensor) -> float:
        is_far = (frame[:, None] - frame[indices]).abs() > 1
        return float((flat @ flat[indices].T).masked_fill(is_far, 0).amax(1).clamp(min=0).sum())

    opened = ledger.store.open(video.id)
    assert measure_objective(opened.indices) > 0.99 * measure_objective(torch.as_tensor(whole.indices))


@pytest.mark.parametrize("fps", [0.3, 0.7, 1.1, 1.3, 10.0])
def test_every_frame_of_every_span_is_ingested(small_pieces, worker: Worker, film: Path, fps: float) -> None:
    """Also at rates that have no exact float, and if the video has fewer frames than the rate asks for."""
    worker = Worker(replace(OPTIONS, fps=fps), worker.job.store)
    ledger = record_events(worker, collect_events(worker, *find_videos([film])))
    assert ledger.store.check() == []
    times_s = np.concatenate([batch.times_s for batch in read(film, fps=fps, max_frames=None)])
    opened = ledger.store.open("long.mkv")
    assert opened.times_s is not None
    np.testing.assert_array_equal(opened.times_s, times_s)
    part = ledger.store.open("long.mkv", start_s=100, end_s=120)
    np.testing.assert_array_equal(part.features, opened.features[_mask_range(opened, part)])


def _mask_range(whole: floc.Captured, part: floc.Captured) -> np.ndarray:
    """Return which tokens of a video are in the time range of a part."""
    assert whole.times_s is not None
    assert part.times_s is not None
    times = whole.times_s[whole.indices.numpy() // (whole.shape[1] * whole.shape[2])]
    return (times >= part.times_s[0]) & (times <= part.times_s[-1])


def test_existing_pieces_are_not_written_again(small_pieces, worker: Worker, film: Path) -> None:
    """The ingest is killed after three of five pieces."""
    (file,) = find_videos([film])
    # the plan, two pieces, the end of their span, one more piece
    first = record_events(worker, collect_events(worker, file)[:5])
    assert first.store.videos() == []
    plan = make_plan(worker, file)
    assert sorted(plan.pieces) == [0, 1]  # the last existing piece is written again
    events = [event for span in plan.spans for event in worker.write_span(span, {0, 1})]
    assert [event.piece.piece for event in events if isinstance(event, PieceWritten)] == [2, 3, 4]
    second = record_events(worker, [plan, *events])
    assert (second.status.done, len(second.store.videos()), second.store.check()) == (1, 1, [])
    assert second.store.open("long.mkv").shape[0] == 150


def test_video_with_all_pieces_committed_is_completed(worker: Worker, tmp_path: Path) -> None:
    """Killed between the commit of the pieces and that of the video; the row still says how the video was made."""
    (file,) = find_videos([make_film(tmp_path / "a.mkv", 12, seed=1)])
    ledger = make_ledger(worker)
    for event in collect_events(worker, file):
        ledger.add(event)
    ledger.store.commit(ledger._pieces)
    assert ledger.store.videos() == []
    (video,) = ingest_files(worker, file).store.videos()
    assert (video.status, video.made["method"]) == ("done", "floc")
    assert {"encode", "select", "write"} <= video.seconds.keys()


def test_video_changed_while_it_is_read_fails(small_pieces, worker: Worker, tmp_path: Path) -> None:
    """Nothing of the new content is stored under the hash of the old."""
    film = make_film(tmp_path / "a.mkv", 150, seed=5)
    plan = make_plan(worker, *find_videos([film]))
    ledger = make_ledger(worker)
    ledger.add(plan)
    for span in plan.spans:
        for event in worker.write_span(span, set()):
            ledger.add(event)
        make_film(film, 150, seed=6)
    ledger.flush()
    (video,) = ledger.store.videos()
    assert video.status == "failed"
    assert "changed while it was read" in video.error
    assert sorted(ledger.store.pieces(plan.video)) == [0, 1]  # of the first span
    assert ingest_files(worker, *find_videos([film])).status.done == 1
    assert [entry.status for entry in ledger.store.videos()] == ["done"]  # the failure is no longer listed


def test_change_while_existing_pieces_are_skipped_fails_the_video_only(worker: Worker, tmp_path: Path) -> None:
    film = make_film(tmp_path / "a.mkv", 12, seed=1)
    plan = make_plan(worker, *find_videos([film]))
    make_film(film, 12, seed=2)
    (event,) = worker.write_span(plan.spans[0], {0})
    assert isinstance(event, VideoFailed)
    assert "changed while it was read" in event.reason


def test_missing_store_raises(worker: Worker, film: Path) -> None:
    """It is not recorded as a failure of the video."""
    shutil.rmtree(worker.job.store)
    with pytest.raises(FileNotFoundError, match="no store here"):
        plan_video(worker.job, *find_videos([film]))


def test_any_other_error_fails_one_video(worker: Worker, film: Path, monkeypatch) -> None:
    def fail(path, layout, **options):
        raise LookupError("no decoder")

    monkeypatch.setattr(worker_module, "open_video", fail)
    event = plan_video(worker.job, *find_videos([film]))
    assert isinstance(event, VideoFailed)
    assert event.reason == "LookupError: no decoder"


def test_impossible_duration_gives_one_span(film: Path) -> None:
    (file,) = find_videos([film])
    (span,) = split_spans(file, "id", replace(read(film), planned=10**12), 1)
    assert (span.first, span.stop) == (0, None)


def test_video_that_fails_in_the_middle(small_pieces, worker: Worker, film: Path, monkeypatch) -> None:
    """Its earlier pieces are not visible, and its later spans are not needed."""
    encode, calls = type(worker.encoder).__call__, []

    def fail_at_the_fourth_call(encoder, pixels):
        calls.append(len(pixels))
        if len(calls) == 4:
            raise RuntimeError("out of memory\nwith a long traceback")
        return encode(encoder, pixels)

    monkeypatch.setattr(type(worker.encoder), "__call__", fail_at_the_fourth_call)
    events = collect_events(worker, *find_videos([film]))
    assert [type(event) for event in events] == [
        *(VideoPlan, PieceWritten, VideoFailed),
        *(PieceWritten, PieceWritten, SpanFinished, PieceWritten, SpanFinished),
    ]
    ledger = record_events(worker, events)
    (video,) = ledger.store.videos()
    assert (video.status, video.error) == ("failed", "RuntimeError: out of memory")
    assert (ledger.status.failed, ledger.status.done, ledger.status.left) == (1, 0, 0)


def test_truncated_video_is_ingested_with_a_warning(worker: Worker, tmp_path: Path) -> None:
    data = make_film(tmp_path / "whole.mkv", 40, seed=3).read_bytes()
    (tmp_path / "cut.mkv").write_bytes(data[: len(data) // 2])
    ledger = record_events(worker, collect_events(worker, *find_videos([tmp_path / "cut.mkv"])))
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
def test_rejects_invalid_options(options: dict, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        IngestOptions(**({"encoder": "pixels", "ratio": "1/4"} | options))


def test_equal_numbers_give_equal_options() -> None:
    assert str(replace(OPTIONS, fps=2).as_dict()) == str(replace(OPTIONS, fps=2.0).as_dict())
    first, second = (replace(OPTIONS, ratio=None, coverage=coverage).as_dict() for coverage in (1, 1.0))
    assert str(first) == str(second)


def test_layout_equals_that_of_the_encoder() -> None:
    layout, encoder = encoders.get_layout("pixels"), encoders.get("pixels")
    assert layout.frames_per_token == encoder.frames_per_token
    assert layout.frame_size(1920, 1080) == encoder.frame_size(1920, 1080)
    assert torch.as_tensor(encoder(np.zeros((1, *encoder.frame_size(64, 64)[::-1], 3), np.uint8))).ndim == 4
