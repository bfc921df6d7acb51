"""Table "vision": the speed of vision towers with and without fast attention, by the size of a chunk.

The towers of Qwen2.5-VL-7B and Qwen3-VL-8B with random weights in bfloat16 on a GPU, 784 slices of 12 x 20 patches; on
a CPU towers of a few narrow layers, in float32. The features are compared before anything is timed.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import harness, models
from benchmarks.harness import Failures
from benchmarks.markdown import show_environment, show_records
from benchmarks.registry import BenchTable, Echo
from floc.encoders import fast_attention
from floc.encoders.fast_attention import FastVision

SLICES, ROWS, COLUMNS = 784, 12, 20  # patches
CHUNKS = (8, 256, 784)  # slices at a time
CPU_SLICES, CPU_CHUNKS = 16, (1, 8, 16)
SMALL_SLICES, SMALL_CHUNKS = 4, (1, 4)
ROUNDS = 3
BARE, FAST = "transformers", "fast vision"
# kernels for windows of several lengths, compared at one size of chunks on a GPU
VARIANTS: dict[str, dict[str, Any]] = {
    "copied groups": {"_find_packed_kernel": lambda *_: None},
    "views": {"PATTERN_DEVICES": ("cpu", "cuda")},
}
VARIANT_CHUNK = 256
WAITS = ("_local_scalar_dense", "nonzero", "unique_consecutive")  # operations that wait for a GPU, beside copies


class _Counter(TorchDispatchMode):
    """Counts the operations of a call, and those that would wait for a GPU."""

    operations = waits = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += 1
        target = (kwargs or {}).get("device")
        is_copy = "_to_copy" in str(function) and target is not None and torch.device(target).type == "cpu"
        on_gpu = any(isinstance(value, torch.Tensor) and value.is_cuda for value in args)
        self.waits += on_gpu and (is_copy or any(name in str(function) for name in WAITS))
        return function(*args, **(kwargs or {}))


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Time both towers."""
    import transformers

    device = harness.get_device()
    is_full = device.type == "cuda" and not small
    slices = SLICES if is_full else SMALL_SLICES if small else CPU_SLICES
    chunks = CHUNKS if is_full else SMALL_CHUNKS if small else CPU_CHUNKS
    records: list[dict[str, Any]] = []
    failures = Failures(echo)
    for name in (models.FULL_NAME, models.QWEN3_NAME):
        base = _make_tower(name, device, 1.0 if is_full else 0.02 if small else 0.25)
        records += _measure_tower(name if is_full else f"{name}, narrow", base, slices, chunks, echo, failures)
        del base
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return {
        "gpu": harness.get_gpu_name() or "no GPU",
        "transformers": transformers.__version__,
        "slices": slices,
        "rounds": 1 if small else ROUNDS,
        "towers": records,
        "failed": failures.reasons,
    }


def _make_tower(name: str, device: torch.device, width: float) -> Any:
    """Build a multimodal model without layers in its language model, with a vision tower of part of the full width."""
    import transformers

    is_new = name == models.QWEN3_NAME
    vision = dict(models.QWEN3_VISION if is_new else models.FULL_VISION)
    text = dict(models.QWEN3_TEXT if is_new else models.FULL_TEXT, num_hidden_layers=1, vocab_size=152_064)
    if width < 1:
        vision |= dict(depth=4, num_heads=max(1, int(vision["num_heads"] * width)))
        head = {models.QWEN3_NAME: 72, models.FULL_NAME: 80}[name]
        vision |= dict(hidden_size=head * vision["num_heads"], intermediate_size=200 * vision["num_heads"])
        vision |= {"deepstack_visual_indexes": [1]} if is_new else {"fullatt_block_indexes": [3]}
        text |= dict(hidden_size=64, intermediate_size=64, num_attention_heads=1, num_key_value_heads=1, head_dim=64)
    if is_new:
        options: dict[str, Any] = dict(
            text_config=text, vision_config=dict(vision, out_hidden_size=text["hidden_size"])
        )
        config: Any = transformers.Qwen3VLConfig(**options)
    else:
        config = models.make_config(text, vision, models.FULL_SECTIONS)
    torch.manual_seed(0)
    with device:
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        return transformers.AutoModel.from_config(config, dtype=dtype, attn_implementation="sdpa").eval()


@contextmanager
def _vary(name: str) -> Iterator[None]:
    """Use another way to attend to windows of several lengths."""
    changed = VARIANTS[name]
    before = {key: getattr(fast_attention, key) for key in changed}
    for key, value in changed.items():
        setattr(fast_attention, key, value)
    fast_attention.group_windows.cache_clear()
    try:
        yield
    finally:
        for key, value in before.items():
            setattr(fast_attention, key, value)
        fast_attention.group_windows.cache_clear()


