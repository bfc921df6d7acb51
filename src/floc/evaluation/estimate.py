"""How many tokens a plan is about, and about how long it takes.

The seconds are those that `python -m benchmarks` measured, in `benchmarks/results` of a checkout: Qwen2.5-VL-7B on one GPU for
the vision tower, the prefill and the steps of an answer, each method's own time at 1/8, and the reading of films. They
are scaled to the tokens of a video of the task's mean length and to the model's size. Loading the weights is not in it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from floc.evaluation import models, paper
from floc.evaluation.plan import FULL, Cell
from floc.evaluation.tasks import Task, find
from floc.methods.registry import parse

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"  # in a checkout
MEASURED_BILLIONS = 8.3  # Qwen2.5-VL-7B
ANSWER_STEPS = 2  # a letter, and the end
PAPER_FRAMES, FRAME_TOKENS = 784, 60  # of the profile
# the paper's own time on the GPU, where the table of methods has it from before or not at all
ON_GPU = {"floc-paper": "the paper: blocks of 32 frames, 1/8", "floc": "with the second pass (default), 1/8"}


@dataclass(frozen=True)
class Basis:
    """Seconds that were measured."""

    said: str  # where and of what
    vision_s: float  # of one token
    prefill_s: tuple[float, float]  # of one token, and of one token squared
    step_s: float  # of an answer
    choosing_s: dict[str, float]  # of one token, by method
    reading_s: float  # of one second of film


class Spent(NamedTuple):
    """Where time goes."""

    computing_s: float  # on the GPU
    reading_s: float  # of films, on two cores


def tokens(cell: Cell) -> tuple[int, int]:
    """The visual tokens of a long video, at most, and how many are kept of them."""
    most = cell.told.most_tokens(cell.max_frames)
    return most, cell.kept(most)


def film_tokens(cell: Cell) -> int:
    """The visual tokens of a long 16:9 film."""
    return cell.told.film_tokens(cell.max_frames, *models.WIDE)


def spent(cell: Cell, basis: Basis) -> Spent | None:
    """How long a cell takes, about, or None for a task that is not known."""
    task = find(cell.task)
    if task is None:
        return None
    model = cell.told
    n = model.film_tokens(_mean_frames(cell, task), *models.WIDE)
    kept = cell.kept(n)
    size = model.billions / MEASURED_BILLIONS
    choosing = 0.0 if cell.method == FULL else basis.choosing_s.get(parse(cell.method).method, 0.0)
    linear, square = basis.prefill_s
    decoder = kept * linear + kept**2 * square + ANSWER_STEPS * basis.step_s
    questions = min(cell.limit or task.questions, task.questions)
    return Spent(
        questions * (n * (basis.vision_s + choosing) + size * decoder), questions * task.mean_s * basis.reading_s
    )


def total(cells: Sequence[Cell], basis: Basis) -> Spent:
    """The same for many, one after the other."""
    each = [times for cell in cells if (times := spent(cell, basis)) is not None]
    return Spent(sum(times.computing_s for times in each), sum(times.reading_s for times in each))


@cache
def basis(results: Path = RESULTS) -> Basis | None:
    """What there is in a folder of results; None where something is missing."""
    try:
        answer, profile, gpu, video = (
            _read(results / f"{name}.json") for name in ("answer", "profile", "gpu", "video")
        )
    except FileNotFoundError:
        return None
    try:
        return _basis(answer, profile, gpu, video)
    except LookupError:  # results of another release
        return None


def _basis(answer: dict[str, Any], profile: dict[str, Any], gpu: dict[str, Any], video: dict[str, Any]) -> Basis:
    full, shortened = answer["questions"][0], answer["questions"][1]
    n = answer["tokens"]
    timed = profile["frames"] * FRAME_TOKENS
    methods = [each for each in profile["methods"] if each["method"] != FULL]
    # the paper's are of a GPU; what was measured on a CPU is no estimate of one
    measured = {} if profile["ran_on"] == "CPU" else {each["method"]: each.get("seconds") for each in methods}
    published = {each["method"]: paper.row("table7", each["method"]).get("compression_s") for each in methods}
    choosing = {name: seconds / (PAPER_FRAMES * FRAME_TOKENS) for name, seconds in published.items() if seconds}
    choosing |= {name: seconds / timed for name, seconds in measured.items() if seconds}
    cases = {each["case"]: each["ms"] / 1e3 / each["n"] for each in gpu["cases"]}
    choosing |= {method: cases[case] for method, case in ON_GPU.items() if case in cases}
    slowest = max(each["read_s"] / each["duration_s"] for each in video["speed"])
    borrowed = [
        name for name, seconds in published.items() if seconds and not measured.get(name) and name not in ON_GPU
    ]
    return Basis(
        f"{answer['model']} on one {answer['gpu']} (vision, prefill, answer), every method's own time at 1/8"
        f"{' (of ' + ', '.join(borrowed) + ' the paper gives it)' if borrowed else ''}, and films read whole at "
        f"{1 / slowest:.0f} times their speed on {video['device']['cores']} cores; scaled by tokens and by the "
        "model's size, each question by itself, without the loading of weights",
        full["vision_s"] / n,
        _prefill(full, shortened),
        median(answer["steps"]["shortened_s"]),
        choosing,
        slowest,
    )


def _prefill(full: dict[str, Any], shortened: dict[str, Any]) -> tuple[float, float]:
    """The line and the parabola through two measured prefills."""
    (n, a), (m, b) = ((each["held"], each["prefill_s"]) for each in (full, shortened))
    square = (a / n - b / m) / (n - m)
    return a / n - square * n, square


def _mean_frames(cell: Cell, task: Task) -> int:
    """Of a video of mean length; without a rate so many are spread over it, however short it is."""
    return cell.max_frames if cell.fps is None else max(1, min(cell.max_frames, round(cell.fps * task.mean_s)))


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())
