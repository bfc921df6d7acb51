"""Whole ingests, in real processes: nothing lost, nothing twice, whatever is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("lance", reason="Lance is not installed: pip install 'floc-video[store]'")
pytest.importorskip("av", reason="PyAV is not installed: pip install 'floc-video[video]'")

from floc.archive import Store, StoreError
from floc.archive.ingest import local
from floc.archive.ingest.ingest import _require_same_weights, ingest
from floc.archive.ingest.ledger import Status, failure_of
from floc.archive.ingest.local import TRIES
from floc.archive.ingest.order import Brief, Order, Source
from floc.captured.identity import Identity
from tests.archive.films import FILMS, OPTIONS, make_film, make_films, require_all_once


def running(store: Path, *sources: Path, workers: int = 2) -> subprocess.Popen:
    """An ingest in a process of its own, which prints how many it has done."""
    script = f"""
from floc.archive.ingest.ingest import ingest

if __name__ == "__main__":
    ingest({[str(each) for each in sources]!r}, {str(store)!r}, workers={workers}, **{OPTIONS!r},
           show=lambda status: print(status.done, flush=True))
"""
    path = store.parent / "job.py"
    path.write_text(script)
    return subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True, start_new_session=True)


def wait_for(job: subprocess.Popen, done: int) -> None:
    assert job.stdout is not None
    for line in job.stdout:
        if int(line) >= done:
            return


def children_of(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.corpus
def test_workers_are_killed_one_after_another(archive: Path, tmp_path: Path) -> None:
    seen: list[int] = []

    def kill_now_and_then(status: Status) -> None:
        seen.append(status.done)
        if status.done in (30, 90, 150) and status.done not in seen[:-1]:
            workers = [
                pid for pid in children_of(os.getpid()) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
            ]
            os.kill(random.choice(workers), signal.SIGKILL)

    status = ingest([archive], tmp_path / "store", workers=2, show=kill_now_and_then, **OPTIONS)
    assert (status.done, status.skipped, status.failed) == (FILMS, 1, 2)
    require_all_once(tmp_path / "store")
    again = ingest([archive], tmp_path / "store", workers=1, **OPTIONS)
    assert (again.done, again.skipped, again.failed) == (0, FILMS + 1, 2)
    require_all_once(tmp_path / "store")


@pytest.mark.corpus
def test_the_whole_job_is_killed_again_and_again(archive: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    for _ in range(3):
        job = running(store, archive)
        wait_for(job, random.randint(1, 25))
        time.sleep(random.random())
        os.killpg(job.pid, signal.SIGKILL)
        job.communicate()
        Store(store).check()  # it can be read
    ingest([archive], store, workers=2, **OPTIONS)
    require_all_once(store)


@pytest.mark.corpus
def test_workers_end_with_the_job(archive: Path, tmp_path: Path) -> None:
    job = running(tmp_path / "store", archive)
    wait_for(job, 3)
    workers = children_of(job.pid)
    job.kill()
    job.communicate()
    deadline = time.monotonic() + 30
    while any(_is_alive(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in workers if _is_alive(pid)]


def _is_alive(pid: int) -> bool:
    try:
        return "zombie" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.corpus
def test_two_ingests_at_once(archive: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    Store(store, create=True)
    jobs = [running(store, archive, workers=1) for _ in range(2)]
    for job in jobs:
        job.communicate(timeout=300)
        assert job.returncode == 0
    require_all_once(store)
    Store(store).compact(older_than_s=0)
    require_all_once(store)


def test_the_status_tells_all(tmp_path: Path) -> None:
    make_films(tmp_path / "films", 3, seconds=4)
    told: list[int] = []
    status = ingest([tmp_path / "films"], tmp_path / "store", workers=1, show=lambda s: told.append(s.done), **OPTIONS)
    summary = json.loads(json.dumps(status.summary()))
    assert (summary["videos"], summary["done"], summary["footage_s"], summary["frames"]) == (3, 3, 15.0, 15)
    assert summary["kept"] == sum(video.kept for video in Store(tmp_path / "store").videos())
    assert set(summary["seconds"]) == {"decode", "encode", "choose", "write"}
    assert told == sorted(told)
    assert status.left == 0


def test_a_store_that_cannot_be_written_to_stops_it(tmp_path: Path, monkeypatch) -> None:
    """What the disk has no room for is no fault of a video."""
    make_film(tmp_path / "a.mkv", 3, seed=0)

    def full(store, pieces, videos):
        raise StoreError("no space left on the device; free some, and ingest again")

    monkeypatch.setattr(Store, "commit", full)
    with pytest.raises(StoreError, match="ingest again"):
        ingest([tmp_path / "a.mkv"], tmp_path / "store", workers=1, **OPTIONS)
    monkeypatch.undo()
    assert Store(tmp_path / "store").videos() == []


@pytest.mark.parametrize("deaths", [TRIES - 1, TRIES])
def test_a_worker_is_killed_before_it_has_its_encoder(tmp_path: Path, monkeypatch, deaths: int) -> None:
    make_film(tmp_path / "a.mkv", 3, seed=0)
    started: list[int] = []

    class Dies(local._Worker):
        def __init__(self, *told) -> None:
            super().__init__(*told)
            if len(started) < deaths:
                self.process.kill()
            started.append(deaths)

    monkeypatch.setattr(local, "_Worker", Dies)
    if deaths < TRIES:
        assert ingest([tmp_path / "a.mkv"], tmp_path / "store", workers=1, **OPTIONS).done == 1
        return
    with pytest.raises(RuntimeError, match="could not be loaded: its process was ended by SIGKILL"):
        ingest([tmp_path / "a.mkv"], tmp_path / "store", workers=1, **OPTIONS)


@pytest.mark.parametrize(
    ("device", "workers", "want"),
    [
        (None, None, ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]),
        (None, 1, ["cuda:0"]),
        ("cuda:1", None, ["cuda:1", "cuda:1"]),
        ("cpu", 2, ["cpu", "cpu"]),
    ],
)
def test_where_encoders_run(monkeypatch, device: str | None, workers: int | None, want: list[str]) -> None:
    """On a GPU that is named there is room for two, not for as many as there are cores."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr(local.os, "sched_getaffinity", lambda pid: range(8))
    engine = local.Local(Order("mobilenet", ratio="1/4", device=device), "store", workers)
    assert [order.device for order in engine.orders] == want


