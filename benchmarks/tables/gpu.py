"""Table "gpu": selection from a whole video on its GPU, from tokens to indices, and its distance from the floor.

Before a case is timed, its picks are compared with another exact algorithm on the same similarities. Times are medians
by CUDA events, of whole calls of `floc.compress` and of the same call replayed as a CUDA graph, without Python's
overhead. The floor is the work that cannot be avoided: the multiplications of the similarities at the rate of a large
bf16 product on the same device, or the bytes of tokens and matrices at the rate of a large copy.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

import torch

import floc
from benchmarks import harness
from benchmarks.gpu_check import check_band_picks, check_picks, has_second_pass
from benchmarks.gpu_timing import measure_ms, measure_rates, record_graph, time_ms
from benchmarks.markdown import show_records, show_rows
from benchmarks.memory import measure_growth
from benchmarks.oracle import BlockTokens
from benchmarks.peers import PEERS
from benchmarks.registry import BenchTable, Echo, Unavailable
from benchmarks.synthetic import Shape
from floc.budget import Budget
from floc.evaluation import paper
from floc.methods.floc import choose_horizon
from floc.selection.engine import Band


@dataclass(frozen=True)
class GpuCase:
    """A video, and what to keep of it."""

    name: str
    shape: Shape
    keep: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def budget(self) -> int:
        """Number of tokens to keep."""
        return Budget.parse(self.keep.get("ratio"), self.keep.get("budget"), None).count(self.shape.n)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Tokens in each block."""
        frames, cells = self.shape.frames, self.shape.height * self.shape.width
        block = self.options.get("block") or frames
        return tuple(cells * min(block, frames - start) for start in range(0, frames, block))

    @property
    def band(self) -> Band | None:
        """The band of the default horizon; None if the case has blocks."""
        if self.options:
            return None
        cells = self.shape.height * self.shape.width
        return Band(self.shape.frames, cells, choose_horizon(self.shape.n, self.budget))

    def make_tokens(self, device: torch.device) -> torch.Tensor:
        """[frames, height, width, dim] bfloat16."""
        return torch.from_numpy(self.shape.make_tokens()).to(device, torch.bfloat16)


