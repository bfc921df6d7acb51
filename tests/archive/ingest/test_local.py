"""The processes of a local ingest: which devices they get, what they say when they die, and how they are stopped."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("lance", reason="Lance is not installed: pip install 'floc-video[store]'")
pytest.importorskip("av", reason="PyAV is not installed: pip install 'floc-video[video]'")

from floc.archive import Store
from floc.archive.ingest import IngestError, local
from floc.archive.ingest.ingest import ingest
from floc.archive.ingest.job import IngestJob, IngestOptions
from floc.archive.ingest.local import MAX_TRIES
from tests.archive.films import OPTIONS, make_film, make_films


@pytest.mark.parametrize("deaths", [MAX_TRIES - 1, MAX_TRIES])
def test_worker_killed_before_its_encoder_is_loaded(tmp_path: Path, monkeypatch, deaths: int) -> None:
    make_film(tmp_path / "a.mkv", 3, seed=0)
    started: list[int] = []

    class DyingWorker(local._WorkerProcess):
        def __init__(self, *arguments) -> None:
            super().__init__(*arguments)
            if len(started) < deaths:
                self.process.kill()
            started.append(deaths)

    monkeypatch.setattr(local, "_WorkerProcess", DyingWorker)
    if deaths < MAX_TRIES:
        assert ingest([tmp_path / "a.mkv"], tmp_path / "store", workers=1, **OPTIONS).done == 1
        return
    with pytest.raises(
        IngestError, match=r"worker could not load the encoder: its process was ended by SIGKILL.*3 times in a row"
    ):
        ingest([tmp_path / "a.mkv"], tmp_path / "store", workers=1, **OPTIONS)


@pytest.mark.parametrize(
    ("device", "workers", "devices"),
    [
        (None, None, ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]),
        (None, 1, ["cuda:0"]),
        ("cuda:1", None, ["cuda:1", "cuda:1"]),
        ("cpu", 2, ["cpu", "cpu"]),
    ],
)
def test_devices_of_workers(monkeypatch, device: str | None, workers: int | None, devices: list[str]) -> None:
    """A named GPU gets two workers, not one per core."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr(local.os, "sched_getaffinity", lambda pid: range(8))
    engine = local.LocalWorkers(IngestOptions("mobilenet", ratio="1/4", device=device), "store", workers)
    assert [options.device for options in engine.options] == devices


def test_workers_get_the_absolute_path_of_the_store(tmp_path: Path, monkeypatch) -> None:
    make_film(tmp_path / "a.mkv", 3, seed=0)
    monkeypatch.chdir(tmp_path)
    jobs: list[IngestJob] = []
    monkeypatch.setattr(local.LocalWorkers, "run", lambda engine, files, ledger: iter(jobs.append(ledger.job) or ()))
    ingest(["a.mkv"], "store", workers=1, **OPTIONS)
    assert jobs[0].store == str(tmp_path / "store")


def test_error_contains_the_last_output_of_a_worker(tmp_path: Path, monkeypatch) -> None:
    make_film(tmp_path / "a.mkv", 3, seed=0)

    class FailingWorker(local._WorkerProcess):
        def __init__(self, *arguments) -> None:
            super().__init__(*arguments)
            self.process.kill()
            self._output.write_text("loading\n\x1b[31mout of memory at s3://KEY:SECRET@bucket/a\n\n")

    monkeypatch.setattr(local, "_WorkerProcess", FailingWorker)
    with pytest.raises(IngestError) as caught:
        ingest([tmp_path / "a.mkv"], tmp_path / "store", workers=1, **OPTIONS)
    words = r"after it printed '\x1b[31mout of memory at s3://bucket/a', 3 times in a row; use fewer workers"
    assert words in str(caught.value)
    assert Store(tmp_path / "store").videos() == []


def list_workers(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


@pytest.mark.corpus
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_ingest_leaves_an_intact_store(tmp_path: Path, number: int) -> None:
    make_films(tmp_path / "films", 12, seconds=20)
    store = tmp_path / "store"
    options = ["--store", str(store), "--encoder", "pixels", "--workers", "2"]
    command = [sys.executable, "-m", "floc", "ingest", str(tmp_path / "films"), *options]
    for _ in range(3):
        job = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        while len(list_workers(job.pid)) < 2 and job.poll() is None:
            time.sleep(0.05)
        time.sleep(random.choice([0.1, 2, 5]))
        os.killpg(job.pid, number)
        _, printed = job.communicate(timeout=60)
        assert job.returncode != 0 or "12 of 12" in printed or "in the store already" in printed
        assert "Traceback" not in printed
        assert not Store(store).check()
    assert ingest([tmp_path / "films"], store, workers=2, **OPTIONS).left == 0


def test_rejects_more_workers_than_the_cores_can_feed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"workers must be at most \d+ on this machine, 8 for each core; got 100000"):
        local.LocalWorkers(IngestOptions("pixels", ratio="1/8"), str(tmp_path), workers=100_000)
