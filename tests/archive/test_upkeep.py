"""A store is looked after: what is damaged is found and told, what nobody needs goes, and the rest stays."""

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

pytest.importorskip("lance", reason="a store needs pip install 'floc-video[store]'")

from floc import Store
from floc.archive import StoreError, Video
from tests.archive.making import film, piece, put, row


def lost(store: Store, where: str) -> None:
    """Rows that are gone, as after a disk's fault."""
    store._held.segments.latest().delete(where)


def changed(store: Store, values: dict[str, str]) -> None:
    """Values that are others than were written."""
    store._held.segments.latest().update(values, where="piece = 1 AND row = 1")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda store: lost(store, "piece = 1"), "piece 1: none of its rows are there"),
        (lambda store: lost(store, "piece = 1 AND row = 0"), "rows are missing"),
        (lambda store: lost(store, "piece = 1 AND row = 1"), "rows are missing"),
        (lambda store: lost(store, "piece = 1 AND row = 2"), "rows are missing"),
        (lambda store: changed(store, {"gains": "[0.5]"}), "was changed"),
        (lambda store: changed(store, {"start_s": "31.5"}), "was changed"),
        (lambda store: changed(store, {"features": "X'00'"}), "was changed"),
    ],
)
@pytest.mark.parametrize("compacted", [False, True])
def test_damage_is_found_and_not_handed_out(
    store: Store, damage: Callable[[Store], None], said: str, compacted: bool
) -> None:
    other = put(store, film(1), uri="/films/other.mp4")
    video = put(store, film())
    if compacted:
        store.compact()
    assert store.check() == []
    damage(store)
    faults = store.check()
    assert faults
    assert {fault.video for fault in faults} == {video.id}
    assert any(said in str(fault) for fault in faults), faults
    assert "remove the video and ingest it again" in str(faults[0])
    with pytest.raises(ValueError, match=r"segments\.lance"):
        store.open(video.id)
    with pytest.raises(ValueError, match=r"segments\.lance"):
        store.open(video.id, start_s=20, end_s=55)
    assert len(store.open(other.id)) == other.kept
    store.remove(video.id)
    assert store.check() == []


def test_a_changed_row_of_videos_is_found(store: Store) -> None:
    video = put(store, film())
    store._held.videos.latest().update({"kept": "3"})
    assert [fault.video for fault in store.check()] == [video.id]
    with pytest.raises(ValueError, match=r"videos\.lance.*was changed after it was written"):
        store.videos()


def test_a_count_that_does_not_fit_is_found(store: Store) -> None:
    parts = film()
    written = [store.write_piece(row(parts, ()).id, number, part) for number, part in enumerate(parts)]
    store.commit(written, [replace(row(parts, written), kept=5)])
    assert "should have 5 tokens, its rows have 111" in str(store.check()[0])


READS = """
import sys
from floc import Store
expected = eval(sys.argv[1])
for path in sys.argv[2:]:
    print(path)
    try:
        store = Store(path)
        for video in store.videos("done"):
            for stretch in ({}, dict(start_s=10, end_s=30)):
                found = store.open(video.id, **stretch)
                assert found.features.double().sum().item() in expected[video.id], "wrong tokens"
    except (ValueError, FileNotFoundError) as error:
        assert path in str(error), error
    try:
        faults = Store(path).check()
    except (ValueError, FileNotFoundError) as error:
        assert path in str(error), error
"""


def mutated(file: Path, rng: random.Random) -> None:
    data = bytearray(file.read_bytes())
    if rng.random() < 0.4:
        file.write_bytes(data[: rng.randrange(len(data))])
        return
    for _ in range(rng.choice([1, 1, 20])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 40))])
def test_changed_files_are_told_and_never_read_wrong(store: Store, tmp_path: Path, seed: int) -> None:
    expected = {}
    stretches: tuple[dict[str, Any], ...] = ({}, dict(start_s=10, end_s=30))
    for each in range(2):
        video = put(store, film(2), uri=f"/films/{each}.mp4")
        expected[video.id] = [store.open(video.id, **given).features.double().sum().item() for given in stretches]
    if seed % 2:
        store.compact(older_than_s=0)
    rng = random.Random(seed)
    files = sorted(file for file in Path(store.path).rglob("*") if file.is_file() and file.stat().st_size)
    copies = [tmp_path / f"copy{number}" for number in range(8)]
    for copy in copies:
        shutil.copytree(store.path, copy)
        mutated(copy / rng.choice(files).relative_to(store.path), rng)
    command = [sys.executable, "-c", READS, repr(expected), *map(str, copies)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr}"


def test_compact_drops_what_nobody_needs(store: Store) -> None:
    parts = film()
    video = row(parts, ())
    attempts = [[store.write_piece(video.id, n, part) for n, part in enumerate(parts)] for _ in range(2)]
    early, late = (replace(row(parts, written), written_s=100.0 + n) for n, written in enumerate(attempts))
    store.commit(attempts[1], [late])
    store.commit(attempts[0], [early, replace(early, status="failed", pieces=(), error="no", written_s=300.0)])
    store.commit([store.write_piece("orphan", 0, piece())])
    store.write_piece("never committed", 0, piece())
    before = store.open(video.id).features
    assert store.videos()[0].pieces == early.pieces
    kept = store.compact(older_than_s=3600)
    assert (kept.videos, kept.rows) == (2, 0)  # what is young may be someone's who is still at it
    assert store.pieces("orphan")
    dropped = store.compact(older_than_s=0)
    assert (dropped.videos, dropped.rows) == (0, 9 + 3)
    assert dropped.bytes > 0
    assert not store.pieces("orphan")
    assert store._held.segments.latest().count_rows() == 9
    assert store._held.videos.latest().count_rows() == 1
    data = list((Path(store.path) / "segments.lance" / "data").rglob("*.lance"))
    assert len(data) == 1
    assert store.open(video.id).features.equal(before)
    assert store.check() == []
    again = store.compact(older_than_s=0)
    assert (again.videos, again.rows) == (0, 0)


