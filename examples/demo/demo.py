"""Ask a trained model about a film with known content, with all visual tokens and with those that methods keep."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import floc
from examples.tiny_video_model.exam import TEST_SEED, Exam, Examiner, compute_accuracy, estimate_interval, make_exams
from examples.tiny_video_model.films import PLACES, Film, label_tokens, make_film, write_film
from examples.tiny_video_model.model import CELL, HEIGHT, WIDTH
from examples.tiny_video_model.packed import encode_frames
from examples.tiny_video_model.questions import KINDS, Question, QuestionPicker
from examples.tiny_video_model.rendering import render_film
from examples.tiny_video_model.things import THINGS
from floc import methods, report
from floc._text import format_time
from floc.encoders.load import load_tokens
from floc.encoders.vision_tower import load as load_encoder

METHODS = ("floc", "floc-paper", "kmeans", "divprune", "random", "frame_uniform")
RATIOS = ("1/8", "1/16", "1/32")
FILMS = 20  # in the table
SLICES = 32
ALL = "all tokens"

Bar = Callable[[str], AbstractContextManager[Callable[..., None]]]


def run_demo(
    screen: Console, folder: Path, checkpoint: Path, model: Any, processor: Any, *, seed: int, films: int, progress: Bar
) -> None:
    """Render a film, ask about it, score all methods over several films, and write the report."""
    folder.mkdir(parents=True, exist_ok=True)
    film = plan_film(seed)
    path = folder / "film.mp4"
    with progress("rendering a film"):
        write_film(path, render_film(film))
    shown = ", ".join(film.things)
    screen.print(f"A film of {format_time(film.slices)}: {len(film.shots)} shots, and in some of them: {shown}.\n")
    questions = QuestionPicker(seed).pick(film)
    with progress("asking") as bar:
        _print_answers(screen, questions, ask_film(model, processor, path, questions, bar))
    examiner = Examiner(model, processor.tokenizer)
    with progress(f"asking about {films} films") as bar:
        counts = grade_films(model, examiner, films, bar)
    _print_scores(screen, counts)
    with progress("writing the report") as bar:
        _write_report(folder / "report.html", path, checkpoint, film, model, processor, examiner, seed, bar)
    screen.print(f"[bold]{escape(str(folder / 'report.html'))}[/]  the report; open it in a browser", soft_wrap=True)
    screen.print(f"[bold]{escape(str(path))}[/]  the film", soft_wrap=True)


def plan_film(seed: int) -> Film:
    """Return a film that no model was trained on, with four things."""
    number = TEST_SEED + 10**7 * (seed + 1)
    while len((film := make_film(number, SLICES)).things) < 4:
        number += 1
    return film


def ask_film(
    model: Any, processor: Any, path: Path, questions: Sequence[Question], bar: Callable[..., None]
) -> dict[str, list[str]]:
    """Answer from the file with all tokens and with those that `floc` keeps, as a user would."""
    eighth = floc.capture(model, str(path), processor=processor, ratio=RATIOS[0])
    captured = {ALL: floc.capture(model, str(path), processor=processor, ratio=1), RATIOS[0]: eighth}
    captured |= {ratio: eighth.at(ratio=ratio) for ratio in RATIOS[1:]}
    answers: dict[str, list[str]] = {}
    for number, (name, video) in enumerate(captured.items()):
        answers[name] = [_ask(model, processor, video, question) for question in questions]
        bar((number + 1) / len(captured))
    return answers


def _ask(model: Any, processor: Any, video: Any, question: Question) -> str:
    """Return the model's answer about a captured video."""
    inputs = video.inputs(processor, question.text)
    with floc.replay(model, video), torch.no_grad():
        ids = model.generate(**inputs, max_new_tokens=8, do_sample=False)
    return str(processor.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)).strip()


def grade_films(
    model: Any, examiner: Examiner, films: int, bar: Callable[..., None]
) -> dict[tuple[str, str], np.ndarray]:
    """Return the numbers of right answers and of questions, [films, kinds, 2], by method and ratio."""
    counts: dict[tuple[str, str], list[np.ndarray]] = {}
    for number, exam in enumerate(make_exams(model, films)):
        counts.setdefault((ALL, "1"), []).append(examiner.grade(exam, None))
        for method in METHODS:
            for ratio in RATIOS:
                kept = _compress(exam, method, ratio)
                if kept is not None:
                    counts.setdefault((method, ratio), []).append(examiner.grade(exam, kept))
        bar((number + 1) / films)
    return {key: np.stack(graded) for key, graded in counts.items()}


def _compress(exam: Exam, method: str, ratio: str) -> floc.Kept | None:
    seed: dict[str, Any] = {"seed": exam.film.seed} if "seed" in methods.list_options(method) else {}
    try:
        return floc.compress(exam.tokens, ratio=ratio, method=method, **seed)
    except ValueError:  # frame_uniform keeps whole frames
        return None


