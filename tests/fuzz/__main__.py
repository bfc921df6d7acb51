"""Run the fuzz suite: `python -m tests.fuzz --help`."""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", NUMBA_NUM_THREADS="1", HF_HUB_OFFLINE="1", RAYON_NUM_THREADS="1")

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.fuzz import outcomes, pool

KINDS = ("files", "clips", "api", "cli")
DEFECTS = 100  # listed in the results


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser("python -m tests.fuzz", description="Give floc thousands of damaged inputs.")
    parser.add_argument("kind", choices=[*KINDS, "all"], help="what to mutate")
    parser.add_argument("--seed", type=int, default=0, help="another seed gives other cases")
    parser.add_argument("--scale", type=float, default=1.0, help="1 runs all cases, 0.01 one in a hundred")
    parser.add_argument("--case", type=int, help="run this case alone, in this process, with its traceback")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("-o", "--output", type=Path, help="write the results to this JSON file")
    options = parser.parse_args(arguments)
    import torch

    torch.set_num_threads(1)
    results: dict[str, Any] = {"seed": options.seed, "scale": options.scale, "kinds": {}}
    for kind in KINDS if options.kind == "all" else [options.kind]:
        module = import_module(f"tests.fuzz.{kind}")
        folder = Path(tempfile.mkdtemp(prefix="floc-fuzz-"))  # no TemporaryDirectory, which a forked process may remove
        try:
            # in another process: Lance starts threads, and a fork must not inherit them
            code = f"import sys, pathlib, tests.fuzz.{kind} as kind; kind.prepare(pathlib.Path(sys.argv[1]))"
            subprocess.run([sys.executable, "-c", code, str(folder)], check=True)
            module.warm_up(folder)
            if options.case is not None:
                outcome = _run_alone(module, folder, options.seed, options.case)
                print(json.dumps(outcome.to_json(), indent=1))
                return int(outcome.verdict in outcomes.WRONG)
            results["kinds"][kind] = _run_kind(kind, module, folder, options)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    if options.output:
        options.output.write_text(json.dumps(results, indent=1) + "\n")
    elif options.kind == "all" and options.scale >= 1:
        _publish(results)
    return int(any(count_wrong(row) for kind in results["kinds"].values() for row in kind["rows"]))


def _publish(results: dict[str, Any]) -> None:
    """Write the results of a full run, and the table of the documentation."""
    from benchmarks import harness, pages, run

    document = {"table": "fuzz", "small": False, **harness.describe_environment(), **results}
    (run.RESULTS / "fuzz.json").write_text(json.dumps(document, indent=1) + "\n")
    try:
        pages.fill(Path("docs/background/reliability.md"), run.RESULTS)
    except (FileNotFoundError, ValueError) as error:  # results of another suite on the page
        print(f"the page is not filled: {error}")


def count_wrong(row: dict[str, Any]) -> int:
    """Return the number of wrong outcomes in a row of the results."""
    return sum(row.get(verdict, 0) for verdict in outcomes.WRONG)


def _run_alone(module: Any, folder: Path, seed: int, case: int) -> outcomes.Outcome:
    """Run one case in a process with the limits, and print the traceback of an error."""
    import traceback

    judge = outcomes.judge_error

    def print_and_judge(error: BaseException, mentions: str | None = None) -> outcomes.Outcome:
        traceback.print_exception(error)
        return judge(error, mentions)

    module.judge_error = print_and_judge
    [(_, outcome)] = pool.run_cases(partial(module.run, folder, seed), [case], 1, 1)
    return outcome


def _run_kind(kind: str, module: Any, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    count = max(1, round(module.CASES * options.scale))
    started = time.monotonic()
    found: dict[int, outcomes.Outcome] = {}
    signatures: set[tuple[str, str, str]] = set()
    cases = range(options.first, options.first + count)
    print(f"{kind}: {count} cases", flush=True)
    assert len(os.listdir("/proc/self/task")) == 1, "a fork must not inherit threads"
    for case, outcome in pool.run_cases(partial(module.run, folder, options.seed), cases, module.BATCH, options.jobs):
        is_wrong = outcome.verdict in outcomes.WRONG
        if is_wrong and outcome.signature not in signatures:
            signatures.add(outcome.signature)
            print(
                f"  case {case}, {outcome.verdict}: {outcome.reason[:200]} {outcome.place} {outcome.what!r}", flush=True
            )
        if case not in found or is_wrong:
            found[case] = outcome
        if len(found) % max(1, count // 10) == 0:
            print(f"  {len(found)} after {time.monotonic() - started:.0f} s", flush=True)
    rows: dict[str, Counter[str]] = {}
    for case, outcome in found.items():
        row = rows.setdefault(module.choose_format(case), Counter())
        row.update(["cases", outcome.verdict])
    defects = _list_defects(kind, found, options.seed)
    for name, row in rows.items():
        print(f"  {name}: {dict(row)}")
    for defect in defects:
        print(f"  {defect['verdict']} x{defect['count']}: {defect['reason']}\n    at {defect['place'] or '-'}")
        print(f"    {defect['what']!r}\n    {defect['command']}")
    slowest = max(found.values(), key=lambda outcome: outcome.seconds, default=outcomes.Outcome("valid"))
    return {
        "rows": [{"format": name, **row} for name, row in rows.items()],
        "seconds": round(time.monotonic() - started, 1),
        "slowest_s": round(slowest.seconds, 2),
        "largest_bytes": max((outcome.peak_bytes for outcome in found.values()), default=0),
        "defects": defects[:DEFECTS],
    }


def _list_defects(kind: str, found: dict[int, outcomes.Outcome], seed: int) -> list[dict[str, Any]]:
    """Group wrong outcomes by their signature; the most frequent first."""
    groups: dict[Any, list[int]] = {}
    for case, outcome in sorted(found.items()):
        if outcome.verdict in outcomes.WRONG:
            groups.setdefault(outcome.signature, []).append(case)
    defects = []
    for cases in sorted(groups.values(), key=len, reverse=True):
        first = found[cases[0]]
        command = f"python -m tests.fuzz {kind} --seed {seed} --case {cases[0]}"
        defects.append({**first.to_json(), "count": len(cases), "cases": cases[:10], "command": command})
    return defects


if __name__ == "__main__":
    sys.exit(main())
