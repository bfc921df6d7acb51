"""Runs of lmms-eval, each a process of its own, offline."""

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
NEEDS_TORCHCODEC = "internvl"  # the others read films with decord
SMALL = "min_pixels=256,max_pixels=4096"
EIGHT = "max_frames=8"
# of each of our models: the kind of model it is, what else it is told, and 8 frames in words of lmms-eval and in ours
MODELS = {
    "floc_qwen2_5_vl": ("qwen2_5_vl", SMALL, "max_num_frames=8", EIGHT),
    # lmms-eval thins out two frames a second here, and not the film, so there are no words of ours for its eight
    "floc_qwen2_vl": ("qwen2_vl", SMALL, "max_num_frames=8", "max_num_frames=8"),
    "floc_qwen3_vl": ("qwen3_vl", SMALL, "max_num_frames=8", EIGHT),
    "floc_internvl3": ("internvl", "max_patches=1", "num_frames=8", EIGHT),
    "floc_llava_video": ("llava_onevision", "revision=main", "max_frames_num=8", EIGHT),
}


@cache
def is_stood_in_for(package: str) -> bool:
    """Whether a package is there, or not needed, but does not load."""
    if importlib.util.find_spec("lmms_eval") is None:
        return False
    tried = subprocess.run([sys.executable, "-c", f"import {package}"], capture_output=True, check=False)
    return tried.returncode != 0


def run(*arguments: object, kind: str, home: Path) -> str:
    """What a Python process says on both streams."""
    packages = ["torchvision", *(["torchcodec"] if kind == NEEDS_TORCHCODEC else [])]
    places = [str(STAND_INS / each) for each in packages if is_stood_in_for(each)]
    surroundings = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*places, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",  # with models as small as these, threads only wait for one another
    }
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, check=False, env=surroundings
    )
    return done.stdout + done.stderr


def samples(folder: Path) -> list[dict[str, Any]]:
    """What lmms-eval logged of each sample, the last time that it wrote there."""
    logs = sorted(folder.glob("*/*_samples_keys.jsonl"))
    return [json.loads(line) for line in logs[-1].read_text().splitlines()] if logs else []
