"""Table "answer": the cost of a video model's answer with and without compression, by stage.

Qwen2.5-VL-7B and Qwen3-VL-8B with random weights on a GPU, 784 slices of 60 tokens, 1/8 kept; tiny models if there is
no GPU. Stages are timed by hooks around the vision tower and the decoder, and the GPU is synchronised at each. floc's
own time is what passes between a hook before its own and one after it, less the selection, which is timed separately.
"""

from __future__ import annotations

import functools
import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import torch

import floc
from benchmarks import harness, models
from benchmarks.harness import Failures, synchronize
from benchmarks.markdown import show_environment, show_records
from benchmarks.registry import BenchTable, Echo
from floc.encoders.fast_attention import FastVision
from floc.tokens import Frames

SLICES, ROWS, COLUMNS = 784, 6, 10
RATIO = "1/8"
METHODS = ("floc-paper", "floc")
# method and fast vision of a first question
QUESTIONS = ((None, False), (None, True), ("floc-paper", True), ("floc", True), ("floc", False))
STEPS = 64  # generated tokens whose times are compared
ROUNDS = 12  # generation waits for the CPU, which other processes use too
PIXELS = "pixel_values_videos"


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Measure both models."""
    import transformers

    tiny, failures = small or not torch.cuda.is_available(), Failures(echo)
    measured = []
    for make in (models.make_qwen, models.make_qwen3):
        measured.append(failures.attempt(make.__name__, functools.partial(_measure_model, make, tiny, echo, failures)))
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return {
        "gpu": harness.get_gpu_name() or "no GPU",
        "transformers": transformers.__version__,
        "models": [document for document in measured if document is not None],
        "failed": failures.reasons,
    }


def _measure_model(
    make: Callable[[torch.device, bool], Any], tiny: bool, echo: Echo, failures: Failures
) -> dict[str, Any]:
    """Measure a first question, a captured and a replayed one, and the steps of an answer."""
    model = make(harness.get_device(), tiny)
    is_qwen3 = make is models.make_qwen3
    full, small = (models.QWEN3_NAME, models.TINY_QWEN3_NAME) if is_qwen3 else (models.FULL_NAME, models.TINY_NAME)
    name = small if tiny else full
    echo(name)
    shape = (8, 2, 3) if tiny else (SLICES, ROWS, COLUMNS)
    inputs = _make_prompt(model, shape)
    model.generate(**_make_prompt(model, (2, *shape[1:])), max_new_tokens=2)  # compiles and loads
    questions: list[dict[str, Any]] = []
    for method, fast_vision in QUESTIONS:
        question = functools.partial(_measure_question, model, inputs, method, fast_vision)
        what = f"{name}, {method or 'all tokens'}, fast_vision={fast_vision}"
        record = failures.attempt(what, question) if questions else question()  # all others are compared with the first
        if record is None:
            continue
        questions.append(record)
        seconds = ", ".join(f"{name} {record[f'{name}_s']:.4f} s" for name in ("vision", "select", "own", "prefill"))
        echo(f"{record['what']}: {seconds}, {record['total_s']:.3f} s, peak {record['peak_bytes'] / 2**30:.1f} GiB")
    held = questions[-1]["held"]
    captured = failures.attempt(f"{name}, capture", lambda: _measure_captured(model, inputs, echo)) or []
    if not is_qwen3:
        frames = failures.attempt(f"{name}, capture from frames", lambda: _measure_frames(model, shape, echo))
        captured[1:1] = [] if frames is None else [frames]
    questions += captured
    count = 8 if tiny else STEPS
    steps = failures.attempt(f"{name}, steps", lambda: _measure_steps(model, inputs, held, count, echo))
    return {
        "model": name,
        "tokens": shape[0] * shape[1] * shape[2],
        "weights_bytes": models.count_weight_bytes(model),
        "questions": questions,
        "steps": steps,
    }


def _make_prompt(model: Any, shape: tuple[int, int, int], seed: int = 0) -> dict[str, torch.Tensor]:
    """Return the inputs of a question after a video of drifting noise, in which neighbours in time are alike."""
    config, device = model.config, model.device
    slices, rows, columns = shape
    merge, patch = config.vision_config.spatial_merge_size, config.vision_config.patch_size
    generator = torch.Generator(device).manual_seed(seed)
    first = torch.randn(rows * columns * merge**2, 3 * 2 * patch**2, device=device, generator=generator)
    drift = torch.randn(slices, 1, first.shape[1], device=device, generator=generator).cumsum(0) * 0.2
    start, end = torch.tensor([config.vision_start_token_id]), torch.tensor([config.vision_end_token_id])
    noise = torch.Generator().manual_seed(seed)
    text = torch.randint(100, 100_000, (models.QUESTION_TOKENS,), generator=noise)
    if "qwen3" in config.model_type:  # the time of each slice as text before it
        frame = torch.full((rows * columns,), config.video_token_id)
        times = torch.randint(100, 100_000, (slices, 6), generator=noise)
        video = torch.cat([torch.cat([time, start, frame, end]) for time in times])
    else:
        video = torch.cat([start, torch.full((slices * rows * columns,), config.video_token_id), end])
    ids = torch.cat([text[:5], video, text[5:]])[None]
    inputs = {
        "input_ids": ids.to(device),
        "attention_mask": torch.ones_like(ids).to(device),
        "mm_token_type_ids": ((ids == config.video_token_id) * 2).to(device),
        PIXELS: (first + drift).flatten(0, 1).to(model.dtype),
        "video_grid_thw": torch.tensor([[slices, rows * merge, columns * merge]], device=device),
    }
    if "qwen3" not in config.model_type:
        inputs["second_per_grid_ts"] = torch.tensor([1.0], device=device)
    return inputs


class _StageTimer:
    """Record when the stages of a model begin and end. Call `hook_before` before floc attaches, `hook_after` after."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.times: dict[str, float] = {}  # of the first call of each stage
        self.peak_bytes = self.earlier_peak_bytes = 0
        self._hooks: list[Any] = []

    def hook_before(self) -> None:
        """Add hooks that run before those of floc."""
        tower, decoder = self.model.model.visual, self.model.get_decoder()
        self._add(tower.register_forward_pre_hook, "tower begins")
        self._add(tower.register_forward_hook, "tower ends")
        self._add(decoder.register_forward_pre_hook, "decoder is called")

    def hook_after(self) -> None:
        """Add hooks that run after those of floc."""
        decoder = self.model.get_decoder()
        self._add(decoder.register_forward_pre_hook, "decoder begins")
        self._add(decoder.register_forward_hook, "decoder ends")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def measure(self) -> dict[str, float]:
        """Return seconds by stage and the peak memory of the prefill."""
        stages = {
            "vision_s": ("tower begins", "tower ends"),
            "own_s": ("decoder is called", "decoder begins"),
            "prefill_s": ("decoder begins", "decoder ends"),
        }
        seconds = {
            name: self.times[last] - self.times[first] if first in self.times else 0.0
            for name, (first, last) in stages.items()
        }
        peak_bytes = max(self.earlier_peak_bytes, self.peak_bytes)
        return {**seconds, "prefill_peak_bytes": self.peak_bytes, "peak_bytes": peak_bytes}

    def _add(self, register: Any, name: str) -> None:
        def record(*_: Any) -> None:
            synchronize(self.model.device)
            if name in self.times:
                return
            if torch.cuda.is_available():
                if name == "decoder begins":
                    self.earlier_peak_bytes = torch.cuda.max_memory_allocated()
                    torch.cuda.reset_peak_memory_stats()
                elif name == "decoder ends":
                    self.peak_bytes = torch.cuda.max_memory_allocated()
            self.times[name] = time.perf_counter()

        self._hooks.append(register(record))