def test_compact_makes_indices_that_are_used(store: Store) -> None:
    for each in range(3):
        put(store, film(1), uri=f"/films/{each}.mp4")
    store.compact()
    put(store, film(1), uri="/films/later.mp4")
    store.compact()
    plan = store._held.segments.latest().scanner(filter="attempt = 'x'").explain_plan()
    assert "ScalarIndexQuery" in plan
    assert len(store.videos()) == 4
    assert all(len(store.open(video.id)) == video.kept for video in store.videos())


@pytest.mark.parametrize("older_than_s", [-1, float("nan")])
def test_compact_refuses_what_is_no_time(store: Store, older_than_s: float) -> None:
    with pytest.raises(ValueError, match="older_than_s must be a number of seconds"):
        store.compact(older_than_s)


def test_a_removed_video_is_gone_and_can_come_again(store: Store) -> None:
    video, other = put(store, film()), put(store, film(1), uri="/films/other.mp4")
    assert store.remove("talk.mp4") == video
    assert [each.id for each in store.videos()] == [other.id]
    assert store.pieces(video.id) == {}
    with pytest.raises(ValueError, match=r"no video 'talk.mp4'"):
        store.open("talk.mp4")
    put(store, film())
    assert len(store.open("talk.mp4")) == video.kept


def failed(store: Store, uri: str, written_s: float, error: str = "not a video") -> Video:
    video = replace(row(film(1), (), uri, uri), status="failed", error=error, written_s=written_s)
    store.commit([], [video])
    return video


def test_a_done_video_beats_failed_ones_and_of_those_the_newest_is_told(store: Store) -> None:
    failed(store, "/films/bad.mp4", written_s=2.0, error="new")
    failed(store, "/films/bad.mp4", written_s=1.0)
    assert [(each.status, each.error) for each in store.videos()] == [("failed", "new")]
    failed(store, "/films/talk.mp4", written_s=9e9)
    video = put(store, film())
    failed(store, "/films/talk.mp4", written_s=9e9)
    assert store.videos("done") == [video]
    assert [each.error for each in store.videos("failed")] == ["new"]
    with pytest.raises(ValueError, match=r"could not be taken in: new; ingest it again"):
        store.open("bad.mp4")


def test_a_video_is_found_by_any_of_its_names(store: Store) -> None:
    videos = [put(store, film(1), uri=uri) for uri in ("/films/talk.mp4", "/films/walk.mp4", "/other/walk.mp4", "it's")]
    for video in videos:
        assert store.find(video.id) == store.find(video.uri) == video
    assert store.find("talk.mp4") == store.find(videos[0].id[:10]) == videos[0]
    with pytest.raises(ValueError, match=r"'walk.mp4' is 2 videos; give the id of one: .*/films/walk.*/other/walk"):
        store.find("walk.mp4")
    with pytest.raises(ValueError, match=rf"did you mean {videos[0].id} \(/films/talk.mp4\)"):
        store.find("tlak.mp4")
    with pytest.raises(ValueError, match="there are 4"):
        store.find("zzzzzzzzzzzz")
    with pytest.raises(ValueError, match="no video ''"):
        store.find("")


def test_rows_of_videos_come_back_as_they_were(store: Store) -> None:
    video = put(store, film())
    assert video.model == row(film(), ()).model
    assert store.videos() == [video]
    assert (video.starts_s, len(video.fragments)) == ((0.0, 25.0, 50.0), 3)
    with pytest.raises(ValueError, match="must have pieces"):
        store.commit([], [replace(video, pieces=())])


def test_what_is_no_store_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no store here; make one by .floc ingest."):
        Store(tmp_path / "none")
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileNotFoundError, match="there is no store here"):
        Store(tmp_path / "file")
    with pytest.raises(StoreError, match="cannot be written to"):
        Store(tmp_path / "file", create=True)


def test_a_store_of_another_format_is_told(store: Store) -> None:
    store._held.videos.latest().update_schema_metadata({"floc.format": "7"})
    with pytest.raises(ValueError, match="format 7, this version of floc reads 1"):
        Store(store.path)


def test_a_store_may_be_a_uri(tmp_path: Path) -> None:
    uri = f"file-object-store://{tmp_path}/bucket"
    with pytest.raises(FileNotFoundError, match="there is no store here"):
        Store(uri)
    video = put(Store(uri, create=True), film())
    store = Store(f"{uri}/")
    assert len(store.open(video.id, start_s=10, end_s=60)) < len(store.open(video.id)) == video.kept
    token = store.open(video.id).features[0]
    found = store.search(token, 1)
    store.index()
    assert store.search(token, 1) == found
    store.compact(older_than_s=0)
    assert store.check() == []
    assert store.search(token, 1) == found
    store.remove(video.id)
    assert store.videos() == []
