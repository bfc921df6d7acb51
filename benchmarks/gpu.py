"""The table "gpu": choosing from a whole video on its GPU, from tokens to indices, and how far that is from the floor.

No case is timed before its choice was compared, pick by pick, with another exact algorithm on the same similarities.
Times are medians by CUDA events, of whole calls of `floc.compress` and of the same call replayed as a CUDA graph, which
is free of what Python adds. The floor is what must be done in any case: the multiplications of the similarities at the
rate of a large bf16 product on the same device, or the bytes of tokens and matrices at the rate of a large copy.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import floc
from benchmarks import harness
from benchmarks.blocks import BlockTokens
from benchmarks.memory import growth_bytes
from benchmarks.peers import PEERS
from benchmarks.tables import Echo, Table, Unavailable
from floc._format import markdown_table
from floc.budget import Budget
from floc.evaluation import paper

if TYPE_CHECKING:
    from floc.selection.gpu.run import DeviceWindow
    from floc.selection.gpu.similarity import Rows

REAL = Path("benchmarks/cache/mobilenet-tokens.npy")  # [T, N, D] float16 tokens of real footage, where there are some


@dataclass(frozen=True)
class Case:
    """A video, and what to keep of it."""

    name: str
    frames: int
    cells: int
    keep: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    must_ms: float | None = None
    aim_ms: float | None = None
    dim: int = 3584
    real: bool = False

    @property
    def n(self) -> int:
        """Tokens there are."""
        return self.frames * self.cells

    @property
    def budget(self) -> int:
        """Tokens to keep."""
        return Budget.parse(self.keep.get("ratio"), self.keep.get("budget"), None).count(self.n)


PAPER = {"dedupe": 1, "detail": 1}
CASES = (
    Case("the paper: blocks of 32 frames, 1/8", 784, 60, {"ratio": "1/8"}, PAPER, 2.5, 1.5),
    Case("with the second pass (default), 1/8", 784, 60, {"ratio": "1/8"}, {}, 40, 15),
    Case("with the second pass (default), 1/32", 784, 60, {"ratio": "1/32"}, {}, 12, 6),
    Case("8 blocks of 4,320, 1/8", 256, 135, {"ratio": "1/8"}, PAPER, 6, 3.5),
    Case("7,200 frames to 24,576 tokens", 7200, 60, {"budget": 24_576}, PAPER, 25, 12),
    Case("whole video as one set, 1/8", 784, 60, {"ratio": "1/8"}, {**PAPER, "block": None}, 70, 40),
    Case("whole video as one set, 1/32", 784, 60, {"ratio": "1/32"}, {**PAPER, "block": None}, 50, 30),
)
SMALL = (
    Case("blocks, 1/8", 12, 6, {"ratio": "1/8"}, {**PAPER, "block": 4}, dim=32),
    Case("with the second pass, 1/8", 12, 6, {"ratio": "1/8"}, {"block": 4}, dim=32),
    Case("whole video as one set, 1/8", 12, 6, {"ratio": "1/8"}, {**PAPER, "block": None}, dim=32),
)


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Check and time all cases; a small run needs no GPU, but TRITON_INTERPRET=1."""
    device = harness.device()
    if device.type == "cpu" and not small:
        raise Unavailable("python -m benchmarks gpu needs a CUDA device; with --small it runs in Triton's interpreter")
    import triton

    from floc.selection.gpu import launch

    if device.type == "cpu" and not launch.is_interpreted():
        raise Unavailable(
            "python -m benchmarks gpu --small needs a CUDA device, or TRITON_INTERPRET=1 for Triton's interpreter"
        )

    rates = _rates(device, small)
    result: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else "interpreted",
        "triton": triton.__version__,
        **rates,
        "cases": [],
    }
    echo(f"{rates['flops'] / 1e12:.0f} TFLOP/s in bf16, {rates['bytes_a_s'] / 1e12:.2f} TB/s")
    cases = SMALL if small else (*CASES, *_real_cases(echo))
    for case in cases:
        record = _measured(case, device, rates, small)
        result["cases"].append(record)
        echo(
            f"{case.name}: {record['ms']:.2f} ms, as a graph {record['graph_ms']:.2f} ms; similarity "
            f"{record['similarity_ms']:.2f}, selection {record['selection_ms']:.2f}, floor {record['floor_ms']:.2f}"
        )
    result["torch_ms"] = _torch_backend(SMALL[0] if small else CASES[0], device)
    echo(f"the torch backend: {result['torch_ms']:.0f} ms")
    result["apricot"] = apricot(SMALL[0] if small else CASES[0])
    echo("apricot: " + ("not installed" if result["apricot"] is None else f"{result['apricot']['ms']:.0f} ms a block"))
    return result


