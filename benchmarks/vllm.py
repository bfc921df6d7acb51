"""The table "vllm": what videos cost to serve without pruning, with vLLM's own (EVS), and with FLoC at the same rate.

Three engines take turns on the same requests, each in processes of its own as vLLM starts them: Qwen2.5-VL with random
weights, full size on a GPU and a tiny one where there is none. No request finds anything of its video in a cache.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.tables import Echo, Table, where
from floc._format import markdown_table

CONTENDERS = ("none", "evs", "floc")
NAMES = {"none": "no pruning", "evs": "EVS", "floc": "FLoC"}
RATE = 0.875
SLICES, SIDE = 64, 8  # a video's slices, and the tokens along a frame
REQUESTS = 8  # at a time
ROUNDS = 7
ANSWER = 8  # tokens
SPOKEN = "FLOC "  # before what a process says to the one that asks it; all else is vLLM's log
# of the model: how vLLM chooses, and what the plugin does in a worker beside choosing
WATCHED = {
    "none": [],
    "evs": ["_postprocess_video_embeds_evs"],
    "floc": ["_add_positions", "get_mrope_input_positions", "recompute_mrope_positions"],
}
QUESTION = "<|vision_start|><|video_pad|><|vision_end|>What is it?"
SPECIAL = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<|endoftext|>")


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Let three engines answer the same questions, by turns."""
    if importlib.util.find_spec("vllm") is None:
        raise ImportError("this table needs vLLM: pip install 'floc-video[vllm]'; docs/vllm.md says how for CPUs")
    slices, rounds = (8, 2) if small else (SLICES, ROUNDS)
    has_gpu = torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        _write_model(Path(folder), has_gpu)
        engines = {each: stack.enter_context(Engine(each, Path(folder), slices)) for each in CONTENDERS}
        records: dict[str, list[dict[str, Any]]] = {each: [] for each in CONTENDERS}
        for turn in range(rounds + 1):  # the first one loads and compiles
            for name in (*CONTENDERS[turn % 3 :], *CONTENDERS[: turn % 3]):
                told = engines[name].ask(seed=turn)
                if turn:
                    records[name].append(told)
                    echo(f"{NAMES[name]}: {told['per_s']:.2f} requests/s, first token after {told['first_s']:.3f} s")
    return {
        "model": "Qwen2.5-VL-7B" if has_gpu else "tiny Qwen2.5-VL",
        "gpu": torch.cuda.get_device_name() if has_gpu else "no GPU",
        "vllm": importlib.import_module("vllm").__version__,
        "tokens": slices * SIDE * SIDE,
        "requests": REQUESTS,
        "engines": [_summary(name, records) for name in CONTENDERS],
        "own": statistics.median(each["own_ms"] for each in records["floc"]) + prompt_ms(slices),
    }


