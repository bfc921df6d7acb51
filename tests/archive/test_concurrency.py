"""Many processes write one store and die at any moment; nothing is lost, duplicated or incomplete."""

from __future__ import annotations

import contextlib
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

pytest.importorskip("lance", reason="Lance is not installed: pip install 'floc-video[store]'")

from floc import Store
from floc.archive import StoreError
from floc.archive.schema import DamagedStoreError
from tests.archive.builders import add_video, make_piece, make_pieces, make_video

PROCESSES = multiprocessing.get_context("forkserver")  # forks of a process that has not loaded Lance
PROCESSES.set_forkserver_preload(["torch", "pytest"])
TIMEOUT_S = 60


def write_videos(path: str, writer: int, count: int) -> None:
    store = Store(path)
    for number in range(count):
        add_video(store, [make_piece(12, seed=writer)], uri=f"/films/{writer}-{number}.mp4")


def write_endlessly(path: str) -> None:
    store = Store(path)
    for number in range(10**6):
        add_video(store, make_pieces(2, 12), uri=f"/films/{os.getpid()}-{number}.mp4")


def maintain_endlessly(path: str) -> None:
    store = Store(path)
    while True:
        store.compact(older_than_s=0 if random.random() < 0.3 else 3600)
        store.index()
        videos = store.videos("done")
        if len(videos) > 4:
            store.remove(random.choice(videos).id)


def compact_endlessly(path: str) -> None:
    store = Store(path)
    while True:
        with contextlib.suppress(StoreError):  # other processes are writing
            store.compact(older_than_s=1)
        store.compact(older_than_s=3600)


def create_store(path: str) -> None:
    Store(path, create=True)


def list_versions(store: Store) -> list[int]:
    return [table.latest().version for table in (store._tables.videos, store._tables.token_rows)]


def start_process(target: Callable[..., None], *arguments: Any) -> Any:
    process = PROCESSES.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def test_commits_of_many_processes_are_all_kept(store: Store) -> None:
    writers = [start_process(write_videos, store.path, writer, 6) for writer in range(4)]
    for process in writers:
        process.join(TIMEOUT_S)
    assert [process.exitcode for process in writers] == [0] * 4
    assert sorted(video.uri for video in store.videos()) == sorted(
        f"/films/{writer}-{number}.mp4" for writer in range(4) for number in range(6)
    )
    assert not store.check()


def test_many_processes_may_create_the_store(tmp_path: Path) -> None:
    processes = [start_process(create_store, str(tmp_path / "new")) for _ in range(3)]
    for process in processes:
        process.join(TIMEOUT_S)
    assert [process.exitcode for process in processes] == [0] * 3
    assert Store(tmp_path / "new").videos() == []


@pytest.mark.parametrize("target", [write_endlessly, maintain_endlessly])
def test_killed_process_leaves_an_intact_store(store: Store, target: Callable[..., None]) -> None:
    for number in range(6):
        add_video(store, make_pieces(2, 12), uri=f"/films/{number}.mp4")
    for seed in range(3):
        before, deadline = list_versions(store), time.monotonic() + TIMEOUT_S
        process = start_process(target, store.path)
        while list_versions(store) == before:
            assert process.is_alive(), f"the process exited with status {process.exitcode}"
            assert time.monotonic() < deadline, "the process wrote nothing"
            time.sleep(0.01)
        time.sleep(random.Random(seed).uniform(0, 0.4))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        fresh = Store(store.path)
        assert fresh.videos("done")
        assert not fresh.check()
        for video in fresh.videos("done"):
            assert len(fresh.open(video.id)) == video.kept
        add_video(store, make_pieces(2, 12), uri=f"/films/after-{seed}.mp4")


def test_reads_continue_while_others_write_and_compact(store: Store) -> None:
    add_video(store, make_pieces(2, 12), uri="/films/kept.mp4")
    expected = store.open("kept.mp4").features
    others = [start_process(write_endlessly, store.path), start_process(compact_endlessly, store.path)]
    deadline, reads = time.time() + 6, 0
    while time.time() < deadline:
        assert torch.equal(store.open("kept.mp4").features, expected)
        assert torch.equal(store.open("kept.mp4", start_s=0, end_s=24).features, expected)
        reads += 1
    assert all(process.is_alive() for process in others)
    for process in others:
        process.kill()
        process.join()
    assert reads > 10
    assert not Store(store.path).check()


def test_uncommitted_pieces_are_invisible(store: Store) -> None:
    pieces = make_pieces()
    video = make_video(pieces, ())
    written = [store.write_piece(video.id, number, piece) for number, piece in enumerate(pieces)]
    assert store.videos() == []
    assert store.pieces(video.id) == {}
    store.commit(written[2:])
    assert list(store.pieces(video.id)) == [2]
    assert store.videos() == []
    with pytest.raises(StoreError, match="cannot be committed before its pieces"):
        store.commit([], [make_video(pieces, written)])
    store.commit(written[:2], [make_video(pieces, written)])
    assert len(store.open(video.id)) == sum(map(len, pieces))


