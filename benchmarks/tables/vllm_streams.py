"""Table "vllm-streams": the vLLM plugin's selection for many videos at once, beside a busy decoder. It needs no vLLM.

On a GPU each video has a CUDA stream, and the decoder another. One thread starts all work, as a worker of vLLM does:
for each step of the decoder it starts one selection. The decoder is the language model of Qwen2.5-VL with random
weights, of full size on a GPU and tiny on a CPU, where the work is done one after the other.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from benchmarks import harness, models
from benchmarks.markdown import show_environment, show_records
from benchmarks.memory import measure_growth
from benchmarks.registry import BenchTable, Echo
from benchmarks.synthetic import Shape
from floc.integrations.vllm.selection import select_indices, warm_up
from floc.integrations.vllm.settings import Settings

LEVELS = (1, 4, 8, 16, 32)  # videos at once
SETTINGS = Settings(ratio="1/8")
PROMPT = 16  # tokens that the decoder reads in a step, for each video
ROUNDS = 5


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Select from videos at several levels of load, beside a decoder."""
    device, levels, rounds = harness.get_device(), (1, 4) if small else LEVELS, 2 if small else ROUNDS
    has_gpu = device.type == "cuda"
    shape = Shape(64, 8, 8, 3584) if has_gpu else Shape(16, 6, 6, 64) if small else Shape(64, 8, 8, 64)
    dtype = torch.bfloat16 if has_gpu else torch.float32
    model = models.make_qwen(device, tiny=not has_gpu)
    decoder, width = model.model.language_model, model.config.text_config.hidden_size
    warm_up(SETTINGS, shape.dim, dtype, device)
    videos = [torch.from_numpy(shape.make_tokens(seed)).to(device, dtype).flatten(0, 2) for seed in range(max(levels))]
    rows = []
    for level in levels:
        prompt = torch.randn(level, PROMPT, width, device=device, dtype=dtype)
        streams = [torch.cuda.Stream() if has_gpu else None for _ in range(level)]

        @torch.no_grad()
        def decode(prompt: torch.Tensor = prompt) -> object:
            return decoder(inputs_embeds=prompt, use_cache=False)

        def select(number: int, streams: list[Any] = streams) -> object:
            with _enter(streams[number]):
                return select_indices(videos[number], (shape.frames, shape.height, shape.width), SETTINGS)

        rows.append({"level": level, **_measure(level, rounds, decode, select, device)})
        echo(f"{level} videos: {rows[-1]['select_ms']:.2f} ms each")
    return {
        "model": models.FULL_NAME if has_gpu else models.TINY_NAME,
        "gpu": harness.get_gpu_name() or "no GPU",
        "shape": [shape.frames, shape.height, shape.width, shape.dim],
        "levels": rows,
    }


def _measure(
    level: int, rounds: int, decode: Callable[[], object], select: Callable[[int], object], device: torch.device
) -> dict[str, Any]:
    """Compare steps of the decoder alone with steps that each start a selection."""

    def run_alone() -> None:
        for _ in range(level):
            decode()

    def run_both() -> None:
        for number in range(level):
            select(number)
            decode()

    def time_call(call: Callable[[], object]) -> float:
        harness.synchronize(device)
        started = time.perf_counter()
        call()
        harness.synchronize(device)
        return (time.perf_counter() - started) / level * 1e3

    run_both()
    times = [(time_call(run_alone), time_call(run_both)) for _ in range(rounds)]  # in turn
    with _count_waits(device) as waits:
        select(0)
    return {
        "decode_ms": statistics.median(alone for alone, _ in times),
        "select_ms": statistics.median(both - alone for alone, both in times),
        "slowdown": statistics.median(both / alone for alone, both in times),
        "waits": len(waits) if device.type == "cuda" else None,
        "bytes": measure_growth(lambda: [select(number) for number in range(level)], device),
    }


@contextmanager
def _count_waits(device: torch.device) -> Iterator[list[Any]]:
    """Collect a warning for each time that the host waits for the GPU."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("warn")
        waits: list[Any] = []
        try:
            yield waits
        finally:
            if device.type == "cuda":
                torch.cuda.set_sync_debug_mode("default")
            waits += [warning for warning in caught if "synchroniz" in str(warning.message)]


def _enter(stream: Any) -> AbstractContextManager[Any]:
    return nullcontext() if stream is None else torch.cuda.stream(stream)


def _show(document: dict[str, Any]) -> str:
    columns = {
        "videos at once": lambda row: f"{row['level']}",
        "step of the decoder, ms": lambda row: f"{row['decode_ms']:.2f}",
        "added by a selection, ms": lambda row: f"{row['select_ms']:.2f}",
        "ratio": lambda row: f"{row['slowdown']:.2f}x",
        "waits of the host": lambda row: "" if row["waits"] is None else f"{row['waits']}",
        "memory, MB": lambda row: "" if row["bytes"] is None else f"{row['bytes'] / 1e6:.0f}",
    }
    frames, height, width, dim = document["shape"]
    note = (
        f"Videos of {frames} x {height} x {width} tokens of {dim} channels at {SETTINGS.ratio}; each step of the "
        f"language model of {document['model']} reads {PROMPT} tokens for each video. Waits: in one selection. "
        f"{document['gpu']},"
    )
    return show_records(document["levels"], columns, note, show_environment(document, "python", "torch"))


TABLE = BenchTable("vllm-streams", run, {"vllm-streams": _show})