def _print_answers(screen: Console, questions: Sequence[Question], answers: dict[str, list[str]]) -> None:
    table = Table(padding=(0, 1), box=None, header_style="bold", title="Answers with floc, by the tokens kept")
    for name in ("question", "right", *answers):
        table.add_column(name)
    for number, question in enumerate(questions):
        given = [texts[number] for texts in answers.values()]
        colours = ["green" if text == question.answer else "red" for text in given]
        cells = [f"[{colour}]{escape(text)}[/]" for colour, text in zip(colours, given, strict=True)]
        table.add_row(question.text, question.answer, *cells)
    screen.print(table)
    screen.print()


def _print_scores(screen: Console, counts: dict[tuple[str, str], np.ndarray]) -> None:
    full = counts[ALL, "1"]
    films, asked = len(full), int(full[..., 1].sum())
    table = Table(padding=(0, 1), box=None, header_style="bold", title=f"Right answers in percent, {films} films")
    table.add_column("method")
    for ratio in RATIOS:
        table.add_column(ratio, justify="right")
    table.add_row(ALL, *[f"{100 * compute_accuracy(full.sum(0))[2]:.1f}"] * len(RATIOS))
    for method in METHODS:
        cells = [
            f"{100 * compute_accuracy(counts[method, ratio].sum(0))[2]:.1f}" if (method, ratio) in counts else "-"
            for ratio in RATIOS
        ]
        table.add_row(method, *cells)
    screen.print(table)
    low, high = estimate_interval(counts["floc", RATIOS[1]])
    screen.print(
        f"\n{asked} questions of {len(KINDS)} kinds; the mean of three groups of kinds. With so few films it is known "
        f"to about ±{50 * (high - low):.0f} (95%); `python -m benchmarks accuracy` asks more. The model is tiny and "
        "the films are drawn: this compares methods, and says nothing about benchmarks of large models.\n",
        style="dim",
    )


def choose_question(
    questions: Sequence[Question], things: Sequence[str], right: dict[tuple[str, str], np.ndarray], full: np.ndarray
) -> Question | None:
    """Return the question about something shown on which methods disagree most, if it is right with all tokens."""
    able = [at for at, question in enumerate(questions) if question.thing in things and full[at]]
    if not able:
        return None
    shares = {at: float(np.mean([answers[at] for answers in right.values()])) for at in able}
    return questions[min(able, key=lambda at: abs(shares[at] - 0.5))]


def _write_report(
    path: Path,
    film_path: Path,
    checkpoint: Path,
    film: Film,
    model: Any,
    processor: Any,
    examiner: Examiner,
    seed: int,
    bar: Callable[..., None],
) -> None:
    """Write a report that opens with a question of the film, chosen by `choose_question`."""
    exam = Exam(film, encode_frames(model, render_film(film)), QuestionPicker(seed).pick(film, 3))
    kept = {(method, ratio): _compress(exam, method, ratio) for method in METHODS for ratio in RATIOS}
    right = {key: examiner.check(exam, tokens) for key, tokens in kept.items() if tokens is not None}
    question = choose_question(exam.questions, film.things, right, examiner.check(exam, None))
    subject = None
    if question is not None:
        answers = {}
        for number, (method, ratio) in enumerate(right):
            video = floc.capture(model, str(film_path), processor=processor, ratio=ratio, method=method)
            answers[method, ratio] = _ask(model, processor, video, question)
            bar(0.5 * number / len(right), f"{method} at {ratio}")
        subject = make_subject(film, question, answers)
    report.make(
        load_tokens(film_path, encoder=load_encoder(f"hf:{os.path.relpath(checkpoint)}", None), with_thumbnails=True),
        METHODS,
        RATIOS,
        path,
        command=f"python -m examples.demo --seed {seed}",
        opens_at=None if subject is None else int(subject.tokens[0]) // (HEIGHT * WIDTH // CELL**2),
        subject=subject,
        progress=lambda what, share: bar(0.5 + 0.5 * share, what),
    )


def make_subject(film: Film, question: Question, answers: dict[tuple[str, str], str]) -> report.Subject:
    """Describe a question, the patches that show what it asks for, and the answers by method and ratio."""
    labels = label_tokens(film, HEIGHT, WIDTH, CELL).ravel()
    tokens = np.flatnonzero(labels == len(PLACES) + THINGS.index(question.thing or ""))
    judged = {key: (text, text == question.answer) for key, text in answers.items()}
    by_number: dict[int, list[str]] = {}
    for method in dict.fromkeys(method for method, _ in answers):
        number = sum(judged[method, ratio][1] for ratio in RATIOS if (method, ratio) in judged)
        by_number.setdefault(number, []).append(method)
    names = {len(RATIOS): f"all {len(RATIOS)} ratios", 0: "none"}
    parts = [f"at {names.get(number, number)}: {', '.join(by_number[number])}" for number in sorted(by_number)[::-1]]
    verdict = f"The answer is “{question.answer}”. Right {'; '.join(parts)}."
    return report.Subject(question.text, verdict, tokens, judged)
