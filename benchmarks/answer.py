"""The table "answer": what a video model's answer costs with and without compression, and where the time goes.

Qwen2.5-VL-7B with random weights, full size, on a GPU (a tiny one where there is none), 784 slices of 60 tokens, 1/8.
Stages are told apart by hooks around the vision tower and the decoder, and the GPU is waited for at each. What floc
does itself is what passes between a hook before its own and one after it, less the selection, which is timed apart.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks import harness
from benchmarks.harness import wait
from benchmarks.tables import Echo, Table, where
from floc._format import markdown_table

SLICES, ROWS, COLUMNS = 784, 6, 10
RATIO = "1/8"
METHODS = ("floc-paper", "floc")
STEPS = 64  # of an answer, whose times are compared
ROUNDS = 12  # the steps of a large model wait for the CPU, which others use too
TEXT = 40  # tokens of a question


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Measure one question, a second one, and the steps of an answer."""
    import transformers

    small = small or not torch.cuda.is_available()
    device = harness.device()
    model = qwen(device, small)
    shape = (8, 2, 3) if small else (SLICES, ROWS, COLUMNS)
    inputs = _prompt(model, shape)
    few = _prompt(model, (2, *shape[1:]))
    model.generate(**few, max_new_tokens=2)  # compiles and loads
    parts = sum(each.numel() * each.element_size() for each in model.parameters())
    result: dict[str, Any] = {
        "model": "Qwen2.5-VL-7B" if not small else "tiny Qwen2.5-VL",
        "gpu": torch.cuda.get_device_name() if device.type == "cuda" else "no GPU",
        "transformers": transformers.__version__,
        "tokens": shape[0] * shape[1] * shape[2],
        "weights_bytes": parts,
        "questions": [],
    }
    for method in (None, *METHODS):
        record = _question(model, inputs, method)
        result["questions"].append(record)
        seconds = ", ".join(f"{name} {record[f'{name}_s']:.4f} s" for name in ("vision", "select", "own", "prefill"))
        echo(f"{record['what']}: {seconds}, peak {record['prefill_peak_bytes'] / 2**30:.1f} GiB")
    result["questions"].append(_replayed(model, inputs, echo))
    result["steps"] = _steps(model, inputs, result["questions"][1]["held"], 8 if small else STEPS, echo)
    return result


def qwen(device: torch.device, small: bool) -> Any:
    """Qwen2.5-VL with random weights: 7B, or a tiny one."""
    import transformers

    if small:
        text = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2)
        vision = dict(depth=2, hidden_size=16, intermediate_size=24, num_heads=2, fullatt_block_indexes=[1])
        sections, heads = [2, 3, 3], 2
    else:
        text = dict(hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28)
        vision = dict(depth=32, hidden_size=1280, intermediate_size=3420, num_heads=16)
        vision["fullatt_block_indexes"] = [7, 15, 23, 31]
        sections, heads = [16, 24, 24], 4
    config = transformers.Qwen2_5_VLConfig(
        text_config=dict(
            text,
            num_key_value_heads=heads,
            vocab_size=152_064,
            max_position_embeddings=128_000,
            rope_parameters=dict(rope_type="default", rope_theta=1e6, mrope_section=sections),
        ),
        vision_config=dict(vision, out_hidden_size=text["hidden_size"], tokens_per_second=2),
    )
    torch.manual_seed(0)
    with device:
        model = transformers.Qwen2_5_VLForConditionalGeneration._from_config(
            config, dtype=torch.bfloat16 if device.type == "cuda" else torch.float32
        ).eval()
    model.generation_config.update(eos_token_id=None, bos_token_id=None, pad_token_id=0, do_sample=False)
    return model


def _prompt(model: Any, shape: tuple[int, int, int], seed: int = 0) -> dict[str, torch.Tensor]:
    """A question after a film of noise that drifts, so that neighbours in time are alike."""
    config, device = model.config, model.device
    slices, rows, columns = shape
    merge, patch = config.vision_config.spatial_merge_size, config.vision_config.patch_size
    generator = torch.Generator(device).manual_seed(seed)
    first = torch.randn(rows * columns * merge**2, 3 * 2 * patch**2, device=device, generator=generator)
    drift = torch.randn(slices, 1, first.shape[1], device=device, generator=generator).cumsum(0) * 0.2
    pixels = (first + drift).flatten(0, 1).to(model.dtype)
    placeholders = torch.full((slices * rows * columns,), config.video_token_id)
    around = torch.tensor([config.vision_start_token_id]), torch.tensor([config.vision_end_token_id])
    words = torch.randint(100, 100_000, (TEXT,), generator=torch.Generator().manual_seed(seed))
    ids = torch.cat([words[:5], around[0], placeholders, around[1], words[5:]])[None]
    return {
        "input_ids": ids.to(device),
        "attention_mask": torch.ones_like(ids).to(device),
        "mm_token_type_ids": ((ids == config.video_token_id) * 2).to(device),
        "pixel_values_videos": pixels,
        "video_grid_thw": torch.tensor([[slices, rows * merge, columns * merge]], device=device),
        "second_per_grid_ts": torch.tensor([1.0], device=device),
    }


