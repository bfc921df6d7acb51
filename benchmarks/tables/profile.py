"""Table "profile": the cost of every method on the paper's profile case, and of the LLM after it.

784 frames of 60 tokens, 3584 features, 1/8 kept, and Qwen2.5-VL-7B with random weights on a GPU; fewer frames and a
tiny model on a CPU. Methods take turns on the same tokens; the time is that of the whole call, including the search for
the budget. The LLM reads the kept tokens and a question and generates one token. The paper's numbers are of an H100 and
of answers whose length it does not state.
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
from benchmarks import harness, models
from benchmarks.harness import Contender, compare
from benchmarks.markdown import RATIO_NOTE, show_environment, show_number, show_ratio, show_rows
from benchmarks.memory import measure_growth
from benchmarks.operations import ESTIMATED, count_operations
from benchmarks.registry import BenchTable, Echo
from benchmarks.synthetic import Shape
from floc.evaluation import paper

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = "table7"
RATIO = "1/8"
FULL = "full"
BASELINE = "floc-paper"
GPU, CPU, SMALL = Shape(784, 6, 10, 3584), Shape(98, 6, 10, 3584), Shape(16, 6, 10, 64)
ROUNDS, ALLOWANCE_S = 5, 10.0
READINGS = 3


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Measure time, operations and memory of every method, then the LLM on as many tokens as they keep."""
    device = harness.get_device()
    shape = SMALL if small else GPU if device.type == "cuda" else CPU
    tokens = torch.from_numpy(shape.make_tokens()).to(device)
    records = [{"method": FULL, "kept": shape.n}, *_measure_methods(tokens, small, echo)]
    del tokens  # so that the LLM's memory is its own
    llm = _measure_llm(sorted({record["kept"] for record in records if "kept" in record}), device, small, echo)
    return {
        "ran_on": harness.get_gpu_name() or "CPU",
        "frames": shape.frames,
        "dim": shape.dim,
        "ratio": RATIO,
        "methods": records,
        "llm": llm,
    }


def _measure_methods(tokens: torch.Tensor, small: bool, echo: Echo) -> list[dict[str, Any]]:
    calls = {name: functools.partial(_compress, name, tokens) for name in floc.methods.list_methods()}
    records = {name: _measure_method(name, calls[name], tokens) for name in calls}
    contenders = [Contender(name, calls[name]) for name in calls if "failed" not in records[name]]
    for timing in compare(contenders, BASELINE, rounds=1 if small else ROUNDS, allowance_s=ALLOWANCE_S):
        records[timing.contender] |= asdict(timing) | {"seconds": timing.ms / 1e3}
    for name, record in records.items():
        echo(f"{name}: {record.get('seconds', record.get('failed'))}")
    return list(records.values())


def _compress(name: str, tokens: torch.Tensor) -> floc.Kept:
    kept = floc.compress(tokens, ratio=RATIO, method=name, **_list_options(name))
    harness.synchronize(tokens.device)
    return kept


def _list_options(name: str) -> dict[str, Any]:
    """Return options with which a method that cannot reach the ratio keeps as few tokens as it can."""
    return {"nearest": True} if "nearest" in floc.methods.list_options(name) else {}


def _measure_method(name: str, call: Callable[[], floc.Kept], tokens: torch.Tensor) -> dict[str, Any]:
    """Return tokens kept, operations and memory, or why the method does not run."""
    try:
        kept = call()
    except (ImportError, MemoryError) as error:
        return {"method": name, "failed": str(error)}
    flop, how = count_operations(name, tokens, RATIO, **_list_options(name))
    peak = measure_growth(call, tokens.device)
    return {"method": name, "kept": len(kept), "flop": flop, "flop_is": how, "peak_bytes": peak}


def _measure_llm(counts: Sequence[int], device: torch.device, small: bool, echo: Echo) -> dict[str, Any]:
    """Measure seconds and peak memory of the LLM for each number of visual tokens."""
    if importlib.util.find_spec("transformers") is None:
        return {"model": "not run, it needs transformers: pip install 'floc-video[hf]'", "readings": []}
    tiny = small or device.type == "cpu"
    model = models.make_qwen(device, tiny)
    weights = models.count_weight_bytes(model)
    readings = []
    for count in counts:
        readings.append({"kept": count, **_measure_prefill(model, count, weights)})
        echo(f"the LLM on {count:,} tokens: {readings[-1]['seconds']:.3f} s")
    name = models.TINY_NAME if tiny else models.FULL_NAME
    return {"model": name, "weights_bytes": weights, "readings": readings}


