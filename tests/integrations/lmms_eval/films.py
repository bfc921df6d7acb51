"""A small task for lmms-eval in the format of Video-MME: rendered films with multiple-choice questions."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from examples.demo.film import Film, render

TASK = Path(__file__).parent / "task"
LETTERS = "ABCD"
LENGTHS_S = (6, 8)


def write_task(folder: Path) -> Path:
    """Write the films, the questions and the YAML file of the task into a folder."""
    for seed, seconds in enumerate(LENGTHS_S):
        film = render(folder / f"home{seed}.mp4", seconds=seconds, fps=4, width=112, height=84, seed=seed)
        with (folder / "questions.jsonl").open("a") as file:
            file.writelines(json.dumps(question) + "\n" for question in _write_questions(film))
    shutil.copy(TASK / "utils.py", folder)
    (folder / "keys.yaml").write_text((TASK / "keys.yaml").read_text().replace("{folder}", str(folder)))
    return folder


def _write_questions(film: Film) -> Iterator[dict[str, Any]]:
    middle_s = (film.sightings[0].time_s + film.sightings[-1].time_s) / 2
    quarter = min(3, int(4 * middle_s / film.duration_s))
    yield _write_question(
        film, "When do keys lie on a table?", ["first", "second", "third", "last"], "quarter", quarter
    )
    nearest = [round(film.duration_s) + step for step in (-2, -1, 0, 1)]
    yield _write_question(film, "How long is the film?", nearest, "seconds", 2)


def _write_question(film: Film, question: str, answers: list[Any], unit: str, right: int) -> dict[str, Any]:
    return {
        "videoID": film.path.stem,
        "duration": "short",
        "question": question,
        "options": [f"{letter}. {answer} {unit}" for letter, answer in zip(LETTERS, answers, strict=True)],
        "answer": LETTERS[right],
    }
