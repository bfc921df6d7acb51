"""Tests that the trained model of the repository answers in lmms-eval as it does with `floc.attach`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("lmms_eval", reason="needs lmms-eval: run make test-lmms")
pytestmark = [pytest.mark.lmms, pytest.mark.filterwarnings("ignore")]  # other packages' warnings

import floc  # noqa: E402
from examples.tiny_video_model.checkpoint import CHECKPOINT, load_checkpoint  # noqa: E402
from examples.tiny_video_model.exam import TEST_SEED  # noqa: E402
from examples.tiny_video_model.films import make_film, write_film  # noqa: E402
from examples.tiny_video_model.model import HEIGHT, WIDTH  # noqa: E402
from examples.tiny_video_model.questions import QuestionPicker  # noqa: E402
from examples.tiny_video_model.rendering import render_film  # noqa: E402
from tests.integrations.lmms_eval.films import TASK  # noqa: E402
from tests.integrations.lmms_eval.process import read_samples, run  # noqa: E402

FILMS = 2
FUNCTIONS = """
from pathlib import Path

def doc_to_visual(doc):
    return [str(Path(__file__).parent / doc["film"])]

def doc_to_text(doc, lmms_eval_specific_kwargs=None):
    return doc["question"]

def process_results(doc, results):
    return {"keys_score": {"score": float(results[0].strip() == doc["answer"])}}

def aggregate(results):
    return 100 * sum(each["score"] for each in results) / len(results)
"""


def write_task(folder: Path) -> list[dict[str, str]]:
    """Write films, questions and the task into a folder; return the questions."""
    picker, asked = QuestionPicker(TEST_SEED), []
    for seed in range(TEST_SEED, TEST_SEED + FILMS):
        film = make_film(seed)
        write_film(folder / f"{seed}.mp4", render_film(film))
        asked += [{"film": f"{seed}.mp4", "question": each.text, "answer": each.answer} for each in picker.pick(film)]
    (folder / "questions.jsonl").write_text("".join(json.dumps(each) + "\n" for each in asked))
    (folder / "utils.py").write_text(FUNCTIONS)
    (folder / "keys.yaml").write_text((TASK / "keys.yaml").read_text().replace("{folder}", str(folder)))
    return asked


def answer(folder: Path, asked: list[dict[str, str]], ratio: str) -> list[str]:
    """Answer by capture and replay."""
    model, processor = load_checkpoint()
    answers = []
    for name in dict.fromkeys(each["film"] for each in asked):
        video = floc.capture(model, str(folder / name), processor=processor, ratio=ratio)
        for each in asked:
            if each["film"] == name:
                inputs = video.inputs(processor, each["question"])
                with floc.replay(model, video), torch.no_grad():
                    ids = model.generate(**inputs, max_new_tokens=8, do_sample=False)
                answers.append(processor.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
    return [text.strip() for text in answers]


@pytest.mark.parametrize("ratio", ["1", "1/8"])
def test_answers_in_lmms_eval_are_those_of_replay(tmp_path: Path, ratio: str) -> None:
    task = tmp_path / "task"
    task.mkdir()
    asked = write_task(task)
    limits = f"min_pixels={28 * 28},max_pixels={HEIGHT * WIDTH}"
    output = run(
        *("-m", "lmms_eval", "--model", "floc_qwen2_5_vl", "--device", "cpu", "--tasks", "keys"),
        *("--model_args", f"pretrained={CHECKPOINT},device_map=cpu,{limits},fps=2,max_frames=64,ratio={ratio}"),
        *("--include_path", task, "--output_path", tmp_path / "out", "--log_samples"),
        kind="qwen2_5_vl",
        home=tmp_path / "hub",
    )
    samples = sorted(read_samples(tmp_path / "out"), key=lambda each: each["doc_id"])
    assert len(samples) == len(asked) >= 16, output
    (cost,) = samples[0]["token_counts"]
    assert cost["floc"]["shapes"] == [[32, 4, 6]]
    given = [each["filtered_resps"].strip() for each in samples]
    assert given == answer(task, asked, ratio)
    right = sum(each["answer"] == text for each, text in zip(asked, given, strict=True))
    assert right >= 0.8 * len(asked)
