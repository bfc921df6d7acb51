"""Maintenance: damage is found and never returned, unused data is dropped, and the rest stays."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lance", reason="Lance is not installed: pip install 'floc-video[store]'")

from floc import Store
from floc.archive import StoredVideo
from tests.archive.builders import add_video, make_piece, make_pieces, make_video


def delete_rows(store: Store, where: str) -> None:
    """Delete rows behind the store's back."""
    store._tables.token_rows.latest().delete(where)


def change_row(store: Store, values: dict[str, str]) -> None:
    """Change a row behind the store's back."""
    store._tables.token_rows.latest().update(values, where="piece = 1 AND row = 1")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda store: delete_rows(store, "piece = 1"), "piece 1: all of its rows are missing"),
        (lambda store: delete_rows(store, "piece = 1 AND row = 0"), "rows are missing"),
        (lambda store: delete_rows(store, "piece = 1 AND row = 1"), "rows are missing"),
        (lambda store: delete_rows(store, "piece = 1 AND row = 2"), "rows are missing"),
        (lambda store: change_row(store, {"gains": "[0.5]"}), "was changed"),
        (lambda store: change_row(store, {"start_s": "31.5"}), "was changed"),
        (lambda store: change_row(store, {"features": "X'00'"}), "was changed"),
    ],
)
@pytest.mark.parametrize("compacted", [False, True])
def test_check_finds_damage_and_open_rejects_it(
    store: Store, damage: Callable[[Store], None], message: str, compacted: bool
) -> None:
    other = add_video(store, make_pieces(1), uri="/films/other.mp4")
    video = add_video(store, make_pieces())
    if compacted:
        store.compact()
    assert store.check() == []
    damage(store)
    problems = store.check()
    assert problems
    assert {problem.video for problem in problems} == {video.id}
    assert any(message in str(problem) for problem in problems), problems
    assert "remove the video and ingest it again" in str(problems[0])
    with pytest.raises(ValueError, match=r"segments\.lance"):
        store.open(video.id)
    with pytest.raises(ValueError, match=r"segments\.lance"):
        store.open(video.id, start_s=20, end_s=55)
    assert len(store.open(other.id)) == other.kept
    store.remove(video.id)
    assert store.check() == []


def test_check_finds_a_changed_video_row(store: Store) -> None:
    video = add_video(store, make_pieces())
    store._tables.videos.latest().update({"kept": "3"})
    assert [problem.video for problem in store.check()] == [video.id]
    with pytest.raises(ValueError, match=r"videos\.lance.*was changed after it was written.*floc store check"):
        store.open(video.id)
    with pytest.raises(ValueError, match=r"was changed after it was written"):
        store.compact()  # which pieces are needed is not known
    store.remove(video.id)
    assert store.videos() == store.check() == []


def test_check_finds_a_wrong_token_count(store: Store) -> None:
    pieces = make_pieces()
    written = [store.write_piece(make_video(pieces, ()).id, number, piece) for number, piece in enumerate(pieces)]
    store.commit(written, [replace(make_video(pieces, written), kept=5)])
    assert "should have 75 slices and 5 tokens, but its rows have 75 and 111" in str(store.check()[0])


READ_ALL = """
import sys
from floc import Store
expected = eval(sys.argv[1])
for path in sys.argv[2:]:
    print(path)
    try:
        store = Store(path)
        for video in store.videos("done"):
            for time_range in ({}, dict(start_s=10, end_s=30)):
                opened = store.open(video.id, **time_range)
                assert opened.features.double().sum().item() in expected[video.id], "wrong tokens"
    except (ValueError, FileNotFoundError) as error:
        assert path in str(error), error
    try:
        Store(path).check()
    except (ValueError, FileNotFoundError) as error:
        assert path in str(error), error
"""


def corrupt_file(file: Path, rng: random.Random) -> None:
    """Truncate a file or flip bits in it."""
    data = bytearray(file.read_bytes())
    if rng.random() < 0.4:
        file.write_bytes(data[: rng.randrange(len(data))])
        return
    for _ in range(rng.choice([1, 1, 20])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 40))])
