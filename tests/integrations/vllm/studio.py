"""Tiny models in folders, engines and a server that run them in processes of their own, and what those said."""

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
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.integrations.vllm import tiny

ROOT = Path(__file__).parents[3]
RATIO = "1/8"
LONG = ["Look: ", ["video", 32, 48, 48, 2.0], "What is it, and what is behind it?"]
JOBS = {
    "one": LONG,
    "again": LONG,
    "other question": [*LONG[:2], "And who?"],
    "two videos, two pictures": [
        *("a", ["image", 32, 48], "b", ["video", 8, 48, 32, 4.0], "c"),
        *(["video", 12, 32, 48, 1.0], "d", ["image", 48, 32], "?"),
    ],
    "slow": ["Here: ", ["video", 20, 32, 48, 0.05], "?"],
    "stray": ["Say <|image_pad|>: ", ["video", 8, 48, 32, 4.0], "?"],
    "text": ["Hello."],
}
STAMPED_JOBS = {name: JOBS[name] for name in ("one", "again", "other question", "two videos, two pictures", "text")}
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",  # a model as small as this runs sooner than it is compiled
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}


class Studio:
    """Models in folders, and what engines said of them."""

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
        """Run an engine, in processes of its own or not, with what it is told beyond the usual."""
        (answers,) = self.ask_all(name, kind, jobs, [engine], processes=processes, together=together)
        return answers

    def ask_all(
        self,
        name: str,
        kind: str,
        jobs: dict[str, Any],
        engines: list[dict[str, Any]],
        *,
        processes: bool = False,
        together: bool = False,
    ) -> list[Answers]:
        """Run engines beside each other, and ask each one thing after the other, or all at once."""
        spoken = [self.folder / f"{name}.{number}.jsonl" for number in range(len(engines))]
        usual = {
            "model": str(self.model(kind)),
            "dtype": "float32",
            "max_model_len": 1024,
            "block_size": 32,
            "enforce_eager": True,
            "limit_mm_per_prompt": {"image": 2, "video": 2},
        }
        told = []
        for record, more in zip(spoken, engines, strict=True):
            record.touch()
            engine = {**usual, "additional_config": {"floc": {"ratio": RATIO}}, **more}
            engine["additional_config"] = {
                part: {**settings, "record": str(record)} for part, settings in engine["additional_config"].items()
            }
            told.append(engine)
        asked, answered = self.folder / f"{name}.asked.json", self.folder / f"{name}.json"
        wanted = {"engines": told, "watch": not processes, "together": together, "jobs": [*jobs.items()]}
        asked.write_text(json.dumps(wanted))
        surroundings = {**os.environ, **QUIET, "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(processes))}
        command = [sys.executable, "-m", "tests.integrations.vllm.engine", str(asked), str(answered)]
        done = subprocess.run(command, cwd=ROOT, env=surroundings, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
        return [
            Answers(said, [json.loads(each) for each in record.read_text().splitlines()])
            for said, record in zip(json.loads(answered.read_text()), spoken, strict=True)
        ]

    @cached_property
    def whole(self) -> Answers:
        return self.ask("whole", "qwen2_5_vl", JOBS)

    @cached_property
    def stamped(self) -> Answers:
        return self.ask("stamped", "qwen3_vl", STAMPED_JOBS)


class Answers:
    """What an engine said, and what was kept of each video that it saw for the first time."""

    def __init__(self, said: list[dict[str, Any]], kept: list[dict[str, Any]]) -> None:
        self.said = {each["name"]: each for each in said}
        self.kept = kept

    def positions(self, name: str) -> list[tuple[int, ...]]:
        """Of the tokens that were read, and of those that the answer has, in order."""
        return [column for call in self.said[name]["positions"] for column in zip(*call, strict=True)]

    def first(self, name: str) -> dict[str, float]:
        return self.said[name]["logprobs"][0]


@contextmanager
def served(studio: Studio) -> Iterator[str]:
    """The address of a server, for as long as it is asked."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address, log = f"http://127.0.0.1:{port}", studio.folder / "serve.log"
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(studio.model("qwen2_5_vl"))),
        *("--video-pruning-rate", "0.875", "--port", str(port)),
        *("--served-model-name", "tiny", "--max-model-len", "1024", "--enforce-eager", "--host", "127.0.0.1"),
    ]
    with log.open("w") as file:
        surroundings = {**os.environ, **QUIET, "FLOC_VLLM": "1", "VLLM_LOGGING_LEVEL": "INFO"}
        server = subprocess.Popen(command, env=surroundings, stdout=file, stderr=subprocess.STDOUT)
        try:
            until = time.monotonic() + 240
            while not _answers(f"{address}/health"):
                assert server.poll() is None, log.read_text()[-8000:]
                assert time.monotonic() < until, log.read_text()[-8000:]
                time.sleep(1)
            yield address
        finally:
            server.terminate()
            server.wait(60)


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False
