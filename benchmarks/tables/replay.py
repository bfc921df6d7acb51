"""Table "replay": what a request about a stored video costs in vLLM, besides reading it and besides the decoder.

One engine with embeddings of full width answers about videos that it has not seen, then about the same ones again. Its
own work is all that the plugin does for such a request: find the video, check it, make an item of vLLM of it, and give
its tokens their positions in the worker.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import harness
from benchmarks.markdown import show_environment, show_records
from benchmarks.models import FULL_SECTIONS, make_config
from benchmarks.registry import BenchTable, Echo
from benchmarks.vllm_model import SIDE, write_model
from floc.captured.captured import Captured
from floc.captured.identity import Identity
from floc.families.processing import VideoPreparer
from floc.video.choice import VideoFacts

WIDTH = 3584  # of an embedding, as in Qwen2.5-VL 7B
SLICES = {"file, 1/8 of 4,096 tokens": 64, "file, 1/8 of 32,768 tokens": 512, "store, 1/8 of 4,096 tokens": 64}
ROUNDS = 9
PROMPT = "<|vision_start|><|video_pad|><|vision_end|>What is it?"


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Ask about stored videos that are new to an engine, then again."""
    for package, extra in (("vllm", "vllm"), ("lance", "store")):
        if importlib.util.find_spec(package) is None:
            raise ImportError(f"this table needs {package}: pip install 'floc-video[{extra}]'; see docs/guides/vllm.md")
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "TORCHDYNAMO_DISABLE": "1"}
    rounds = 2 if small else ROUNDS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model").mkdir()
        _write_model(folder / "model")
        seconds = _time_calls()
        llm = _start_engine(folder, max(SLICES.values()))
        rows = []
        for kind, slices in SLICES.items():
            addresses = _write_videos(folder, kind, slices, rounds + 1)
            time.sleep(2.1)  # the server trusts the time of a file's last change after two seconds
            first, again = ([_ask(llm, seconds, address) for address in addresses][1:] for _ in range(2))
            medians = {part: statistics.median(record[part] for record in first) for part in first[0]}
            row: dict[str, Any] = {"kind": kind, "bytes": slices * SIDE**2 // 8 * WIDTH * 2, **medians}
            row["again"] = statistics.median(record["own"] for record in again)
            rows.append(row)
            echo(
                f"{kind}: read in {row['read'] * 1e3:.1f} ms, hash {row['hash'] * 1e3:.1f}, own {row['own'] * 1e3:.1f}"
            )
    version = importlib.import_module("vllm").__version__
    return {"rows": rows, "rounds": rounds, "vllm": version, "gpu": harness.get_gpu_name() or "no GPU"}


def _write_model(folder: Path) -> None:
    """Write a model with one narrow layer, whose embeddings have the width of a real one."""
    import transformers

    write_model(folder, has_gpu=False)
    ids = transformers.AutoConfig.from_pretrained(folder)
    text = dict(hidden_size=WIDTH, intermediate_size=96, num_hidden_layers=1, num_attention_heads=28)
    text |= dict(num_key_value_heads=4, head_dim=128, vocab_size=512)
    vision = dict(depth=1, hidden_size=32, intermediate_size=48, num_heads=2, fullatt_block_indexes=[0], patch_size=4)
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    more = {name: getattr(ids, name) for name in names}
    config = make_config(text, vision, FULL_SECTIONS, architectures=["Qwen2_5_VLForConditionalGeneration"], **more)
    config.save_pretrained(folder)


def _start_engine(folder: Path, slices: int) -> Any:
    from vllm import LLM

    return LLM(
        str(folder / "model"),
        load_format="dummy",
        dtype="bfloat16",
        max_model_len=slices * SIDE * SIDE + 64,
        enforce_eager=True,
        limit_mm_per_prompt={"image": 0, "video": 1},
        additional_config={"floc": {"ratio": "1/8", "stored": [str(folder)]}},
    )


def _write_videos(folder: Path, kind: str, slices: int, count: int) -> list[str]:
    """Write stored videos of noise; return their addresses."""
    import transformers

    from floc.archive.store import Store

    model = folder / "model"
    identity = Identity.from_checkpoint(transformers.AutoConfig.from_pretrained(model), lambda *weight: None)
    preparer = VideoPreparer(transformers.AutoProcessor.from_pretrained(model))
    pixels, frames = SIDE * 8, 2 * slices
    record = preparer.record(preparer.plan_frames(VideoFacts(frames, 2.0, pixels, pixels), np.arange(frames)))
    store = Store(folder / "archive", create=True)
    addresses = []
    for seed in range(count):
        rng = torch.Generator().manual_seed(seed)
        n = slices * SIDE**2
        features = torch.randn(n // 8, WIDTH, generator=rng).bfloat16()
        indices = torch.randperm(n, generator=rng)[: n // 8].sort().values
        gains, times = torch.linspace(1, 0, n // 8, dtype=torch.float64), np.arange(slices, dtype=np.float64)
        made = {"method": "floc", "preparation": record.as_dict()}
        arrays = (features, indices, torch.arange(n // 8), gains, ())
        video = Captured(*arrays, (slices, SIDE, SIDE), identity, made, True, times, times + 0.5, 2, 2.0, float(slices))
        if kind.startswith("store"):
            addresses.append(f"floc://archive/{store.add(video, uri=f'{seed}.mp4').id}")
        else:
            video.save(folder / f"{slices}-{seed}.floc")
            addresses.append(f"floc://{slices}-{seed}.floc")
    return addresses


def _time_calls() -> dict[str, float]:
    """Time the parts of the plugin's work from now on; return the seconds of CPU time of each part."""
    from floc.archive.store import Store
    from floc.integrations.vllm import stored, stored_hooks

    seconds: dict[str, float] = defaultdict(float)
    running: set[str] = set()
    timed: list[tuple[Any, str, str]] = [
        (stored_hooks.StoredPromptMixin, "_find", "find"),
        (stored_hooks.StoredPromptMixin, "_load", "load"),
        (stored_hooks.StoredTokensMixin, "embed_multimodal", "embed"),
        (stored.hashlib, "file_digest", "hash"),
        (stored, "load", "read"),
        (Store, "find", "read"),
        (Store, "open", "read"),
    ]
    for owner, name, part in timed:
        setattr(owner, name, _time_part(getattr(owner, name), seconds, running, part))
    return seconds


def _time_part(call: Callable[..., Any], seconds: dict[str, float], running: set[str], part: str) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        if part in running:  # one timed call made another
            return call(*args, **kwargs)
        running.add(part)
        started = time.thread_time()  # other processes do not count
        try:
            return call(*args, **kwargs)
        finally:
            seconds[part] += time.thread_time() - started
            running.remove(part)

    return timed


def _ask(llm: Any, seconds: dict[str, float], address: str) -> dict[str, float]:
    """Ask about a video; return the seconds of reading it, hashing it, and the plugin's own work."""
    from vllm import SamplingParams

    from floc.integrations.vllm import name_stored_video

    seconds.clear()
    prompt = {"prompt": PROMPT, "multi_modal_data": {"video": name_stored_video(address)}}
    llm.generate(prompt, SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
    total = seconds["find"] + seconds["load"] + seconds["embed"]
    return {"read": seconds["read"], "hash": seconds["hash"], "own": total - seconds["read"] - seconds["hash"]}


def _show(document: dict[str, Any]) -> str:
    def show(part: str) -> Callable[[Any], str]:
        return lambda row: f"{row[part] * 1e3:.1f}"

    columns = {
        "": lambda row: row["kind"],
        "size, MB": lambda row: f"{row['bytes'] / 1e6:.1f}",
        "read, ms": show("read"),
        "hash, ms": show("hash"),
        "own work, ms": show("own"),
        "own work for a repeated video, ms": show("again"),
    }
    note = (
        f"CPU time, medians of {document['rounds']} videos that are new to the engine, tokens of {WIDTH:,} values in "
        "bfloat16. Read: with all checks of the file. Hash: once for as long as the file does not change. "
        f"vLLM {document['vllm']}, {document['gpu']},"
    )
    return show_records(document["rows"], columns, note, show_environment(document, "python", "torch"))


TABLE = BenchTable("replay", run, {"replay": _show})
