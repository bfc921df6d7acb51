"""Tests that `floc.evaluation` reads what lmms-eval writes: the functions of its tasks, and an offline run."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

lmms_eval = pytest.importorskip("lmms_eval", reason="needs lmms-eval: run make test-lmms")
pytestmark = [pytest.mark.lmms, pytest.mark.filterwarnings("ignore")]  # other packages' warnings

from floc.evaluation.plan import PlanOptions, plan_grid  # noqa: E402
from floc.evaluation.results import ResultFolder, score_answers  # noqa: E402
from floc.evaluation.runner import execute_runs  # noqa: E402
from floc.evaluation.tasks import TASKS, Task  # noqa: E402

YAML = """
dataset_path: json
dataset_kwargs:
  data_files:
    test: {questions}
task: floc_toy
test_split: test
output_type: generate_until
doc_to_visual: !function functions.get_visual
doc_to_text: !function functions.get_text
doc_to_target: answer
generation_kwargs:
  max_new_tokens: 16
process_results: !function functions.record
metric_list:
  - metric: toy_score
    aggregation: !function functions.average
    higher_is_better: true
"""
FUNCTIONS = """
def get_visual(doc):
    return []

def get_text(doc, kwargs=None):
    return doc["question"]

def record(doc, results):
    return {"toy_score": {"duration": doc["duration"], "pred_answer": results[0], "answer": doc["answer"]}}

def average(results):
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


def import_task(module: str) -> Any:
    return importlib.import_module(f"lmms_eval.tasks.{module}.utils")


def create_samples(name: str) -> tuple[list[dict], float]:
    """Return samples that a task of lmms-eval recorded, and its own score of them in percent."""
    if name == "videomme":
        tools = import_task("videomme")
        fixed = dict(domain="Knowledge", sub_category="Astronomy", task_type="Counting Problem", videoID="v")
        docs = [
            dict(fixed, question_id=str(i), duration=length, answer="A")
            for i, length in enumerate(["short"] * 3 + ["long"] * 4)
        ]
        samples = [tools.videomme_process_results(doc, ["AB"[i % 2]]) for i, doc in enumerate(docs)]
        return samples, tools.videomme_aggregate_results([each["videomme_perception_score"] for each in samples])
    if name == "mlvu_dev":
        tools = import_task("mlvu")
        kinds = ["ego"] + ["needle"] * 3
        samples = [
            tools.mlvu_process_results(dict(question="q", task_type=kind, answer="B"), [answer])
            for kind, answer in zip(kinds, "BBCD", strict=True)
        ]
        return samples, tools.mlvu_aggregate_results_dev([each["mlvu_percetion_score"] for each in samples])
    if name == "longvideobench_val_v":
        tools = import_task("longvideobench")
        options = {f"option{i}": text for i, text in enumerate(["red", "green", "blue", "N/A", "N/A"])}
        samples = [
            tools.longvideobench_process_results(
                dict(options, id=str(i), duration_group=length, question_category="T2A", correct_choice=0), [answer]
            )
            for i, (length, answer) in enumerate([(15, "A"), (15, "B"), (600, "A"), (3600, "C")])
        ]
        return samples, 100 * tools.longvideobench_aggregate_results([each["lvb_acc"] for each in samples])
    tools = import_task("egoschema")
    doc = dict(video_idx="v", option=["A. red", "B. green", "C. blue", "D. white", "E. black"], answer="2")
    samples = [tools.egoschema_process_results_generation(doc, [answer]) for answer in ("C", "A", "C. blue")]
    return samples, 100 * tools.egoschema_aggregate_score([each["score"] for each in samples], None)


@pytest.mark.parametrize("name", TASKS)
def test_score_equals_lmms_eval(name: str) -> None:
    samples, theirs = create_samples(name)
    ours = score_answers(TASKS[name], json.loads(json.dumps(samples)))
    if name == "mlvu_dev":  # lmms-eval averages seven sub-tasks, of which two have questions here
        assert theirs == pytest.approx(sum(part["score"] for part in ours["parts"].values()) / 7)
        assert ours["score"] == 50
    else:
        assert ours["score"] == pytest.approx(theirs, abs=1e-3)
        assert 0 < theirs < 100


@pytest.mark.parametrize("name", TASKS)
def test_datasets_and_metrics_match_lmms_eval(name: str) -> None:
    files = [*Path(lmms_eval.__path__[0]).glob(f"tasks/*/{name}.yaml")]
    assert len(files) == 1
    text = files[0].read_text() + "".join(each.read_text() for each in files[0].parent.glob("_default_template_yaml"))
    assert f"dataset_path: {TASKS[name].repository}" in text
    assert f"metric: {TASKS[name].metric}" in text


@pytest.mark.parametrize("fault", ["", "raise RuntimeError('no score today')"])
def test_executes_a_run_with_lmms_eval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
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

    def command(run, folder, gpus) -> list[str]:  # a model that always answers A
        model = ["--model", "dummy", "--model_args", "response=A,pretrained=org/some", "--tasks", run.task]
        paths = ["--include_path", str(task), "--output_path", str(folder), "--log_samples", "--batch_size", "1"]
        return [sys.executable, "-m", "lmms_eval", *model, *paths]

    folder = ResultFolder(tmp_path / "eval")
    runs = plan_grid(PlanOptions(methods=["full"], tasks=["floc_toy"]))
    status = execute_runs(runs, folder, command)
    if fault:
        assert status.failed == 1
        assert "RuntimeError: no score today" in folder.read_failures()[0]["failure"]
        return
    (result,) = folder.read_results()
    right = [answer == "A" for answer in answers]
    assert result["score"] == 100 * fmean(right)
    assert result["lmms_eval"]["toy_score"] == 100 * fmean(right)
    assert {name: part["score"] for name, part in result["parts"].items()} == pytest.approx(
        {"floc_toy/short": 100 * fmean(right[:3]), "floc_toy/long": 100 * fmean(right[3:])}
    )
