"""The command that runs a cell: lmms-eval, with a model that `floc.integrations.lmms_eval` adds to it."""

from __future__ import annotations

import importlib.util
import math
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from floc import methods as registry
from floc.evaluation.plan import FULL, Cell

# (cell, folder for what it writes, GPUs it has, none: the CPU) -> what to run
Command = Callable[[Cell, Path, Sequence[str]], list[str]]
# qwen_vl_utils bounds the tokens of a film by MODEL_SEQ_LEN, of which it leaves a tenth for text
FILM_SHARE, SEQ_LEN = 0.9, 128_000


def lmms(cell: Cell, folder: Path, gpus: Sequence[str]) -> list[str]:
    """The command of lmms-eval."""
    limit = [] if cell.limit is None else ["--limit", str(cell.limit)]
    return [
        *_environment(cell),
        *(sys.executable, "-m", "lmms_eval"),
        *("--model", cell.told.runs_as, "--model_args", _arguments(cell, gpus)),
        *("--tasks", cell.task, "--batch_size", "1", "--output_path", str(folder), "--log_samples"),
        *limit,
        *([] if gpus else ["--device", "cpu"]),
        *shlex.split(cell.lmms),
    ]


def gpus_of(process: str) -> list[str]:
    """The GPUs of a process: "0+1" has two, "" has none."""
    return [each for each in process.split("+") if each]


def require_lmms_eval() -> None:
    """Complain where lmms-eval is not installed."""
    if importlib.util.find_spec("lmms_eval") is None:
        raise ImportError("floc eval needs lmms-eval: pip install 'floc-video[eval]'")


def _environment(cell: Cell) -> list[str]:
    """Room for the tokens of a long film, where a model's reader would make its frames smaller."""
    most = cell.told.most_tokens(cell.max_frames)
    return ["env", f"MODEL_SEQ_LEN={math.ceil(most / FILM_SHARE)}"] if most > SEQ_LEN * FILM_SHARE else []


def _lenient(method: str) -> list[str]:
    """The options of a method by which it goes as low as it can, where its own program could not go down to a budget.

    The paper has such numbers, and one short film would end a cell.
    """
    spec = registry.parse(method)
    wanted = ["nearest"] if spec.options.get("strict") else ["widen", "nearest"]  # strict is the program to the letter
    return [name for name in wanted if name in registry.options(spec.method) and name not in spec.options]


def _arguments(cell: Cell, gpus: Sequence[str]) -> str:
    given: dict[str, object] = {"pretrained": cell.weights}
    given |= {"ratio": cell.ratio} if cell.budget is None else {"budget": cell.budget}
    if cell.method != FULL:
        given["method"] = cell.method
        if cell.block is not None and "block" not in registry.parse(cell.method).options:
            given["block"] = cell.block
        given |= dict.fromkeys(_lenient(cell.method), "true")
    given["max_frames"] = cell.max_frames
    if cell.fps is not None:
        given["fps"] = f"{cell.fps:g}"
    if len(gpus) != 1:
        given["device_map"] = "auto" if gpus else "cpu"
    given |= cell.told.arguments
    for name, value in given.items():
        if "," in str(value):
            raise ValueError(f"{name}={value}: lmms-eval takes no comma in an argument of a model; rename or move it")
    return ",".join(f"{name}={value}" for name, value in given.items())
