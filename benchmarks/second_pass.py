"""The table "second-pass": what a second selection over the survivors of all blocks costs, and what it gains.

Gains are measured where the whole video can still be chosen from as one set: how far does the second pass go from plain
blocks to that? Coverage is taken twice: as `kept.coverage` reports it, from the representatives it knows, and true,
every token's best cosine over all that was kept. Real footage is left to a table of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

import floc
from benchmarks import harness, tables
from benchmarks.blocks import Shape
from benchmarks.harness import Contender
from benchmarks.tables import Echo, Table
from floc._format import markdown_table
from floc.budget import Budget
from floc.synthetic import film

RATIOS = ("1/8", "1/32")
PLAIN = "blocks"
TIMED: dict[str, dict[str, Any]] = {
    PLAIN: {"dedupe": 1, "detail": 1},
    "dedupe=2, detail=1": {"dedupe": 2, "detail": 1},
    "default (dedupe=2, detail=2)": {},
}
PASSES: dict[str, dict[str, Any]] = {PLAIN: {"dedupe": 1}, "second pass": {"dedupe": 2}, "whole video": {"block": None}}


@dataclass(frozen=True)
class Kind:
    """A kind of film."""

    name: str
    seed: int
    noise: float
    shot_frames: int
    scenes: int = 5

    def tokens(self, shape: Shape) -> np.ndarray:
        """[frames, height, width, dim] float16."""
        return film(
            shape.frames,
            shape.height,
            shape.width,
            shape.dim,
            seed=self.seed,
            noise=self.noise,
            shot_frames=self.shot_frames,
            scenes=self.scenes,
        )


KINDS = (
    Kind("edited", seed=1, noise=0.35, shot_frames=40),
    Kind("edited, noisy", seed=2, noise=0.7, shot_frames=40),
    Kind("quick cuts, many scenes", seed=3, noise=0.35, shot_frames=8, scenes=12),
    Kind("long takes", seed=4, noise=0.35, shot_frames=150, scenes=3),
    Kind("fixed camera, clean", seed=5, noise=0.15, shot_frames=400, scenes=1),
)


def run(small: bool, echo: Echo) -> dict:
    """Both parts of the table."""
    if small:
        return {
            "time": time(Shape(70, 2, 5, 32), rounds=2, echo=echo),
            "quality": quality(KINDS[:1], Shape(70, 2, 5, 32), echo),
        }
    return {
        "time": time(Shape(784, 6, 10, 3584), rounds=5, echo=echo),
        "quality": quality(KINDS, Shape(400, 6, 10, 384), echo),
    }


def time(shape: Shape, rounds: int, echo: Echo) -> list[dict]:
    """Records of time, against plain blocks."""
    tokens = shape.tokens()
    records = []
    for ratio in RATIOS:
        coverage = {}
        for name, options in TIMED.items():
            kept = floc.compress(tokens, ratio=ratio, **options)
            _check(tokens, kept, count_of(ratio, shape.n))
            coverage[name] = kept.coverage
        contenders = [
            Contender(name, partial(floc.compress, tokens, ratio=ratio, **options)) for name, options in TIMED.items()
        ]
        for timing in harness.compare(contenders, PLAIN, rounds=rounds):
            record = {"case": "second pass, time", "n": shape.n, "d": shape.dim, "keep": ratio, **asdict(timing)}
            records.append(record | {"coverage": coverage[timing.contender]})
            echo(f"n={shape.n} {ratio}  {timing.contender}: {timing.ms:.0f} ms, {timing.ratio:.2f}x")
    return records


def quality(kinds: Sequence[Kind], shape: Shape, echo: Echo) -> list[dict]:
    """Records of coverage, for each kind of film."""
    return [record for kind in kinds for record in _quality(kind, shape, echo)]


def _quality(kind: Kind, shape: Shape, echo: Echo) -> list[dict]:
    tokens = kind.tokens(shape)
    unit = unit_of(tokens)
    records = []
    for ratio in RATIOS:
        count = count_of(ratio, shape.n)
        case = {"case": "second pass, quality", "film": kind.name, "n": shape.n, "d": shape.dim, "keep": ratio}
        floors = {"random": _random(shape, count), "uniform in time": _uniform_in_time(shape, count)}
        records += [{**case, "choice": name, **true_coverage(unit, picks)} for name, picks in floors.items()]
        for detail in (1, 2):
            found: list[dict[str, Any]] = []
            for name, options in PASSES.items():
                kept = floc.compress(tokens, ratio=ratio, detail=detail, **options)
                _check(tokens, kept, count)
                true = true_coverage(unit, np.asarray(kept.indices))
                found.append({**case, "choice": name, "detail": detail, "reported": kept.coverage, **true})
            blocks, second, whole = found
            for key in ("reported", "true", "worst"):
                second[f"{key}_gained"] = _share_gained(blocks[key], second[key], whole[key])
            records += found
            echo(
                f"{kind.name}, {ratio}, detail {detail}: coverage {blocks['true']:.4f} in blocks, {second['true']:.4f} "
                f"with a second pass, {whole['true']:.4f} whole: {_percent(second['true_gained'])} of the gain "
                f"({_percent(second['reported_gained'])} as reported)"
            )
    return records


def count_of(ratio: str, n: int) -> int:
    """How many tokens a ratio keeps."""
    return Budget.parse(ratio, None, None).count(n)


def _check(tokens: np.ndarray, kept: floc.Kept, count: int) -> None:
    """On budget, and as well covered as it says: the mean cosine of tokens to their representatives, taken afresh."""
    cosines = []
    representative = np.asarray(kept.indices)[np.asarray(kept.represents)].reshape(len(tokens), -1)
    flat = tokens.reshape(-1, tokens.shape[-1])
    for frame, chosen in zip(tokens, representative, strict=True):
        cosines.append((unit_of(frame) * unit_of(flat[chosen])).sum(1).mean())
    covered = float(np.mean(cosines))
    if len(kept) != count or abs(covered - kept.coverage) > 1e-3:
        raise AssertionError(
            f"{len(kept)} tokens for a budget of {count}, coverage {covered:.5f} where {kept.coverage:.5f} is reported"
        )


def unit_of(tokens: np.ndarray) -> np.ndarray:
    """[n, D] float32, all tokens at length 1."""
    x = tokens.reshape(-1, tokens.shape[-1]).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def true_coverage(unit: np.ndarray, picks: np.ndarray) -> dict[str, float]:
    """The best cosine of every token over all picks: its mean, and the mean of the worst-covered twentieth."""
    chosen = unit[picks].T
    best = np.concatenate([(part @ chosen).max(1) for part in np.array_split(unit, max(1, len(unit) // 2000))])
    worst = np.sort(best)[: max(1, len(best) // 20)]
    return {"true": float(best.mean(dtype=np.float64)), "worst": float(worst.mean(dtype=np.float64))}


def _share_gained(blocks: float, second: float, whole: float) -> float | None:
    """How far from blocks to the whole video; None where there is nothing to gain."""
    return (second - blocks) / (whole - blocks) if whole != blocks else None


def _percent(share: float | None) -> str:
    return "nothing to gain" if share is None else f"{share:.0%}"


def _random(shape: Shape, count: int) -> np.ndarray:
    return np.sort(np.random.default_rng(0).choice(shape.n, count, replace=False))


def _uniform_in_time(shape: Shape, count: int) -> np.ndarray:
    """All tokens of evenly spaced frames; of the last one only as many as the budget still has."""
    cells = shape.height * shape.width
    frames = np.linspace(0, shape.frames - 1, -(-count // cells)).round().astype(int)
    return (frames[:, None] * cells + np.arange(cells)).ravel()[:count]


def _time_view(document: dict) -> str:
    records = document["time"]
    head = [f"{records[0]['n']:,} tokens, d = {records[0]['d']}", "kept", "time, ms", "against blocks", "coverage"]
    rows = [
        [each["contender"], each["keep"], tables.milliseconds(each), tables.times(each), f"{each['coverage']:.4f}"]
        for each in records
    ]
    note = "Against blocks: how many times as long, median and 20th to 80th percentile over rounds in one process. "
    return f"{markdown_table(head, rows)}\n\n{note}{tables.where(document, 'python', 'numpy', 'torch', 'numba')}"


def _quality_view(document: dict) -> str:
    choices = ("random", "uniform in time", *PASSES)
    head = ["film", "kept", "detail", *choices, "of the gain", "of the gain, worst 5%", "of the gain, as reported"]
    records = document["quality"]
    rows = []
    for name, keep, detail in dict.fromkeys((r["film"], r["keep"], r["detail"]) for r in records if "detail" in r):
        row = {
            each["choice"]: each
            for each in records
            if (each["film"], each["keep"]) == (name, keep) and each.get("detail", detail) == detail
        }
        second = row["second pass"]
        rows.append(
            [
                name,
                keep,
                f"{detail:g}",
                *(f"{row[choice]['true']:.4f} / {row[choice]['worst']:.3f}" for choice in choices),
                *(_percent(second[f"{key}_gained"]) for key in ("true", "worst", "reported")),
            ]
        )
    note = (
        "Cells: mean best cosine of all tokens to what was kept, and its mean over the worst-covered 5%; keeping all "
        "tokens would be 1. Of the gain: how far the second pass goes from blocks to the whole video as one set; as "
        f"reported: by `kept.coverage`. Made-up films of {records[0]['n']:,} tokens, d = {records[0]['d']}. "
    )
    return f"{markdown_table(head, rows)}\n\n{note}{tables.where(document, 'numpy', 'torch', 'numba')}"


TABLE = Table(
    "second-pass",
    run,
    views={"second-pass-time": _time_view, "second-pass-quality": _quality_view},
)
