"""Table "select": selection from one block's similarity matrix, and the whole way from tokens.

Contenders get the same similarities, each in its own format; preparing them is not timed. The objective is computed in
float64 and given as a share of float64 greedy's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from benchmarks import end_to_end, harness
from benchmarks.end_to_end import BlockCase
from benchmarks.harness import Contender
from benchmarks.markdown import RATIO_NOTE, show_environment, show_ms, show_ratio, show_records
from benchmarks.oracle import BlockTokens, compute_objective, greedy_float64
from benchmarks.peers import PEERS
from benchmarks.registry import BenchTable, Echo
from benchmarks.synthetic import Shape
from floc.selection import reference

OURS = "floc.select"
SMALL, LARGE = Shape(32, 6, 10, 3584), Shape(32, 9, 15, 3584)  # n = 1920 and 4320
DIMS = (3584, 1280)
DIVISORS: tuple[int, ...] = (8, 16, 32)
ALLOWANCE_S = 4.0  # for one contender in one case: keeps the whole table under eight minutes


def run(small: bool, echo: Echo) -> dict:
    """Measure selection alone, then time and memory from tokens."""
    if small:
        shapes, divisors, rounds = [Shape(8, 4, 5, 64)], DIVISORS[:1], 2
        cases = [BlockCase(Shape(8, 4, 5, 64), 3)]
    else:
        shapes, divisors, rounds = [replace(shape, dim=dim) for shape in (SMALL, LARGE) for dim in DIMS], DIVISORS, 5
        cases = [BlockCase(replace(shape, dim=dim), count) for shape, count in ((SMALL, 6), (LARGE, 4)) for dim in DIMS]
    selected = [record for shape in shapes for record in measure_block(shape, divisors, rounds, echo)]
    timed, weighed = end_to_end.measure(cases, ("1/8", "1/32"), rounds, echo)
    return {"select": selected, "end_to_end": timed, "memory": weighed}


def measure_block(shape: Shape, divisors: Sequence[int], rounds: int, echo: Echo) -> list[dict]:
    """Return records of every contender on one block; n // divisor tokens are kept for each divisor."""
    block = BlockTokens(shape.make_tokens().reshape(-1, shape.dim))
    # plain greedy reads the whole matrix for each pick, so on large blocks only a few picks are compared
    expected, _ = reference.greedy(block.matrix, shape.n // 32 if shape.n <= 2000 else 16)
    records = []
    for divisor in divisors:
        k = shape.n // divisor
        _check_picks(block.matrix, k, expected)
        best = compute_objective(block.cosine, greedy_float64(block.cosine, k))
        records += _measure_case({"case": "select", "n": shape.n, "d": shape.dim, "k": k}, block, best, rounds, echo)
    return records


def _select(matrix: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Run what is timed: return picks, gains, and the number of gains evaluated."""
    try:
        from floc.selection.cpu import greedy
    except ImportError as error:
        raise ImportError("python -m benchmarks select needs numba: pip install 'floc-video[cpu]'") from error
    return greedy.lazy_greedy(matrix, k)


def _check_picks(matrix: np.ndarray, k: int, expected: np.ndarray) -> None:
    """Raise unless the picks are plain greedy's and the gains sum to the objective."""
    picks, gains, _ = _select(matrix, k)
    common = min(k, len(expected))
    if picks[:common].tolist() != expected[:common].tolist() or gains.sum() != compute_objective(matrix, picks):
        raise AssertionError(f"lazy greedy differs from plain greedy at n={len(matrix)}, k={k}: its time means nothing")


def _measure_case(case: dict, block: BlockTokens, best: float, rounds: int, echo: Echo) -> list[dict]:
    n, k = case["n"], case["k"]
    contenders = [Contender(OURS, lambda: _select(block.matrix, k)[0])]
    details: dict[str, dict] = {OURS: {"matrix_bytes": block.matrix.nbytes, "evaluations": _select(block.matrix, k)[2]}}
    skipped = {}
    for peer in PEERS:
        reason = peer.explain_skip(n)
        if reason is None:
            contenders.append(Contender(peer.name, peer.prepare(block, k)))
            details[peer.name] = {"matrix_bytes": peer.pair_bytes and peer.pair_bytes * n * n}
        else:
            skipped[peer.name] = reason
    for contender in contenders:
        picks = np.asarray(contender.run())
        value = compute_objective(block.cosine, picks) / best
        details[contender.name] |= {"picked": len(set(picks.tolist())), "objective": value}
    records = [
        {**case, **asdict(timing), **details[timing.contender]}
        for timing in harness.compare(contenders, OURS, rounds=rounds, allowance_s=ALLOWANCE_S)
    ]
    records += [{**case, "contender": name, "skipped": reason} for name, reason in skipped.items()]
    for record in records:
        outcome = record.get("skipped") or (
            f"{record['ms']:.2f} ms, {record['ratio']:.1f}x, objective {record['objective']:.6f}"
        )
        echo(f"n={n} d={case['d']} k={k}  {record['contender']}: {outcome}")
    return records


Columns = dict[str, Callable[[Mapping[str, Any]], str]]


def _list_columns(title: str, *, with_k: bool = False) -> Columns:
    return {
        title: lambda record: record["contender"],
        **({"K": lambda record: str(record["k"])} if with_k else {}),
        "time, ms": lambda record: record.get("skipped") or show_ms(record),
        f"ratio to {OURS}": lambda record: show_ratio(record) if "ratio" in record else "",
        "objective": lambda record: f"{record['objective']:.6f}" if "objective" in record else "",
    }


def _show_headline(document: dict) -> str:
    """Show the most common case: 32 frames of 60 tokens, 1/8 kept."""
    case = document["select"][0]
    key = {name: case[name] for name in ("n", "d", "k")}
    records = [record for record in document["select"] if key.items() <= record.items()]
    return show_records(records, _list_columns(f"selecting {case['k']} of {case['n']} tokens"), _make_note(document))


def _show_all(document: dict) -> str:
    parts = []
    for n, d in dict.fromkeys((record["n"], record["d"]) for record in document["select"]):
        records = [record for record in document["select"] if (record["n"], record["d"]) == (n, d)]
        columns: Columns = {
            **_list_columns(f"n = {n}, d = {d}", with_k=True),
            "matrix, MB": lambda record: f"{record['matrix_bytes'] / 1e6:.0f}" if record.get("matrix_bytes") else "",
            "gains evaluated / n": lambda record: (
                f"{record['evaluations'] / record['n']:.1f}" if "evaluations" in record else ""
            ),
        }
        parts.append(show_records(records, columns))
    return "\n\n".join([*parts, _make_note(document)])


def _make_note(document: dict) -> str:
    packages = ("python", "numpy", "numba", "apricot-select", "submodlib-py", "kmedoids", "scikit-learn")
    return (
        f"Time: of the selection alone; each contender gets similarities in its own format. Ratios: {RATIO_NOTE}. "
        "Objective: in float64, as a share of the objective that float64 greedy reaches. k-means clusters the tokens, "
        f"from one start and in at most ten steps. {show_environment(document, *packages)}"
    )


def _show_end_to_end(document: dict, all_cases: bool = False) -> str:
    records = document["end_to_end"]
    if not all_cases:
        records = [record for record in records if (record["n"], record["d"]) == (records[0]["n"], records[0]["d"])]
    columns: Columns = {
        "from float16 tokens": lambda record: record.get("method", record["contender"]),
        "kept": lambda record: record.get("keep", ""),
        "n": lambda record: str(record["n"]),
        "d": lambda record: str(record["d"]),
        "blocks": lambda record: str(record["blocks"]),
        "time, ms": show_ms,
        "ratio to the product": show_ratio,
        "objective": lambda record: f"{record['objective']:.6f}" if "objective" in record else "",
    }
    note = (
        "The product is X @ X.T of every block in float32; tokens were normalised and memory was allocated before. "
        "Ratios refer to the faster way of computing it. Objective: of the first block, as a share of the objective "
        "that float64 greedy reaches."
    )
    return show_records(records, columns, note, show_environment(document, "python", "numpy", "torch", "numba"))


def _show_end_to_end_all(document: dict) -> str:
    return _show_end_to_end(document, all_cases=True)


def _show_memory(document: dict) -> str:
    columns: Columns = {
        "peak above the tokens": lambda record: record["method"],
        "kept": lambda record: record["keep"],
        "n": lambda record: str(record["n"]),
        "d": lambda record: str(record["d"]),
        "blocks": lambda record: str(record["blocks"]),
        "used, MiB": lambda record: (
            "not measured" if record["used_bytes"] is None else f"{record['used_bytes'] / 2**20:.1f}"
        ),
        "allowance, MiB": lambda record: f"{record['allowance_bytes'] / 2**20:.1f}",
        "share": lambda record: "" if record["share"] is None else f"{record['share']:.2f}",
    }
    note = (
        "Growth of peak resident memory in one call, in a process that made the same call before. Allowance: 2.2 times "
        "the int16 matrices of two blocks, and one block of tokens in float32."
    )
    return show_records(document["memory"], columns, note)


TABLE = BenchTable(
    "select",
    run,
    views={
        "select": _show_headline,
        "select-all": _show_all,
        "end-to-end": _show_end_to_end,
        "end-to-end-all": _show_end_to_end_all,
        "memory": _show_memory,
    },
)
