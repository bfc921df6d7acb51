"""Whole ingests in real processes: nothing is lost or duplicated, whatever is killed."""

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
from floc.archive.ingest.ingest import _require_same_weights, ingest
from floc.archive.ingest.job import IngestJob, IngestOptions, VideoFile
from floc.archive.ingest.ledger import IngestStatus, build_failed_video
from floc.captured.identity import Identity
from tests.archive.films import FILMS, OPTIONS, assert_ingested_once, make_film, make_films


def start_ingest(store: Path, *sources: Path, workers: int = 2) -> subprocess.Popen:
    """Start an ingest in another process, which prints the number of videos done."""
    script = f"""
from floc.archive.ingest.ingest import ingest

if __name__ == "__main__":
    ingest({[str(source) for source in sources]!r}, {str(store)!r}, workers={workers}, **{OPTIONS!r},
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


def list_children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


@pytest.mark.corpus
def test_ingest_survives_killed_workers(archive: Path, tmp_path: Path) -> None:
    counts: list[int] = []

    def kill_sometimes(status: IngestStatus) -> None:
        counts.append(status.done)
        if status.done in (30, 90, 150) and status.done not in counts[:-1]:
            workers = [
                pid for pid in list_children(os.getpid()) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
            ]
            os.kill(random.choice(workers), signal.SIGKILL)

    status = ingest([archive], tmp_path / "store", workers=2, show=kill_sometimes, **OPTIONS)
    assert (status.done, status.skipped, status.failed) == (FILMS, 1, 2)
    assert_ingested_once(tmp_path / "store")
    again = ingest([archive], tmp_path / "store", workers=1, **OPTIONS)
    assert (again.done, again.skipped, again.failed) == (0, FILMS + 1, 2)
    assert_ingested_once(tmp_path / "store")


@pytest.mark.corpus
def test_killed_ingest_resumes(archive: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    for _ in range(3):
        job = start_ingest(store, archive)
        wait_for(job, random.randint(1, 25))
        time.sleep(random.random())
        os.killpg(job.pid, signal.SIGKILL)
        job.communicate()
        Store(store).check()  # must be readable
    ingest([archive], store, workers=2, **OPTIONS)
    assert_ingested_once(store)


@pytest.mark.corpus
def test_workers_exit_with_their_parent(archive: Path, tmp_path: Path) -> None:
    job = start_ingest(tmp_path / "store", archive)
    wait_for(job, 3)
    workers = list_children(job.pid)
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
def test_two_ingests_into_one_store(archive: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    Store(store, create=True)
    jobs = [start_ingest(store, archive, workers=1) for _ in range(2)]
    for job in jobs:
        job.communicate(timeout=300)
        assert job.returncode == 0
    assert_ingested_once(store)
    Store(store).compact(older_than_s=0)
    assert_ingested_once(store)


def test_status_summary(tmp_path: Path) -> None:
    make_films(tmp_path / "films", 3, seconds=4)
    counts: list[int] = []
    status = ingest(
        [tmp_path / "films"], tmp_path / "store", workers=1, show=lambda s: counts.append(s.done), **OPTIONS
    )
    summary = json.loads(json.dumps(status.summary()))
    assert (summary["videos"], summary["done"], summary["footage_s"], summary["frames"]) == (3, 3, 15.0, 15)
    assert summary["kept"] == sum(video.kept for video in Store(tmp_path / "store").videos())
    assert set(summary["seconds"]) == {"decode", "encode", "select", "write"}
    assert counts == sorted(counts)
    assert status.left == 0


def test_store_error_stops_the_ingest(tmp_path: Path, monkeypatch) -> None:
    """A full disk is not recorded as a failure of a video."""
    make_film(tmp_path / "a.mkv", 3, seed=0)

    def fail(store, pieces, videos):
        raise StoreError("no space left on the device; free some, and ingest again")

    monkeypatch.setattr(Store, "commit", fail)
    with pytest.raises(StoreError, match="ingest again"):
        ingest([tmp_path / "a.mkv"], tmp_path / "store", workers=1, **OPTIONS)
    monkeypatch.undo()
    assert Store(tmp_path / "store").videos() == []


def test_rejects_other_weights_of_the_same_model(tmp_path: Path) -> None:
    model = Identity("qwen2_5_vl", "tiny", None, "c0", 4, [0.5, 0.25])
    job = IngestJob(IngestOptions("pixels", ratio="1/4"), "store", model)
    video = build_failed_video(job, VideoFile("a.mp4", 1, 0.0), "none", "")
    _require_same_weights(replace(job, model=replace(model, weights=[0.501, 0.25])), [video])  # rounded
    _require_same_weights(replace(job, model=replace(model, name="other", weights=[1.0, 2.0])), [video])
    with pytest.raises(ValueError, match="ingest into another store"):
        _require_same_weights(replace(job, model=replace(model, weights=[1.0, 2.0])), [video])


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
def test_rejects_invalid_arguments(tmp_path: Path, options: dict, message: str) -> None:
    make_film(tmp_path / "a.mkv", 3, seed=0)
    with pytest.raises((ValueError, RuntimeError), match=message):
        ingest([tmp_path / "a.mkv"], tmp_path / "store", **(OPTIONS | options))


def test_warns_before_work_beyond_the_context(tmp_path: Path) -> None:
    pytest.importorskip("torchvision", reason="processors need pip install 'floc-video[hf]'")
    from tests.integrations.transformers.checkpoints import save

    (film,) = make_films(tmp_path / "films", 1, seconds=4)
    (tmp_path / "model").mkdir()
    model = save("qwen2_5_vl", tmp_path / "model", max_position_embeddings=520)
    shown: list[int] = []
    settings = dict(encoder=f"hf:{model}", ratio="1/4", workers=1, device="cpu")
    status = ingest([film], tmp_path / "store", **settings, show=lambda now: shown.append(len(now.warnings)))
    assert status.done == 1
    assert any("the model's context is 520" in text for _, text in status.warnings)
    assert shown[0] == 1
