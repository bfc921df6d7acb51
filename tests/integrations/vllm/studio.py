"""Tiny models, and engines and a server that run them in subprocesses."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.integrations.vllm import tiny

ROOT = Path(__file__).parents[3]
RATIO = "1/8"
BLOCKS = 512  # of the KV cache: enough for all requests at once; vLLM would fill a gigabyte with zeros
LONG = ["Look: ", ["video", 32, 48, 48, 2.0], "What is it, and what is behind it?"]
JOBS = {
    "one": LONG,
    "again": LONG,
    "other question": [*LONG[:2], "And who?"],
    "two videos, two images": [
        *("a", ["image", 32, 48], "b", ["video", 8, 48, 32, 4.0], "c"),
        *(["video", 12, 32, 48, 1.0], "d", ["image", 48, 32], "?"),
    ],
    "slow": ["Here: ", ["video", 20, 32, 48, 0.05], "?"],
    "stray": ["Say <|image_pad|>: ", ["video", 8, 48, 32, 4.0], "?"],
    "text": ["Hello."],
}
STAMPED_JOBS = {name: JOBS[name] for name in ("one", "again", "other question", "two videos, two images", "text")}
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",  # compiling takes longer than running a tiny model
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}


class Studio:
    """A folder of tiny models, and the answers of engines that ran them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def model(self, kind: str) -> Path:
        folder = self.folder / kind
        return folder if folder.exists() else tiny.write(kind, folder)

    def ask(
        self,
        name: str,
        kind: str,
        jobs: dict[str, Any],
        *,
        processes: bool = False,
        together: bool = False,
        **engine: Any,
    ) -> Answers:
        """Run one engine with more arguments than the defaults. `processes`: let vLLM start its own processes."""
        return self.ask_all(name, kind, jobs, {name: engine}, processes=processes, together=together)[name]

    def ask_all(
        self,
        name: str,
        kind: str,
        jobs: dict[str, Any],
        engines: dict[str, dict[str, Any]],
        *,
        processes: bool = False,
        together: bool = False,
    ) -> dict[str, Answers]:
        """Run several engines in one process. Send the jobs one by one, or all at once if `together`.

        Besides vLLM's arguments an engine may have `together`, `kind`, the model if it has another one, and `jobs`, the
        names of those that it gets.
        """
        records = [self.folder / f"{name}.{number}.jsonl" for number in range(len(engines))]
        defaults = {
            "model": str(self.model(kind)),
            "dtype": "float32",
            "max_model_len": 1024,
            "block_size": 32,
            "num_gpu_blocks_override": BLOCKS,
            "enforce_eager": True,
            "limit_mm_per_prompt": {"image": 2, "video": 2},
        }
        arguments = []
        for record, more in zip(records, engines.values(), strict=True):
            record.touch()
            engine = {**defaults, "additional_config": {"floc": {"ratio": RATIO}}, **more}
            if "kind" in engine:
                engine["model"] = str(self.model(engine.pop("kind")))
            engine["additional_config"] = {
                part: {**settings, "record": str(record)} for part, settings in engine["additional_config"].items()
            }
            arguments.append(engine)
        request_file, answer_file = self.folder / f"{name}.asked.json", self.folder / f"{name}.json"
        request = {"engines": arguments, "watch": not processes, "together": together, "jobs": [*jobs.items()]}
        request_file.write_text(json.dumps(request))
        environment = {**os.environ, **QUIET, "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(processes))}
        command = [sys.executable, "-m", "tests.integrations.vllm.engine", str(request_file), str(answer_file)]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
        answers = json.loads(answer_file.read_text())
        return {
            engine: Answers(answered, [json.loads(line) for line in record.read_text().splitlines()])
            for engine, answered, record in zip(engines, answers, records, strict=True)
        }


class Answers:
    """The answers of an engine by job, and the record of each video that it compressed."""

    def __init__(self, answers: list[dict[str, Any]], kept: list[dict[str, Any]]) -> None:
        self.by_job = {answer["name"]: answer for answer in answers}
        self.kept = kept

    def positions(self, name: str) -> list[tuple[int, ...]]:
        """Return the positions of the prompt tokens and the answer tokens, in order."""
        return [column for call in self.by_job[name]["positions"] for column in zip(*call, strict=True)]

    def first_logprobs(self, name: str) -> dict[str, float]:
        return self.by_job[name]["logprobs"][0]


@contextmanager
def serve(studio: Studio, *arguments: str, model: Path | None = None) -> Iterator[str]:
    """Run `vllm serve` with more arguments and yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    trust = [] if version("vllm-cpu").startswith("0.30.") else ["--trust-request-mm-kwargs"]  # needed since 0.31
    address, log = f"http://127.0.0.1:{port}", studio.folder / "serve.log"
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model or studio.model("qwen2_5_vl"))),
        *("--video-pruning-rate", "0.875", "--port", str(port)),
        *trust,
        *("--served-model-name", "tiny", "--max-model-len", "1024", "--enforce-eager", "--host", "127.0.0.1"),
        *arguments,
    ]
    with log.open("w") as file:
        environment = {**os.environ, **QUIET, "FLOC_VLLM": "1", "VLLM_LOGGING_LEVEL": "INFO"}
        server = subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + 600
            while not _is_up(f"{address}/health"):
                assert server.poll() is None, log.read_text()[-8000:]
                assert time.monotonic() < deadline, log.read_text()[-8000:]
                time.sleep(1)
            yield address
        finally:
            server.terminate()
            server.wait(60)


def _is_up(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as response:
            return response.status == 200
    except OSError:
        return False
