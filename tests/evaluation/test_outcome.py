from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from floc.evaluation import outcome
from tests.evaluation.stand_in import KEPT, samples, write


def test_scores_are_counted_from_the_answers(tmp_path: Path) -> None:
    write(tmp_path, "videomme")
    told = outcome.read(tmp_path, "videomme")
    assert told["score"] == 75
    assert told["error"] == pytest.approx(100 * math.sqrt(0.75 * 0.25 / 4))
    assert told["questions"] == 4
    assert {name: (part["score"], part["questions"]) for name, part in told["parts"].items()} == {
        "videomme/short": (100, 2),
        "videomme/long": (50, 2),
    }
    assert told["lmms_eval"] == {"videomme_perception_score": 75.0}


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
def test_each_task_has_its_own_names(tmp_path: Path, task: str, metric: str, answers, parts) -> None:
    write(tmp_path, task, [{metric: each} for each in answers])
    told = outcome.read(tmp_path, task)
    assert told["score"] == 50  # of all questions, not the mean of the parts
    assert {name: part["score"] for name, part in told["parts"].items()} == pytest.approx(parts)


def test_another_task_is_told_as_lmms_eval_tells_it(tmp_path: Path) -> None:
    write(tmp_path, "mvbench")
    told = outcome.read(tmp_path, "mvbench")
    assert (told["score"], told["error"], told["questions"], told["parts"]) == (75.0, None, 4, {})


def test_what_was_kept_is_averaged(tmp_path: Path) -> None:
    write(tmp_path, "videomme")
    assert outcome.read(tmp_path, "videomme")["selection"] == pytest.approx(KEPT)
    answers_of(tmp_path).write_text("".join(json.dumps(each) + "\n" for each in samples()))
    assert outcome.read(tmp_path, "videomme")["selection"] is None


def test_the_newest_results_count(tmp_path: Path) -> None:
    write(tmp_path, "videomme")
    for path in (tmp_path / "org__model").iterdir():
        path.with_name(path.name.replace("2026", "2027")).write_text(path.read_text())
        path.write_text("{}")
    assert outcome.read(tmp_path, "videomme")["score"] == 75


def results_of(folder: Path) -> Path:
    return next(folder.rglob("*_results.json"))


def answers_of(folder: Path) -> Path:
    return next(folder.rglob("*_samples_*.jsonl"))


def no_question(folder: Path) -> None:
    results_of(folder).write_text('{"results": {"videomme": {}}}')
    answers_of(folder).write_text("")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda folder: results_of(folder).unlink(), "no results in"),
        (lambda folder: results_of(folder).write_text('{"results": {'), "is not readable as JSON"),
        (lambda folder: results_of(folder).write_text('{"results": {"other": {}}}'), "has no results for videomme"),
        (lambda folder: answers_of(folder).unlink(), "is missing, which has the answers"),
        (lambda folder: answers_of(folder).write_text('{"a": 1'), "is not readable as lines of JSON"),
        (lambda folder: answers_of(folder).write_text('{"a": 1}\n' * 4), "not as lmms-eval 0.7 writes it"),
        (lambda folder: answers_of(folder).write_text(""), "4 questions were asked, 0 answers"),
        (no_question, "no question was answered"),
        (lambda folder: answers_of(folder).write_text(json.dumps(samples()[0])), "4 questions were asked, 1 answers"),
    ],
)
def test_half_of_a_run_is_none(tmp_path: Path, spoil, says: str) -> None:
    write(tmp_path, "videomme")
    spoil(tmp_path)
    with pytest.raises(outcome.NoResults, match=says):
        outcome.read(tmp_path, "videomme")


@pytest.mark.parametrize(
    ("log", "why"),
    [
        ("", "it wrote nothing"),
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
def test_reasons(tmp_path: Path, log: str, why: str) -> None:
    path = tmp_path / "log"
    path.write_text(log)
    assert outcome.reason(path) == why
