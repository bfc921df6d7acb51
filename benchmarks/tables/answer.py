"""Table "answer": the cost of a video model's answer with and without compression, by stage.

Qwen2.5-VL-7B with random weights on a GPU, 784 slices of 60 tokens, 1/8 kept; a tiny model if there is no GPU. Stages
are timed by hooks around the vision tower and the decoder, and the GPU is synchronised at each. floc's own time is what
passes between a hook before its own and one after it, less the selection, which is timed separately.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

import floc
from benchmarks import harness, models
from benchmarks.harness import synchronize
from benchmarks.markdown import show_environment, show_records
from benchmarks.registry import BenchTable, Echo

SLICES, ROWS, COLUMNS = 784, 6, 10
RATIO = "1/8"
METHODS = ("floc-paper", "floc")
STEPS = 64  # generated tokens whose times are compared
ROUNDS = 12  # generation waits for the CPU, which other processes use too
PIXELS = "pixel_values_videos"


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Measure a first question, a replayed one, and the steps of an answer."""
    import transformers

    tiny = small or not torch.cuda.is_available()
    device = harness.get_device()
    model = models.make_qwen(device, tiny)
    shape = (8, 2, 3) if tiny else (SLICES, ROWS, COLUMNS)
    inputs = _make_prompt(model, shape)
    model.generate(**_make_prompt(model, (2, *shape[1:])), max_new_tokens=2)  # compiles and loads
    questions = []
    for method in (None, *METHODS):
        record = _measure_question(model, inputs, method)
        questions.append(record)
        seconds = ", ".join(f"{name} {record[f'{name}_s']:.4f} s" for name in ("vision", "select", "own", "prefill"))
        echo(f"{record['what']}: {seconds}, peak {record['prefill_peak_bytes'] / 2**30:.1f} GiB")
    questions.append(_measure_replay(model, inputs, echo))
    return {
        "model": models.TINY_NAME if tiny else models.FULL_NAME,
        "gpu": harness.get_gpu_name() or "no GPU",
        "transformers": transformers.__version__,
        "tokens": shape[0] * shape[1] * shape[2],
        "weights_bytes": models.count_weight_bytes(model),
        "questions": questions,
        "steps": _measure_steps(model, inputs, questions[1]["held"], 8 if tiny else STEPS, echo),
    }


def _make_prompt(model: Any, shape: tuple[int, int, int], seed: int = 0) -> dict[str, torch.Tensor]:
    """Return the inputs of a question after a video of drifting noise, in which neighbours in time are alike."""
    config, device = model.config, model.device
    slices, rows, columns = shape
    merge, patch = config.vision_config.spatial_merge_size, config.vision_config.patch_size
    generator = torch.Generator(device).manual_seed(seed)
    first = torch.randn(rows * columns * merge**2, 3 * 2 * patch**2, device=device, generator=generator)
    drift = torch.randn(slices, 1, first.shape[1], device=device, generator=generator).cumsum(0) * 0.2
    placeholders = torch.full((slices * rows * columns,), config.video_token_id)
    start, end = torch.tensor([config.vision_start_token_id]), torch.tensor([config.vision_end_token_id])
    text = torch.randint(100, 100_000, (models.QUESTION_TOKENS,), generator=torch.Generator().manual_seed(seed))
    ids = torch.cat([text[:5], start, placeholders, end, text[5:]])[None]
    return {
        "input_ids": ids.to(device),
        "attention_mask": torch.ones_like(ids).to(device),
        "mm_token_type_ids": ((ids == config.video_token_id) * 2).to(device),
        PIXELS: (first + drift).flatten(0, 1).to(model.dtype),
        "video_grid_thw": torch.tensor([[slices, rows * merge, columns * merge]], device=device),
        "second_per_grid_ts": torch.tensor([1.0], device=device),
    }