class _Runner:
    """Runs a tower on a video of noise, a chunk at a time."""

    def __init__(self, base: Any, slices: int) -> None:
        self.base, self.slices = base, slices
        (self.tower,) = fast_attention.find_towers(base)
        self.fast = FastVision(base)
        vision = base.config.vision_config
        weight = next(self.tower.parameters())
        self.device, width = weight.device, 3 * 2 * vision.patch_size**2
        generator = torch.Generator(self.device).manual_seed(0)
        first = torch.randn(ROWS * COLUMNS, width, device=self.device, generator=generator)
        drift = torch.randn(slices, 1, width, device=self.device, generator=generator).cumsum(0) * 0.2
        self.pixels = (first + drift).flatten(0, 1).to(weight.dtype)

    @torch.no_grad()
    def run(self, what: str, chunk: int) -> torch.Tensor:
        """Return the features of all slices; `what` is BARE, FAST or a variant."""
        features = []
        with self.fast.use() if what != BARE else nullcontext(), _vary(what) if what in VARIANTS else nullcontext():
            for start in range(0, self.slices, chunk):
                count = min(chunk, self.slices - start)
                rows = self.pixels[start * ROWS * COLUMNS :][: count * ROWS * COLUMNS]
                grid = torch.tensor([[count, ROWS, COLUMNS]], device=self.device)
                features.append(self.tower(rows, grid_thw=grid).pooler_output)
        return torch.cat(features)

    def measure(self, what: str, chunk: int) -> tuple[float, int | None]:
        """Return the seconds of a run, of CPU time on a CPU, and its peak of GPU memory above what was there before."""
        is_gpu = self.device.type == "cuda"
        clock = time.perf_counter if is_gpu else time.process_time  # other processes do not count
        harness.synchronize(self.device)
        before = torch.cuda.memory_allocated() if is_gpu else 0
        if is_gpu:
            torch.cuda.reset_peak_memory_stats()
        started = clock()
        self.run(what, chunk)
        harness.synchronize(self.device)
        seconds = clock() - started
        return seconds, torch.cuda.max_memory_allocated() - before if is_gpu else None


def _compare_run(expected: torch.Tensor, runner: _Runner, what: str, chunk: int) -> dict[str, Any]:
    return _compare(expected, runner.run(what, chunk))


def _compare(expected: torch.Tensor, found: torch.Tensor) -> dict[str, Any]:
    a, b = expected.double(), found.double()
    cosine = torch.nn.functional.cosine_similarity(a, b, dim=-1).min().item()
    error = ((a - b).norm() / a.norm()).item()
    if cosine < 0.999:
        raise AssertionError(f"fast vision has other features: a cosine of {cosine:.6f}, an error of {error:.2e}")
    return {"equal": torch.equal(expected, found), "cosine": cosine, "error": error}


def _measure_tower(
    name: str, base: Any, slices: int, chunks: tuple[int, ...], echo: Echo, failures: Failures
) -> list[dict[str, Any]]:
    runner = _Runner(base, slices)
    rounds = ROUNDS if slices > SMALL_SLICES else 1
    has_variants = runner.device.type == "cuda" and VARIANT_CHUNK in chunks and "window_size" in vars(runner.tower)
    records = []
    for chunk in chunks:
        contenders = [BARE, FAST, *(VARIANTS if has_variants and chunk == VARIANT_CHUNK else ())]
        expected = runner.run(BARE, chunk)
        checks: dict[str, dict[str, Any]] = {}
        for what in contenders:
            compare = functools.partial(_compare_run, expected, runner, what, chunk)
            check = failures.attempt(f"{name}, {chunk} slices at a time, {what}", compare)
            checks |= {} if check is None else {what: check}
        contenders = [*checks]
        times: dict[str, list[float]] = {what: [] for what in contenders}
        peaks: dict[str, int | None] = {}
        for _ in range(rounds):
            for what in contenders:
                seconds, peaks[what] = runner.measure(what, chunk)
                times[what].append(seconds)
        for what in contenders:
            ratios = [bare / own for bare, own in zip(times[BARE], times[what], strict=True)]
            record = {"tower": name, "what": what, "chunk": chunk, "seconds": statistics.median(times[what])}
            record |= {"speedup": statistics.median(ratios), "peak_bytes": peaks[what], **checks[what]}
            record |= _count(runner, what, chunk)
            records.append(record)
            echo(
                f"{name}, {chunk} slices at a time, {what}: {record['seconds']:.3f} s, {record['speedup']:.2f}x, "
                f"equal {record['equal']}, error {record['error']:.1e}, peak {peaks[what]}"
            )
    return records


def _count(runner: _Runner, what: str, chunk: int) -> dict[str, int]:
    with _Counter() as counter:
        runner.run(what, chunk)
    return {"operations": counter.operations, "waits": counter.waits}


def _show(document: dict[str, Any]) -> str:
    columns = {
        "tower": lambda row: row["tower"],
        "attention": lambda row: row["what"],
        "slices at a time": lambda row: f"{row['chunk']:,}",
        "s": lambda row: f"{row['seconds']:.3f}",  # of CPU time if there is no GPU
        "speedup": lambda row: f"{row['speedup']:.2f}x",
        "operations": lambda row: f"{row['operations']:,}",
        "waits for the GPU": lambda row: "" if row["peak_bytes"] is None else f"{row['waits']:,}",
        "peak, GiB": lambda row: "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**30:.1f}",
        "relative error": lambda row: "0" if row["equal"] else f"{row['error']:.1e}",
    }
    clock = ", seconds of CPU time" if document["gpu"] == "no GPU" else ""
    note = (
        f"{document['slices']} slices of {ROWS} x {COLUMNS} patches, random weights, medians of {document['rounds']} "
        "rounds in turn; speedups are medians of the ratios of a round. Operations: number that the host queues. "
        f"{'; '.join(['Not measured', *document['failed']]) + '. ' if document.get('failed') else ''}"
        f"{document['gpu']}{clock}, transformers {document['transformers']},"
    )
    return show_records(document["towers"], columns, note, show_environment(document, "python", "torch"))


TABLE = BenchTable("vision", run, {"vision": _show})
