"""Build the command of a run: lmms-eval with a model of `floc.integrations.lmms_eval`, on some GPUs."""

import importlib.util
import itertools
import math
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from floc import methods as registry
from floc.evaluation.plan import FULL, EvalRun

# (run, output folder, GPUs; none: the CPU) -> command
CommandBuilder = Callable[[EvalRun, Path, Sequence[str]], list[str]]
# qwen_vl_utils shrinks the frames of a video with more tokens than this share of MODEL_SEQ_LEN; the default of that
VIDEO_SHARE, DEFAULT_SEQ_LEN = 0.9, 128_000


def check_lmms_eval() -> None:
    """Raise ImportError if lmms-eval is not installed."""
    if importlib.util.find_spec("lmms_eval") is None:
        raise ImportError("floc eval needs lmms-eval: pip install 'floc-video[eval]'")


def build_command(run: EvalRun, folder: Path, gpus: Sequence[str]) -> list[str]:
    """Return the command that executes a run with lmms-eval and writes its results to a folder."""
    length = math.ceil(run.video_model.count_tokens(run.max_frames) / VIDEO_SHARE)
    return [
        *(["env", f"MODEL_SEQ_LEN={length}"] if length > DEFAULT_SEQ_LEN else []),
        *(sys.executable, "-m", "lmms_eval"),
        *("--model", run.video_model.lmms_model, "--model_args", _format_arguments(run, gpus)),
        *("--tasks", run.task, "--batch_size", "1", "--output_path", str(folder), "--log_samples"),
        *([] if run.limit is None else ["--limit", str(run.limit)]),
        *([] if gpus else ["--device", "cpu"]),
        *shlex.split(run.lmms),
    ]


def _format_arguments(run: EvalRun, gpus: Sequence[str]) -> str:
    arguments: dict[str, object] = {"pretrained": run.weights}
    arguments |= {"ratio": run.ratio} if run.budget is None else {"budget": run.budget}
    if run.method != FULL:
        spec = registry.parse(run.method)
        arguments["method"] = run.method
        if run.block is not None and "block" not in spec.options:
            arguments["block"] = run.block
        # Some methods cannot reach every ratio as published, but the paper has their numbers. Let them go as low as
        # they can: an error on one short video would end the run. strict=true excludes widen.
        lenient = ["nearest"] if spec.options.get("strict") else ["widen", "nearest"]
        allowed = registry.list_options(spec.method)
        arguments |= {name: "true" for name in lenient if name in allowed and name not in spec.options}
    arguments["max_frames"] = run.max_frames
    if run.fps is not None:
        arguments["fps"] = f"{run.fps:g}"
    if len(gpus) != 1:
        arguments["device_map"] = "auto" if gpus else "cpu"
    arguments |= run.video_model.arguments
    for name, value in arguments.items():
        if "," in str(value):
            raise ValueError(f"{name}={value}: lmms-eval does not support commas in model arguments; rename or move it")
    return ",".join(f"{name}={value}" for name, value in arguments.items())


def parse_gpus(text: str | None) -> list[str]:
    """Parse --gpus into the GPUs of each worker. The default is one worker per visible GPU, or one without a GPU.

    >>> parse_gpus("0+1,2")
    ['0+1', '2']
    """
    if text is None:
        import torch

        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is None:
            return [str(number) for number in range(torch.cuda.device_count())] or [""]
        names = [name.strip() for name in visible.split(",")]
        return [*itertools.takewhile(lambda name: name not in ("", "-1"), names)] or [""]  # CUDA's own rule
    workers = [name.strip() for name in text.split(",") if name.strip()]
    names = [name for worker in workers for name in worker.split("+")]
    if not workers or "" in names or len(set(names)) < len(names):
        raise ValueError(f"--gpus must name each GPU once, such as 0,1 or 0+1,2+3; got {text!r}")
    return workers


def split_gpus(worker: str) -> list[str]:
    """Return the GPUs of a worker: "0+1" has two, "" has none."""
    return [name for name in worker.split("+") if name]