def _time_generate(model: Any, inputs: dict[str, torch.Tensor]) -> float:
    started = time.perf_counter()
    model.generate(**inputs, max_new_tokens=1)
    synchronize(model.device)
    return time.perf_counter() - started


@contextmanager
def _time_selection(device: torch.device) -> Iterator[list[float]]:
    """Collect the seconds of each selection, until it ends on the device."""
    from floc.captured import recipe

    seconds: list[float] = []
    compress = recipe.compress

    def timed(*arguments: Any, **options: Any) -> Any:
        synchronize(device)
        started = time.perf_counter()
        kept = compress(*arguments, **options)
        synchronize(device)
        seconds.append(time.perf_counter() - started)
        return kept

    recipe.compress = timed
    try:
        yield seconds
    finally:
        recipe.compress = compress


@contextmanager
def _hook_vision(model: Any, fast_vision: bool) -> Iterator[None]:
    """Use fast vision in a model without FLoC."""
    vision = FastVision(model.base_model)
    if fast_vision:
        vision.hook()
    try:
        yield
    finally:
        vision.unhook()


@torch.no_grad()
def _measure_question(
    model: Any, inputs: dict[str, torch.Tensor], method: str | None, fast_vision: bool
) -> dict[str, Any]:
    """Measure one generated token; the second of two runs counts."""
    attached: Any
    for _ in range(2):
        _reset_memory(model.device)
        with _StageTimer(model) as timer:
            timer.hook_before()
            if method is None:
                attached = _hook_vision(model, fast_vision)
            else:
                attached = floc.attach(model, ratio=RATIO, method=method, fast_vision=fast_vision)
            with attached as handle, _time_selection(model.device) as selections:
                timer.hook_after()
                total_s = _time_generate(model, inputs)
                kept = handle.last if handle is not None else []
        stages = timer.measure()
    select_s = sum(selections)
    what = "all tokens" if method is None else f"attach, {method}"
    if fast_vision != (method is not None):
        what += ", fast vision" if fast_vision else ", without fast vision"
    return {
        "what": what,
        "held": inputs["input_ids"].shape[1] - sum(video.n - len(video) for video in kept),
        **stages,
        "select_s": select_s,
        "own_s": stages["own_s"] - select_s,
        "total_s": total_s,
    }


