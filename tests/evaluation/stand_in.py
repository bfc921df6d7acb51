"""A substitute for lmms-eval that writes the same files, and can fail. It tests how runs are executed.

Usage: `python stand_in.py FOLDER TASK BEHAVIOUR SECONDS NOTES`. It appends a line to NOTES at its start and end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # importing floc takes seconds, and this script is started often
    from floc.evaluation.plan import EvalRun

DATE = "20260101_000000"
# token counts of samples, in turn; None is an answer from lmms-eval's cache
COUNTS = [
    {"input_tokens": 9, "floc": {"tokens": 100, "kept": 10, "coverage": 0.5, "select_s": 9.0, "total_s": 30.0}},
    {"input_tokens": 9, "floc": {"tokens": 300, "kept": 30, "coverage": None, "select_s": 1.0, "total_s": 2.0}},
    None,
    {"input_tokens": 9, "floc": {"tokens": 200, "kept": 20, "coverage": 0.7, "select_s": 2.0, "total_s": 3.0}},
]
MEAN_COSTS = dict(samples=3, tokens=200, kept=20, coverage=0.6, select_s=2.0, total_s=3.0)  # expected from COUNTS


def create_builder(notes: Path, behaviour="succeeds", seconds: float = 0.0):
    """Return a command builder for `execute_runs`; `behaviour` may be a function of the run."""

    def build(run: EvalRun, folder: Path, gpus) -> list[str]:
        chosen = behaviour(run) if callable(behaviour) else behaviour
        return [sys.executable, __file__, str(folder), run.task, chosen, str(seconds), str(notes / run.name)]

    return build


def create_samples() -> list[dict]:
    """Return four answers, three of them correct, in the format of the task videomme."""
    answers = [("short", "A", "A"), ("short", "B", "B"), ("long", "C", "C"), ("long", "D", "A")]
    return [
        {"doc_id": number, "videomme_perception_score": {"duration": part, "pred_answer": answer, "answer": right}}
        for number, (part, answer, right) in enumerate(answers)
    ]


def write_output(folder: Path, task: str, samples: list[dict] | None = None) -> None:
    """Write the results and samples files of lmms-eval 0.7."""
    samples = [
        {**sample, "token_counts": [counts]}
        for sample, counts in zip(samples or create_samples(), COUNTS * 9, strict=False)
    ]
    folder = folder / "org__model"
    folder.mkdir(parents=True, exist_ok=True)
    results = {
        task: {"alias": task, "videomme_perception_score,none": 75.0, "videomme_perception_score_stderr,none": "N/A"}
    }
    count = {task: {"original": 100, "effective": len(samples)}}
    (folder / f"{DATE}_results.json").write_text(json.dumps({"results": results, "n-samples": count}))
    (folder / f"{DATE}_samples_{task}.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))


def main(folder: str, task: str, behaviour: str, seconds: str, notes: str) -> None:
    def note(event: str) -> None:
        Path(notes).parent.mkdir(parents=True, exist_ok=True)
        with Path(notes).open("a") as file:
            gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "")
            file.write(json.dumps([event, os.getpid(), gpus, time.time()]) + "\n")

    note("starts")
    if behaviour == "leaves a child":
        child = subprocess.Popen(["sleep", "60"])
        Path(notes).with_suffix(".child").write_text(str(child.pid))
    time.sleep(float(seconds))
    if behaviour == "crashes":
        raise RuntimeError("no such weights")
    if behaviour == "fails quietly":  # as lmms-eval does: status 0 and no results
        print("Traceback (most recent call last):\n  File x\nValueError: a video is broken\n\x1b[31mERROR\x1b[0m above")
        return
    if behaviour == "is killed":
        os.kill(os.getpid(), 9)
    write_output(Path(folder), task)
    if behaviour == "writes half":
        path = next(Path(folder).rglob("*_results.json"))
        path.write_text(path.read_text()[:40])
    note("ends")


def read_notes(notes: Path) -> dict[str, list]:
    """Return the notes by run name."""
    return {
        path.name: [json.loads(line) for line in path.read_text().splitlines()]
        for path in notes.iterdir()
        if path.suffix != ".child"
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
