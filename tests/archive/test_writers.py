"""Many processes write one store, die at any moment, and nothing is lost, doubled or half there."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import random
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lance", reason="a store needs pip install 'floc-video[store]'")

from floc import Store
from floc.archive import Piece, StoreError, lances
from tests.archive.making import film, piece, put, row

PROCESSES = multiprocessing.get_context("spawn")
PATIENCE_S = 60  # until a process has done something


def write_some(path: str, number: int, count: int) -> None:
    store = Store(path)
    for each in range(count):
        put(store, [piece(12, seed=number)], uri=f"/films/{number}-{each}.mp4")


def write_for_ever(path: str) -> None:
    store = Store(path)
    for each in range(10**6):
        put(store, film(2, 12), uri=f"/films/{os.getpid()}-{each}.mp4")


def look_after_for_ever(path: str) -> None:
    store = Store(path)
    while True:
        store.compact(older_than_s=0 if random.random() < 0.3 else 3600)
        store.index()
        videos = store.videos("done")
        if len(videos) > 4:
            store.remove(random.choice(videos).id)


def create(path: str) -> None:
    Store(path, create=True)


def versions(store: Store) -> list[int]:
    return [table.latest().version for table in (store._held.videos, store._held.segments)]


def started(target: Callable[..., None], *given: Any) -> Any:
    process = PROCESSES.Process(target=target, args=given, daemon=True)
    process.start()
    return process


def test_every_commit_of_many_processes_is_there(store: Store) -> None:
    writers = [started(write_some, store.path, number, 6) for number in range(4)]
    for each in writers:
        each.join(60)
    assert [each.exitcode for each in writers] == [0] * 4
    assert sorted(video.uri for video in store.videos()) == sorted(
        f"/films/{number}-{each}.mp4" for number in range(4) for each in range(6)
    )
    assert not store.check()


def test_many_may_make_the_store(tmp_path: Path) -> None:
    makers = [started(create, str(tmp_path / "new")) for _ in range(3)]
    for each in makers:
        each.join(60)
    assert [each.exitcode for each in makers] == [0] * 3
    assert Store(tmp_path / "new").videos() == []


@pytest.mark.parametrize("target", [write_for_ever, look_after_for_ever])
def test_a_killed_process_leaves_a_whole_store(store: Store, target: Callable[..., None]) -> None:
    for each in range(6):
        put(store, film(2, 12), uri=f"/films/{each}.mp4")
    for seed in range(3):
        before, deadline = versions(store), time.monotonic() + PATIENCE_S
        process = started(target, store.path)
        while versions(store) == before:
            assert process.is_alive(), f"the process ended by itself, with status {process.exitcode}"
            assert time.monotonic() < deadline, "the process does nothing"
            time.sleep(0.01)
        time.sleep(random.Random(seed).uniform(0, 0.4))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        fresh = Store(store.path)
        assert fresh.videos("done")
        assert not fresh.check()
        for video in fresh.videos("done"):
            assert len(fresh.open(video.id)) == video.kept
        put(store, film(2, 12), uri=f"/films/after-{seed}.mp4")


def test_reading_goes_on_while_others_write_and_compact(store: Store) -> None:
    parts = film(2, 12)
    put(store, parts, uri="/films/kept.mp4")
    expected = store.open("kept.mp4").features
    others = [started(write_for_ever, store.path), started(compact_for_ever, store.path)]
    until, read = time.time() + 6, 0
    while time.time() < until:
        assert torch.equal(store.open("kept.mp4").features, expected)
        assert torch.equal(store.open("kept.mp4", start_s=0, end_s=24).features, expected)
        read += 1
    assert all(each.is_alive() for each in others)
    for each in others:
        each.kill()
        each.join()
    assert read > 10
    assert not Store(store.path).check()


def test_reading_goes_on_where_files_vanish_under_it(store: Store) -> None:
    for each in range(3):
        put(store, film(1), uri=f"/films/{each}.mp4")
    tried = []

    def read(version: Any) -> int:
        tried.append(version.version)
        if len(tried) == 1:
            Store(store.path).compact(older_than_s=0)
        return sum(map(len, version.to_table()["features"].to_pylist()))

    fresh = Store(store.path)._held.segments
    assert fresh.read(read) == sum(video.kept for video in store.videos()) * 8 * 2
    assert len(tried) == 2


def test_a_change_that_runs_into_another_is_tried_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lances, "PAUSE_S", 0)
    tried = []

    def change(version: Any) -> int:
        tried.append(version)
        if len(tried) < 4:
            raise OSError("Retryable commit conflict for version 7")
        return len(tried)

    assert store._held.segments.change(change) == 4
    for said, most in (("Retryable commit conflict", lances.TRIES), ("No such device", 1)):
        tried.clear()
        with pytest.raises(OSError, match=said):
            store._held.segments.change(lambda version, said=said: refuse(tried, said))
        assert len(tried) == most


def refuse(tried: list[Any], said: str) -> None:
    tried.append(said)
    raise OSError(said)


def compact_for_ever(path: str) -> None:
    store = Store(path)
    while True:
        store.compact(older_than_s=1)


def test_nobody_sees_what_is_not_committed(store: Store) -> None:
    parts = film()
    video = row(parts, ())
    written = [store.write_piece(video.id, number, part) for number, part in enumerate(parts)]
    assert store.videos() == []
    assert store.pieces(video.id) == {}
    store.commit(written[2:])
    assert list(store.pieces(video.id)) == [2]
    assert store.videos() == []
    with pytest.raises(StoreError, match="cannot be committed before its pieces"):
        store.commit([], [row(parts, written)])
    store.commit(written[:2], [row(parts, written)])
    assert len(store.open(video.id)) == sum(map(len, parts))


def test_pieces_tell_what_they_are_and_travel(store: Store) -> None:
    written = store.write_piece("v", 3, piece(25, 100.0))
    assert (written.video, written.piece, written.kept, written.tokens, written.frames) == ("v", 3, 37, 150, 25)
    assert (written.start_s, written.end_s, written.shape, written.coverage) == (100.0, 125.0, (25, 2, 3), 0.75)
    assert written.bytes == 37 * 8 * 2
    assert pickle.loads(pickle.dumps(written)) == written
    assert Piece.of(json.loads(json.dumps(asdict(written)))) == written
    store.commit([written])
    assert store.pieces("v") == {3: replace(written, fragments=())}


def test_of_a_piece_written_twice_the_newest_is_gone_on_with(store: Store) -> None:
    first, second = (store.write_piece("v", 0, piece(seed=seed)) for seed in (1, 2))
    store.commit([second, first])
    assert store.pieces("v")[0].attempt == second.attempt


def test_what_is_committed_twice_is_there_once(store: Store) -> None:
    parts = film()
    video = row(parts, ())
    written = [store.write_piece(video.id, number, part) for number, part in enumerate(parts)]
    store.commit(written, [row(parts, written)])
    store.commit(written, [row(parts, written)])
    assert len(store.open(video.id)) == sum(map(len, parts))
    assert len(store.videos()) == 1
    assert not store.check()
    store.compact(older_than_s=0)


def test_pieces_out_of_order_are_refused(store: Store) -> None:
    parts = film()
    written = [store.write_piece("v", number, part) for number, part in enumerate(parts)]
    with pytest.raises(ValueError, match="not in order of time"):
        store.commit(written, [row(parts, written[::-1])])


def test_a_store_travels_to_other_processes(store: Store) -> None:
    put(store, film())
    assert pickle.loads(pickle.dumps(store)).videos() == store.videos()


def fill_up(path: str, answers: Any) -> None:
    """A disk with room for 64 kB a file."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
    try:
        Store(path).write_piece("v", 0, piece(4000, kept=20000))
    except StoreError as error:
        answers.put(str(error))
    else:
        answers.put("nothing was wrong")


def test_a_full_disk_is_told(store: Store) -> None:
    put(store, film())
    answers = PROCESSES.Queue()
    process = started(fill_up, store.path, answers)
    said = answers.get(timeout=60)
    process.join()
    assert "make room and run the same again" in said
    assert not store.check()


def test_a_store_out_of_reach_is_told(store: Store) -> None:
    written = store.write_piece("v", 0, piece())
    os.rename(store.path, store.path + ".gone")
    Path(store.path).write_text("not a folder")
    with pytest.raises(StoreError, match="see that the store is there"):
        store.write_piece("v", 1, piece())
    with pytest.raises(StoreError):
        store.commit([written])


def test_files_that_were_swept_away_are_not_committed(store: Store) -> None:
    written = store.write_piece("v", 0, piece())
    store.compact(older_than_s=0)
    with pytest.raises(StoreError, match="compacted away before they were committed"):
        store.commit([written])
    assert not store.check()
