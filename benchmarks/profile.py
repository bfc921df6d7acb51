"""The table "profile": what every method costs on the paper's profile case, and what the LLM costs after it.

784 frames of 60 tokens, 3584 features, 1/8 of them kept, Qwen2.5-VL-7B with random weights: on a GPU. On a CPU a part
of the frames and a tiny model, which the table says. Methods take turns on the same tokens, and the time is that of the
whole call, search for the budget included. The LLM reads as many tokens as a method kept, and a question, and gives the
first token of its answer. The paper's numbers are of an H100, and of an answer whose length it does not tell.
"""

from __future__ import annotations

import functools
import importlib.util
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

import floc
from benchmarks import answer, harness
from benchmarks.blocks import Shape
from benchmarks.harness import Contender, compare
from benchmarks.memory import growth_bytes
from benchmarks.operations import ESTIMATED, operations
from benchmarks.tables import Echo, Table, number, times, where
from floc._format import markdown_table
from floc.evaluation import paper
from floc.synthetic import film

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = "table7"
RATIO = "1/8"
FULL = "full"
BASELINE = "floc-paper"
GPU, CPU, SMALL = Shape(784, 6, 10, 3584), Shape(98, 6, 10, 3584), Shape(40, 6, 10, 64)
ROUNDS, ALLOWANCE_S = 5, 10.0
READINGS = 3


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Time, count and weigh every method, then the LLM on what they kept."""
    device = harness.device()
    shape = SMALL if small else GPU if device.type == "cuda" else CPU
    tokens = torch.from_numpy(shape.tokens()).to(device)
    records = [{"method": FULL, "kept": shape.n}, *_methods(tokens, small, echo)]
    textbook = _textbook(1920 if device.type == "cuda" and not small else 240, shape.dim, device)
    echo(f"divprune against the textbook loop: {textbook['ratio']:.0f}x")
    del tokens  # the LLM's memory is its own
    llm = _llm(sorted({each["kept"] for each in records if "kept" in each}), device, small, echo)
    return {
        "ran_on": harness.gpu_name() or "CPU",
        "frames": shape.frames,
        "dim": shape.dim,
        "ratio": RATIO,
        "methods": records,
        "textbook": textbook,
        "llm": llm,
    }


def _methods(tokens: torch.Tensor, small: bool, echo: Echo) -> list[dict[str, Any]]:
    calls = {name: functools.partial(_kept, name, tokens) for name in floc.methods.names()}
    records = {name: _tried(name, calls[name], tokens) for name in calls}
    contenders = [Contender(name, calls[name]) for name in calls if "failed" not in records[name]]
    for timing in compare(contenders, BASELINE, rounds=1 if small else ROUNDS, allowance_s=ALLOWANCE_S):
        records[timing.contender] |= asdict(timing) | {"seconds": timing.ms / 1e3}
    for name, record in records.items():
        echo(f"{name}: {record.get('seconds', record.get('failed'))}")
    return list(records.values())


def _kept(name: str, tokens: torch.Tensor) -> floc.Kept:
    kept = floc.compress(tokens, ratio=RATIO, method=name, **_options(name))
    harness.wait(tokens.device)
    return kept


def _options(name: str) -> dict[str, Any]:
    """Those that cannot go down to the ratio keep their fewest."""
    return {"nearest": True} if "nearest" in floc.methods.options(name) else {}


def _tried(name: str, call: Callable[[], floc.Kept], tokens: torch.Tensor) -> dict[str, Any]:
    """What is not a matter of time, or why a method does not run here."""
    try:
        kept = call()
    except (ImportError, MemoryError) as error:
        return {"method": name, "failed": str(error)}
    flop, how = operations(name, tokens, RATIO, **_options(name))
    peak = growth_bytes(call, tokens.device)
    return {"method": name, "kept": len(kept), "flop": flop, "flop_is": how, "peak_bytes": peak}


def _textbook(n: int, dim: int, device: torch.device) -> dict[str, Any]:
    """DivPrune on one block, and as it is told: every step looks at all distances to all that is kept."""
    tokens = torch.from_numpy(film(n // 60, 6, 10, dim, seed=2)).to(device)
    k = n // 8

    def plainly() -> list[int]:
        x = torch.nn.functional.normalize(tokens.float().flatten(0, 2), dim=-1)
        picks = [int((1 - x @ x.T).fill_diagonal_(torch.inf).min(1).values.argmax())]
        while len(picks) < k:
            nearest = (1 - x @ x.T)[picks].min(0).values
            nearest[picks] = -torch.inf
            picks.append(int(nearest.argmax()))
        return picks

    def here() -> list[int]:
        kept = floc.compress(tokens, budget=k, method="divprune", block=None)
        return kept.indices[kept.order].tolist()

    if plainly() != here():
        raise AssertionError("divprune differs from the textbook loop")
    contenders = [Contender("floc", here), Contender("textbook", plainly)]
    return {"n": n, **asdict(compare(contenders, "floc", rounds=3)[1])}


def _llm(counts: Sequence[int], device: torch.device, small: bool, echo: Echo) -> dict[str, Any]:
    """Seconds and peak memory of reading so many visual tokens, for each count."""
    if importlib.util.find_spec("transformers") is None:
        return {"model": "not run, it needs transformers: pip install 'floc-video[hf]'", "readings": []}
    tiny = small or device.type == "cpu"
    model = answer.qwen(device, tiny)
    weights = sum(each.numel() * each.element_size() for each in model.parameters())
    readings = []
    for count in counts:
        readings.append({"kept": count, **_reading(model, count, weights)})
        echo(f"the LLM on {count:,} tokens: {readings[-1]['seconds']:.3f} s")
    return {"model": "a tiny Qwen2.5-VL" if tiny else "Qwen2.5-VL-7B", "weights_bytes": weights, "readings": readings}


@torch.no_grad()
def _reading(model: Any, count: int, weights: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(100, 100_000, (1, count + answer.TEXT), generator=generator).to(model.device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def read() -> float:
        started = time.perf_counter()
        model.generate(**inputs, max_new_tokens=1)
        harness.wait(model.device)
        return time.perf_counter() - started

    read()  # compiles and loads
    growth = growth_bytes(read, model.device)
    return {
        "seconds": statistics.median(read() for _ in range(READINGS)),
        "peak_bytes": None if growth is None else weights + growth,
    }


def _view(document: dict[str, Any]) -> str:
    readings = {each["kept"]: each for each in document["llm"]["readings"]}
    rows = [_row(each, readings.get(each.get("kept"), {})) for each in document["methods"]]
    head = ["method", "tokens kept", "compression, s", "paper", f"against {BASELINE}", "GFLOP", "paper", "memory, MiB"]
    head += ["LLM, s", "paper", "LLM's peak, GB", "paper", "total, s", "paper"]
    return f"{markdown_table(head, rows)}\n\n{_note(document)}"


def _row(record: dict[str, Any], reading: dict[str, Any]) -> list[str]:
    told = paper.row(PAPER, record["method"])
    beside = [number(told.get(key)) for key in ("compression_s", "gflop", "inference_s", "vram_gb", "total_s")]
    ours = {
        "kept": f"{record['kept']:,}" if "kept" in record else "not run",
        "compression": number(record.get("seconds")),
        "against": times(record) if "ratio" in record else "",
        "gflop": ("~" if record.get("flop_is") == ESTIMATED else "") + number(record.get("flop"), 1e9),
        "memory": number(record.get("peak_bytes"), 2**20),
        "llm": number(reading.get("seconds")),
        "peak": number(reading.get("peak_bytes"), 1e9),
        "total": number(_total(record, reading)),
    }
    cells = [record["method"], ours["kept"], ours["compression"], beside[0], ours["against"], ours["gflop"], beside[1]]
    cells += [ours["memory"], ours["llm"], beside[2], ours["peak"], beside[3], ours["total"], beside[4]]
    return cells


def _total(record: dict[str, Any], reading: dict[str, Any]) -> float | None:
    """Compression and LLM, where both were measured."""
    compression = 0.0 if record["method"] == FULL else record.get("seconds")
    return None if compression is None or "seconds" not in reading else compression + reading["seconds"]


def _note(document: dict[str, Any]) -> str:
    failed = [f"{each['method']}: {each['failed']}" for each in document["methods"] if "failed" in each]
    block = 32 * 60
    parts = [
        f"{document['frames']} frames of 60 tokens, {document['dim']} features, float16, kept {document['ratio']}, on "
        f"{document['ran_on']}; the paper: 784 frames, {GPU.dim} features, an H100.",
        f"Against {BASELINE}: how many times as long, median and 20th to 80th percentile over rounds in one process.",
        "dycoke and longvu, where they cannot go down to the ratio, keep their fewest.",
        "GFLOP: by torch's counter, a multiplication and an addition as two, and one for an element of sums, products "
        "and quotients; of floc and floc-paper on the torch backend, which fills the same similarities. ~: estimated, "
        "the distances between the tokens of a block alone, whatever scikit-learn or kmedoids do with them. The paper "
        f"seems to count a multiplication and an addition as one: 24 blocks of {block:,} tokens make "
        f"{24 * block**2 * GPU.dim / 1e9:.0f} GFLOP so.",
        "Memory: what the call took at its peak beside the tokens, measured.",
        _llm_note(document["llm"]),
        *([f"Not run: {'; '.join(failed)}."] if failed else []),
        *(f"In the paper: {note}" for note in paper.table(PAPER).notes),
        f"DivPrune of {document['textbook']['n']:,} tokens as it is told, with all distances at every step, takes "
        f"{times(document['textbook'])} as long as here.",
        where(document, "python", "torch", "transformers", "numba", "scikit-learn", "kmedoids"),
    ]
    return " ".join(parts)


def _llm_note(llm: dict[str, Any]) -> str:
    if not llm["readings"]:
        return f"LLM: {llm['model']}."
    return (
        f"LLM: {llm['model']}, random weights, reading the tokens and a question to the first token of an answer; its "
        "peak: the weights and what it took beside them, measured. The paper does not tell how long its answers are."
    )


def _plot(document: dict[str, Any]) -> Figure:
    """Seconds of every method, the paper's beside, on a logarithmic scale."""
    from matplotlib.figure import Figure

    timed = sorted((each for each in document["methods"] if "seconds" in each), key=lambda each: each["seconds"])
    names = [each["method"] for each in timed]
    published = [paper.row(PAPER, name).get("compression_s") for name in names]
    figure = Figure(figsize=(7, 0.35 * len(names) + 1.2))
    axes = figure.subplots()
    axes.scatter([each["seconds"] for each in timed], names, label=f"{document['frames']} frames, {document['ran_on']}")
    axes.scatter(
        [seconds for seconds in published if seconds],
        [name for name, seconds in zip(names, published, strict=True) if seconds],
        marker="x",
        label="paper: 784 frames, H100",
    )
    axes.set(xscale="log", xlabel="seconds of compression")
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


TABLE = Table("profile", run, {"profile": _view}, {"profile": _plot})
