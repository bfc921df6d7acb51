"""Run lmms-eval offline in subprocesses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

STAND_INS = Path(__file__).parent / "stand_ins"
ON_CPU = Path(__file__).parent / "on_cpu.py"
NEEDS_TORCHCODEC = "internvl"  # the others read videos with decord
NEEDS_CUDA = "qwen3_omni_moe"
SMALL = "min_pixels=256,max_pixels=4096"
EIGHT = "max_frames=8"
# floc model -> model type, more arguments, and how lmms-eval and floc spell "8 frames"
MODELS = {
    "floc_qwen2_5_vl": ("qwen2_5_vl", SMALL, "max_num_frames=8", EIGHT),
    # here lmms-eval samples 8 of two frames per second, which floc's arguments cannot express
    "floc_qwen2_vl": ("qwen2_vl", SMALL, "max_num_frames=8", "max_num_frames=8"),
    "floc_qwen3_vl": ("qwen3_vl", SMALL, "max_num_frames=8", EIGHT),
    "floc_qwen3_5": ("qwen3_5", f"{SMALL},enable_thinking=False", "max_num_frames=8", EIGHT),
    # here lmms-eval samples at most 16 of two frames per second
    "floc_qwen3_omni": (NEEDS_CUDA, "device_map=auto,attn_implementation=sdpa", "use_cache=True", "use_cache=True"),
    "floc_internvl3": ("internvl", "max_patches=1", "num_frames=8", EIGHT),
    "floc_llava_video": ("llava_onevision", "revision=main", "max_frames_num=8", EIGHT),
}


@cache
def loads(package: str) -> bool:
    """Return whether a package can be imported."""
    process = subprocess.run([sys.executable, "-c", f"import {package}"], capture_output=True, check=False)
    return process.returncode == 0


def run(*arguments: object, kind: str, home: Path) -> str:
    """Run Python with arguments and return its output, stdout and stderr."""
    if kind == NEEDS_CUDA:
        first, code, *more = map(str, arguments)
        patch = f"import runpy; runpy.run_path({str(ON_CPU)!r})\n"
        arguments = (ON_CPU, *more) if first == "-m" else (first, patch + code, *more)
    needs_decoder = kind == NEEDS_TORCHCODEC and not loads("torchcodec")
    paths = [str(STAND_INS / "torchcodec")] if needs_decoder else []
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",  # more threads are slower for tiny models
    }
    process = subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, check=False, env=environment
    )
    return process.stdout + process.stderr


def read_samples(folder: Path) -> list[dict[str, Any]]:
    """Return the newest samples log in a folder, one dict per sample."""
    logs = sorted(folder.glob("*/*_samples_keys.jsonl"))
    return [json.loads(line) for line in logs[-1].read_text().splitlines()] if logs else []
