"""Tests of the result folder, and of reading what lmms-eval wrote."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path

import pytest

from floc.evaluation import PlanOptions, ResultFolder, plan_grid
from floc.evaluation.results import NoResultsError, find_failure_reason, read_run
from tests.evaluation.stand_in import MEAN_COSTS, create_samples, write_run


def find_results(folder: Path) -> Path:
    return next(folder.rglob("*_results.json"))


def find_answers(folder: Path) -> Path:
    return next(folder.rglob("*_samples_*.jsonl"))


def test_scores_are_computed_from_the_answers(tmp_path: Path) -> None:
    write_run(tmp_path, "videomme")
    result = read_run(tmp_path, "videomme")
    assert result["score"] == 75
    assert result["error"] == pytest.approx(100 * math.sqrt(0.75 * 0.25 / 4))
    assert result["questions"] == 4
    assert {name: (part["score"], part["questions"]) for name, part in result["parts"].items()} == {
        "videomme/short": (100, 2),
        "videomme/long": (50, 2),
    }
    assert result["lmms_eval"] == {"videomme_perception_score": 75.0}


@pytest.mark.parametrize(
    ("task", "metric", "answers", "parts"),
    [
        (
            "mlvu_dev",
            "mlvu_percetion_score",
            [dict(task_type="ego", pred_answer="A", answer="A")]
            + [dict(task_type="needle", pred_answer="B", answer=right) for right in "BCD"],
            {"mlvu_dev/ego": 100, "mlvu_dev/needle": 100 / 3},
        ),
        (
            "longvideobench_val_v",
            "lvb_acc",
            [
                dict(duration_group=15, parsed_pred="A", answer="A"),
                dict(duration_group=3600, parsed_pred="B", answer="A"),
            ],
            {"longvideobench_val_v/15": 100, "longvideobench_val_v/3600": 0},
        ),
        ("egoschema_subset", "score", [dict(pred=3, ground_truth="3"), dict(pred=-1, ground_truth="2")], {}),
    ],
)
def test_reads_the_keys_of_each_task(tmp_path: Path, task: str, metric: str, answers, parts) -> None:
    write_run(tmp_path, task, [{metric: answer} for answer in answers])
    result = read_run(tmp_path, task)
    assert result["score"] == 50  # of all questions, not the mean of the parts
    assert {name: part["score"] for name, part in result["parts"].items()} == pytest.approx(parts)


def test_other_tasks_have_the_score_of_lmms_eval(tmp_path: Path) -> None:
    write_run(tmp_path, "mvbench")
    result = read_run(tmp_path, "mvbench")
    assert (result["score"], result["error"], result["questions"], result["parts"]) == (75.0, None, 4, {})


def test_averages_costs(tmp_path: Path) -> None:
    write_run(tmp_path, "videomme")
    assert read_run(tmp_path, "videomme")["selection"] == pytest.approx(MEAN_COSTS)
    find_answers(tmp_path).write_text("".join(json.dumps(sample) + "\n" for sample in create_samples()))
    assert read_run(tmp_path, "videomme")["selection"] is None


def test_reads_the_newest_results(tmp_path: Path) -> None:
    write_run(tmp_path, "videomme")
    for path in (tmp_path / "org__model").iterdir():
        path.with_name(path.name.replace("2026", "2027")).write_text(path.read_text())
        path.write_text("{}")
    assert read_run(tmp_path, "videomme")["score"] == 75


def remove_all_questions(folder: Path) -> None:
    find_results(folder).write_text('{"results": {"videomme": {}}}')
    find_answers(folder).write_text("")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: find_results(folder).unlink(), "no results in"),
        (lambda folder: find_results(folder).write_text('{"results": {'), r"_results.json is not valid JSON"),
        (lambda folder: find_results(folder).write_text('{"results": {"other": {}}}'), "has no results for videomme"),
        (lambda folder: find_answers(folder).unlink(), "the log of the answers, is missing"),
        (lambda folder: find_answers(folder).write_text('{"a": 1'), "_samples_videomme.jsonl is not valid JSON"),
        (lambda folder: find_answers(folder).write_text('{"a": 1}\n' * 4), "not in the format of lmms-eval 0.7"),
        (lambda folder: find_answers(folder).write_text(""), "4 questions, but 0 answers"),
        (remove_all_questions, "no question was answered"),
        (lambda folder: find_answers(folder).write_text(json.dumps(create_samples()[0])), "4 questions, but 1 answers"),
    ],
)
def test_incomplete_run_has_no_results(tmp_path: Path, damage, message: str) -> None:
    write_run(tmp_path, "videomme")
    damage(tmp_path)
    with pytest.raises(NoResultsError, match=message):
        read_run(tmp_path, "videomme")


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("", "no output"),
        ("one\n\x1b[31mtwo\x1b[0m\n\n", "two"),
        ("Traceback (most recent call last):\n  File x\n    y\nValueError: bad\nmore", "ValueError: bad"),
        (
            "Traceback (most recent call last):\n  a\nKeyError: 1\n\nDuring handling:\n\n"
            "Traceback (most recent call last):\n  b\nmine.Error: 2\nSee above",
            "mine.Error: 2",
        ),
        ("Traceback (most recent call last):\n  cut off", "cut off"),
        ("x" * 1000, "x" * 400),
    ],
)
def test_finds_the_reason_of_a_failure(tmp_path: Path, log: str, reason: str) -> None:
    path = tmp_path / "log"
    path.write_text(log)
    assert find_failure_reason(path) == reason


def test_rejects_files_of_other_programs(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    for text in ("{", "{}", '{"cell": {"model": "x"}}'):
        (tmp_path / "results/x.json").write_text(text)
        with pytest.raises(ValueError, match=r"x\.json is not a file of `floc eval`"):
            ResultFolder(tmp_path).read_results()


def test_states_of_a_cell(tmp_path: Path) -> None:
    (cell,) = plan_grid(PlanOptions(methods=["full"], tasks=["videomme"]))
    folder = ResultFolder(tmp_path)
    assert folder.get_state(cell) == "to do"
    folder.save_failure(cell, {"failure": "x"})
    assert folder.get_state(cell) == "failed"
    folder.save_result(cell, {"score": 1})
    assert folder.get_state(cell) == "done"
    assert folder.read_failures() == []


def test_lock_names_its_owner(tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path)
    with folder.lock(), pytest.raises(ValueError, match=f"in use by process {os.getpid()}"), folder.lock():
        pass
    with folder.lock():
        pass


def test_lock_needs_fcntl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with (
        pytest.raises(ImportError, match="needs fcntl, which only Linux and macOS have"),
        ResultFolder(tmp_path).lock(),
    ):
        pass