def _reset_memory(device: torch.device) -> None:
    synchronize(device)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


@torch.no_grad()
def _measure_captured(model: Any, inputs: dict[str, torch.Tensor], echo: Echo) -> list[dict[str, Any]]:
    """Measure the first question on a video that is captured from prepared inputs, and a second one."""
    question = {name: value for name, value in inputs.items() if name != PIXELS}
    for _ in range(2):
        _reset_memory(model.device)
        video = floc.capture(model, inputs, ratio=RATIO, method=METHODS[1])
        capture_bytes = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
        replayed = _measure_replay(model, video, question)
    echo(f"capture took {video.made['seconds']}, replay {replayed['total_s']:.3f} s")
    return [_add_capture(replayed, video, capture_bytes, "capture, first question"), replayed]


def _measure_frames(model: Any, shape: tuple[int, int, int], echo: Echo) -> dict[str, Any]:
    """Measure the first question on frames in memory, which the processor of Qwen2.5-VL prepares."""
    vision = model.config.vision_config
    slices, rows, columns = shape
    height, width = (side * vision.spatial_merge_size * vision.patch_size for side in (rows, columns))
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (16, height, width, 3), np.uint8)
    frames = [Frames(pixels, np.arange(start, start + 16) / 2.0) for start in range(0, 2 * slices, 16)]
    processor = models.make_processor(max_tokens=rows * columns)
    for _ in range(2):
        _reset_memory(model.device)
        video = floc.capture(model, frames, ratio=RATIO, method=METHODS[1], processor=processor)
        capture_bytes = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
        replayed = _measure_replay(model, video, video.inputs(processor, "What?").to(model.device))
    echo(f"capture from frames of {video.shape} took {video.made['seconds']}")
    return _add_capture(replayed, video, capture_bytes, "capture from frames, first question")


def _add_capture(replayed: dict[str, Any], video: floc.Captured, peak_bytes: int, what: str) -> dict[str, Any]:
    """Return the record of a first question: a capture and a replay."""
    seconds = video.made["seconds"]
    prepare_s = seconds.get("decode", 0.0) + seconds.get("preprocess", 0.0)
    return {
        **replayed,
        "what": f"{what}, {METHODS[1]}",
        "prepare_s": prepare_s,
        "vision_s": seconds["vision"],
        "select_s": seconds["select"],
        "own_s": replayed["own_s"] + seconds["other"],
        "total_s": seconds["total"] + replayed["total_s"],
        "peak_bytes": max(peak_bytes, replayed["peak_bytes"]),
        "capture_s": seconds,
    }


def _measure_replay(model: Any, video: floc.Captured, question: Any) -> dict[str, Any]:
    """Measure a question on a captured video."""
    _reset_memory(model.device)
    with _StageTimer(model) as timer:
        timer.hook_before()
        with floc.replay(model, video):
            timer.hook_after()
            total_s = _time_generate(model, question)
    stages = timer.measure()
    held = question["input_ids"].shape[1] - video.n + len(video)
    return {"what": f"replay, {METHODS[1]}", "held": held, **stages, "select_s": 0.0, "total_s": total_s}