@torch.no_grad()
def _measure_prefill(model: Any, count: int, weights: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(100, 100_000, (1, count + models.QUESTION_TOKENS), generator=generator).to(model.device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def generate() -> float:
        started = time.perf_counter()
        model.generate(**inputs, max_new_tokens=1)
        harness.synchronize(model.device)
        return time.perf_counter() - started

    generate()  # compiles and loads
    growth = measure_growth(generate, model.device)
    return {
        "seconds": statistics.median(generate() for _ in range(READINGS)),
        "peak_bytes": None if growth is None else weights + growth,
    }


def _show(document: dict[str, Any]) -> str:
    readings = {reading["kept"]: reading for reading in document["llm"]["readings"]}
    measured = [record for record in document["methods"] if "kept" in record]
    rows = [_make_row(record, readings.get(record["kept"], {})) for record in measured]
    head = ["method", "tokens kept", "compression, s", "paper", f"ratio to {BASELINE}", "GFLOP", "paper", "memory, MiB"]
    head += ["LLM, s", "paper", "LLM's peak, GB", "paper", "total, s", "paper"]
    return show_rows(head, rows, *_list_notes(document))


def _make_row(record: dict[str, Any], reading: dict[str, Any]) -> list[str]:
    row = paper.get_row(PAPER, record["method"])
    published = {
        key: show_number(row.get(key)) for key in ("compression_s", "gflop", "inference_s", "vram_gb", "total_s")
    }
    compression_s = 0.0 if record["method"] == FULL else record.get("seconds")
    total_s = None if compression_s is None or "seconds" not in reading else compression_s + reading["seconds"]
    return [
        record["method"],
        f"{record['kept']:,}",
        show_number(record.get("seconds")),
        published["compression_s"],
        show_ratio(record) if "ratio" in record else "",
        ("~" if record.get("flop_is") == ESTIMATED else "") + show_number(record.get("flop"), 1e9),
        published["gflop"],
        show_number(record.get("peak_bytes"), 2**20),
        show_number(reading.get("seconds")),
        published["inference_s"],
        show_number(reading.get("peak_bytes"), 1e9),
        published["vram_gb"],
        show_number(total_s),
        published["total_s"],
    ]


def _list_notes(document: dict[str, Any]) -> list[str]:
    failed = [f"{record['method']}: {record['failed']}" for record in document["methods"] if "failed" in record]
    block = 32 * 60
    llm = document["llm"]
    llm_note = (
        f"LLM: {llm['model']}, random weights; the time from the kept tokens and a question to the first token of the "
        "answer. Its peak: the weights and what the call allocates above them. The paper does not state the length of "
        "its answers."
    )
    return [
        f"{document['frames']} frames of 60 tokens, {document['dim']} features, float16, kept {document['ratio']}, on "
        f"{document['ran_on']}; the paper: 784 frames, {GPU.dim} features, an H100.",
        f"Ratios: {RATIO_NOTE}.",
        "dycoke and longvu keep as few tokens as they can if they cannot reach the ratio.",
        "GFLOP: by torch's counter, which counts a multiplication and an addition as two operations, plus one for each "
        "element of sums, products and quotients. floc and floc-paper were counted on the torch backend, which has "
        "the same similarities. ~: estimated from the distances between the tokens of a block, without the "
        "work of scikit-learn or kmedoids. The paper seems to count a multiplication and an addition as one operation: "
        f"24 blocks of {block:,} tokens then make {24 * block**2 * GPU.dim / 1e9:.0f} GFLOP.",
        "Memory: peak of the call above the tokens.",
        llm_note if llm["readings"] else f"LLM: {llm['model']}.",
        f"Not run: {'; '.join(failed)}." if failed else "",
        *(f"In the paper: {note}" for note in paper.get_table(PAPER).notes),
        show_environment(document, "python", "torch", "transformers", "numba", "scikit-learn", "kmedoids"),
    ]


def _plot(document: dict[str, Any]) -> Figure:
    """Plot seconds of every method and the paper's, on a logarithmic scale."""
    from matplotlib.figure import Figure

    timed = sorted((row for row in document["methods"] if "seconds" in row), key=lambda row: row["seconds"])
    names = [record["method"] for record in timed]
    published = {name: seconds for name in names if (seconds := paper.get_row(PAPER, name).get("compression_s"))}
    figure = Figure(figsize=(7, 0.35 * len(names) + 1.2))
    axes = figure.subplots()
    label = f"{document['frames']} frames, {document['ran_on']}"
    axes.scatter([record["seconds"] for record in timed], names, label=label)
    axes.scatter(list(published.values()), list(published), marker="x", label="paper: 784 frames, H100")
    axes.set(xscale="log", xlabel="seconds of compression")
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


TABLE = BenchTable("profile", run, {"profile": _show}, {"profile": _plot})
