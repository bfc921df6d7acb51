"""The table "select": choosing from one block's similarity matrix, and the way there from tokens.

Contenders get the same similarities, each in the format it likes; what comes before is not timed. Their objective is
taken in float64 and given as a share of float64 greedy's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np

from benchmarks import blocks, end_to_end, harness, tables
from benchmarks.blocks import BlockTokens, Shape
from benchmarks.end_to_end import Film
from benchmarks.harness import Contender
from benchmarks.peers import PEERS
from benchmarks.tables import Echo, Table
from floc._format import markdown_table
from floc.selection import objective, reference

OURS = "floc"
SMALL, LARGE = Shape(32, 6, 10, 3584), Shape(32, 9, 15, 3584)  # n = 1920 and 4320
DIMS = (3584, 1280)
DIVISORS: tuple[int, ...] = (8, 16, 32)
ALLOWANCE_S = 4.0  # for one contender in one case: keeps the whole table under eight minutes


def run(small: bool, echo: Echo) -> dict:
    """All parts of the table."""
    if small:
        shapes, divisors, rounds = [Shape(8, 4, 5, 64)], DIVISORS[:1], 2
        films = [Film(Shape(8, 4, 5, 64), 3)]
    else:
        shapes, divisors, rounds = [replace(shape, dim=dim) for shape in (SMALL, LARGE) for dim in DIMS], DIVISORS, 5
        films = [Film(replace(shape, dim=dim), count) for shape, count in ((SMALL, 6), (LARGE, 4)) for dim in DIMS]
    selected = [record for shape in shapes for record in measure(shape, divisors, rounds, echo)]
    timed, weighed = end_to_end.measure(films, ("1/8", "1/32"), rounds, echo)
    return {"select": selected, "end_to_end": timed, "memory": weighed}


def measure(shape: Shape, divisors: Sequence[int], rounds: int, echo: Echo) -> list[dict]:
    """Records of every contender on one block, for each share of it that is kept."""
    block = BlockTokens(shape.tokens().reshape(-1, shape.dim))
    # plain greedy reads the whole matrix for each pick: on large blocks a few picks have to do
    oracle, _ = reference.greedy(block.matrix, shape.n // 32 if shape.n <= 2000 else 16)
    records = []
    for divisor in divisors:
        k = shape.n // divisor
        _check(block.matrix, k, oracle)
        best = blocks.value(block.cosine, blocks.float64_greedy(block.cosine, k))
        records += _case({"case": "select", "n": shape.n, "d": shape.dim, "k": k}, block, best, rounds, echo)
    return records


def _greedy(matrix: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, int]:
    """What is timed: picks, their gains, and how many gains were evaluated."""
    try:
        from floc.selection.cpu import greedy
    except ImportError as error:
        raise ImportError("python -m benchmarks select needs numba: pip install 'floc-video[cpu]'") from error
    return greedy.lazy_greedy(matrix, k)


def _check(matrix: np.ndarray, k: int, oracle: np.ndarray) -> None:
    """What is timed must make plain greedy's picks, and its gains must add up to the value of its picks."""
    picks, gains, _ = _greedy(matrix, k)
    common = min(k, len(oracle))
    if picks[:common].tolist() != oracle[:common].tolist() or gains.sum() != objective.value(matrix, picks):
        raise AssertionError(f"lazy greedy differs from plain greedy at n={len(matrix)}, k={k}: its time means nothing")


def _case(case: dict, block: BlockTokens, best: float, rounds: int, echo: Echo) -> list[dict]:
    n, k = case["n"], case["k"]
    contenders = [Contender(OURS, lambda: _greedy(block.matrix, k)[0])]
    details: dict[str, dict] = {OURS: {"matrix_bytes": block.matrix.nbytes, "evaluations": _greedy(block.matrix, k)[2]}}
    skipped = {}
    for peer in PEERS:
        why = peer.why_not(n)
        if why is None:
            contenders.append(Contender(peer.name, peer.prepare(block, k)))
            details[peer.name] = {"matrix_bytes": peer.bytes_a_pair and peer.bytes_a_pair * n * n}
        else:
            skipped[peer.name] = why
    for each in contenders:
        picks = np.asarray(each.run())
        details[each.name] |= {
            "picked": len(set(picks.tolist())),
            "objective": blocks.value(block.cosine, picks) / best,
        }

    records = [
        {**case, **asdict(timing), **details[timing.contender]}
        for timing in harness.compare(contenders, OURS, rounds=rounds, allowance_s=ALLOWANCE_S)
    ]
    records += [{**case, "contender": name, "skipped": why} for name, why in skipped.items()]
    for record in records:
        outcome = record.get("skipped") or (
            f"{record['ms']:.2f} ms, {record['ratio']:.1f}x, objective {record['objective']:.6f}"
        )
        echo(f"n={n} d={case['d']} k={k}  {record['contender']}: {outcome}")
    return records


