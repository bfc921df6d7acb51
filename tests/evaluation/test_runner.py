"""Tests that execute runs as real processes; a stand-in replaces lmms-eval."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from floc.evaluation.plan import EvalRun, PlanOptions, plan_grid
from floc.evaluation.results import ResultFolder
from floc.evaluation.runner import execute_runs
from tests.evaluation.stand_in import MEAN_COSTS, create_builder, read_notes

PATIENCE_S = 60  # the machine may be busy
DRIVER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from stand_in import create_builder
from floc.evaluation.plan import PlanOptions, plan_grid
from floc.evaluation.results import ResultFolder
from floc.evaluation.runner import execute_runs
out = Path(sys.argv[1])
runs = plan_grid(PlanOptions(methods=["floc", "random"], tasks=["videomme"]))
builder = create_builder(out / "notes", "leaves a child", seconds=0.4)
execute_runs(runs, ResultFolder(out / "eval"), builder, gpus=("0", "1"))
"""


def create_runs(*methods: str, ratios: tuple[str, ...] = ("1/8",)) -> list[EvalRun]:
    return plan_grid(PlanOptions(methods=list(methods), ratios=list(ratios), tasks=["videomme"]))


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition was never met"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """Return whether a process runs and is no zombie."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def test_finished_runs_are_not_run_again(tmp_path: Path) -> None:
    folder, notes, runs = ResultFolder(tmp_path / "eval"), tmp_path / "notes", create_runs("floc", "random")
    ended: list[EvalRun] = []
    status = execute_runs(runs, folder, create_builder(notes), on_finish=ended.append)
    assert (status.runs, status.done, status.failed, status.to_do) == (2, 2, 0, 0)
    assert set(ended) == set(runs)
    results = {EvalRun(**each["run"]): each for each in folder.read_results()}
    assert set(results) == set(runs)
    for result in results.values():
        assert result["score"] == 75
        assert result["selection"] == MEAN_COSTS
        assert result["seconds"] > 0
        assert result["versions"]["torch"]
        assert "stand_in.py" in result["command"][1]
    again = execute_runs(runs, folder, create_builder(notes, "crashes"))
    assert (again.done, again.failed) == (2, 0)
    assert all(len(each) == 2 for each in read_notes(notes).values())  # started and ended once


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("crashes", "status 1; RuntimeError: no such weights"),
        ("fails quietly", "ValueError: a video is broken"),
        ("is killed", "status 137"),
        ("writes half", "not valid JSON"),
    ],
)
def test_failure_is_saved_and_other_runs_go_on(tmp_path: Path, behaviour: str, reason: str) -> None:
    folder, notes, runs = ResultFolder(tmp_path / "eval"), tmp_path / "notes", create_runs("floc", "random", "longvu")

    def get_behaviour(run: EvalRun) -> str:
        return behaviour if run.method == "random" else "succeeds"

    status = execute_runs(runs, folder, create_builder(notes, get_behaviour))
    assert (status.done, status.failed) == (2, 1)
    (failure,) = folder.read_failures()
    assert failure["run"]["method"] == "random"
    assert reason in failure["failure"]
    assert Path(failure["log"]).exists()
    before = read_notes(notes)
    status = execute_runs(runs, folder, create_builder(notes))  # without retry
    assert (status.done, status.failed) == (2, 1)
    assert read_notes(notes) == before
    status = execute_runs(runs, folder, create_builder(notes), retry=True)
    assert (status.done, status.failed) == (3, 0)
    assert folder.read_failures() == []
    assert len(folder.read_results()) == 3


def test_one_process_for_each_gpu(tmp_path: Path) -> None:
    notes, runs = tmp_path / "notes", create_runs("floc", "random", "longvu", ratios=("1/8", "1/16"))
    execute_runs(runs, ResultFolder(tmp_path / "eval"), create_builder(notes, seconds=0.2), gpus=("0", "2+3"))
    spans: dict[str, list[tuple[float, float]]] = {}
    for start, end in read_notes(notes).values():
        assert start[2] == end[2]
        spans.setdefault(start[2], []).append((start[3], end[3]))
    assert set(spans) == {"0", "2,3"}
    for each in spans.values():
        each.sort()
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(each))
    assert any(a[0] < b[1] and b[0] < a[1] for a in spans["0"] for b in spans["2,3"])  # at the same time


