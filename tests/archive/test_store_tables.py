"""Rows of a store from a stranger: the hashes match, but the values are invalid. Other videos stay usable."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import lance
import pyarrow as pa
import pytest

pytest.importorskip("lance", reason="Lance is not installed: pip install 'floc-video[store]'")

from floc import Store
from floc.archive.lance_tables import LanceTable
from floc.archive.schema import DamagedStoreError, StoredVideo, hash_json, hash_token_row
from floc.archive.store_tables import resolve_duplicates
from tests.archive.builders import add_video, make_pieces, make_video

NESTED = "[" * 100_000


def change_rows(table: LanceTable, where: dict[str, Any], change: dict[str, Any]) -> None:
    """Change a row and its hash, as a stranger can."""
    data = table.latest().to_table()
    rows = data.to_pylist()
    for row in rows:
        if where.items() <= row.items():
            row |= change
            values = {name: value for name, value in row.items() if name != "sha256"}
            row["sha256"] = hash_token_row(row) if "features" in row else hash_json(values)
    lance.write_dataset(pa.Table.from_pylist(rows, schema=data.schema), table.uri, mode="overwrite")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"duration_s": float("inf")}, "duration_s must be a number from 0"),
        ({"fps": 1e-320}, "fps must be a number from 1e-09"),
        ({"coverage": float("nan")}, "coverage must be a number"),
        ({"kept": 10**9}, "kept must be a whole number from 1 to 450"),
        ({"shape": [75, 2]}, "shape must be a list of 3 values"),
        ({"shape": [1 << 24, 1 << 24, 1 << 24]}, "shape must be of at most"),
        ({"starts_s": [0.0]}, "starts_s must be a list of 3 values"),
        ({"starts_s": [0.0, 50.0, 25.0]}, "pieces in time order"),
        ({"pieces": None}, "starts_s must be a list of 0 values"),
        ({"pieces": [], "starts_s": [], "fragments": []}, "must have pieces"),
        ({"status": "odd"}, "status must be"),
        ({"options": NESTED}, "nested too deeply"),
        ({"made": "[]"}, "made must be a JSON object"),
        ({"written_s": 1e15}, "written_s must be"),
        ({"model": None}, "model must be a JSON object, got nothing"),
    ],
)
def test_damaged_video_is_listed_and_others_stay_usable(store: Store, change: dict[str, Any], message: str) -> None:
    good, bad = add_video(store, make_pieces(1), uri="/films/good.mp4"), add_video(store, make_pieces())
    change_rows(store._tables.videos, {"id": bad.id}, change)
    statuses = {video.id: video.status for video in store.videos()}
    assert statuses == {good.id: "done", bad.id: "damaged"}
    assert [video.id for video in store.videos("done")] == [good.id]
    with pytest.raises(DamagedStoreError, match=message) as caught:
        store.open(bad.id)
    for part in (store.path, bad.id, "floc store check"):
        assert part in str(caught.value)
    assert [problem.video for problem in store.check()] == [bad.id]
    assert len(store.open(good.id)) == good.kept
    assert store.search(make_pieces(1)[0].features[0], 1)[0].video == good.id
    assert not store.has(bad.id)


def test_damaged_video_is_ingested_again(store: Store) -> None:
    bad = add_video(store, make_pieces())
    change_rows(store._tables.videos, {"id": bad.id}, {"duration_s": -1.0})
    assert [video.status for video in store.videos()] == ["damaged"]
    again = add_video(store, make_pieces())
    assert again.id == bad.id
    assert [video.status for video in store.videos()] == ["done"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"order": []}, "order must have 21 values, got 0"),
        ({"order": [0] * 21}, "order must have no value twice"),
        ({"order": [10**6, *range(20)]}, "order must be from 0 to 149"),
        ({"gains": [float("nan")] * 21}, "gains has values that are not finite"),
        ({"positions": [10**12] * 21}, "positions must be from 30 to 89"),
        ({"positions": None}, "positions must have 21 values"),
        ({"times_s": [float(time_s) for time_s in range(35, 25, -1)]}, "times_s must be strictly ascending"),
        ({"last_s": []}, "last_s must be empty in all rows or in none"),
        ({"last_s": None}, "last_s must have 10 values"),
        ({"last_s": [0.0] * 10}, "last_s must be ascending"),
        ({"kept": 10**15}, "kept must be a whole number from 0 to 60"),
        ({"kept": None}, "kept must be"),
        ({"slices": 10**9}, "slices must be a whole number from 1 to 20"),
        ({"row": None}, "row must be"),
        ({"shape": [25, 2, 3, 4]}, "shape must be a list of 3 values"),
        ({"shape": [25, 3, 2]}, "rows of another piece|shape must be"),
        ({"bytes": 7}, "features and deep must have 7 bytes"),
        ({"features": None}, "features and deep must have"),
        ({"features": b"\x00\x7c" * 21 * 8}, "not finite"),
        ({"features": b"", "bytes": 0}, "bytes must be of 21 tokens"),
        ({"dtype": "int8"}, "dtype must be one of float16"),
        ({"dtype": "float64"}, "dtype and the number of layers|bytes must be"),
        ({"deep": [b"\x00" * 336]}, "dtype and the number of layers|bytes must be"),
        ({"end_s": float("inf")}, "end_s must be a number"),
    ],
)
def test_invalid_token_row_is_refused(store: Store, change: dict[str, Any], message: str) -> None:
    good, bad = add_video(store, make_pieces(1), uri="/films/good.mp4"), add_video(store, make_pieces())
    where = {"video": bad.id, "piece": 1, "row": 1}
    found = store._tables.token_rows.latest().to_table(filter="piece = 1 AND row = 1", columns=["kept"])
    assert found["kept"].to_pylist() == [21]
    change_rows(store._tables.token_rows, where, change)
    with pytest.raises(DamagedStoreError, match=message) as caught:
        store.open(bad.id)
    for part in ("segments.lance", bad.id, "floc store check"):
        assert part in str(caught.value)
    assert len(store.open(good.id)) == good.kept
    problems = store.check()
    assert bad.id in {problem.video for problem in problems}
    if not any(text in message for text in ("layers", "last_s must be empty", "rows of another piece")):
        with pytest.raises(DamagedStoreError, match=bad.id):
            store.index()
    with contextlib.suppress(DamagedStoreError):
        results = store.search(make_pieces(1)[0].features[:2], 3)
        assert all(abs(result.similarity) <= 1.01 for result in results)


def test_row_that_is_missing_once_is_found_in_other_fragments(store: Store) -> None:
    video = add_video(store, make_pieces())
    change_rows(store._tables.videos, {"id": video.id}, {"fragments": [7, 0, 1]})
    assert len(store.open(video.id)) == video.kept


def test_one_row_per_id_is_listed() -> None:
    done = replace(make_video(make_pieces(1), ()), written_s=5.0)
    failed, damaged = replace(done, status="failed", written_s=9.0), replace(done, status="damaged", written_s=0.0)

    def list_statuses(*videos: StoredVideo) -> list[str]:
        return [video.status for video in resolve_duplicates(videos)]

    assert list_statuses(failed, done, damaged) == ["done"]
    assert list_statuses(replace(failed, id="other"), done) == ["failed", "done"]
    assert list_statuses(replace(failed, id="other", written_s=1.0), done) == ["done"]
    assert list_statuses(replace(damaged, id="other"), done) == ["damaged", "done"]
