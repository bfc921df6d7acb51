"""The trained model of the repository: its answers survive compression, and all ways to ask it agree."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import floc

transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install 'floc-video[hf]'")
pytest.importorskip("torchvision", reason="torchvision is not installed: pip install 'floc-video[hf]'")
pytest.importorskip("av", reason="av is not installed: pip install 'floc-video[video]'")

from examples.tiny_video_model.checkpoint import CHECKPOINT, SUMS, check_files, load_checkpoint  # noqa: E402
from examples.tiny_video_model.exam import (  # noqa: E402
    Exam,
    Examiner,
    compute_accuracy,
    count_right,
    estimate_interval,
    make_exams,
)
from examples.tiny_video_model.films import write_film  # noqa: E402
from examples.tiny_video_model.questions import KINDS, Question  # noqa: E402
from examples.tiny_video_model.rendering import render_film  # noqa: E402
from floc.integrations.transformers.hooks import DecoderHooks  # noqa: E402
from tests.cli.helpers import run  # noqa: E402
from tests.decoding import read_with_pyav  # noqa: E402

FILMS = 24
RATIO = 1 / 8


@pytest.fixture(scope="module")
def trained() -> tuple[Any, Any]:
    return load_checkpoint()


@pytest.fixture(scope="module")
def exams(trained: tuple[Any, Any]) -> list[Exam]:
    return list(make_exams(trained[0], FILMS))


@pytest.fixture(scope="module")
def examiner(trained: tuple[Any, Any]) -> Examiner:
    return Examiner(trained[0], trained[1].tokenizer)


@pytest.fixture(scope="module")
def selections(exams: list[Exam]) -> list[floc.Kept]:
    return [floc.compress(exam.tokens, ratio=RATIO) for exam in exams]


@pytest.fixture(scope="module")
def right(exams: list[Exam], examiner: Examiner, selections: list[floc.Kept]) -> list[np.ndarray]:
    """Return which answers are right with the kept tokens of each film."""
    return [examiner.check(exam, kept) for exam, kept in zip(exams, selections, strict=True)]


def count_all(exams: list[Exam], checked: list[np.ndarray]) -> np.ndarray:
    return np.stack([count_right(exam.questions, answers) for exam, answers in zip(exams, checked, strict=True)])


@pytest.fixture(scope="module")
def film_path(exams: list[Exam], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("film") / "film.mp4"
    write_film(path, render_film(exams[0].film))
    return path


def prepare(processor: Any, path: Path, question: Question) -> Any:
    content = [{"type": "video", "path": str(path)}, {"type": "text", "text": question.text}]
    messages = [{"role": "user", "content": content}]
    arguments = dict(add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt")
    return processor.apply_chat_template(messages, **arguments)


def generate(model: Any, processor: Any, inputs: Any) -> str:
    with torch.no_grad():
        ids = model.generate(**inputs, max_new_tokens=8, do_sample=False)
    return processor.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True).strip()


def test_the_default_method_keeps_the_answers(exams: list[Exam], examiner: Examiner, right: list[np.ndarray]) -> None:
    full = np.stack([examiner.grade(exam, None) for exam in exams])
    kept = count_all(exams, right)
    random = np.stack(
        [examiner.grade(exam, floc.compress(exam.tokens, ratio=RATIO, method="random")) for exam in exams]
    )
    accuracy = {name: compute_accuracy(counts.sum(0))[2] for name, counts in (("full", full), ("kept", kept))}
    assert accuracy["full"] >= LEAST_FULL
    assert accuracy["kept"] >= LEAST_SHARE * accuracy["full"]
    assert estimate_interval(kept, random)[0] > 0


# measured over 100 films: see `python -m benchmarks accuracy`
LEAST_FULL = 0.97
LEAST_SHARE = 0.93


def shift_axis(axis: int) -> Callable[[torch.Tensor], torch.Tensor]:
    step = torch.zeros(3, 1, 1, dtype=torch.int64)
    step[axis] = -1
    return lambda positions: positions + step


# by the change, the share of answers that it changes at least
BROKEN: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float]] = {
    "time": (shift_axis(0), 0.01),
    "row": (shift_axis(1), 0.03),
    "next token": (lambda positions: positions.roll(-1, 2), 0.1),
    "without gaps": (lambda positions: positions[:, :, :1] + torch.arange(positions.shape[2]), 0.2),
}


@pytest.mark.parametrize("name", BROKEN)
def test_wrong_positions_change_answers(
    exams: list[Exam],
    trained: tuple[Any, Any],
    selections: list[floc.Kept],
    right: list[np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """Tests of answers can fail: answers change if the positions of kept tokens are off by one, or those of others."""
    change, share = BROKEN[name]
    examiner = Examiner(trained[0], trained[1].tokenizer)
    decoder = examiner.decoder
    find = decoder.find_positions

    def find_broken(slices: int, kept: torch.Tensor, text: Any) -> torch.Tensor:
        positions = find(slices, kept, text).clone()
        visual = slice(decoder.start, decoder.start + kept.shape[1])
        positions[:, :, visual] = change(positions[:, :, visual])
        return positions

    monkeypatch.setattr(decoder, "find_positions", find_broken)
    broken = [examiner.check(exam, kept) for exam, kept in zip(exams, selections, strict=True)]
    changed = sum(int((a != b).sum()) for a, b in zip(right, broken, strict=True))
    assert changed >= share * sum(map(len, right))
    if name in ("next token", "without gaps"):
        counts = [count_all(exams, checked) for checked in (broken, right)]
        assert estimate_interval(*counts)[1] < 0


def ask_attached(trained: tuple[Any, Any], exam: Exam, questions: list[Question], ratio: float) -> list[bool]:
    """Return which answers of the model are right, with a part of the tokens."""
    model, processor = trained
    frames = torch.from_numpy(render_film(exam.film)).permute(0, 3, 1, 2)
    times = dict(total_num_frames=len(frames), fps=2.0, frames_indices=list(range(len(frames))))
    metadata = [transformers.video_utils.VideoMetadata(**times)]
    right = []
    for question in questions:
        content = [{"type": "video"}, {"type": "text", "text": question.text}]
        text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        options = dict(video_metadata=metadata, do_sample_frames=False, return_tensors="pt")
        inputs = processor(text=[text], videos=[frames], **options)
        with floc.attach(model, ratio=ratio):
            right.append(generate(model, processor, inputs) == question.answer)
    return right


@pytest.mark.parametrize("ratio", [1 / 8, 1 / 32])
def test_answers_in_one_call_are_those_of_generate(
    trained: tuple[Any, Any], exams: list[Exam], examiner: Examiner, ratio: float
) -> None:
    expected = examiner.check(exams[0], floc.compress(exams[0].tokens, ratio=ratio)).tolist()
    assert ask_attached(trained, exams[0], exams[0].questions, ratio) == expected


# by the mistake, how many tokens before the right one, in slices of 4 x 6 tokens
MISTAKES = {"one slice early": 24, "one row up": 6, "one column to the left": 1}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_attach_changes_answers(
    trained: tuple[Any, Any], exams: list[Exam], examiner: Examiner, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The test above fails if `floc.attach` gives kept tokens the positions of other tokens."""
    cut_positions = DecoderHooks._cut_positions

    def cut_wrongly(hooks: Any, kwargs: Any, cut: Any, *others: Any) -> torch.Tensor:
        if cut is not None:
            visual = (cut.columns >= start) & (cut.columns < start + 32 * 24)
            moved = (cut.columns - MISTAKES[name]).clamp(min=start)
            cut = cut._replace(columns=torch.where(visual, moved, cut.columns))
        return cut_positions(hooks, kwargs, cut, *others)

    start = examiner.decoder.start
    monkeypatch.setattr(DecoderHooks, "_cut_positions", cut_wrongly)
    for exam in exams:  # usually the first one suffices
        asked = [question for question in exam.questions if question.kind in ("what", "where", "when", "count")]
        numbers = [exam.questions.index(question) for question in asked]
        expected = examiner.check(exam, floc.compress(exam.tokens, ratio=RATIO))[numbers]
        if ask_attached(trained, exam, asked, RATIO) != expected.tolist():
            return
    pytest.fail("no answer changed")


