"""Cells are run for real, as processes; only what they run is a stand-in."""

from __future__ import annotations

import contextlib
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

from floc.evaluation import Cell, Folder, Wish, grid, processes, run
from tests.evaluation.stand_in import KEPT, command, noted

PATIENCE_S = 60  # other work may hold the machine up
DRIVER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from stand_in import command
from floc.evaluation import Folder, Wish, grid, run
out = Path(sys.argv[1])
cells = grid(Wish(methods=["floc", "random"], tasks=["videomme"]))
run(cells, Folder(out / "eval"), command(out / "notes", "leaves a child", seconds=0.4), gpus=("0", "1"))
"""


def cells_of(*methods: str, ratios: tuple[str, ...] = ("1/8",)) -> list[Cell]:
    return grid(Wish(methods=list(methods), ratios=list(ratios), tasks=["videomme"]))


def wait_until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """Whether a process is there, and no corpse that nobody has asked for."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def test_results_are_put_in_place_and_never_run_again(tmp_path: Path) -> None:
    folder, notes, cells = Folder(tmp_path / "eval"), tmp_path / "notes", cells_of("floc", "random")
    ended: list[Cell] = []
    status = run(cells, folder, command(notes), finished=ended.append)
    assert (status.cells, status.done, status.failed, status.to_do) == (2, 2, 0, 0)
    assert set(ended) == set(cells)
    results = {Cell(**each["cell"]): each for each in folder.results()}
    assert set(results) == set(cells)
    for result in results.values():
        assert result["score"] == 75
        assert result["selection"] == KEPT
        assert result["seconds"] > 0
        assert result["versions"]["torch"]
        assert "stand_in.py" in result["command"][1]
    again = run(cells, folder, command(notes, "crashes"))
    assert (again.done, again.failed) == (2, 0)
    assert all(len(each) == 2 for each in noted(notes).values())  # begun and ended once


@pytest.mark.parametrize(
    ("behaviour", "why"),
    [
        ("crashes", "status 1; RuntimeError: no such weights"),
        ("fails quietly", "ValueError: a video is broken"),
        ("is killed", "status 137"),
        ("writes half", "not readable as JSON"),
    ],
)
def test_a_failure_is_told_and_stops_nothing(tmp_path: Path, behaviour: str, why: str) -> None:
    folder, notes, cells = Folder(tmp_path / "eval"), tmp_path / "notes", cells_of("floc", "random", "longvu")

    def one_fails(cell: Cell) -> str:
        return behaviour if cell.method == "random" else "well"

    status = run(cells, folder, command(notes, one_fails))
    assert (status.done, status.failed) == (2, 1)
    (failure,) = folder.failures()
    assert failure["cell"]["method"] == "random"
    assert why in failure["failure"]
    assert Path(failure["log"]).exists()
    before = noted(notes)
    status = run(cells, folder, command(notes))  # not asked to: it is left alone
    assert (status.done, status.failed) == (2, 1)
    assert noted(notes) == before
    status = run(cells, folder, command(notes), retry=True)
    assert (status.done, status.failed) == (3, 0)
    assert folder.failures() == []
    assert len(folder.results()) == 3


def test_one_process_for_each_gpu(tmp_path: Path) -> None:
    notes, cells = tmp_path / "notes", cells_of("floc", "random", "longvu", ratios=("1/8", "1/16"))
    run(cells, Folder(tmp_path / "eval"), command(notes, seconds=0.2), gpus=("0", "2+3"))
    spans: dict[str, list[tuple[float, float]]] = {}
    for begins, ends in noted(notes).values():
        assert begins[2] == ends[2]
        spans.setdefault(begins[2], []).append((begins[3], ends[3]))
    assert set(spans) == {"0", "2,3"}
    for each in spans.values():
        each.sort()
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(each))
    assert any(a[0] < b[1] and b[0] < a[1] for a in spans["0"] for b in spans["2,3"])  # both at a time


def test_killed_at_any_moment_it_loses_only_what_was_running(tmp_path: Path) -> None:
    notes, folder = tmp_path / "notes", Folder(tmp_path / "eval")
    cells = cells_of("floc", "random", ratios=("1/8", "1/16", "1/32"))
    arguments = [sys.executable, "-c", DRIVER, str(tmp_path), str(Path(__file__).parent)]
    driver = subprocess.Popen(arguments)
    try:
        wait_until(
            lambda: (tmp_path / "eval/results").exists() and len(list((tmp_path / "eval/results").iterdir())) >= 2
        )
        wait_until(lambda: any(len(each) == 1 for each in noted(notes).values()))
    finally:
        driver.kill()
        driver.wait()
    finished = {Cell(**each["cell"]).name for each in folder.results()}
    at_kill = noted(notes)
    assert 2 <= len(finished) < len(cells)
    # whoever was running is gone, with all that it started: no GPU is held
    pids = [int(line[1]) for each in at_kill.values() for line in each]
    # one may have been killed before it wrote its child's
    pids += [int(pid) for path in notes.glob("*.child") if (pid := path.read_text())]
    wait_until(lambda: not any(is_running(pid) for pid in pids))
    assert folder.failures() == []
    done = subprocess.run(arguments, timeout=PATIENCE_S, check=True)
    assert done.returncode == 0
    assert {folder.state(cell) for cell in cells} == {"done"}
    for name, each in noted(notes).items():
        begun = sum(what == "begins" for what, *_ in each)
        assert begun == 1 if name in finished else begun <= 2