def apricot(case: Case) -> dict[str, Any] | None:
    """apricot on the CPU, on one block's similarities: all of it is choosing, without what it compiles at each call."""
    peer = next(each for each in PEERS if each.name == "apricot, compilation excluded")
    if peer.why_not(case.n):
        return None
    n = _sizes(case)[0]
    tokens = film(case.frames, case.cells, case.dim, torch.device("cpu")).reshape(case.n, -1)[:n]
    choose = peer.prepare(BlockTokens(tokens.half().numpy()), n // 8)
    choose()
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        choose()
        times.append(1e3 * (time.perf_counter() - begun))
    return {"ms": statistics.median(times), "blocks": case.n / n, "cpu": harness.environment()["device"]["cpu"]}


def film(frames: int, cells: int, dim: int, device: torch.device, seed: int = 0) -> torch.Tensor:
    """[frames, cells, dim] bf16 tokens like a video's: scenes that drift, cuts, things seen once."""
    made = torch.Generator(device=device).manual_seed(seed)
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=made, device=device)

    common, scenes = 0.7 * normal(dim), normal(5, cells, dim)
    tokens = torch.empty(frames, cells, dim, dtype=torch.bfloat16, device=device)
    scene, drift = 0, torch.zeros(cells, dim, device=device)
    for frame in range(frames):
        if frame % 40 == 0:
            scene, drift = int(rng.integers(5)), torch.zeros_like(drift)
        drift = 0.98 * drift + 0.12 * normal(cells, dim)
        seen = common + scenes[scene] + drift + 0.35 * normal(cells, dim)
        if rng.random() < 0.1:
            seen[int(rng.integers(cells))] = normal(dim)
        tokens[frame] = seen.to(torch.bfloat16)
    return tokens


def _real_cases(echo: Echo) -> list[Case]:
    path = Path(os.environ.get("FLOC_TOKENS", REAL))
    if not path.exists():
        echo(f"no tokens of real footage in {path}: that case is left out")
        return []
    frames, cells, dim = np.load(path, mmap_mode="r").shape
    name = f"real footage, MobileNetV2: {frames} x {cells}, d = {dim}, default, 1/8"
    return [Case(name, frames, cells, {"ratio": "1/8"}, dim=dim, real=True)]


def _tokens(case: Case, device: torch.device) -> torch.Tensor:
    if case.real:
        path = Path(os.environ.get("FLOC_TOKENS", REAL))
        return torch.from_numpy(np.load(path)).to(device, torch.bfloat16)
    return film(case.frames, case.cells, case.dim, device)


def _measured(case: Case, device: torch.device, rates: dict[str, float], small: bool) -> dict[str, Any]:
    tokens = _tokens(case, device)
    steps = _check(case, tokens)

    def whole() -> object:
        return floc.compress(tokens, **case.keep, backend="gpu", **case.options)

    call = _median_ms(whole, small)
    similarity, selection, bytes_, flops = _stages(case, tokens, small)
    return {
        "case": case.name,
        "n": case.n,
        "d": tokens.shape[-1],
        "kept": case.budget,
        "must_ms": case.must_ms,
        "aim_ms": case.aim_ms,
        "ms": call,
        "graph_ms": _median_ms(_captured(whole), small) if device.type == "cuda" else call,
        "similarity_ms": similarity,
        "selection_ms": selection,
        "floor_ms": 1e3 * max(flops / rates["flops"], bytes_ / rates["bytes_a_s"]),
        "picks_a_step": steps,
        "peak_bytes": growth_bytes(whole, device) if device.type == "cuda" else None,
    }


