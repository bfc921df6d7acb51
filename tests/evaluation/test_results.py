"""Tests of the result folder, and of reading what lmms-eval wrote."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path

import pytest

from floc.evaluation.plan import PlanOptions, plan_grid
from floc.evaluation.results import NoResultsError, ResultFolder, find_failure_reason, read_output
from tests.evaluation.stand_in import MEAN_COSTS, create_samples, write_output


def find_results(folder: Path) -> Path:
    return next(folder.rglob("*_results.json"))


def find_answers(folder: Path) -> Path:
    return next(folder.rglob("*_samples_*.jsonl"))


def test_scores_are_computed_from_the_answers(tmp_path: Path) -> None:
    write_output(tmp_path, "videomme")
    result = read_output(tmp_path, "videomme")
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
    write_output(tmp_path, task, [{metric: answer} for answer in answers])
    result = read_output(tmp_path, task)
    assert result["score"] == 50  # of all questions, not the mean of the parts
    assert {name: part["score"] for name, part in result["parts"].items()} == pytest.approx(parts)


def test_other_tasks_have_the_score_of_lmms_eval(tmp_path: Path) -> None:
    write_output(tmp_path, "mvbench")
    result = read_output(tmp_path, "mvbench")
    assert (result["score"], result["error"], result["questions"], result["parts"]) == (75.0, None, 4, {})


def test_averages_costs(tmp_path: Path) -> None:
    write_output(tmp_path, "videomme")
    assert read_output(tmp_path, "videomme")["selection"] == pytest.approx(MEAN_COSTS)
    find_answers(tmp_path).write_text("".join(json.dumps(sample) + "\n" for sample in create_samples()))
    assert read_output(tmp_path, "videomme")["selection"] is None


def test_reads_the_newest_results(tmp_path: Path) -> None:
    write_output(tmp_path, "videomme")
    for path in (tmp_path / "org__model").iterdir():
        path.with_name(path.name.replace("2026", "2027")).write_text(path.read_text())
        path.write_text("{}")
    assert read_output(tmp_path, "videomme")["score"] == 75


def remove_all_questions(folder: Path) -> None:
    find_results(folder).write_text('{"results": {"videomme": {}}}')
    find_answers(folder).write_text("")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: find_results(folder).unlink(), "no results in"),
        (
            lambda folder: find_results(folder).write_text('{"results": {'),
            "or its samples are not valid JSON",
        ),
        (lambda folder: find_results(folder).write_text('{"results": {"other": {}}}'), "has no results for videomme"),
        (lambda folder: find_answers(folder).unlink(), "the log of the answers, is missing"),
        (lambda folder: find_answers(folder).write_text('{"a": 1'), "or its samples are not valid JSON"),
        (lambda folder: find_answers(folder).write_text('{"a": 1}\n' * 4), "not in the format of lmms-eval 0.7"),
        (lambda folder: find_answers(folder).write_text(""), "4 questions, but 0 answers"),
        (remove_all_questions, "no question was answered"),
        (lambda folder: find_answers(folder).write_text(json.dumps(create_samples()[0])), "4 questions, but 1 answers"),
    ],
)
def test_incomplete_run_has_no_results(tmp_path: Path, damage, message: str) -> None:
    write_output(tmp_path, "videomme")
    damage(tmp_path)
    with pytest.raises(NoResultsError, match=message):
        read_output(tmp_path, "videomme")


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


@pytest.mark.parametrize(
    ("results", "answers"),
    [
        ("[]", None),
        ('{"results": []}', None),
        ('{"results": {"videomme": 3}}', None),
        ("[" * 100_000, None),
        (None, "[1]\n" * 4),
        (None, '{"videomme_perception_score": 1}\n' * 4),
        (None, '{"token_counts": 1}\n' * 4),
    ],
)
def test_damaged_output_is_no_result(tmp_path: Path, results: str | None, answers: str | None) -> None:
    write_output(tmp_path, "videomme")
    if results is not None:
        find_results(tmp_path).write_text(results)
    if answers is not None:
        find_answers(tmp_path).write_text(answers)
    with pytest.raises(NoResultsError, match=r"not in the format of lmms-eval|has no results for"):
        read_output(tmp_path, "videomme")


def save_example(folder: Path) -> Path:
    """Save a result; return its file."""
    (run,) = plan_grid(PlanOptions(methods=["full"], tasks=["videomme"]))
    write_output(folder / "run", "videomme")
    ResultFolder(folder).save_result(run, {**read_output(folder / "run", "videomme"), "seconds": 1.0, "date": "today"})
    return folder / f"results/{run.name}.json"


def replace_value(*keys: str, value: object):
    """Return a function that changes one value of a JSON text."""

    def change(text: str) -> str:
        document = place = json.loads(text)
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value
        return json.dumps(document)

    return change


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: "{",
        lambda text: "{}",
        lambda text: "[]",
        lambda text: text[: len(text) // 2],
        lambda text: "[" * 100_000,
        lambda text: "\udc80",
        replace_value("run", value={"model": "x"}),
        replace_value("run", "model", value="other"),
        replace_value("run", "max_frames", value="many"),
        replace_value("run", "extra", value=1),
        replace_value("score", value="75"),
        replace_value("score", value=float("nan")),
        replace_value("parts", value=[]),
        replace_value("parts", "videomme/long", value=None),
        replace_value("parts", "videomme/long", "questions", value=-1),
        replace_value("selection", "kept", value="few"),
        replace_value("seconds", value=None),
    ],
)
def test_damaged_result_file_is_named(tmp_path: Path, damage) -> None:
    path = save_example(tmp_path)
    path.write_text(damage(path.read_text()), errors="surrogateescape")
    with pytest.raises(ValueError, match=rf"{path.name} is damaged, or not a file of `floc eval`: .*delete it"):
        ResultFolder(tmp_path).read_results()


def test_reads_results_of_earlier_versions(tmp_path: Path) -> None:
    path = save_example(tmp_path)
    path.write_text(path.read_text().replace('"run": {', '"cell": {'))
    (result,) = ResultFolder(tmp_path).read_results()
    assert result["run"]["model"] == "qwen2.5-vl-7b"


def test_numbers_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    write_output(tmp_path, "videomme")
    text = find_results(tmp_path).read_text()
    find_results(tmp_path).write_text(text.replace("75.0", "NaN"))
    assert read_output(tmp_path, "videomme")["lmms_eval"] == {}


def test_states_of_a_run(tmp_path: Path) -> None:
    (run,) = plan_grid(PlanOptions(methods=["full"], tasks=["videomme"]))
    folder = ResultFolder(tmp_path)
    assert folder.get_state(run) == "to do"
    folder.save_failure(run, {"failure": "x"})
    assert folder.get_state(run) == "failed"
    assert folder.read_failures()[0]["failure"] == "x"
    save_example(tmp_path)
    assert folder.get_state(run) == "done"
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
