from __future__ import annotations

import json
import tarfile
import time
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_session
from benchmarks.gpu_session import LOG, RESULTS, SESSION, STAGES, Session, Stage, load_results, summarize
from benchmarks.registry import load_tables

WRITE = "import json, pathlib, sys; pathlib.Path(sys.argv[1], sys.argv[2]).write_text(json.dumps(dict(failed=[])))"


def make_stage(name: str, code: str, *arguments: str, limit_s: float = 60) -> Stage:
    return Stage(name, ("-c", code, *arguments), limit_s, least_s=1)


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path, 120, small=False)


def read_states(folder: Path) -> dict[str, str]:
    stages = json.loads((folder / SESSION).read_text())["stages"]
    return {stage["stage"]: stage["state"] for stage in stages}


def test_a_stage_that_fails_or_hangs_costs_only_its_own_results(session: Session, tmp_path: Path) -> None:
    started = time.monotonic()
    session.run(make_stage("first", WRITE, "{results}", "first.json"))
    session.run(make_stage("fails", "print('all is lost'); raise SystemExit(3)"))
    # what it wrote before it hangs is kept; so are its children ended
    hang = f"{WRITE}; import subprocess, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])"
    session.run(make_stage("hangs", f"{hang}; time.sleep(60)", "{results}", "second.json", limit_s=3))
    session.run(make_stage("last", WRITE, "{results}", "third.json"))
    assert time.monotonic() - started < 50
    assert read_states(tmp_path) == {"first": "done", "fails": "failed", "hangs": "late", "last": "done"}
    assert load_results(tmp_path / RESULTS).keys() == {"first", "second", "third"}
    assert session.outcomes[1].reason == "exit code 3: all is lost"
    assert "all is lost" in (tmp_path / LOG).read_text()


def test_stages_without_time_a_gpu_or_a_package_are_left_out(tmp_path: Path) -> None:
    session = Session(tmp_path, 30, small=False)
    session.run(Stage("slow", ("-c", "raise SystemExit(1)"), 60, least_s=40))
    session.run(Stage("reserved", ("-c", "raise SystemExit(1)"), 60, least_s=20, leave_s=15))
    session.run(Stage("package", ("-c", "raise SystemExit(1)"), 60, 1, needs=("no_such_package",)))
    session.run(Stage("file", ("-c", "raise SystemExit(1)"), 60, 1, needs=("all-0.tar",)))
    if not torch.cuda.is_available():
        session.run(Stage("gpu", ("-c", "raise SystemExit(1)"), 60, 1, needs_gpu=True))
    assert set(read_states(tmp_path).values()) == {"left out"}


def test_runs_only_the_stages_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stages = (make_stage("one", "print(1)"), make_stage("two", "raise SystemExit(2)"))
    monkeypatch.setattr(gpu_session, "STAGES", stages)
    assert gpu_session.main(["-o", str(tmp_path), "--stages", "one"]) == 0
    assert read_states(tmp_path) == {"one": "done"}
    assert gpu_session.main(["-o", str(tmp_path)]) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([LOG, RESULTS, SESSION])


def test_stages_run_what_exists() -> None:
    for stage in STAGES:
        if stage.arguments[:2] == ("-m", "benchmarks"):
            assert stage.arguments[2] in load_tables()
        assert stage.least_s < stage.limit_s
        filled = [part.format(results="r", output="o", minutes="1", processes="1") for part in stage.arguments]
        assert not any("{" in part for part in filled)


def test_summary_reads_the_results_in_the_repository(tmp_path: Path) -> None:
    folder = Path(gpu_session.ROOT, "benchmarks/results")
    documents = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    lines = dict(summarize({name: documents[name] for name in ("vision", "methods", "gpu")}))
    assert not [name for name, value in lines.items() if "cannot be read" in value]
    assert any(name.startswith("tower, ") for name in lines)
    assert any(name.startswith("table gpu, ") for name in lines)


def test_summary_survives_results_of_another_version() -> None:
    assert dict(summarize({"vision": {"towers": [{}]}})) == {"vision": "cannot be read: KeyError 'peak_bytes'"}


def test_results_are_replaced_by_name(session: Session, tmp_path: Path) -> None:
    for _ in range(2):
        session.run(make_stage("first", WRITE, "{results}", "first.json"))
    with tarfile.open(tmp_path / RESULTS) as archive:
        assert archive.getnames() == ["first.json"]