def _check(case: Case, tokens: torch.Tensor) -> float:
    """Compare every pick with the torch backend's greedy on the same similarities; returns picks made in a step."""
    from floc.selection.gpu import greedy, run, similarity
    from floc.selection.gpu.similarity import Rows
    from floc.selection.torch import greedy as torch_greedy

    kept = floc.compress(tokens, **case.keep, backend="gpu", **case.options)
    picks = torch.as_tensor(kept.indices[kept.order])
    rows = Rows.measure(tokens.reshape(-1, tokens.shape[-1]))
    detail = float(case.options.get("detail", 2))
    sizes = _sizes(case)
    made = steps = 0
    if len(sizes) == 1 or case.options.get("dedupe", 2) == 1:
        plan = run.plan_blocks(sizes, case.budget, run.LIMIT_BYTES, tokens.device)
        found = []
        for start, sets in plan.parts:
            matrix = torch.empty(sets.elements, dtype=torch.int16, device=tokens.device)
            part = rows.slice(start, start + sum(sets.tokens))
            similarity.fill(matrix, part, part, sets, detail)
            picked = greedy.greedy(matrix, sets)
            made, steps = made + int(picked.counts.sum()), steps + int(picked.steps.sum())
            for each, depth in zip(sets.matrices(matrix), sets.depths, strict=True):
                found.append(torch_greedy.greedy(each[None].contiguous(), depth)[0][0])
        expected = plan.lists.start[plan.order] + torch.cat(found)[plan.order]
    else:
        windows = floc.methods.get("floc")(**case.options).plan_windows(tokens, case.budget)
        [window] = run.plan_windows(sizes, tuple(windows), case.budget, tokens.device).windows
        _check_first_pass(case, window.rows(rows), window, detail)
        survivors = run.select_survivors(window.rows(rows), window, detail)
        [matrix] = window.second.matrices(survivors.matrix)
        chosen = torch_greedy.greedy(matrix[None].contiguous(), case.budget, survivors.weights[None])[0][0]
        picked = greedy.greedy(survivors.matrix, window.second, survivors.weights)
        made, steps = int(picked.counts.sum()), int(picked.steps.sum())
        expected = survivors.places[chosen]
    if not torch.equal(picks, expected):
        wrong = int((picks != expected).sum())
        raise AssertionError(f"{case.name}: {wrong} of {len(picks)} picks are not greedy's")
    return made / max(1, steps)


def _check_first_pass(case: Case, rows: Rows, window: DeviceWindow, detail: float) -> None:
    """Compare what each block chose before enough had survived with the torch backend's greedy."""
    from floc.selection.gpu import greedy, similarity
    from floc.selection.gpu.greedy_steps import StopRule
    from floc.selection.torch import greedy as torch_greedy

    sets = window.first
    matrix = torch.empty(sets.elements, dtype=torch.int16, device=sets.device)
    similarity.fill(matrix, rows, rows, sets, detail)
    picked = greedy.greedy(matrix, sets, stop=StopRule(window.survivors, firsts=True))
    ends = np.cumsum(sets.depths)
    for b, (each, made) in enumerate(zip(sets.matrices(matrix), picked.counts.tolist(), strict=True)):
        got = picked.picks[ends[b] - sets.depths[b] :][:made]
        if not torch.equal(got.long(), torch_greedy.greedy(each[None].contiguous(), made)[0][0].long()):
            raise AssertionError(f"{case.name}: the first pass in block {b} is not greedy's")


def _sizes(case: Case) -> tuple[int, ...]:
    block = case.options.get("block", 32) or case.frames
    return tuple(case.cells * min(block, case.frames - start) for start in range(0, case.frames, block))


def _stages(case: Case, tokens: torch.Tensor, small: bool) -> tuple[float, float, float, float]:
    """Milliseconds of the similarities and of all else, and the bytes and operations that cannot be spared."""
    from floc.selection.gpu import run, similarity
    from floc.selection.gpu.similarity import Rows

    flat = tokens.reshape(-1, tokens.shape[-1])
    n, dim = flat.shape
    sizes, detail = _sizes(case), float(case.options.get("detail", 2))
    plan = run.plan_blocks(sizes, case.budget, run.LIMIT_BYTES, tokens.device)
    cells = float(sum(size**2 for size in sizes))
    bytes_, flops = 2.0 * n * dim + 2 * cells, cells * dim  # half of the products: a matrix is its own transpose

    def similarities() -> None:
        rows = Rows.measure(flat)
        for start, sets in plan.parts:
            matrix = torch.empty(sets.elements, dtype=torch.int16, device=tokens.device)
            part = rows.slice(start, start + sum(sets.tokens))
            similarity.fill(matrix, part, part, sets, detail)

    def everything() -> object:
        if not second:
            return run.rank_in_blocks(flat, sizes, case.budget, detail)
        return run.rank_in_two_passes(flat, sizes, windows, case.budget, detail)

    second = len(sizes) > 1 and case.options.get("dedupe", 2) > 1
    spent = _median_ms(similarities, small)
    if second:
        windows = floc.methods.get("floc")(**case.options).plan_windows(tokens, case.budget)
        [window] = run.plan_windows(sizes, tuple(windows), case.budget, tokens.device).windows
        m = window.survivors
        bytes_, flops = bytes_ + 2 * 2 * m * dim + 4 * m * m, flops + 2 * m * m * dim
        candidates = Rows.measure(flat[:m].half())
        matrix = torch.empty(window.second.elements, dtype=torch.int16, device=tokens.device)
        spent += _median_ms(lambda: similarity.fill(matrix, candidates, candidates, window.second, detail), small)
        del matrix
    return spent, _median_ms(everything, small) - spent, bytes_, flops


