"""Table "vllm": the cost of serving videos unpruned, with vLLM's own pruning (EVS), and with floc at the same rate.

Three engines take turns on the same requests, each in processes of its own: Qwen2.5-VL with random weights, full size
on a GPU and tiny on a CPU. At each level of load an engine always has that many requests to answer: when one ends, the
next is sent. No request finds any part of its video in a cache.
"""

from __future__ import annotations

import importlib.util
import itertools
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
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import harness, models
from benchmarks.markdown import show_environment, show_records
from benchmarks.processes import child_environment
from benchmarks.registry import BenchTable, Echo
from benchmarks.vllm_model import SIDE, get_patch_size, make_video, write_model

NONE, EVS, FLOC = CONTENDERS = ("none", "evs", "floc")
NAMES = {NONE: "no pruning", EVS: "EVS", FLOC: "floc"}
RATE = 0.875
SLICES = 64  # of a video
LEVELS = (1, 4, 8, 16, 32)  # requests at a time
REQUESTS = 32  # at each level of a round; no fewer than at a time
ROUNDS = 6  # every engine is first as often as the others
ANSWER = 8  # tokens
PREFIX = "FLOC "  # of a line with results; all other lines are vLLM's log
SELECTION = {EVS: "_postprocess_video_embeds_evs", FLOC: "select_in_ranks"}  # what to time in a worker
OWN_WORK = ("_add_positions", "get_mrope_input_positions", "recompute_mrope_positions")  # besides, of the plugin
QUESTION = "<|vision_start|><|video_pad|><|vision_end|>What is it?"


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Let three engines answer the same questions in turn."""
    if importlib.util.find_spec("vllm") is None:
        raise ImportError(
            "this table needs vLLM: pip install 'floc-video[vllm]'; docs/guides/vllm.md says how for CPUs"
        )
    slices, rounds, count, levels = (8, 2, 4, (1, 4)) if small else (SLICES, ROUNDS, REQUESTS, LEVELS)
    has_gpu = torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        write_model(Path(folder), has_gpu)
        engines = {name: stack.enter_context(EngineProcess(name, Path(folder), slices)) for name in CONTENDERS}
        for name in CONTENDERS:  # load and compile
            engines[name].ask(seed=0, level=4, count=4)
        records: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for turn, level in itertools.product(range(rounds), levels):
            for name in (*CONTENDERS[turn % 3 :], *CONTENDERS[: turn % 3]):
                record = engines[name].ask(seed=len(LEVELS) * turn + level + 1, level=level, count=max(count, level))
                records.setdefault((name, level), []).append(record)
                numbers = f"{record['per_s']:.2f} requests/s, {record['cpu_ms']:.1f} ms of CPU time each"
                echo(f"{NAMES[name]}, {level} at a time: {numbers}")
    return {
        "model": models.FULL_NAME if has_gpu else models.TINY_NAME,
        "gpu": harness.get_gpu_name() or "no GPU",
        "vllm": importlib.import_module("vllm").__version__,
        "tokens": slices * SIDE * SIDE,
        "rounds": rounds,
        "requests": count,
        "engines": [_summarize(name, level, records) for level in levels for name in CONTENDERS],
        "own": statistics.median(record["own_ms"] for level in levels for record in records[FLOC, level]),
    }


def _summarize(name: str, level: int, records: dict[tuple[str, int], list[dict[str, Any]]]) -> dict[str, Any]:
    ours = records[name, level]

    def compare(other: str, figure: Callable[[dict[str, Any]], float]) -> dict[str, float]:
        ratios = [figure(record) / figure(theirs) for record, theirs in zip(ours, records[other, level], strict=True)]
        low, middle, high = np.percentile(ratios, (20, 50, 80)).tolist()
        return {"ratio": middle, "ratio_p20": low, "ratio_p80": high}

    def get_rate(record: dict[str, Any]) -> float:
        return record["per_s"]

    def get_cpu_rate(record: dict[str, Any]) -> float:
        return 1 / record["cpu_ms"]

    first_s = [seconds for record in ours for seconds in record["first_s"]]
    return {
        "contender": name,
        "level": level,
        "per_s": statistics.median(record["per_s"] for record in ours),
        "first_s_p50": float(np.percentile(first_s, 50)),
        "first_s_p99": float(np.percentile(first_s, 99)),
        "held": ours[0]["held"],
        "held_bytes": ours[0]["held_bytes"],
        "select_ms": statistics.median(record["select_ms"] for record in ours),
        "cpu_ms": statistics.median(record["cpu_ms"] for record in ours),
        "against_none": compare(NONE, get_rate),
        "against_evs": compare(EVS, get_rate),
        "cpu_against_evs": compare(EVS, get_cpu_rate),
    }


class EngineProcess:
    """One of the three engines, in a process of its own."""

    def __init__(self, name: str, folder: Path, slices: int) -> None:
        environment = {
            **child_environment(),  # vLLM's workers inherit it and find benchmarks.vllm_worker
            "FLOC_VLLM": str(int(name == FLOC)),
            "HF_HUB_OFFLINE": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            **({} if torch.cuda.is_available() else {"TORCHDYNAMO_DISABLE": "1"}),
        }
        command = [sys.executable, "-m", "benchmarks.tables.vllm", name, str(folder), str(slices)]
        self.errors = (folder / f"{name}.log").open("w+")
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            start_new_session=True,  # so that it and its workers can be ended together
        )

    def ask(self, seed: int, level: int, count: int) -> dict[str, Any]:
        """Let the engine answer `count` requests, `level` at a time."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{seed} {level} {count}\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith(PREFIX):
                return json.loads(line[len(PREFIX) :])
        self.errors.seek(0)
        raise RuntimeError(f"an engine failed:\n{self.errors.read()[-4000:]}")

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, *error: object) -> None:
        """Let the engine finish; kill it at once after an error or Ctrl-C."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(0 if any(error) else 60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.errors.close()


def _serve(name: str, folder: Path, slices: int) -> None:
    """Answer requests per line of stdin: their seed, how many at a time, and how many."""
    from vllm import LLM

    has_gpu = torch.cuda.is_available()
    timed = [SELECTION[name]] if name in SELECTION else []
    llm = LLM(
        str(folder),
        load_format="dummy",
        dtype="bfloat16" if has_gpu else "float32",
        max_model_len=slices * SIDE * SIDE + 64,
        max_num_seqs=max(LEVELS),
        block_size=32,
        # all that fits the requests at a time: the whole cache would be filled with zeros
        num_gpu_blocks_override=None if has_gpu else max(LEVELS) * (slices * SIDE * SIDE + 96) // 32,
        enforce_eager=not has_gpu,
        enable_prefix_caching=False,
        mm_processor_cache_gb=0,
        limit_mm_per_prompt={"image": 0, "video": 1},
        gpu_memory_utilization=0.3,  # three engines share the GPU
        seed=0,
        video_pruning_rate=None if name == NONE else RATE,
        worker_extension_cls="benchmarks.vllm_worker.WorkerExtension",
    )
    llm.collective_rpc("start_timing", args=([*timed, *OWN_WORK] if name == FLOC else timed,))
    text = json.loads((folder / "config.json").read_text())["text_config"]
    token_bytes = 2 * text["num_hidden_layers"] * text["num_key_value_heads"] * text["head_dim"] * (2 if has_gpu else 4)
    pixels = 2 * SIDE * get_patch_size(has_gpu)
    for line in sys.stdin:
        seed, level, count = map(int, line.split())
        videos = [make_video(slices, pixels, seed=1000 * seed + number) for number in range(count)]
        prompts = [{"prompt": QUESTION, "multi_modal_data": {"video": [video]}} for video in videos]
        started, cpu_started = time.perf_counter(), _measure_cpu_seconds(llm)
        first_s, held = _answer(llm.llm_engine, prompts, level, seed)
        seconds, cpu_seconds = time.perf_counter() - started, _measure_cpu_seconds(llm) - cpu_started
        (timings,) = llm.collective_rpc("pop_timings")
        select_s = timings.pop(SELECTION[name]) if name in SELECTION else []
        record = {
            "per_s": count / seconds,
            "cpu_ms": cpu_seconds / count * 1e3,
            "first_s": first_s,
            "held": held,
            "held_bytes": held * token_bytes,
            "select_ms": statistics.median(select_s) * 1e3 if select_s else 0.0,
            "own_ms": sum(map(sum, timings.values())) / count * 1e3,
        }
        print(PREFIX + json.dumps(record), flush=True)


def _measure_cpu_seconds(llm: Any) -> float:
    """Return the CPU time so far of this process, and of the one that runs the model."""
    return time.process_time() + sum(llm.collective_rpc("measure_cpu_seconds"))


def _answer(engine: Any, prompts: list[dict[str, Any]], level: int, seed: int) -> tuple[list[float], int]:
    """Answer all prompts, `level` at a time; return the seconds to each first token, and the length of a prompt."""
    from vllm import SamplingParams

    waiting, sent = list(enumerate(prompts)), dict[str, float]()
    first_s: dict[str, float] = {}
    running = held = 0
    while waiting or running:
        while waiting and running < level:
            number, prompt = waiting.pop(0)
            name = f"{seed} {number}"
            sent[name] = time.perf_counter()
            engine.add_request(name, prompt, SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True))
            running += 1
        for output in engine.step():
            if output.outputs[0].token_ids:
                first_s.setdefault(output.request_id, time.perf_counter() - sent[output.request_id])
            if output.finished:
                held = len(output.prompt_token_ids)
                running -= 1
    return [*first_s.values()], held


def _show(document: dict[str, Any]) -> str:
    def show_ratio(record: dict[str, float]) -> str:
        return f"{record['ratio']:.2f}x ({record['ratio_p20']:.2f} to {record['ratio_p80']:.2f})"

    columns = {
        "requests at a time": lambda row: f"{row['level']}",
        "": lambda row: NAMES[row["contender"]],
        "requests/s": lambda row: f"{row['per_s']:.2f}",
        "ratio to no pruning": lambda row: show_ratio(row["against_none"]),
        "ratio to EVS": lambda row: show_ratio(row["against_evs"]),
        "CPU time of a request, ms": lambda row: f"{row['cpu_ms']:.1f}",
        "ratio to EVS in CPU time": lambda row: show_ratio(row["cpu_against_evs"]),
        "first token, p50, ms": lambda row: f"{row['first_s_p50'] * 1e3:.0f}",
        "p99, ms": lambda row: f"{row['first_s_p99'] * 1e3:.0f}",
        "tokens held": lambda row: f"{row['held']:,}",
        "KV cache, MB": lambda row: f"{row['held_bytes'] / 1e6:.2f}",
        "selection, ms": lambda row: f"{row['select_ms']:.1f}" if row["select_ms"] else "",
    }
    note = (
        f"{document['model']} with random weights in vLLM {document['vllm']}, videos of {document['tokens']:,} tokens, "
        f"pruning rate {RATE}, {ANSWER} tokens each, {document['requests']} requests a round, {document['rounds']} "
        "rounds in turn. Ratios: of requests/s, or of requests in a second of CPU time, in a round. KV cache: of the "
        "tokens held. Besides the selection, the "
        f"plugin takes {document['own']:.2f} ms for a video and its answer. {document['gpu']},"
    )
    return show_records(document["engines"], columns, note, show_environment(document, "python", "torch"))


TABLE = BenchTable("vllm", run, {"vllm": _show}, is_optional=True)

if __name__ == "__main__":
    _serve(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