def test_stored_piece_describes_itself_and_is_serialisable(store: Store) -> None:
    written = store.write_piece("v", 3, make_piece(25, 100.0))
    assert (written.video, written.piece, written.kept, written.tokens, written.frames) == ("v", 3, 37, 150, 25)
    assert (written.start_s, written.end_s, written.shape, written.coverage) == (100.0, 125.0, (25, 2, 3), 0.75)
    assert written.bytes == 37 * 8 * 2
    assert pickle.loads(pickle.dumps(written)) == written
    assert json.loads(json.dumps(asdict(written)))["attempt"] == written.attempt
    store.commit([written])
    assert store.pieces("v") == {3: replace(written, fragments=())}


def test_newest_of_two_writes_of_a_piece_is_used(store: Store) -> None:
    first, second = (store.write_piece("v", 0, make_piece(seed=seed)) for seed in (1, 2))
    store.commit([second, first])
    assert store.pieces("v")[0].attempt == second.attempt


def test_commit_is_idempotent(store: Store) -> None:
    pieces = make_pieces()
    video = make_video(pieces, ())
    written = [store.write_piece(video.id, number, piece) for number, piece in enumerate(pieces)]
    store.commit(written, [make_video(pieces, written)])
    store.commit(written, [make_video(pieces, written)])
    assert len(store.open(video.id)) == sum(map(len, pieces))
    assert len(store.videos()) == 1
    assert not store.check()
    store.compact(older_than_s=0)


def test_commit_rejects_pieces_out_of_order(store: Store) -> None:
    pieces = make_pieces()
    written = [store.write_piece("v", number, piece) for number, piece in enumerate(pieces)]
    with pytest.raises(ValueError, match="must have pieces in time order"):
        store.commit(written, [make_video(pieces, written[::-1])])


def test_store_is_picklable(store: Store) -> None:
    add_video(store, make_pieces())
    assert pickle.loads(pickle.dumps(store)).videos() == store.videos()


def write_to_a_full_disk(path: str, answers: Any) -> None:
    """Write with files limited to 64 kB, and report the error."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
    try:
        Store(path).write_piece("v", 0, make_piece(4000, kept=20000))
    except StoreError as error:
        answers.put(str(error))
    else:
        answers.put("no error")


def test_full_disk_error_says_what_to_do(store: Store) -> None:
    add_video(store, make_pieces())
    answers = PROCESSES.Queue()
    process = start_process(write_to_a_full_disk, store.path, answers)
    message = answers.get(timeout=TIMEOUT_S)
    process.join()
    assert "free some space, then run the same command again" in message
    assert not store.check()


def test_unreachable_store_error_says_what_to_do(store: Store) -> None:
    written = store.write_piece("v", 0, make_piece())
    os.rename(store.path, store.path + ".gone")
    Path(store.path).write_text("not a folder")
    with pytest.raises(
        DamagedStoreError, match=r"this table cannot be read .*; if files were changed or lost, restore"
    ):
        store.write_piece("v", 1, make_piece())
    with pytest.raises((StoreError, DamagedStoreError)):
        store.commit([written])


def test_commit_rejects_files_that_were_removed(store: Store) -> None:
    written = store.write_piece("v", 0, make_piece())
    for file in Path(store.path, "segments.lance", "data").iterdir():
        file.unlink()
    with pytest.raises(StoreError, match="removed by compact before they were committed"):
        store.commit([written])
    assert not store.check()


def test_compact_of_recent_data_is_refused_beside_a_writer(store: Store) -> None:
    written = store.write_piece("v", 0, make_piece())
    with pytest.raises(StoreError, match="other processes are writing to this store; wait for them, or set older_than"):
        Store(store.path).compact(older_than_s=0)
    Store(store.path).compact(older_than_s=3600)
    store.commit([written])
    Store(store.path).compact(older_than_s=0)
    assert store.pieces("v") == {}


def test_store_stays_readable_if_it_is_compacted_beside_writers(store: Store) -> None:
    add_video(store, make_pieces(2, 12), uri="/films/kept.mp4")
    writers = [start_process(write_videos, store.path, writer, 3) for writer in range(2)]
    compactions = 0
    while any(process.is_alive() for process in writers):
        time.sleep(0.2)  # compactions alone would keep the writers waiting
        with contextlib.suppress(StoreError):  # refused
            store.compact(older_than_s=0)
            compactions += 1
    assert [process.exitcode for process in writers] == [0, 0]
    assert compactions
    assert len(store.videos("done")) == 7
    assert not store.check()