def _captured(call: Callable[[], object]) -> Callable[[], object]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = call()

    def replay() -> object:
        graph.replay()
        return held

    return replay


def _median_ms(call: Callable[[], object], small: bool) -> float:
    """By CUDA events, after warming up; by the clock where there is no GPU."""
    call()
    times: list[float] = []
    started = time.perf_counter()
    while len(times) < (2 if small else 30) and (len(times) < 5 or time.perf_counter() - started < 3):
        if torch.cuda.is_available():
            before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            before.record()
            call()
            after.record()
            torch.cuda.synchronize()
            times.append(before.elapsed_time(after))
        else:
            begun = time.perf_counter()
            call()
            times.append(1e3 * (time.perf_counter() - begun))
            if small:
                break
    return statistics.median(times)


def _rates(device: torch.device, small: bool) -> dict[str, float]:
    """What the device reaches: operations a second of a large product, bytes a second of a large copy."""
    side = 64 if small else 8192
    a, b = (torch.randn(side, side, device=device).to(torch.bfloat16) for _ in range(2))
    source = torch.randn(side, side, 2 if small else 16, device=device)
    target = torch.empty_like(source)
    product = _median_ms(lambda: torch.mm(a, b), small)
    copy = _median_ms(lambda: target.copy_(source), small)
    return {
        "flops": 2 * side**3 / (product / 1e3),
        "bytes_a_s": 2 * source.numel() * source.element_size() / (copy / 1e3),
    }


def _torch_backend(case: Case, device: torch.device) -> float:
    """Milliseconds of the same choice by the torch backend, on the same device."""
    tokens = _tokens(case, device)
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        floc.compress(tokens, **case.keep, backend="torch", **case.options)
        harness.wait(device)
        times.append(1e3 * (time.perf_counter() - begun))
    return statistics.median(times)


def _cases_view(document: dict) -> str:
    head = ["tokens to indices, ms", "n", "kept", "call", "graph", "similarity", "the rest", "floor", "picks a step"]
    head += ["peak, MiB", "asked for", "hoped for"]
    rows = []
    for each in document["cases"]:
        times = [each[key] for key in ("ms", "graph_ms", "similarity_ms", "selection_ms", "floor_ms")]
        peak = each["peak_bytes"]
        rows.append(
            [
                each["case"],
                f"{each['n']:,}",
                f"{each['kept']:,}",
                *(f"{value:.2f}" for value in times),
                f"{each['picks_a_step']:.1f}",
                "" if peak is None else f"{peak / 2**20:.0f}",
                *("" if each[key] is None else f"{each[key]:g}" for key in ("must_ms", "aim_ms")),
            ]
        )
    note = (
        "Medians by CUDA events. Call: `floc.compress(tokens)`, tokens in bf16; graph: the same replayed as a CUDA "
        "graph. Similarity and the rest add up to the call without `floc.compress` around it. Floor: what the products "
        "and the bytes of tokens and matrices would take at the rates this GPU reaches on a large product "
        f"({document['flops'] / 1e12:.0f} TFLOP/s) and a large copy ({document['bytes_a_s'] / 1e12:.1f} TB/s); "
        "choosing itself, which is sequential, is not in it. Every pick was compared with another exact greedy on the "
        f"same similarities first. {_where(document)}"
    )
    return f"{markdown_table(head, rows)}\n\n{note}"


def _peers_view(document: dict) -> str:
    ours = document["cases"][0]
    published = 1e3 * paper.row("table7", "floc-paper")["compression_s"]
    rows = [
        ["floc, backend gpu", f"{ours['ms']:.2f}", "1x", document["gpu"]],
        ["floc, backend torch", f"{document['torch_ms']:.0f}", f"{document['torch_ms'] / ours['ms']:.0f}x", "the same"],
        ["the paper's own", f"{published:.0f}", f"{published / ours['ms']:.0f}x", "one H100, as published"],
    ]
    if (peer := document["apricot"]) is not None:
        all_blocks = peer["ms"] * peer["blocks"]
        where = f"one core of an {peer['cpu']}, {peer['blocks']:g} times one block; without the similarities"
        rows.insert(2, ["apricot, compilation excluded", f"{all_blocks:.0f}", f"{all_blocks / ours['ms']:.0f}x", where])
    head = [f"choosing {ours['kept']:,} of 784 x 60 tokens, d = {ours['d']}", "ms", "against floc", "on"]
    return f"{markdown_table(head, rows)}\n\n{_where(document)}"


def _where(document: dict) -> str:
    versions = document["versions"]
    return f"{document['gpu']}, torch {versions['torch']}, triton {document['triton']}; {document['date'][:10]}."


TABLE = Table("gpu", run, views={"gpu": _cases_view, "gpu-peers": _peers_view})