def test_kill_loses_only_the_running_runs(tmp_path: Path) -> None:
    notes, folder = tmp_path / "notes", ResultFolder(tmp_path / "eval")
    runs = create_runs("floc", "random", ratios=("1/8", "1/16", "1/32"))
    arguments = [sys.executable, "-c", DRIVER, str(tmp_path), str(Path(__file__).parent)]
    driver = subprocess.Popen(arguments)
    try:
        wait_until(lambda: len(list((tmp_path / "eval/results").glob("*.json"))) >= 2)  # not temporary files
        wait_until(lambda: any(len(each) == 1 for each in read_notes(notes).values()))
    finally:
        driver.kill()
        driver.wait()
    finished = {EvalRun(**each["run"]).name for each in folder.read_results()}
    at_kill = read_notes(notes)
    assert 2 <= len(finished) < len(runs)
    # the processes of running runs end with all their children
    pids = [int(line[1]) for each in at_kill.values() for line in each]
    # a process may have been killed before it wrote its child's pid
    pids += [int(pid) for path in notes.glob("*.child") if (pid := path.read_text())]
    wait_until(lambda: not any(is_running(pid) for pid in pids))
    assert folder.read_failures() == []
    done = subprocess.run(arguments, timeout=PATIENCE_S, check=True)
    assert done.returncode == 0
    assert {folder.get_state(run) for run in runs} == {"done"}
    for name, each in read_notes(notes).items():
        starts = sum(event == "starts" for event, *_ in each)
        assert starts == 1 if name in finished else starts <= 2


def test_stop_kills_running_runs_and_saves_no_failure(tmp_path: Path) -> None:
    folder, notes, runs = ResultFolder(tmp_path / "eval"), tmp_path / "notes", create_runs("floc", "random")
    started = time.monotonic()
    status = execute_runs(
        runs,
        folder,
        create_builder(notes, "leaves a child", seconds=300),
        should_stop=lambda: any(notes.glob("*.child")) if notes.exists() else False,
    )
    assert time.monotonic() - started < PATIENCE_S
    assert (status.done, status.failed, status.running) == (0, 0, {})
    assert {folder.get_state(run) for run in runs} == {"to do"}
    (child,) = notes.glob("*.child")
    wait_until(lambda: not is_running(int(child.read_text())))


def test_interrupt_kills_running_runs(tmp_path: Path) -> None:
    notes, folder = tmp_path / "notes", ResultFolder(tmp_path / "eval")

    def interrupt() -> bool:
        if notes.exists() and any(notes.iterdir()):
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        execute_runs(create_runs("floc"), folder, create_builder(notes, seconds=300), should_stop=interrupt)
    ((start,),) = read_notes(notes).values()
    wait_until(lambda: not is_running(start[1]))


def test_rejects_a_folder_in_use(tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path)
    with folder.lock(), pytest.raises(ValueError, match=f"in use by process {os.getpid()}"):
        execute_runs(create_runs("floc"), folder, create_builder(tmp_path / "notes"))
    assert not (tmp_path / "notes").exists()
    assert execute_runs(create_runs("floc"), folder, create_builder(tmp_path / "notes")).done == 1


def test_raises_errors_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file where a folder should be")
    with pytest.raises(OSError, match="results"):
        execute_runs(create_runs("floc"), ResultFolder(tmp_path), create_builder(tmp_path / "notes"))


def test_full_disk_stops_the_evaluation_and_loses_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, notes, runs = ResultFolder(tmp_path / "eval"), tmp_path / "notes", create_runs("floc", "random")

    def fail(path: Path, write: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    for behaviour in ("succeeds", "crashes"):
        with monkeypatch.context() as patch:
            patch.setattr("floc.evaluation.results.write_atomic", fail)
            with pytest.raises(OSError, match="No space left on device"):
                execute_runs(runs, folder, create_builder(notes, behaviour))
        assert {folder.get_state(run) for run in runs} == {"to do"}
    assert execute_runs(runs, folder, create_builder(notes)).done == 2


def test_rejects_files_of_other_programs_before_running(tmp_path: Path) -> None:
    for kind in ("results", "failed"):
        folder = tmp_path / kind / "eval"
        (folder / kind).mkdir(parents=True)
        (folder / kind / "x.json").write_text("{}")
        with pytest.raises(ValueError, match=r"x\.json is damaged, or not a file of `floc eval`"):
            execute_runs(create_runs("floc"), ResultFolder(folder), create_builder(tmp_path / "notes"))
    assert not (tmp_path / "notes").exists()


def test_estimates_time_left_after_the_first_run(tmp_path: Path) -> None:
    left: list[float | None] = []
    execute_runs(
        create_runs("floc", "random", "longvu"),
        ResultFolder(tmp_path / "eval"),
        create_builder(tmp_path / "notes", seconds=0.3),
        on_poll=lambda status: left.append(status.estimate_left(workers=1)),
    )
    assert left[0] is None
    estimates = [each for each in left if each is not None]
    assert estimates[0] > estimates[-1] >= 0


def test_watchdog_returns_the_exit_status(tmp_path: Path) -> None:
    from floc.evaluation.runner import WATCHDOG

    for code, status in (("import sys; sys.exit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 128 + signal.SIGKILL)):
        with subprocess.Popen([sys.executable, WATCHDOG, sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
            assert process.wait(PATIENCE_S) == status


def test_result_contains_all_settings(tmp_path: Path) -> None:
    (run,) = create_runs("floc")
    execute_runs([run], ResultFolder(tmp_path / "eval"), create_builder(tmp_path / "notes"))
    written = json.loads((tmp_path / f"eval/results/{run.name}.json").read_text())
    assert EvalRun(**written["run"]) == run
