"""Measure the speed of this machine: products, attention, decoding and preprocessing, a fraction of a second each."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from floc.families.processing import VideoPlan, VideoPreparer
from floc.planning.costs import Stack

MEASURE_S = 0.1  # for one measurement: many short calls, of which the fastest was not disturbed
CALL_S = 0.005
DECODE_S = 0.5
QUERIES = 256  # rows that attend at a time on a CPU
FEWEST = 16  # rows of a product
PREPARED = 4  # slices prepared at a time


def measure_stack(stack: Stack, rows: int, span: int, total: int, dtype: torch.dtype, device: torch.device) -> float:
    """Return the seconds of `total` rows in all layers, `rows` at a time, each of which attends to `span` rows."""
    products, attention = stack.count_flops(total, span)
    seconds = products / measure_products(stack, rows, dtype, device)
    return seconds + attention / measure_attention(stack, span, dtype, device)


def measure_products(stack: Stack, rows: int, dtype: torch.dtype, device: torch.device) -> float:
    """Return FLOP/s of a product as in a model's MLP, in its dtype, for up to `rows` rows."""
    weight = torch.ones(stack.mlp_width, stack.width, dtype=dtype, device=device)
    few = torch.ones(FEWEST, stack.width, dtype=dtype, device=device)
    rate = 2.0 * FEWEST * weight.numel() / _time(partial(functional.linear, few, weight), device)
    # as many rows as the model has, unless they would take too long
    count = int(min(rows, max(FEWEST, rate * CALL_S / (2 * weight.numel()))))
    values = torch.ones(count, stack.width, dtype=dtype, device=device)
    return 2.0 * count * weight.numel() / _time(partial(functional.linear, values, weight), device)


def measure_attention(stack: Stack, span: int, dtype: torch.dtype, device: torch.device) -> float:
    """Return FLOP/s of attention to `span` rows, in calls of a few rows on a CPU and of all on a GPU."""
    rows = span if device.type == "cuda" else min(span, QUERIES)
    queries = torch.ones(1, stack.heads, rows, stack.width // stack.heads, dtype=dtype, device=device)
    keys = torch.ones(1, stack.heads, span, stack.width // stack.heads, dtype=dtype, device=device)
    seconds = _time(lambda: functional.scaled_dot_product_attention(queries, keys, keys), device)
    return 4.0 * rows * span * stack.width / seconds


def measure_reading(path: Path, preparer: VideoPreparer, plan: VideoPlan) -> dict[str, float]:
    """Decode and prepare the first frames of a video; return the seconds that all its frames would take."""
    from floc.video import read

    choice = plan.choose_frames()
    started = time.perf_counter()
    batches = iter(read(path, choose=lambda _: choice, batch=preparer.frames_per_slice))
    pixels, count = next(batches).pixels, 0
    seconds, started = time.perf_counter() - started, time.perf_counter()  # opening a file takes long
    for batch in batches:
        count += len(batch.pixels)
        seconds = time.perf_counter() - started
        if seconds > DECODE_S:
            break
    few = np.concatenate([pixels] * PREPARED)
    preparing = _time(lambda: preparer.prepare(plan, few), torch.device("cpu"))
    frames = len(plan.indices)
    return {"decode": seconds / max(1, count) * frames, "preprocess": preparing / len(few) * frames}


def _time(function: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of the fastest of several calls, after one that does not count."""
    fastest, left_s = math.inf, MEASURE_S
    function()
    while left_s > 0:
        started = time.perf_counter()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - started
        fastest, left_s = min(fastest, seconds), left_s - seconds
    return fastest
