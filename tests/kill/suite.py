"""The whole suite: kills, signals and full disks for every command, and a summary of what happened."""

from __future__ import annotations

import itertools
import random
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kill import disk
from tests.kill.operations import OPERATIONS, Operation
from tests.kill.trials import Defect, Moment, Workspace, try_kill, try_signal

# kills at full scale, 200 in all
KILLS = {
    "compress": 20,
    "stream": 40,
    "stream, by ratio": 15,
    "capture": 15,
    "ingest": 30,
    "store import": 25,
    "store export": 10,
    "store compact": 15,
    "store index": 10,
    "eval": 20,
}
SIGNALS = 5  # of each of SIGINT and SIGTERM, for every command
SHARES = (0.0, 0.5)  # of what a command writes, for which there is room
DISK = ("compress", "stream", "capture", "ingest", "store import", "store export", "eval", "compare")
SMALL = ("compress", "stream")  # for signals and disks at a small scale
MAX_TRIES = 5  # a trial counts only if the command still ran at its moment

Echo = Callable[[str], object]


@dataclass(frozen=True)
class Trial:
    """One stop of one command."""

    kind: str  # "SIGKILL", "SIGINT", "SIGTERM", "file limit", "full disk", "read-only folder"
    operation: Operation
    seed: int
    share: float = 0.0

    def run(self, workspace: Workspace) -> dict[str, Any]:
        """Run the trial; return its outcome."""
        rng = random.Random(f"{self.kind} {self.operation.name} {self.seed}")
        text, moment = "", ""
        counted = False
        started = time.monotonic()
        try:
            if self.kind == "file limit":
                disk.try_file_limit(workspace, self.operation, self.share)
            elif self.kind == "full disk":
                disk.try_full_disk(workspace, self.operation, self.share)
            elif self.kind == "read-only folder":
                disk.try_read_only(workspace, self.operation)
            for _ in range(MAX_TRIES if self.kind.startswith("SIG") else 0):
                counted, moment = self._stop(workspace, rng)
                if counted:
                    break
            counted = counted or not self.kind.startswith("SIG")
        except Defect as defect:
            text, moment, counted = str(defect), getattr(defect, "moment", moment), True
        except Exception:
            text, counted = traceback.format_exc(), True
        seconds = time.monotonic() - started
        return {
            "kind": self.kind,
            "operation": self.operation.name,
            "seed": self.seed,
            "share": self.share,
            "moment": moment,
            "counted": counted,
            "defect": text,
            "seconds": round(seconds, 2),
        }

    def _stop(self, workspace: Workspace, rng: random.Random) -> tuple[bool, str]:
        reference = workspace.get_reference(self.operation)
        moment = Moment(after_s=rng.uniform(0, reference.work_s))
        if self.kind == "SIGKILL" and reference.writes and rng.random() < 0.5:
            delay_s = rng.choice((0.0, rng.uniform(0, 0.004)))
            moment = Moment(write=rng.randint(1, reference.writes), delay_s=delay_s)
        elif self.kind != "SIGKILL" and rng.random() < 0.5:
            moment = Moment(after_s=rng.uniform(0, reference.work_s + 1.0), from_start=True)
        try:
            if self.kind == "SIGKILL":
                return try_kill(workspace, self.operation, moment), str(moment)
            return try_signal(workspace, self.operation, getattr(signal, self.kind), moment), str(moment)
        except Defect as defect:
            defect.moment = str(moment)  # type: ignore[attr-defined]
            raise


def plan_trials(scale: float = 1.0, kinds: Iterable[str] = (), operations: Iterable[str] = ()) -> list[Trial]:
    """Return the trials of a run; a scale of 1 has 200 kills."""
    trials = []
    is_small = scale < 0.1
    for name, count in KILLS.items():
        trials += [Trial("SIGKILL", OPERATIONS[name], seed) for seed in range(max(1, round(count * scale)))]
    for name in SMALL if is_small else OPERATIONS:
        for kind in ("SIGINT", "SIGTERM"):
            trials += [Trial(kind, OPERATIONS[name], seed) for seed in range(max(1, round(SIGNALS * scale)))]
    mounts = disk.can_mount()
    for name in SMALL if is_small else DISK:
        trials += [Trial("file limit", OPERATIONS[name], 0, share) for share in SHARES]
        if mounts:
            trials += [Trial("full disk", OPERATIONS[name], 0, share) for share in SHARES]
            trials.append(Trial("read-only folder", OPERATIONS[name], 0))
    kinds, operations = set(kinds), set(operations)
    return [
        trial
        for trial in trials
        if (not kinds or trial.kind in kinds) and (not operations or trial.operation.name in operations)
    ]


def run_trials(trials: list[Trial], folder: Path, echo: Echo, lanes: int = 2) -> list[dict[str, Any]]:
    """Run trials, two at a time; show each defect."""
    workspace = Workspace(folder)
    order = trials.copy()
    random.Random(0).shuffle(order)  # so that two trials of one command seldom run side by side

    done = itertools.count(1)

    def run_one(trial: Trial) -> dict[str, Any]:
        outcome = trial.run(workspace)
        if (number := next(done)) % 25 == 0:
            echo(f"{number} of {len(trials)} stops")
        if outcome["defect"]:
            echo(f"{trial.kind} {trial.operation.name}, seed {trial.seed}, {outcome['moment']}: {outcome['defect']}")
        return outcome

    with ThreadPoolExecutor(lanes) as pool:
        try:
            return list(pool.map(run_one, order))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # after Ctrl-C, start no more trials


def summarize(outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    """Count the outcomes by command and kind."""
    counts: dict[tuple[str, str], dict[str, Any]] = {}
    for outcome in outcomes:
        key = outcome["operation"], outcome["kind"]
        row = counts.setdefault(key, {"operation": key[0], "kind": key[1], "stops": 0, "defects": 0})
        row["stops"] += outcome["counted"]
        row["defects"] += bool(outcome["defect"])
    defects = [outcome for outcome in outcomes if outcome["defect"]]
    return {"rows": [counts[key] for key in sorted(counts)], "defects": defects}


def run_suite(
    scale: float, echo: Echo, kinds: Iterable[str] = (), operations: Iterable[str] = (), lanes: int = 2
) -> dict[str, Any]:
    """Run the suite in a temporary folder; return its figures."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="floc-kill-") as folder:
        outcomes = run_trials(plan_trials(scale, kinds, operations), Path(folder), echo, lanes)
    summary = summarize(outcomes)
    return {"scale": scale, "seconds": round(time.monotonic() - started, 1), **summary}
