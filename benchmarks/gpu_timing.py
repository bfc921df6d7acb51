"""Times of GPU work by CUDA events, and the rates of the device that they are compared with."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch


def record_graph(call: Callable[[], object]) -> Callable[[], object]:
    """Record a call as a CUDA graph; return a function that replays it."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()

    def replay() -> object:
        graph.replay()
        return result

    return replay


def measure_ms(call: Callable[[], object], small: bool) -> float:
    """Return the median milliseconds of a call after a warm-up."""
    call()
    times: list[float] = []
    started = time.perf_counter()
    while len(times) < (2 if small else 30) and (len(times) < 5 or time.perf_counter() - started < 3):
        times.append(time_ms(call))
        if small and not torch.cuda.is_available():
            break
    return statistics.median(times)


def time_ms(call: Callable[[], object]) -> float:
    """Time one call by CUDA events, or by the clock if there is no GPU."""
    if not torch.cuda.is_available():
        started = time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - started)
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    before.record()
    call()
    after.record()
    torch.cuda.synchronize()
    return before.elapsed_time(after)


def measure_rates(device: torch.device, small: bool) -> dict[str, float]:
    """Return the operations a second of a large product, and the bytes a second of a large copy."""
    side = 64 if small else 8192
    a, b = (torch.randn(side, side, device=device).to(torch.bfloat16) for _ in range(2))
    source = torch.randn(side, side, 2 if small else 16, device=device)
    target = torch.empty_like(source)
    product_ms = measure_ms(lambda: torch.mm(a, b), small)
    copy_ms = measure_ms(lambda: target.copy_(source), small)
    copied = 2 * source.numel() * source.element_size()
    return {"flops": 2 * side**3 / (product_ms / 1e3), "bytes_a_s": copied / (copy_ms / 1e3)}
