"""Check and measure everything that needs a GPU: `python -m benchmarks.gpu_session -o out/session --minutes 25`.

The stages run in the order of their value, each in a process of its own with a time limit, so that one that fails,
hangs or is late loses only its own results. Stages that no longer fit the time are left out; `--stages` runs them in
another session. What is written is complete after every stage:

    results.tar   the results of tables, to be unpacked into benchmarks/results, and gpu_band.json
    session.json  how each stage ended, and the measured values of the summary
    session.log   all that the stages printed
    *.tar         the trained models

A stage's part of the summary is printed when the stage ends, and the whole of it at the end.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.processes import ROOT, child_environment
from floc._atomic import write_atomic

MODELS = ("all-0", "drop-0")
RESULTS, SESSION, LOG = "results.tar", "session.json", "session.log"
GRACE_S = 5.0  # between the end of a stage's processes and its results
LOG_BYTES = 8 << 20  # of the log; what a stage prints beyond is left out
TESTS = ("tests/selection/gpu", "tests/test_cuda.py")


@dataclass(frozen=True)
class Stage:
    """A command that measures something, for a limited time."""

    name: str
    arguments: tuple[str, ...]  # of python; "{results}", "{output}", "{minutes}" and "{processes}" are filled in
    limit_s: float
    least_s: float  # below, it is not started
    needs: tuple[str, ...] = ()  # packages, or files in the folder of the results
    needs_gpu: bool = False
    small: tuple[str, ...] = ()  # further arguments of a small session
    leave_s: float = 0.0  # for stages after it


@dataclass
class Outcome:
    """How a stage ended."""

    stage: str
    state: str  # done, failed, late, or left out
    seconds: float = 0.0
    reason: str = ""


def _make_table(name: str, limit_s: float, least_s: float, *options: str, needs_gpu: bool = False) -> Stage:
    arguments = ("-m", "benchmarks", name, "--results", "{results}", *options)
    return Stage(name, arguments, limit_s, least_s, needs_gpu=needs_gpu, small=("--small",))


CHECKPOINTS = tuple(part for name in MODELS for part in ("--checkpoint", f"{{output}}/{name}.tar"))
TRAIN = ("-m", "examples.tiny_video_model.train_all", "-o", "{output}", "--minutes", "{minutes}", "--models", *MODELS)
STAGES = (
    Stage("kernels", ("-m", "benchmarks.sanitize"), 180, 30, needs_gpu=True),
    Stage("band", ("-m", "benchmarks.gpu_band"), 200, 60, needs_gpu=True),
    _make_table("vision", 330, 60),
    _make_table("answer", 360, 90),
    _make_table("methods", 240, 45, "--device", "cuda", needs_gpu=True),
    _make_table("vllm-streams", 120, 30),
    _make_table("gpu", 180, 45, needs_gpu=True),
    Stage(
        "tests",
        ("-m", "pytest", "-q", "-m", "gpu", "--maxfail=5", "--continue-on-collection-errors", "-W", "default", *TESTS),
        420,
        120,
        needs=("pytest",),
        needs_gpu=True,
    ),
    Stage("training", TRAIN, 660, 120, needs=("transformers",), small=("--exam-films", "2"), leave_s=200),
    Stage(
        "accuracy",
        ("-m", "benchmarks", "accuracy", "--results", "{results}", "--processes", "{processes}", *CHECKPOINTS),
        480,
        120,
        needs=tuple(f"{name}.tar" for name in MODELS),
        small=("--small",),
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stages; return 1 if one failed or was late."""
    names = [stage.name for stage in STAGES]
    parser = argparse.ArgumentParser(
        "python -m benchmarks.gpu_session", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER", help="folder of all results")
    parser.add_argument("--minutes", type=float, default=25, help="time of the session (default: %(default)s)")
    parser.add_argument("--stages", nargs="+", choices=names, default=names, metavar="STAGE", help=", ".join(names))
    parser.add_argument("--small", action="store_true", help="small sizes, on a CPU if there is no GPU")
    options = parser.parse_args(arguments)
    session = Session(options.output, 60 * options.minutes, small=options.small)
    for stage in STAGES:
        if stage.name in options.stages:
            session.run(stage)
    session.show(session.values)
    return int(any(outcome.state in ("failed", "late") for outcome in session.outcomes))


class Session:
    """Runs stages until the time is over."""

    def __init__(self, output: Path, seconds: float, *, small: bool) -> None:
        self.output, self.small = output.resolve(), small
        self.end = time.monotonic() + seconds
        self.outcomes: list[Outcome] = []
        self.values: dict[str, str] = {}  # of the summary, by name
        self.output.mkdir(parents=True, exist_ok=True)
        (self.output / LOG).write_bytes(b"")

    def run(self, stage: Stage) -> None:
        """Run a stage, keep its results, and print the summary."""
        left_s = self.end - time.monotonic()
        limit_s = min(stage.limit_s, left_s - stage.leave_s)
        if self.small:
            limit_s = min(left_s, max(90.0, stage.limit_s / 10))
        reason = self._find_obstacle(stage, limit_s)
        if reason:
            outcome = Outcome(stage.name, "left out", reason=reason)
        else:
            with tempfile.TemporaryDirectory() as folder:
                outcome = self._run_process(stage, Path(folder), limit_s)
                self._keep(Path(folder))
        self.outcomes.append(outcome)
        print(f"== {outcome.stage}: {outcome.state} in {outcome.seconds:.0f} s {outcome.reason}", flush=True)
        self._report()

    def _find_obstacle(self, stage: Stage, limit_s: float) -> str:
        """Return why a stage cannot run, or an empty string."""
        if stage.needs_gpu and harness.get_gpu_name() is None:
            return "no GPU"
        for name in stage.needs:
            is_there = (self.output / name).exists() if "." in name else importlib.util.find_spec(name) is not None
            if not is_there:
                return f"{name} is missing"
        return "" if limit_s >= (10 if self.small else stage.least_s) else f"{max(0.0, limit_s):.0f} s left"

    def _run_process(self, stage: Stage, folder: Path, limit_s: float) -> Outcome:
        values = {
            "results": str(folder),
            "output": str(self.output),
            "minutes": f"{max(0.1, (limit_s - 60) / 60):.2f}",  # the last exam and the start take the rest
            "processes": str(max(1, harness.count_threads() - 2)),
        }
        given = (*stage.arguments, *(stage.small if self.small else ()))
        command = [sys.executable, *(argument.format(**values) for argument in given)]
        print(f"== {stage.name}, at most {limit_s:.0f} s: {' '.join(command[1:])}", flush=True)
        environment = child_environment() | {"OUT": str(folder), "PYTHONUNBUFFERED": "1"}
        started = time.monotonic()
        # of its own session, so that all its processes end with it
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        tail = b""
        is_late = False
        with process.stdout, (self.output / LOG).open("ab") as log:
            log.write(f"\n== {stage.name}\n".encode())
            while True:
                is_over = process.poll() is not None
                while chunk := process.stdout.read(1 << 16):
                    tail = (tail + chunk)[-2000:]
                    sys.stdout.write(chunk.decode(errors="replace"))
                    if log.tell() < LOG_BYTES:
                        log.write(chunk)
                log.flush()
                sys.stdout.flush()
                if is_over:
                    break
                is_late = time.monotonic() - started > limit_s
                if is_late:
                    break
                time.sleep(0.2)
        _end_processes(process)
        seconds = time.monotonic() - started
        if is_late:
            return Outcome(stage.name, "late", seconds, f"stopped after {limit_s:.0f} s")
        if process.returncode:
            lines = tail.decode(errors="replace").strip().splitlines() or [""]
            return Outcome(stage.name, "failed", seconds, f"exit code {process.returncode}: {lines[-1][:300]}")
        return Outcome(stage.name, "done", seconds)

    def _keep(self, folder: Path) -> None:
        """Add the results in a folder to those of earlier stages."""
        kept = self.output / RESULTS
        with tempfile.TemporaryDirectory() as name:
            joined = Path(name)
            if kept.exists():
                with tarfile.open(kept) as archive:
                    archive.extractall(joined, filter="data")
            for path in folder.glob("*.json"):
                shutil.copy(path, joined / path.name)

            def write(temporary: Path) -> None:
                with tarfile.open(temporary, "w") as archive:
                    for path in sorted(joined.iterdir()):
                        archive.add(path, path.name)

            write_atomic(kept, write)

    def _report(self) -> None:
        """Write the summary, with how each stage ended, and print what is new in it."""
        values = dict(summarize(load_results(self.output / RESULTS)))
        document = {
            **harness.describe_environment(),
            "stages": [asdict(outcome) for outcome in self.outcomes],
            "values": values,
        }
        text = json.dumps(document, indent=1) + "\n"
        write_atomic(self.output / SESSION, lambda temporary: temporary.write_text(text))
        new = {name: value for name, value in values.items() if self.values.get(name) != value}
        self.values = values
        self.show(new)

    def show(self, values: dict[str, str]) -> None:
        """Print lines of the summary, and how each stage ended."""
        width = max(map(len, values), default=0)
        print("\n".join(f"{name:{width}}  {value}" for name, value in values.items()))
        ended = ", ".join(f"{outcome.stage} {outcome.state}" for outcome in self.outcomes)
        print(f"stages: {ended}", flush=True)


def _end_processes(process: subprocess.Popen[bytes]) -> None:
    """End a process and those that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        print(f"process {process.pid} does not end; the next stages run beside it", flush=True)


def load_results(path: Path) -> dict[str, Any]:
    """Return the documents of an archive of results, by name."""
    if not path.exists():
        return {}
    with tarfile.open(path) as archive:
        files = {member.name.removesuffix(".json"): archive.extractfile(member) for member in archive.getmembers()}
        return {name: json.loads(file.read()) for name, file in files.items() if file is not None}


# ---- the summary


def summarize(documents: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each line of the summary; a document that lacks a value has no line for it."""
    parts: dict[str, Callable[[dict[str, Any]], Iterator[tuple[str, str]]]] = {
        "gpu_band": _summarize_band,
        "vision": _summarize_vision,
        "answer": _summarize_answer,
        "methods": _summarize_methods,
        "vllm-streams": _summarize_streams,
        "gpu": _summarize_cases,
        "accuracy-models": _summarize_accuracy,
    }
    for name, show in parts.items():
        if name in documents:
            try:
                yield from show(documents[name])
                yield from ((f"{name}, failed", reason) for reason in documents[name].get("failed", ()))
            except (KeyError, IndexError, TypeError) as error:  # results of another version
                yield name, f"cannot be read: {type(error).__name__} {error}"


def _summarize_band(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for record in document["records"]:
        name = f"selection, {record['name']}"
        if "error" in record:
            yield name, record["error"][:200]
        elif record["name"].endswith((": check", ": stages", ": calls")):
            values = (f"{key} {value:.3f}" for key, value in record.items() if isinstance(value, float))
            counts = (f"{key} {value}" for key, value in record.items() if isinstance(value, int))
            yield name, ", ".join([*values, *counts])


def _summarize_vision(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for row in document["towers"]:
        peak = f", peak {row['peak_bytes'] / 2**30:.1f} GiB" if row["peak_bytes"] is not None else ""
        name = f"tower, {row['tower']}, {row['chunk']} slices, {row['what']}"
        yield name, f"{row['seconds']:.3f} s, {row['speedup']:.2f}x, {row['waits']} waits{peak}"


def _summarize_answer(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for model in document["models"]:
        for row in model["questions"]:
            stages = ", ".join(f"{name} {row[f'{name}_s']:.3f}" for name in ("vision", "select", "own", "prefill"))
            peak = f"peak {row['peak_bytes'] / 2**30:.1f} GiB"
            yield f"answer, {model['model']}, {row['what']}", f"first token {row['total_s']:.3f} s ({stages}), {peak}"


def _summarize_methods(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for device, cost in document["cost"].items():
        if device != "cpu":
            times = (f"{name} {record['ms']:.1f}" for name, record in cost["methods"].items())
            yield "methods on the GPU, ms", ", ".join(times)
            yield "methods not run", ", ".join(cost["missing"]) or "none"


def _summarize_streams(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for row in document["levels"]:
        yield (
            f"beside a decoder, {row['level']} videos",
            f"{row['select_ms']:.2f} ms each, {row['slowdown']:.2f}x, {row['waits']} waits",
        )


def _summarize_cases(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for row in document["cases"]:
        yield f"table gpu, {row['case']}", f"{row['ms']:.2f} ms, as a graph {row['graph_ms']:.2f} ms"


def _summarize_accuracy(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for model in document["models"]:
        for record in model["accuracy"]:
            if record["method"] in ("all tokens", "floc", "floc-paper") and record["keep"] in ("1", "1/8", "1/32"):
                name = f"accuracy, {model['model']}, {record['method']}, {record['keep']}"
                yield name, f"{100 * record['mean']:.1f}%"


if __name__ == "__main__":
    sys.exit(main())