PAPER = {"block": 32, "detail": 1}
WHOLE = {"horizon": None, "detail": 1}
SECOND_PASS = {"block": 32, "dedupe": 2, "detail": 2}
EIGHTH, THIRTY_SECOND = {"ratio": "1/8"}, {"ratio": "1/32"}
USUAL, TINY = Shape(784, 6, 10, 3584), Shape(12, 2, 3, 32)
LARGE_BLOCKS, LONG, SHORT = Shape(256, 9, 15, 3584), Shape(7200, 6, 10, 3584), Shape(32, 6, 10, 3584)
CASES = (
    GpuCase("floc-paper, 1/8", USUAL, EIGHTH, PAPER),
    GpuCase("dedupe=2, detail=2, 1/8", USUAL, EIGHTH, SECOND_PASS),
    GpuCase("dedupe=2, detail=2, 1/32", USUAL, THIRTY_SECOND, SECOND_PASS),
    GpuCase("floc-paper, 8 blocks of 4,320 tokens, 1/8", LARGE_BLOCKS, EIGHTH, PAPER),
    GpuCase("floc-paper, 7,200 frames", LONG, {"budget": 24_576}, PAPER),
    GpuCase("floc-paper, block=None, 1/8", USUAL, EIGHTH, WHOLE),
    GpuCase("floc-paper, block=None, 1/32", USUAL, THIRTY_SECOND, WHOLE),
    GpuCase("floc, 1/8", USUAL, EIGHTH),
    GpuCase("floc, 1/32", USUAL, THIRTY_SECOND),
    GpuCase("floc, 32 frames, 1/8", SHORT, EIGHTH),
    GpuCase("floc, 7,200 frames", LONG, {"budget": 24_576}),
)
SMALL = (
    GpuCase("floc-paper, 1/8", TINY, EIGHTH, {**PAPER, "block": 4}),
    GpuCase("dedupe=2, detail=2, 1/8", TINY, EIGHTH, {**SECOND_PASS, "block": 4}),
    GpuCase("floc-paper, block=None, 1/8", TINY, EIGHTH, WHOLE),
    GpuCase("floc, 1/8", TINY, EIGHTH),
)


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Check and time all cases. A small run needs no GPU, but TRITON_INTERPRET=1."""
    device = harness.get_device()
    if device.type == "cpu" and not small:
        raise Unavailable("python -m benchmarks gpu needs a CUDA device; with --small it runs in Triton's interpreter")
    import triton

    from floc.selection.gpu import launch

    if device.type == "cpu" and not launch.is_interpreted():
        raise Unavailable(
            "python -m benchmarks gpu --small needs a CUDA device, or TRITON_INTERPRET=1 for Triton's interpreter"
        )
    rates = measure_rates(device, small)
    echo(f"{rates['flops'] / 1e12:.0f} TFLOP/s in bf16, {rates['bytes_a_s'] / 1e12:.2f} TB/s")
    cases = SMALL if small else CASES
    records = []
    for case in cases:
        record = _measure_case(case, device, rates, small)
        records.append(record)
        echo(
            f"{case.name}: {record['ms']:.2f} ms, as a graph {record['graph_ms']:.2f} ms; similarity "
            f"{record['similarity_ms']:.2f}, selection {record['selection_ms']:.2f}, floor {record['floor_ms']:.2f}"
        )
    torch_ms = _measure_torch_backend(cases[0], device)
    echo(f"the torch backend: {torch_ms:.0f} ms")
    apricot = measure_apricot(cases[0])
    echo("apricot: " + ("not installed" if apricot is None else f"{apricot['ms']:.0f} ms a block"))
    return {
        "gpu": harness.get_gpu_name() or "interpreted",
        "triton": triton.__version__,
        **rates,
        "cases": records,
        "torch_ms": torch_ms,
        "apricot": apricot,
    }


def measure_apricot(case: GpuCase) -> dict[str, Any] | None:
    """Time apricot's selection from one block's similarities on the CPU, compilation excluded, if it is installed."""
    peer = next(peer for peer in PEERS if peer.name == "apricot, compilation excluded")
    if peer.explain_skip(case.shape.n):
        return None
    n = case.sizes[0]
    select = peer.prepare(BlockTokens(case.shape.make_tokens().reshape(-1, case.shape.dim)[:n]), n // 8)
    select()
    cpu = harness.describe_environment()["device"]["cpu"]
    return {"ms": statistics.median(time_ms(select) for _ in range(3)), "blocks": case.shape.n / n, "cpu": cpu}


def _measure_case(case: GpuCase, device: torch.device, rates: dict[str, float], small: bool) -> dict[str, Any]:
    tokens = case.make_tokens(device)

    def compress() -> floc.Kept:
        return floc.compress(tokens, **case.keep, backend="gpu", **case.options)

    if case.band is None:
        steps = check_picks(tokens, compress(), case.sizes, case.options)
    else:
        steps = check_band_picks(tokens, compress(), case.band)
    ms = measure_ms(compress, small)
    similarity, selection, bytes_, flops = _measure_stages(case, tokens, small)
    return {
        "case": case.name,
        "n": case.shape.n,
        "d": case.shape.dim,
        "kept": case.budget,
        "ms": ms,
        "graph_ms": measure_ms(record_graph(compress), small) if device.type == "cuda" else ms,
        "similarity_ms": similarity,
        "selection_ms": selection,
        "floor_ms": 1e3 * max(flops / rates["flops"], bytes_ / rates["bytes_a_s"]),
        "picks_a_step": steps,
        "peak_bytes": measure_growth(compress, device) if device.type == "cuda" else None,
    }


def _measure_stages(case: GpuCase, tokens: torch.Tensor, small: bool) -> tuple[float, float, float, float]:
    """Return the milliseconds of the similarities and of the rest, and the bytes and operations of the floor."""
    from floc.selection.gpu import run, similarity
    from floc.selection.gpu.similarity import Rows

    flat = tokens.reshape(-1, tokens.shape[-1])
    n, dim = flat.shape
    if (band := case.band) is not None:
        from floc.selection.gpu import band_selection, band_similarity

        fill_band = measure_ms(lambda: band_similarity.compute_band(Rows.measure(flat), band, 3), small)
        total = measure_ms(lambda: band_selection.rank_in_band(flat, band, case.budget, 3), small)
        pairs = float(band.n * band.width)
        return fill_band, total - fill_band, 2.0 * n * dim + 2 * pairs, pairs * dim
    sizes, detail = case.sizes, float(case.options.get("detail", 3))
    plan = run.plan_blocks(sizes, case.budget, run.LIMIT_BYTES, tokens.device)
    pairs = float(sum(size**2 for size in sizes))
    bytes_, flops = 2.0 * n * dim + 2 * pairs, pairs * dim  # half of the products: a matrix is symmetric

    def fill_blocks() -> None:
        rows = Rows.measure(flat)
        for start, sets in plan.parts:
            matrix = torch.empty(sets.elements, dtype=torch.int16, device=tokens.device)
            part = rows.slice(start, start + sum(sets.tokens))
            similarity.fill(matrix, part, part, sets, detail)

    spent = measure_ms(fill_blocks, small)
    if not has_second_pass(sizes, case.options):
        total = measure_ms(lambda: run.rank_in_blocks(flat, sizes, case.budget, detail), small)
        return spent, total - spent, bytes_, flops
    method: Any = floc.methods.make("floc", case.options)
    windows = method.plan_windows(tokens, case.budget)
    [window] = run.plan_windows(sizes, tuple(windows), case.budget, tokens.device).windows
    m = window.survivors
    bytes_, flops = bytes_ + 2 * 2 * m * dim + 4 * m * m, flops + 2 * m * m * dim
    candidates = Rows.measure(flat[:m].half())

    def fill_second() -> None:
        matrix = torch.empty(window.second.elements, dtype=torch.int16, device=tokens.device)
        similarity.fill(matrix, candidates, candidates, window.second, detail)

    spent += measure_ms(fill_second, small)
    total = measure_ms(lambda: run.rank_in_two_passes(flat, sizes, windows, case.budget, detail), small)
    return spent, total - spent, bytes_, flops


def _measure_torch_backend(case: GpuCase, device: torch.device) -> float:
    """Return the milliseconds of the same selection by the torch backend on the same device."""
    tokens = case.make_tokens(device)
    calls = [lambda: floc.compress(tokens, **case.keep, backend="torch", **case.options)] * 3
    return statistics.median(time_ms(call) for call in calls)


def _show_cases(document: dict) -> str:
    columns = {
        "tokens to indices, ms": lambda row: row["case"],
        "n": lambda row: f"{row['n']:,}",
        "kept": lambda row: f"{row['kept']:,}",
        "call": lambda row: f"{row['ms']:.2f}",
        "graph": lambda row: f"{row['graph_ms']:.2f}",
        "similarity": lambda row: f"{row['similarity_ms']:.2f}",
        "rest": lambda row: f"{row['selection_ms']:.2f}",
        "floor": lambda row: f"{row['floor_ms']:.2f}",
        "picks a step": lambda row: f"{row['picks_a_step']:.1f}",
        "peak, MiB": lambda row: "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**20:.0f}",
    }
    note = (
        "Medians by CUDA events. Call: `floc.compress(tokens)`, tokens in bf16. Graph: the same call, replayed as a "
        "CUDA graph. Similarity, rest: the two parts of a call, without `floc.compress` around it. Floor: the least "
        "time for the products and for reading and writing tokens and matrices, at the rates of a large product "
        f"({document['flops'] / 1e12:.0f} TFLOP/s) and a large copy ({document['bytes_a_s'] / 1e12:.1f} TB/s) on this "
        "GPU; it does not include the selection, which is sequential. Before the measurement, every pick was compared "
        "with another exact greedy on the same similarities."
    )
    return show_records(document["cases"], columns, note, _show_gpu(document))


def _show_peers(document: dict) -> str:
    ours = document["cases"][0]
    published = 1e3 * paper.get_row("table7", "floc-paper")["compression_s"]
    rows = [
        ["floc-paper, backend gpu", f"{ours['ms']:.2f}", "1x", document["gpu"]],
        ["floc-paper, backend torch", *_compare_ms(document["torch_ms"], ours["ms"]), "the same"],
        ["the paper's program", *_compare_ms(published, ours["ms"]), "one H100, as published"],
    ]
    if (peer := document["apricot"]) is not None:
        machine = f"one core of an {peer['cpu']}, {peer['blocks']:g} times one block; similarities not included"
        times = _compare_ms(peer["ms"] * peer["blocks"], ours["ms"])
        rows.insert(2, ["apricot, compilation excluded", *times, machine])
    title = f"selecting {ours['kept']:,} of {ours['n']:,} tokens, d = {ours['d']}"
    return show_rows([title, "ms", "ratio to backend gpu", "machine"], rows, _show_gpu(document))


def _compare_ms(ms: float, baseline_ms: float) -> tuple[str, str]:
    return f"{ms:.0f}", f"{ms / baseline_ms:.0f}x"


def _show_gpu(document: dict) -> str:
    versions = document["versions"]
    return f"{document['gpu']}, torch {versions['torch']}, triton {document['triton']}; {document['date'][:10]}."


TABLE = BenchTable("gpu", run, {"gpu": _show_cases, "gpu-peers": _show_peers})