def test_a_stop_ends_what_runs_and_leaves_no_trace_of_failure(tmp_path: Path) -> None:
    folder, notes, cells = Folder(tmp_path / "eval"), tmp_path / "notes", cells_of("floc", "random")
    started = time.monotonic()
    status = run(
        cells,
        folder,
        command(notes, "leaves a child", seconds=300),
        stopped=lambda: any(notes.glob("*.child")) if notes.exists() else False,
    )
    assert time.monotonic() - started < PATIENCE_S
    assert (status.done, status.failed, status.running) == (0, 0, {})
    assert {folder.state(cell) for cell in cells} == {"to do"}
    (child,) = notes.glob("*.child")
    wait_until(lambda: not is_running(int(child.read_text())))


def test_an_interrupt_ends_what_runs(tmp_path: Path) -> None:
    notes, folder = tmp_path / "notes", Folder(tmp_path / "eval")

    def interrupted() -> bool:
        if notes.exists() and any(notes.iterdir()):
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        run(cells_of("floc"), folder, command(notes, seconds=300), stopped=interrupted)
    ((begins,),) = noted(notes).values()
    wait_until(lambda: not is_running(begins[1]))


def test_two_may_not_work_in_one_folder(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    with folder.held(), pytest.raises(ValueError, match=f"process {os.getpid()} is at work here"):
        run(cells_of("floc"), folder, command(tmp_path / "notes"))
    assert not (tmp_path / "notes").exists()
    assert run(cells_of("floc"), folder, command(tmp_path / "notes")).done == 1


def test_what_is_wrong_with_the_folder_is_heard_of(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file where a folder should be")
    with pytest.raises(OSError, match="results"):
        run(cells_of("floc"), Folder(tmp_path), command(tmp_path / "notes"))


def test_a_result_of_something_else_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    for text in ("{", "{}", '{"cell": {"model": "x"}}'):
        (tmp_path / "results/x.json").write_text(text)
        with pytest.raises(ValueError, match=r"x\.json: not a file of `floc eval`"):
            Folder(tmp_path).results()


def test_a_result_of_something_else_is_told_before_anything_is_run(tmp_path: Path) -> None:
    for kind in ("results", "failed"):
        folder = tmp_path / kind / "eval"
        (folder / kind).mkdir(parents=True)
        (folder / kind / "x.json").write_text("{}")
        with pytest.raises(ValueError, match=r"x\.json: not a file of `floc eval`"):
            run(cells_of("floc"), Folder(folder), command(tmp_path / "notes"))
    assert not (tmp_path / "notes").exists()


def test_time_left_is_told_once_a_cell_has_ended(tmp_path: Path) -> None:
    left: list[float | None] = []
    run(
        cells_of("floc", "random", "longvu"),
        Folder(tmp_path / "eval"),
        command(tmp_path / "notes", seconds=0.3),
        show=lambda status: left.append(status.left_s(workers=1)),
    )
    assert left[0] is None
    told = [each for each in left if each is not None]
    assert told[0] > told[-1] >= 0


def test_the_leash_passes_on_the_status(tmp_path: Path) -> None:
    from floc.evaluation.runner import LEASH

    for code, status in (("import sys; sys.exit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 128 + signal.SIGKILL)):
        with subprocess.Popen([sys.executable, LEASH, sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
            assert process.wait(PATIENCE_S) == status


def test_gpus_that_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert processes("0, 3+4") == ["0", "3+4"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert processes(None) == ["5", "7"]
    for none in ("", "-1", "-1,0"):  # CUDA stops at the first that is not there
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", none)
        assert processes(None) == [""]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8932f937, 1,-1")
    assert processes(None) == ["GPU-8932f937", "1"]
    for bad in ("", "0,0", "0+1,1", "0+"):
        with pytest.raises(ValueError, match="--gpus must name each GPU once"):
            processes(bad)


def test_a_cells_result_tells_all_of_it(tmp_path: Path) -> None:
    (cell,) = cells_of("floc")
    run([cell], Folder(tmp_path / "eval"), command(tmp_path / "notes"))
    written = json.loads((tmp_path / f"eval/results/{cell.name}.json").read_text())
    assert Cell(**written["cell"]) == cell