def _readme(document: dict) -> str:
    """The case a reader is most likely to have: 32 frames of 60 tokens, one in eight kept."""
    case = document["select"][0]
    wanted = {key: case[key] for key in ("n", "d", "k")}
    records = [each for each in document["select"] if wanted.items() <= each.items()]
    return "\n\n".join(
        [
            markdown_table(
                [f"choosing {case['k']} of {case['n']} tokens", "time, ms", "against floc", "objective"],
                [_row(each) for each in records],
            ),
            _notes(document),
        ]
    )


def _every_case(document: dict) -> str:
    parts = []
    for n, d in dict.fromkeys((each["n"], each["d"]) for each in document["select"]):
        records = [each for each in document["select"] if (each["n"], each["d"]) == (n, d)]
        head = [f"n = {n}, d = {d}", "K", "time, ms", "against floc", "objective", "matrix, MB", "evaluations / n"]
        parts.append(markdown_table(head, [_long_row(each) for each in records]))
    return "\n\n".join([*parts, _notes(document)])


def _row(record: dict) -> list[str]:
    if "skipped" in record:
        return [record["contender"], record["skipped"], "", ""]
    return [record["contender"], tables.milliseconds(record), tables.times(record), f"{record['objective']:.6f}"]


def _long_row(record: dict) -> list[str]:
    name, *measured = _row(record)
    size, evaluations = record.get("matrix_bytes"), record.get("evaluations")
    return [
        name,
        str(record["k"]),
        *measured,
        "" if size is None else f"{size / 1e6:.0f}",
        "" if evaluations is None else f"{evaluations / record['n']:.1f}",
    ]


def _notes(document: dict) -> str:
    packages = ("python", "numpy", "numba", "apricot-select", "submodlib-py", "kmedoids", "scikit-learn")
    return (
        "Time is that of the choice alone, on similarities each contender was given in its own format. "
        "Against floc: how many times as long, median and 20th to 80th percentile over rounds in one process. "
        "Objective: in float64, as a share of float64 greedy's. k-means chooses on the tokens, from one start and "
        "in at most ten steps. " + tables.where(document, *packages)
    )


def _end_to_end(document: dict) -> str:
    head = ["from float16 tokens", "kept", "n", "d", "blocks", "time, ms", "against the product", "objective"]
    rows = []
    for each in document["end_to_end"]:
        share = each.get("objective")
        rows.append(
            [
                each.get("method", each["contender"]),
                each.get("keep", ""),
                *(str(each[key]) for key in ("n", "d", "blocks")),
                tables.milliseconds(each),
                tables.times(each),
                "" if share is None else f"{share:.6f}",
            ]
        )
    note = (
        "The product is the float32 X @ X.T of every block, tokens already at length 1, memory at hand; ratios "
        "are to the faster way of running it. Objective: of the first block, as a share of float64 greedy's. "
    )
    return f"{markdown_table(head, rows)}\n\n{note}{tables.where(document, 'python', 'numpy', 'torch', 'numba')}"


def _memory(document: dict) -> str:
    head = ["peak over the tokens", "kept", "n", "d", "blocks", "used, MiB", "allowance, MiB", "share"]
    rows = []
    for each in document["memory"]:
        used = each["used_bytes"]
        rows.append(
            [
                each["method"],
                each["keep"],
                *(str(each[key]) for key in ("n", "d", "blocks")),
                "not measured" if used is None else f"{used / 2**20:.1f}",
                f"{each['allowance_bytes'] / 2**20:.1f}",
                "" if used is None else f"{each['share']:.2f}",
            ]
        )
    note = (
        "Growth of peak resident memory in one call, in a process that made the same call before. "
        "Allowance: 2.2 times the int16 matrices of two blocks, and one block of tokens in float32."
    )
    return f"{markdown_table(head, rows)}\n\n{note}"


TABLE = Table(
    "select",
    run,
    views={"select": _readme, "select-all": _every_case, "end-to-end": _end_to_end, "memory": _memory},
)