class _Watch:
    """Times of a model's stages, by hooks; one of them must be there before floc is attached, the other after."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.at: dict[str, list[float]] = {}
        self.peak = self.held = 0
        self.hooks: list[Any] = []

    def before(self) -> None:
        """Hooks that run before those of floc."""
        tower, decoder = self.model.model.visual, self.model.get_decoder()
        self._note(tower.register_forward_pre_hook, "tower begins")
        self._note(tower.register_forward_hook, "tower ends")
        self._note(decoder.register_forward_pre_hook, "decoder is called")

    def after(self) -> None:
        """Hooks that run after those of floc."""
        decoder = self.model.get_decoder()
        self._note(decoder.register_forward_pre_hook, "decoder begins")
        self._note(decoder.register_forward_hook, "decoder ends")

    def gap(self, first: str, last: str, nth: int = 0) -> float:
        """Seconds between two."""
        return self.at[last][nth] - self.at[first][nth] if first in self.at else 0.0

    def remove(self) -> None:
        for hook in self.hooks:
            hook.remove()

    def _note(self, register: Any, name: str) -> None:
        def note(*_: Any) -> None:
            wait(self.model.device)
            if name == "decoder begins" and "decoder begins" not in self.at and torch.cuda.is_available():
                torch.cuda.reset_peak_memory_stats()
            if name == "decoder ends" and "decoder ends" not in self.at and torch.cuda.is_available():
                self.peak = torch.cuda.max_memory_allocated()
            self.at.setdefault(name, []).append(time.perf_counter())

        self.hooks.append(register(note))


@contextmanager
def _attached(model: Any, method: str | None) -> Iterator[Any]:
    import floc

    if method is None:
        yield None
        return
    with floc.attach(model, ratio=RATIO, method=method) as handle:
        yield handle


@contextmanager
def _selection_timed(device: torch.device) -> Iterator[list[float]]:
    """Seconds of each selection, to its end on the device."""
    from floc.captured import recipe

    seconds: list[float] = []
    compress = recipe.compress

    def timed(*arguments: Any, **options: Any) -> Any:
        wait(device)
        started = time.perf_counter()
        kept = compress(*arguments, **options)
        wait(device)
        seconds.append(time.perf_counter() - started)
        return kept

    recipe.compress = timed
    try:
        yield seconds
    finally:
        recipe.compress = compress


@torch.no_grad()
def _question(model: Any, inputs: dict[str, torch.Tensor], method: str | None) -> dict[str, Any]:
    """One answer of one token; the second of two runs counts."""
    for _ in range(2):
        wait(model.device)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        watch = _Watch(model)
        watch.before()
        with _attached(model, method) as handle, _selection_timed(model.device) as selections:
            watch.after()
            started = time.perf_counter()
            model.generate(**inputs, max_new_tokens=1)
            wait(model.device)
            total = time.perf_counter() - started
            kept = handle.last if handle is not None else []
        watch.remove()
    select = sum(selections)
    tokens = inputs["input_ids"].shape[1]
    return {
        "what": "all tokens" if method is None else f"attach, {method}",
        "held": tokens - sum(each.n - len(each) for each in kept),
        "vision_s": watch.gap("tower begins", "tower ends"),
        "select_s": select,
        "own_s": watch.gap("decoder is called", "decoder begins") - select,
        "prefill_s": watch.gap("decoder begins", "decoder ends"),
        "prefill_peak_bytes": watch.peak,
        "total_s": total,
    }


@torch.no_grad()
def _replayed(model: Any, inputs: dict[str, torch.Tensor], echo: Echo) -> dict[str, Any]:
    """A second question on a video that was captured."""
    import floc

    video = floc.capture(model, inputs, ratio=RATIO, method=METHODS[0])
    question = {name: each for name, each in inputs.items() if name != "pixel_values_videos"}
    for _ in range(2):
        watch = _Watch(model)
        watch.before()
        with floc.replay(model, video):
            watch.after()
            started = time.perf_counter()
            model.generate(**question, max_new_tokens=1)
            wait(model.device)
            total = time.perf_counter() - started
        watch.remove()
    record = {
        "what": f"replay, {METHODS[0]}",
        "held": inputs["input_ids"].shape[1] - video.n + len(video),
        "vision_s": watch.gap("tower begins", "tower ends"),
        "select_s": 0.0,
        "own_s": watch.gap("decoder is called", "decoder begins"),
        "prefill_s": watch.gap("decoder begins", "decoder ends"),
        "prefill_peak_bytes": watch.peak,
        "total_s": total,
        "capture_s": video.made["seconds"],
    }
    echo(f"replay: {total:.3f} s in all, own {record['own_s'] * 1e3:.1f} ms; capture took {video.made['seconds']}")
    return record


@torch.no_grad()
def _steps(model: Any, inputs: dict[str, torch.Tensor], held: int, steps: int, echo: Echo) -> dict[str, Any]:
    """Seconds a step of an answer, after a shortened prompt and after a plain one of the same length, by turns."""
    import floc

    plain = {"input_ids": torch.randint(100, 100_000, (1, held), device=model.device)}
    plain["attention_mask"] = torch.ones_like(plain["input_ids"])
    video = floc.capture(model, inputs, ratio=RATIO, method=METHODS[0])
    question = {name: each for name, each in inputs.items() if name != "pixel_values_videos"}
    mine, theirs = [], []
    for _ in range(ROUNDS):
        theirs.append(_step_s(model, plain, steps))
        with floc.replay(model, video):
            mine.append(_step_s(model, question, steps))
    ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
    echo(f"a step: {statistics.median(mine) * 1e3:.2f} ms against {statistics.median(theirs) * 1e3:.2f} ms; {ratios}")
    return {"shortened_s": mine, "plain_s": theirs, "ratio": statistics.median(ratios), "held": held, "steps": steps}


def _step_s(model: Any, inputs: dict[str, torch.Tensor], steps: int) -> float:
    """Median seconds between two calls of the decoder in an answer."""
    at: list[float] = []

    def note(*_: Any) -> None:
        wait(model.device)
        at.append(time.perf_counter())

    hook = model.register_forward_hook(note)
    model.generate(**inputs, max_new_tokens=steps)
    hook.remove()
    return statistics.median(b - a for a, b in itertools.pairwise(at[1:]))


def _view(document: dict[str, Any]) -> str:
    bare = document["questions"][0]
    rows = [
        (
            each["what"],
            f"{each['held']:,}",
            f"{each['vision_s']:.2f}",
            f"{each['select_s']:.3f}",
            f"{each['own_s'] * 1e3:.1f}",
            f"{each['prefill_s']:.3f}",
            f"{bare['prefill_s'] / each['prefill_s']:.1f}x",
            f"{each['prefill_peak_bytes'] / 2**30:.1f}",
            f"{each['total_s']:.2f}",
        )
        for each in document["questions"]
    ]
    head = (
        "",
        "tokens in the decoder",
        "vision, s",
        "selection, s",
        "floc besides, ms",
        "prefill, s",
        "prefill faster",
        "peak in prefill, GiB",
        "first token, s",
    )
    steps = document["steps"]
    ratios = [a / b for a, b in zip(steps["shortened_s"], steps["plain_s"], strict=True)]
    note = (
        f"{document['model']}, random weights, {document['tokens']:,} visual tokens, {RATIO}, the second of two runs. "
        f"A step of an answer after the shortened prompt takes {statistics.median(steps['shortened_s']) * 1e3:.1f} ms, "
        f"after a plain prompt of the same length {statistics.median(steps['plain_s']) * 1e3:.1f} ms (medians of "
        f"{len(steps['plain_s'])} rounds of {steps['steps']} steps, by turns; median ratio {steps['ratio']:.3f}, "
        f"and single rounds go from {min(ratios):.2f} to {max(ratios):.2f}). {document['gpu']}, "
        f"transformers {document['transformers']}, {where(document, 'python', 'torch')}"
    )
    return f"{markdown_table(head, rows)}\n\n{note}"


TABLE = Table("answer", run, {"answer": _view})