class _StageTimer:
    """Record when the stages of a model begin and end. Call `hook_before` before floc attaches, `hook_after` after."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.times: dict[str, float] = {}  # of the first call of each stage
        self.peak_bytes = 0
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

    def measure(self) -> dict[str, float]:
        """Remove the hooks; return seconds by stage and the peak memory of the prefill."""
        for hook in self._hooks:
            hook.remove()
        stages = {
            "vision_s": ("tower begins", "tower ends"),
            "own_s": ("decoder is called", "decoder begins"),
            "prefill_s": ("decoder begins", "decoder ends"),
        }
        seconds = {
            name: self.times[last] - self.times[first] if first in self.times else 0.0
            for name, (first, last) in stages.items()
        }
        return {**seconds, "prefill_peak_bytes": self.peak_bytes}

    def _add(self, register: Any, name: str) -> None:
        def record(*_: Any) -> None:
            synchronize(self.model.device)
            if name in self.times:
                return
            if torch.cuda.is_available():
                if name == "decoder begins":
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


@torch.no_grad()
def _measure_question(model: Any, inputs: dict[str, torch.Tensor], method: str | None) -> dict[str, Any]:
    """Measure one generated token; the second of two runs counts."""
    for _ in range(2):
        synchronize(model.device)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        timer = _StageTimer(model)
        timer.hook_before()
        attached = nullcontext() if method is None else floc.attach(model, ratio=RATIO, method=method)
        with attached as handle, _time_selection(model.device) as selections:
            timer.hook_after()
            total_s = _time_generate(model, inputs)
            kept = handle.last if handle is not None else []
        stages = timer.measure()
    select_s = sum(selections)
    return {
        "what": "all tokens" if method is None else f"attach, {method}",
        "held": inputs["input_ids"].shape[1] - sum(video.n - len(video) for video in kept),
        **stages,
        "select_s": select_s,
        "own_s": stages["own_s"] - select_s,
        "total_s": total_s,
    }


@torch.no_grad()
def _measure_replay(model: Any, inputs: dict[str, torch.Tensor], echo: Echo) -> dict[str, Any]:
    """Measure a second question on a captured video."""
    video = floc.capture(model, inputs, ratio=RATIO, method=METHODS[0])
    question = {name: value for name, value in inputs.items() if name != PIXELS}
    for _ in range(2):
        timer = _StageTimer(model)
        timer.hook_before()
        with floc.replay(model, video):
            timer.hook_after()
            total_s = _time_generate(model, question)
        stages = timer.measure()
    echo(f"replay: {total_s:.3f} s in total, own {stages['own_s'] * 1e3:.1f} ms; capture took {video.made['seconds']}")
    return {
        "what": f"replay, {METHODS[0]}",
        "held": inputs["input_ids"].shape[1] - video.n + len(video),
        **stages,
        "select_s": 0.0,
        "total_s": total_s,
        "capture_s": video.made["seconds"],
    }


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
    full = document["questions"][0]
    columns = {
        "": lambda row: row["what"],
        "tokens in the decoder": lambda row: f"{row['held']:,}",
        "vision, s": lambda row: f"{row['vision_s']:.2f}",
        "selection, s": lambda row: f"{row['select_s']:.3f}",
        "rest of floc, ms": lambda row: f"{row['own_s'] * 1e3:.1f}",
        "prefill, s": lambda row: f"{row['prefill_s']:.3f}",
        "prefill speedup": lambda row: f"{full['prefill_s'] / row['prefill_s']:.1f}x",
        "peak in prefill, GiB": lambda row: f"{row['prefill_peak_bytes'] / 2**30:.1f}",
        "first token, s": lambda row: f"{row['total_s']:.2f}",
    }
    steps = document["steps"]
    ratios = [a / b for a, b in zip(steps["shortened_s"], steps["plain_s"], strict=True)]
    note = (
        f"{document['model']}, random weights, {document['tokens']:,} visual tokens, {RATIO}, the second of two runs. "
        f"A generation step takes {statistics.median(steps['shortened_s']) * 1e3:.1f} ms after the shortened prompt "
        f"and {statistics.median(steps['plain_s']) * 1e3:.1f} ms after a plain prompt of the same length (medians of "
        f"{len(ratios)} rounds of {steps['steps']} steps, in turn; median ratio {steps['ratio']:.3f}, single rounds "
        f"from {min(ratios):.2f} to {max(ratios):.2f}). {document['gpu']}, transformers {document['transformers']},"
    )
    return show_records(document["questions"], columns, note, show_environment(document, "python", "torch"))


TABLE = BenchTable("answer", run, {"answer": _show})