def test_the_store_is_told_where_it_is_wherever_workers_run(tmp_path: Path, monkeypatch) -> None:
    make_film(tmp_path / "a.mkv", 3, seed=0)
    monkeypatch.chdir(tmp_path)
    briefs: list[Brief] = []
    monkeypatch.setattr(local.Local, "run", lambda engine, sources, ledger: iter(briefs.append(ledger.brief) or ()))
    ingest(["a.mkv"], "store", workers=1, **OPTIONS)
    assert briefs[0].store == str(tmp_path / "store")


def test_another_model_of_the_same_name_is_refused(tmp_path: Path) -> None:
    model = Identity("qwen2_5_vl", "tiny", None, "c0", 4, [0.5, 0.25])
    brief = Brief(Order("pixels", ratio="1/4"), "store", model)
    video = failure_of(brief, Source("a.mp4", 1, 0.0), "none", "")
    _require_same_weights(replace(brief, model=replace(model, weights=[0.501, 0.25])), [video])  # rounded
    _require_same_weights(replace(brief, model=replace(model, name="other", weights=[1.0, 2.0])), [video])
    with pytest.raises(ValueError, match="ingest into another store"):
        _require_same_weights(replace(brief, model=replace(model, weights=[1.0, 2.0])), [video])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "spark"}, "engine must be 'local' or 'ray'"),
        ({"address": "auto"}, "pass engine='ray'"),
        ({"workers": -1}, "workers must be a whole number, at least 1; got -1"),
        ({"workers": 0}, "workers must be a whole number, at least 1; got 0"),
        ({"workers": 0, "engine": "ray"}, "workers must be a whole number"),
        ({"encoder": "hf:/nowhere"}, "/nowhere"),
    ],
)
def test_ingests_that_cannot_be(tmp_path: Path, options: dict, message: str) -> None:
    make_film(tmp_path / "a.mkv", 3, seed=0)
    with pytest.raises((ValueError, RuntimeError), match=message):
        ingest([tmp_path / "a.mkv"], tmp_path / "store", **(OPTIONS | options))