def test_corrupt_files_never_give_wrong_tokens(store: Store, tmp_path: Path, seed: int) -> None:
    expected = {}
    time_ranges: tuple[dict[str, Any], ...] = ({}, dict(start_s=10, end_s=30))
    for number in range(2):
        video = add_video(store, make_pieces(2), uri=f"/films/{number}.mp4")
        expected[video.id] = [store.open(video.id, **each).features.double().sum().item() for each in time_ranges]
    if seed % 2:
        store.compact(older_than_s=0)
    rng = random.Random(seed)
    files = sorted(file for file in Path(store.path).rglob("*") if file.is_file() and file.stat().st_size)
    copies = [tmp_path / f"copy{number}" for number in range(8)]
    for copy in copies:
        shutil.copytree(store.path, copy)
        corrupt_file(copy / rng.choice(files).relative_to(store.path), rng)
    command = [sys.executable, "-c", READ_ALL, repr(expected), *map(str, copies)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr}"


def test_compact_drops_unused_data(store: Store) -> None:
    pieces = make_pieces()
    video = make_video(pieces, ())
    attempts = [[store.write_piece(video.id, n, piece) for n, piece in enumerate(pieces)] for _ in range(2)]
    early, late = (replace(make_video(pieces, written), written_s=100.0 + n) for n, written in enumerate(attempts))
    store.commit(attempts[1], [late])
    store.commit(attempts[0], [early, replace(early, status="failed", pieces=(), error="no", written_s=300.0)])
    store.commit([store.write_piece("orphan", 0, make_piece())])
    Store(store.path).write_piece("never committed", 0, make_piece())
    before = store.open(video.id).features
    assert store.videos()[0].pieces == early.pieces
    first = store.compact(older_than_s=3600)
    assert (first.videos, first.rows) == (2, 0)  # recent pieces may belong to an ingest that is still running
    assert store.pieces("orphan")
    second = store.compact(older_than_s=0)
    assert (second.videos, second.rows) == (0, 9 + 3)
    assert second.bytes > 0
    assert not store.pieces("orphan")
    assert store._tables.token_rows.latest().count_rows() == 9
    assert store._tables.videos.latest().count_rows() == 1
    data = list((Path(store.path) / "segments.lance" / "data").rglob("*.lance"))
    assert len(data) == 1
    assert store.open(video.id).features.equal(before)
    assert store.check() == []
    third = store.compact(older_than_s=0)
    assert (third.videos, third.rows) == (0, 0)


def test_compact_creates_indices_that_are_used(store: Store) -> None:
    for number in range(3):
        add_video(store, make_pieces(1), uri=f"/films/{number}.mp4")
    store.compact()
    add_video(store, make_pieces(1), uri="/films/later.mp4")
    store.compact()
    plan = store._tables.token_rows.latest().scanner(filter="attempt = 'x'").explain_plan()
    assert "ScalarIndexQuery" in plan
    assert len(store.videos()) == 4
    assert all(len(store.open(video.id)) == video.kept for video in store.videos())


@pytest.mark.parametrize("older_than_s", [-1, float("nan"), float("inf"), 1e300])
def test_compact_rejects_invalid_age(store: Store, older_than_s: float) -> None:
    with pytest.raises(ValueError, match="older_than_s must be a number of seconds"):
        store.compact(older_than_s)


def test_removed_video_can_be_added_again(store: Store) -> None:
    video, other = add_video(store, make_pieces()), add_video(store, make_pieces(1), uri="/films/other.mp4")
    assert store.remove("talk.mp4") == video
    assert [entry.id for entry in store.videos()] == [other.id]
    assert store.pieces(video.id) == {}
    with pytest.raises(ValueError, match=r"no video 'talk.mp4'"):
        store.open("talk.mp4")
    add_video(store, make_pieces())
    assert len(store.open("talk.mp4")) == video.kept


def add_failed_video(store: Store, uri: str, written_s: float, error: str = "not a video") -> StoredVideo:
    video = replace(make_video(make_pieces(1), (), uri, uri), status="failed", error=error, written_s=written_s)
    store.commit([], [video])
    return video


def test_done_precedes_failed_and_the_newest_failure_is_listed(store: Store) -> None:
    add_failed_video(store, "/films/bad.mp4", written_s=2.0, error="new")
    add_failed_video(store, "/films/bad.mp4", written_s=1.0)
    assert [(video.status, video.error) for video in store.videos()] == [("failed", "new")]
    add_failed_video(store, "/films/talk.mp4", written_s=9e9)
    video = add_video(store, make_pieces())
    add_failed_video(store, "/films/talk.mp4", written_s=9e9)
    assert store.videos("done") == [video]
    assert [entry.error for entry in store.videos("failed")] == ["new"]
    with pytest.raises(ValueError, match=r"failed to ingest: new; ingest it again"):
        store.open("bad.mp4")