def _summary(name: str, records: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    mine = records[name]

    def against(other: str) -> dict[str, float]:
        ratios = [each["per_s"] / theirs["per_s"] for each, theirs in zip(mine, records[other], strict=True)]
        low, middle, high = np.percentile(ratios, (20, 50, 80)).tolist()
        return {"ratio": middle, "ratio_p20": low, "ratio_p80": high}

    return {
        "contender": name,
        "per_s": statistics.median(each["per_s"] for each in mine),
        "first_s": statistics.median(each["first_s"] for each in mine),
        "held": mine[0]["held"],
        "held_bytes": mine[0]["held_bytes"],
        "select_ms": statistics.median(each["select_ms"] for each in mine),
        "against_none": against("none"),
        "against_evs": against("evs"),
    }


def prompt_ms(slices: int, rounds: int = 20) -> float:
    """What the plugin does to a video's prompt before a worker sees it: count, salt, placeholders, a look at it."""
    from floc.integrations.vllm.positions import check_placeholders
    from floc.integrations.vllm.settings import Settings

    mark = 300

    def once() -> None:
        settings = Settings.from_dict({"ratio": "1/8"})
        kept = settings.count(slices * SIDE * SIDE)
        assert settings.salt
        check_placeholders([*range(10), *[mark] * kept, *range(10)], (mark, mark + 1), [(10, kept)])

    once()
    return statistics.median(_seconds(once) for _ in range(rounds)) * 1e3


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


class Engine:
    """One of the three, in a process of its own, that answers when it is asked."""

    def __init__(self, name: str, folder: Path, slices: int) -> None:
        surroundings = {
            **os.environ,
            "FLOC_VLLM": str(int(name == "floc")),
            "HF_HUB_OFFLINE": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            **({} if torch.cuda.is_available() else {"TORCHDYNAMO_DISABLE": "1"}),
        }
        command = [sys.executable, "-m", __name__, name, str(folder), str(slices)]
        self.errors = (folder / f"{name}.log").open("w+")
        self.process = subprocess.Popen(
            command,
            env=surroundings,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            start_new_session=True,  # so that it and all that it starts can be ended together
        )

    def ask(self, seed: int) -> dict[str, Any]:
        """Have a round of requests answered."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{seed}\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith(SPOKEN):
                return json.loads(line[len(SPOKEN) :])
        self.errors.seek(0)
        raise RuntimeError(f"an engine failed:\n{self.errors.read()[-4000:]}")

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        """Let it finish; at once where something went wrong, or Ctrl-C came."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(0 if any(error) else 60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.errors.close()


def _serve(name: str, folder: Path, slices: int) -> None:
    """In a process of its own: a round for every line that comes in."""
    from vllm import LLM, SamplingParams

    has_gpu = torch.cuda.is_available()
    record = folder / f"{name}.jsonl"
    llm = LLM(
        str(folder),
        load_format="dummy",
        dtype="bfloat16" if has_gpu else "float32",
        max_model_len=slices * SIDE * SIDE + 64,
        max_num_seqs=REQUESTS,
        enforce_eager=not has_gpu,
        enable_prefix_caching=False,
        mm_processor_cache_gb=0,
        limit_mm_per_prompt={"image": 0, "video": 1},
        gpu_memory_utilization=0.3,  # of three engines
        seed=0,
        video_pruning_rate=None if name == "none" else RATE,
        additional_config={"floc": {"record": str(record)}} if name == "floc" else {},
        worker_extension_cls="benchmarks.vllm_worker.Benched",
    )
    llm.collective_rpc("watch", args=(WATCHED[name],))
    text = json.loads((folder / "config.json").read_text())["text_config"]
    per_token = 2 * text["num_hidden_layers"] * text["num_key_value_heads"] * text["head_dim"] * (2 if has_gpu else 4)
    pixels = 2 * SIDE * _patch(has_gpu)
    for line in sys.stdin:
        videos = [_film(slices, pixels, seed=1000 * int(line) + each) for each in range(REQUESTS + 1)]
        asked = [{"prompt": QUESTION, "multi_modal_data": {"video": [each]}} for each in videos]
        one, answer = (SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (1, ANSWER))
        record.write_text("")
        first_s = _seconds(partial(llm.generate, asked[0], one, use_tqdm=False))
        started = time.perf_counter()
        outputs = llm.generate(asked[1:], answer, use_tqdm=False)
        seconds = time.perf_counter() - started
        held = len(outputs[0].prompt_token_ids)
        chosen = [json.loads(each)["seconds"] for each in record.read_text().splitlines()]
        (watched,) = llm.collective_rpc("watched")
        if name == "evs":
            (chosen,) = watched.values()
        told = {
            "per_s": REQUESTS / seconds,
            "first_s": first_s,
            "held": held,
            "held_bytes": held * per_token,
            "select_ms": statistics.mean(chosen) * 1e3 if chosen else 0.0,
            "own_ms": 0.0 if name == "evs" else sum(map(sum, watched.values())) / (REQUESTS + 1) * 1e3,
        }
        print(SPOKEN + json.dumps(told), flush=True)


def _film(slices: int, pixels: int, seed: int) -> tuple[np.ndarray, dict[str, Any]]:
    """A picture of noise that drifts, so that neighbours in time are alike."""
    rng = np.random.default_rng(seed)
    frames = 2 * slices
    still = rng.integers(0, 256, (2 * pixels, 2 * pixels, 3), dtype=np.uint8)
    ways = np.abs(rng.integers(-2, 3, (frames, 2)).cumsum(0)) % pixels
    film = np.stack([still[y : y + pixels, x : x + pixels] for y, x in ways])
    about = dict(fps=2.0, total_num_frames=frames, duration=frames / 2, frames_indices=[*range(frames)])
    return film, dict(about, do_sample_frames=False, video_backend="noise")


def _patch(has_gpu: bool) -> int:
    return 14 if has_gpu else 4


def _write_model(folder: Path, has_gpu: bool) -> None:
    """All files of a model but its weights, which are random."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = {each: i for i, each in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([*SPECIAL])
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIAL[-1]).save_pretrained(folder)
    ids = {each: len(letters) + i for i, each in enumerate(SPECIAL)}
    _config(has_gpu, ids).save_pretrained(folder)
    prepared = dict(
        patch_size=_patch(has_gpu),
        merge_size=2,
        temporal_patch_size=2,
        size=dict(shortest_edge=64, longest_edge=4 * SIDE**2 * _patch(has_gpu) ** 2),
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )
    files = {
        "preprocessor_config.json": dict(prepared, image_processor_type="Qwen2VLImageProcessor"),
        "video_preprocessor_config.json": dict(prepared, video_processor_type="Qwen2VLVideoProcessor"),
        "processor_config.json": {},
    }
    for name, values in files.items():
        (folder / name).write_text(json.dumps({"processor_class": "Qwen2_5_VLProcessor", **values}))


def _config(has_gpu: bool, ids: dict[str, int]) -> Any:
    import transformers

    text: dict[str, Any]
    vision: dict[str, Any]
    if has_gpu:
        text = dict(hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28)
        text |= dict(num_key_value_heads=4, head_dim=128, vocab_size=152_064)
        vision = dict(depth=32, hidden_size=1280, intermediate_size=3420, num_heads=16)
        vision["fullatt_block_indexes"] = [7, 15, 23, 31]
        sections = [16, 24, 24]
    else:
        text = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=2)
        text |= dict(num_key_value_heads=1, head_dim=32, vocab_size=512)
        vision = dict(depth=2, hidden_size=32, intermediate_size=48, num_heads=2, fullatt_block_indexes=[1])
        sections = [4, 6, 6]
    rope = dict(rope_type="default", rope_theta=1e6, mrope_section=sections)
    return transformers.Qwen2_5_VLConfig(
        architectures=["Qwen2_5_VLForConditionalGeneration"],
        text_config=dict(text, max_position_embeddings=128_000, rope_parameters=rope),
        vision_config=dict(
            vision, patch_size=_patch(has_gpu), out_hidden_size=text["hidden_size"], tokens_per_second=2
        ),
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )


def _view(document: dict[str, Any]) -> str:
    def times(record: dict[str, float]) -> str:
        return f"{record['ratio']:.2f}x ({record['ratio_p20']:.2f} to {record['ratio_p80']:.2f})"

    rows = [
        (
            NAMES[each["contender"]],
            f"{each['per_s']:.2f}",
            times(each["against_none"]),
            times(each["against_evs"]),
            f"{each['first_s'] * 1e3:.0f}",
            f"{each['held']:,}",
            f"{each['held_bytes'] / 1e6:.2f}",
            f"{each['select_ms']:.1f}" if each["select_ms"] else "",
        )
        for each in document["engines"]
    ]
    head = (
        *("", "requests/s", "against no pruning", "against EVS", "first token, ms"),
        *("tokens held", "KV cache, MB", "selection, ms"),
    )
    note = (
        f"{document['model']} with random weights in vLLM {document['vllm']}, videos of {document['tokens']:,} tokens, "
        f"pruning rate {RATE}, {document['requests']} requests at a time, {ANSWER} tokens each, by turns. KV cache: "
        f"what the tokens held take. Beyond the selection the plugin takes {document['own']:.2f} ms for a video and "
        f"its answer. {document['gpu']}, {where(document, 'python', 'torch')}"
    )
    return f"{markdown_table(head, rows)}\n\n{note}"


TABLE = Table("vllm", run, {"vllm": _view})

if __name__ == "__main__":
    _serve(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
