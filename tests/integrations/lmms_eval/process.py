"""Run lmms-eval offline in subprocesses."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

STAND_INS = Path(__file__).parent / "stand_ins"
NEEDS_TORCHCODEC = "internvl"  # the others read videos with decord
SMALL = "min_pixels=256,max_pixels=4096"
EIGHT = "max_frames=8"
# floc model -> model type, more arguments, and how lmms-eval and floc spell "8 frames"
MODELS = {
    "floc_qwen2_5_vl": ("qwen2_5_vl", SMALL, "max_num_frames=8", EIGHT),
    # here lmms-eval samples 8 of two frames per second, which floc's arguments cannot express
    "floc_qwen2_vl": ("qwen2_vl", SMALL, "max_num_frames=8", "max_num_frames=8"),
    "floc_qwen3_vl": ("qwen3_vl", SMALL, "max_num_frames=8", EIGHT),
    "floc_qwen3_5": ("qwen3_5", f"{SMALL},enable_thinking=False", "max_num_frames=8", EIGHT),
    "floc_internvl3": ("internvl", "max_patches=1", "num_frames=8", EIGHT),
    "floc_llava_video": ("llava_onevision", "revision=main", "max_frames_num=8", EIGHT),
}


@cache
def needs_stand_in(package: str) -> bool:
    """Return whether lmms-eval is installed and a package that it needs does not load."""
    if importlib.util.find_spec("lmms_eval") is None:
        return False
    process = subprocess.run([sys.executable, "-c", f"import {package}"], capture_output=True, check=False)
    return process.returncode != 0


def run(*arguments: object, kind: str, home: Path) -> str:
    """Run Python with arguments and return its output, stdout and stderr."""
    packages = ["torchvision", *(["torchcodec"] if kind == NEEDS_TORCHCODEC else [])]
    paths = [str(STAND_INS / package) for package in packages if needs_stand_in(package)]
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
