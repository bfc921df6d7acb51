"""Table "second-pass": cost and gain of the second selection over the survivors of all blocks.

The gain is measured on videos small enough to select from as one set: what share of the way from plain blocks to that
does the second pass reach? Coverage is measured twice: as `kept.coverage` reports it, from the known representatives,
and as the highest cosine of every token with any kept token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

import floc
from benchmarks import harness
from benchmarks.harness import Contender
from benchmarks.markdown import (
    RATIO_NOTE,
    show_coverage,
    show_environment,
    show_ms,
    show_ratio,
    show_records,
    show_rows,
)
from benchmarks.quality import COVERAGE_NOTE, FLOORS, count_tokens, measure_coverage, normalize
from benchmarks.registry import BenchTable, Echo
from benchmarks.synthetic import EDITED, KINDS, Shape, VideoKind

RATIOS = ("1/8", "1/32")
PAPER = "floc-paper"
TIMED: dict[str, dict[str, Any]] = {
    PAPER: {"dedupe": 1, "detail": 1},
    "dedupe=2, detail=1": {"dedupe": 2, "detail": 1},
    "floc": {},
}
PASSES: dict[str, dict[str, Any]] = {
    "blocks": {"dedupe": 1},
    "second pass": {"dedupe": 2},
    "whole video": {"block": None},
}


def run(small: bool, echo: Echo) -> dict:
    """Measure time and coverage."""
    if small:
        shape = Shape(70, 2, 5, 32)
        return {"time": measure_time(shape, 2, echo), "quality": measure_quality([EDITED], shape, echo)}
    return {
        "time": measure_time(Shape(784, 6, 10, 3584), 5, echo),
        "quality": measure_quality(KINDS, Shape(400, 6, 10, 384), echo),
    }


def measure_time(shape: Shape, rounds: int, echo: Echo) -> list[dict]:
    """Return records of time, relative to the paper's single pass."""
    tokens = shape.make_tokens()
    records = []
    for ratio in RATIOS:
        coverage = {}
        for name, options in TIMED.items():
            kept = floc.compress(tokens, ratio=ratio, **options)
            _check_kept(tokens, kept, count_tokens(ratio, shape.n))
            coverage[name] = kept.coverage
        contenders = [
            Contender(name, partial(floc.compress, tokens, ratio=ratio, **options)) for name, options in TIMED.items()
        ]
        for timing in harness.compare(contenders, PAPER, rounds=rounds):
            record = {"case": "second pass, time", "n": shape.n, "d": shape.dim, "keep": ratio, **asdict(timing)}
            records.append(record | {"coverage": coverage[timing.contender]})
            echo(f"n={shape.n} {ratio}  {timing.contender}: {timing.ms:.0f} ms, {timing.ratio:.2f}x")
    return records


def measure_quality(kinds: Sequence[VideoKind], shape: Shape, echo: Echo) -> list[dict]:
    """Return records of coverage for each kind of video."""
    return [record for kind in kinds for record in _measure_kind(kind, shape, echo)]


def _measure_kind(kind: VideoKind, shape: Shape, echo: Echo) -> list[dict]:
    tokens = kind.make_tokens(shape)
    unit = normalize(tokens)
    records = []
    for ratio in RATIOS:
        case = {"case": "second pass, quality", "film": kind.name, "n": shape.n, "d": shape.dim, "keep": ratio}
        for name, method in FLOORS.items():
            kept = floc.compress(tokens, ratio=ratio, method=method)
            records.append({**case, "choice": name, **measure_coverage(unit, np.asarray(kept.indices))})
        for detail in (1, 2):
            passes: list[dict[str, Any]] = []
            for name, options in PASSES.items():
                kept = floc.compress(tokens, ratio=ratio, detail=detail, **options)
                _check_kept(tokens, kept, count_tokens(ratio, shape.n))
                coverage = measure_coverage(unit, np.asarray(kept.indices))
                passes.append({**case, "choice": name, "detail": detail, "reported": kept.coverage, **coverage})
            blocks, second, whole = passes
            for key in ("reported", "true", "worst"):
                room = whole[key] - blocks[key]
                second[f"{key}_gained"] = (second[key] - blocks[key]) / room if room else None
            records += passes
            echo(
                f"{kind.name}, {ratio}, detail {detail}: coverage {blocks['true']:.4f} in blocks, {second['true']:.4f} "
                f"with a second pass, {whole['true']:.4f} as one set: {_show_share(second['true_gained'])} of the gain "
                f"({_show_share(second['reported_gained'])} as reported)"
            )
    return records


def _check_kept(tokens: np.ndarray, kept: floc.Kept, count: int) -> None:
    """Raise unless `kept` has `count` tokens and its coverage is the mean cosine of tokens to their representatives."""
    cosines = []
    representatives = np.asarray(kept.indices)[np.asarray(kept.represents)].reshape(len(tokens), -1)
    flat = tokens.reshape(-1, tokens.shape[-1])
    for frame, indices in zip(tokens, representatives, strict=True):
        cosines.append((normalize(frame) * normalize(flat[indices])).sum(1).mean())
    coverage = float(np.mean(cosines))
    if len(kept) != count or abs(coverage - kept.coverage) > 1e-3:
        raise AssertionError(
            f"{len(kept)} tokens kept for a budget of {count}; coverage is {coverage:.5f}, {kept.coverage:.5f} is "
            "reported"
        )


def _show_share(share: float | None) -> str:
    return "nothing to gain" if share is None else f"{share:.0%}"


def _show_time(document: dict) -> str:
    records = document["time"]
    columns = {
        f"{records[0]['n']:,} tokens, d = {records[0]['d']}": lambda record: record["contender"],
        "kept": lambda record: record["keep"],
        "time, ms": show_ms,
        f"ratio to {PAPER}": show_ratio,
        "coverage": lambda record: f"{record['coverage']:.4f}",
    }
    environment = show_environment(document, "python", "numpy", "torch", "numba")
    return show_records(records, columns, f"Ratios: {RATIO_NOTE}.", environment)


def _show_quality(document: dict) -> str:
    records = document["quality"]
    selections = (*FLOORS, *PASSES)
    rows = []
    for name, keep, detail in dict.fromkeys((r["film"], r["keep"], r["detail"]) for r in records if "detail" in r):
        row = {
            record["choice"]: record
            for record in records
            if (record["film"], record["keep"]) == (name, keep) and record.get("detail", detail) == detail
        }
        gained = [_show_share(row["second pass"][f"{key}_gained"]) for key in ("true", "worst", "reported")]
        rows.append([name, keep, f"{detail:g}", *(show_coverage(row[each]) for each in selections), *gained])
    head = ["video", "kept", "detail", *selections, "gain", "gain, worst 5%", "gain, as reported"]
    note = (
        f"{COVERAGE_NOTE} Gain: share of the way from blocks to the whole video that the second pass reaches; "
        f"as reported: by `kept.coverage`. Synthetic videos of {records[0]['n']:,} tokens, d = {records[0]['d']}."
    )
    return show_rows(head, rows, note, show_environment(document, "numpy", "torch", "numba"))


TABLE = BenchTable("second-pass", run, {"second-pass-time": _show_time, "second-pass-quality": _show_quality})