@torch.no_grad()
def _measure_steps(model: Any, inputs: dict[str, torch.Tensor], held: int, steps: int, echo: Echo) -> dict[str, Any]:
    """Compare the seconds of a generation step after a shortened prompt and after a plain one of the same length."""
    plain = {"input_ids": torch.randint(100, 100_000, (1, held), device=model.device)}
    plain["attention_mask"] = torch.ones_like(plain["input_ids"])
    video = floc.capture(model, inputs, ratio=RATIO, method=METHODS[0])
    question = {name: value for name, value in inputs.items() if name != PIXELS}
    shortened_s, plain_s = [], []
    for _ in range(ROUNDS):
        plain_s.append(_measure_step(model, plain, steps))
        with floc.replay(model, video):
            shortened_s.append(_measure_step(model, question, steps))
    ratio = statistics.median(a / b for a, b in zip(shortened_s, plain_s, strict=True))
    medians = [f"{statistics.median(seconds) * 1e3:.2f} ms" for seconds in (shortened_s, plain_s)]
    echo(f"a step: {medians[0]} against {medians[1]}, median ratio {ratio:.3f}")
    return {"shortened_s": shortened_s, "plain_s": plain_s, "ratio": ratio, "held": held, "steps": steps}


def _measure_step(model: Any, inputs: dict[str, torch.Tensor], steps: int) -> float:
    """Return the median seconds between two forward passes of an answer."""
    times: list[float] = []

    def record(*_: Any) -> None:
        synchronize(model.device)
        times.append(time.perf_counter())

    hook = model.register_forward_hook(record)
    model.generate(**inputs, max_new_tokens=steps)
    hook.remove()
    return statistics.median(b - a for a, b in itertools.pairwise(times[1:]))


def _show(document: dict[str, Any]) -> str:
    measured = document.get("models") or [document]  # earlier results have one model
    rows = [
        {
            **row,
            "model": model_record["model"] if len(measured) > 1 else "",
            "all_s": model_record["questions"][0]["prefill_s"],
        }
        for model_record in measured
        for row in model_record["questions"]
    ]
    columns = {
        "": lambda row: row["what"],
        "model": lambda row: row["model"],
        "tokens in the decoder": lambda row: f"{row['held']:,}",
        "prepare, s": lambda row: f"{row['prepare_s']:.2f}" if row.get("prepare_s") else "",
        "vision, s": lambda row: f"{row['vision_s']:.2f}",
        "selection, s": lambda row: f"{row['select_s']:.3f}",
        "rest of floc, ms": lambda row: f"{row['own_s'] * 1e3:.1f}",
        "prefill, s": lambda row: f"{row['prefill_s']:.3f}",
        "prefill speedup": lambda row: f"{row['all_s'] / row['prefill_s']:.1f}x",
        "peak in prefill, GiB": lambda row: f"{row['prefill_peak_bytes'] / 2**30:.1f}",
        "peak, GiB": lambda row: f"{row['peak_bytes'] / 2**30:.1f}" if row.get("peak_bytes") else "",
        "first token, s": lambda row: f"{row['total_s']:.2f}",
    }
    names = " and ".join(model_record["model"] for model_record in measured)
    notes = [f"{names}, random weights, {measured[0]['tokens']:,} visual tokens, {RATIO}, the second of two runs."]
    for model_record in measured:
        steps, subject = model_record["steps"], f"of {model_record['model']} " if len(measured) > 1 else ""
        if steps is None:
            continue
        ratios = [a / b for a, b in zip(steps["shortened_s"], steps["plain_s"], strict=True)]
        notes.append(
            f"A generation step {subject}takes "
            f"{statistics.median(steps['shortened_s']) * 1e3:.1f} ms after the shortened prompt and "
            f"{statistics.median(steps['plain_s']) * 1e3:.1f} ms after a plain prompt of the same length (medians of "
            f"{len(ratios)} rounds of {steps['steps']} steps, in turn; median ratio {steps['ratio']:.3f}, single "
            f"rounds from {min(ratios):.2f} to {max(ratios):.2f})."
        )
    if failed := document.get("failed"):
        notes.append(f"Not measured: {'; '.join(failed)}.")
    notes.append(f"{document['gpu']}, transformers {document['transformers']},")
    return show_records(rows, columns, " ".join(notes), show_environment(document, "python", "torch"))


TABLE = BenchTable("answer", run, {"answer": _show})
