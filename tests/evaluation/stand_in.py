"""A stand-in for lmms-eval, to test how cells are scheduled: it writes what lmms-eval 0.7 writes, and can fail.

`python stand_in.py FOLDER TASK BEHAVIOUR SECONDS NOTES`. It appends to NOTES when it begins and ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it is started often, and floc takes seconds to import
    from floc.evaluation import Cell

DATE = "20260101_000000"
# of samples, by turns: one of them came out of a cache
FIGURES = [
    {"input_tokens": 9, "floc": {"tokens": 100, "kept": 10, "coverage": 0.5, "select_s": 9.0, "total_s": 30.0}},
    {"input_tokens": 9, "floc": {"tokens": 300, "kept": 30, "coverage": None, "select_s": 1.0, "total_s": 2.0}},
    None,
    {"input_tokens": 9, "floc": {"tokens": 200, "kept": 20, "coverage": 0.7, "select_s": 2.0, "total_s": 3.0}},
]
KEPT = dict(samples=3, tokens=200, kept=20, coverage=0.6, select_s=2.0, total_s=3.0)  # what is to be made of them


def command(notes: Path, behaviour="well", seconds: float = 0.0):
    """A command for `floc.evaluation.run`; `behaviour` may be a function of the cell."""

    def of(cell: Cell, folder: Path, gpus) -> list[str]:
        does = behaviour(cell) if callable(behaviour) else behaviour
        return [sys.executable, __file__, str(folder), cell.task, does, str(seconds), str(notes / cell.name)]

    return of


def samples() -> list[dict]:
    """Four answers, three of them right, as the task videomme writes them."""
    answers = [("short", "A", "A"), ("short", "B", "B"), ("long", "C", "C"), ("long", "D", "A")]
    return [
        {"doc_id": number, "videomme_perception_score": {"duration": length, "pred_answer": said, "answer": right}}
        for number, (length, said, right) in enumerate(answers)
    ]


def write(folder: Path, task: str, told: list[dict] | None = None) -> None:
    told = [{**each, "token_counts": [noted]} for each, noted in zip(told or samples(), FIGURES * 9, strict=False)]
    folder = folder / "org__model"
    folder.mkdir(parents=True, exist_ok=True)
    results = {
        task: {"alias": task, "videomme_perception_score,none": 75.0, "videomme_perception_score_stderr,none": "N/A"}
    }
    count = {task: {"original": 100, "effective": len(told)}}
    (folder / f"{DATE}_results.json").write_text(json.dumps({"results": results, "n-samples": count}))
    (folder / f"{DATE}_samples_{task}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in told))


def main(folder: str, task: str, behaviour: str, seconds: str, notes: str) -> None:
    def note(what: str) -> None:
        Path(notes).parent.mkdir(parents=True, exist_ok=True)
        with Path(notes).open("a") as file:
            gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "")
            file.write(json.dumps([what, os.getpid(), gpus, time.time()]) + "\n")

    note("begins")
    if behaviour == "leaves a child":
        child = subprocess.Popen(["sleep", "60"])
        Path(notes).with_suffix(".child").write_text(str(child.pid))
    time.sleep(float(seconds))
    if behaviour == "crashes":
        raise RuntimeError("no such weights")
    if behaviour == "fails quietly":  # as lmms-eval does: status 0, and no results
        print("Traceback (most recent call last):\n  File x\nValueError: a video is broken\n\x1b[31mERROR\x1b[0m above")
        return
    if behaviour == "is killed":
        os.kill(os.getpid(), 9)
    write(Path(folder), task)
    if behaviour == "writes half":
        path = next(Path(folder).rglob("*_results.json"))
        path.write_text(path.read_text()[:40])
    note("ends")


def noted(notes: Path) -> dict[str, list]:
    """What was noted, by the name of the cell."""
    return {
        path.name: [json.loads(line) for line in path.read_text().splitlines()]
        for path in notes.iterdir()
        if path.suffix != ".child"
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