def test_attach_replay_archive_and_the_command_give_the_same_answers(
    trained: tuple[Any, Any],
    exams: list[Exam],
    film_path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read_with_pyav(monkeypatch)
    model, processor = trained
    questions = exams[0].questions
    video = floc.capture(model, film_path, processor=processor, ratio=RATIO)
    video.save(tmp_path / "film.floc")
    answers: dict[str, list[str]] = {"attach": [], "replay": []}
    for question in questions:
        with floc.attach(model, ratio=RATIO):
            answers["attach"].append(generate(model, processor, prepare(processor, film_path, question)))
        loaded = floc.load(tmp_path / "film.floc")
        with floc.replay(model, loaded):
            answers["replay"].append(generate(model, processor, loaded.inputs(processor, question.text)))
    texts = [question.text for question in questions]
    commands = {
        "ask": ["ask", str(film_path), *texts, "--model", str(CHECKPOINT), "--ratio", "1/8", "--json"],
        "file": ["ask", str(tmp_path / "film.floc"), *texts, "--model", str(CHECKPOINT), "--json"],
    }
    if find_spec("lance") is not None:
        floc.Store(tmp_path / "archive", create=True).add(video, uri="film.mp4")
        commands["archive"] = ["ask", str(tmp_path / "archive"), *texts, "--video", "film.mp4"]
        commands["archive"] += ["--model", str(CHECKPOINT), "--json"]
    for name, arguments in commands.items():
        capsys.readouterr()
        assert run(monkeypatch, *arguments) == 0
        answers[name] = [answer["answer"].strip() for answer in json.loads(capsys.readouterr().out)]
    assert all(given == answers["attach"] for given in answers.values()), answers
    right = sum(given == question.answer for given, question in zip(answers["attach"], questions, strict=True))
    assert right >= 0.7 * len(questions)


def test_scores_are_means_of_groups() -> None:
    questions = [Question(kind, "", "") for kind in KINDS]
    right = np.array([kind in ("scene", "needle", "what", "where", "when") for kind in KINDS])
    kinds, groups, mean = compute_accuracy(count_right(questions, right))
    assert kinds.tolist() == right.tolist()
    assert groups.tolist() == [0.5, 1.0, 0.0]
    assert mean == 0.5
    same = np.tile(count_right(questions, right), (5, 1, 1))
    assert estimate_interval(same) == (0.5, 0.5)
    assert estimate_interval(same, same) == (0.0, 0.0)


def test_a_changed_or_foreign_checkpoint_is_refused(tmp_path: Path) -> None:
    check_files(CHECKPOINT)
    folder = tmp_path / "copy"
    shutil.copytree(CHECKPOINT, folder)
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(ValueError, match=r"model\.safetensors is not the file that SHA256SUMS names"):
        load_checkpoint(folder)
    weights.unlink()
    with pytest.raises(ValueError, match="is missing"):
        load_checkpoint(folder)
    (folder / SUMS).unlink()
    with pytest.raises(ValueError, match="not a checkpoint"):
        load_checkpoint(folder)
