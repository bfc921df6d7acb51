"""What lmms-eval really writes is what `floc.evaluation` reads: its own tasks' functions, and a run of it, offline."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

lmms_eval = pytest.importorskip("lmms_eval", reason="lmms-eval is not installed: make test-lmms runs this where it is")
pytest.importorskip("floc.integrations.lmms_eval", reason="the models for lmms-eval are not there")
pytestmark = [pytest.mark.lmms, pytest.mark.filterwarnings("ignore")]  # other packages' warnings

from floc.evaluation import Folder, Wish, grid, outcome, run  # noqa: E402
from floc.evaluation.tasks import TASKS, Task  # noqa: E402
from tests.integrations.lmms_eval.process import STAND_INS, is_stood_in_for  # noqa: E402

YAML = """
dataset_path: json
dataset_kwargs:
  data_files:
    test: {questions}
task: floc_toy
test_split: test
output_type: generate_until
doc_to_visual: !function functions.visual
doc_to_text: !function functions.text
doc_to_target: answer
generation_kwargs:
  max_new_tokens: 16
process_results: !function functions.judged
metric_list:
  - metric: toy_score
    aggregation: !function functions.share
    higher_is_better: true
"""
FUNCTIONS = """
def visual(doc):
    return []

def text(doc, kwargs=None):
    return doc["question"]

def judged(doc, results):
    return {"toy_score": {"duration": doc["duration"], "pred_answer": results[0], "answer": doc["answer"]}}

def share(results):
    {fault}
    return 100 * sum(each["pred_answer"] == each["answer"] for each in results) / len(results)
"""
TOY = Task(
    "floc_toy",
    "Toy",
    "nobody/toy",
    questions=8,
    mean_s=1,
    metric="toy_score",
    answer="pred_answer",
    right="answer",
    part="duration",
)


def lmms(module: str) -> Any:
    return importlib.import_module(f"lmms_eval.tasks.{module}.utils")


def samples_of(name: str) -> tuple[list[dict], float]:
    """Answers as a task of lmms-eval puts them down, and the score that it makes of them, in percent."""
    if name == "videomme":
        tools = lmms("videomme")
        fixed = dict(domain="Knowledge", sub_category="Astronomy", task_type="Counting Problem", videoID="v")
        docs = [
            dict(fixed, question_id=str(i), duration=length, answer="A")
            for i, length in enumerate(["short"] * 3 + ["long"] * 4)
        ]
        samples = [tools.videomme_process_results(doc, ["AB"[i % 2]]) for i, doc in enumerate(docs)]
        return samples, tools.videomme_aggregate_results([each["videomme_perception_score"] for each in samples])
    if name == "mlvu_dev":
        tools = lmms("mlvu")
        kinds = ["ego"] + ["needle"] * 3
        samples = [
            tools.mlvu_process_results(dict(question="q", task_type=kind, answer="B"), [said])
            for kind, said in zip(kinds, "BBCD", strict=True)
        ]
        return samples, tools.mlvu_aggregate_results_dev([each["mlvu_percetion_score"] for each in samples])
    if name == "longvideobench_val_v":
        tools = lmms("longvideobench")
        options = {f"option{i}": text for i, text in enumerate(["red", "green", "blue", "N/A", "N/A"])}
        samples = [
            tools.longvideobench_process_results(
                dict(options, id=str(i), duration_group=length, question_category="T2A", correct_choice=0), [said]
            )
            for i, (length, said) in enumerate([(15, "A"), (15, "B"), (600, "A"), (3600, "C")])
        ]
        return samples, 100 * tools.longvideobench_aggregate_results([each["lvb_acc"] for each in samples])
    tools = lmms("egoschema")
    doc = dict(video_idx="v", option=["A. red", "B. green", "C. blue", "D. white", "E. black"], answer="2")
    samples = [tools.egoschema_process_results_generation(doc, [said]) for said in ("C", "A", "C. blue")]
    return samples, 100 * tools.egoschema_aggregate_score([each["score"] for each in samples], None)


@pytest.mark.parametrize("name", TASKS)
def test_answers_are_counted_as_lmms_eval_counts_them(name: str) -> None:
    samples, theirs = samples_of(name)
    ours = outcome._count(TASKS[name], json.loads(json.dumps(samples)))
    if name == "mlvu_dev":  # it takes the mean of seven sub-tasks, five of which have no question here
        assert theirs == pytest.approx(sum(part["score"] for part in ours["parts"].values()) / 7)
        assert ours["score"] == 50
    else:
        assert ours["score"] == pytest.approx(theirs, abs=1e-3)
        assert 0 < theirs < 100


@pytest.mark.parametrize("name", TASKS)
def test_datasets_and_metrics_are_those_of_lmms_eval(name: str) -> None:
    files = [*Path(lmms_eval.__path__[0]).glob(f"tasks/*/{name}.yaml")]
    assert len(files) == 1
    told = files[0].read_text() + "".join(each.read_text() for each in files[0].parent.glob("_default_template_yaml"))
    assert f"dataset_path: {TASKS[name].repository}" in told
    assert f"metric: {TASKS[name].metric}" in told


@pytest.mark.parametrize("fault", ["", "raise RuntimeError('no score today')"])
def test_a_cell_is_run_by_lmms_eval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    if is_stood_in_for("torchvision"):
        monkeypatch.setenv("PYTHONPATH", str(STAND_INS / "torchvision"), prepend=os.pathsep)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setitem(TASKS, "floc_toy", TOY)
    task = tmp_path / "tasks"
    task.mkdir()
    lengths, answers = ["short"] * 3 + ["long"] * 5, "AABAABCD"
    questions = [
        dict(question=f"Question {i}?", duration=length, answer=answer)
        for i, (length, answer) in enumerate(zip(lengths, answers, strict=True))
    ]
    (task / "questions.jsonl").write_text("".join(json.dumps(each) + "\n" for each in questions))
    (task / "floc_toy.yaml").write_text(YAML.format(questions=task / "questions.jsonl"))
    (task / "functions.py").write_text(FUNCTIONS.replace("{fault}", fault))

    def command(cell, folder, gpus) -> list[str]:  # a model that says A to everything
        told = ["--model", "dummy", "--model_args", "response=A,pretrained=org/some", "--tasks", cell.task]
        there = ["--include_path", str(task), "--output_path", str(folder), "--log_samples", "--batch_size", "1"]
        return [sys.executable, "-m", "lmms_eval", *told, *there]

    folder = Folder(tmp_path / "eval")
    cells = grid(Wish(methods=["full"], tasks=["floc_toy"]))
    status = run(cells, folder, command)
    if fault:
        assert status.failed == 1
        assert "RuntimeError: no score today" in folder.failures()[0]["failure"]
        return
    (result,) = folder.results()
    right = [answer == "A" for answer in answers]
    assert result["score"] == 100 * fmean(right)
    assert result["lmms_eval"]["toy_score"] == 100 * fmean(right)
    assert {name: part["score"] for name, part in result["parts"].items()} == pytest.approx(
        {"floc_toy/short": 100 * fmean(right[:3]), "floc_toy/long": 100 * fmean(right[3:])}
    )
