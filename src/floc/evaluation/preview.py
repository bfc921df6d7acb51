"""What a plan needs before it is run: tokens, hours and downloads. `floc eval --dry-run` shows it. No network is used.

The seconds below were measured by `python -m benchmarks` (answer, profile, gpu, video). They are scaled by the tokens
of a video of the task's mean length and by the size of the model.
"""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from floc.evaluation import models
from floc.evaluation.command import CommandBuilder, split_gpus
from floc.evaluation.plan import FULL, EvalRun
from floc.evaluation.results import ResultFolder
from floc.evaluation.tasks import TASKS
from floc.methods.registry import parse

WIDE = (1280, 720)  # a common video size
BILLIONS = 8.3  # parameters of the measured model, Qwen2.5-VL-7B
VISION_S = 1.41e-4  # vision encoder, per token
PREFILL_S, PREFILL_SQUARED_S = 2.35e-5, 3.32e-10  # per kept token, and per kept token squared
STEP_S, ANSWER_STEPS = 0.0198, 2  # decoding: a letter and the end of the answer
READING_S = 0.0234  # per second of video, on two cores
# selection from 47,040 tokens at 1/8; the methods that are not listed take less than 1% of the vision encoder's time
SELECTION_TOKENS = 47_040
SELECTION_S = {"divprune": 0.836, "kmeans": 2.74, "kmedoids": 2.41, "scissor": 0.874, "spectral": 7.10}
ESTIMATE = (
    "measured with Qwen2.5-VL-7B on one NVIDIA H200 (vision encoder, selection at 1/8, prefill, answer) and with video "
    "decoding on two CPU cores; scaled by tokens and by model size, every question by itself, without loading weights"
)


class TimeEstimate(NamedTuple):
    """Estimated seconds of a run."""

    computing_s: float  # on the GPU
    reading_s: float  # decoding videos, on two CPU cores


def estimate_time(run: EvalRun) -> TimeEstimate | None:
    """Estimate how long a run takes; None for a task that is not the paper's."""
    if (task := TASKS.get(run.task)) is None:
        return None
    frames = run.max_frames if run.fps is None else max(1, min(run.max_frames, round(run.fps * task.mean_s)))
    tokens = run.video_model.count_tokens(frames, WIDE)
    kept = run.count_kept(tokens)
    selection_s = 0.0 if run.method == FULL else SELECTION_S.get(parse(run.method).method, 0.0) / SELECTION_TOKENS
    decoder_s = kept * PREFILL_S + kept**2 * PREFILL_SQUARED_S + ANSWER_STEPS * STEP_S
    question_s = tokens * (VISION_S + selection_s) + run.video_model.billions / BILLIONS * decoder_s
    questions = min(run.limit or task.questions, task.questions)
    return TimeEstimate(questions * question_s, questions * task.mean_s * READING_S)


class Download(NamedTuple):
    """A repository that has to be downloaded, completed or converted."""

    repository: str
    kind: str  # model or dataset
    description: str
    state: str  # missing, incomplete or not converted

    def __str__(self) -> str:
        """Return the command that downloads it, with a comment."""
        option = " --repo-type dataset" if self.kind == "dataset" else ""
        return f"hf download {self.repository}{option}   # {self.state}: {self.description}"


def find_downloads(runs: Iterable[EvalRun]) -> list[Download]:
    """Return what runs need and the cache of Hugging Face does not have."""
    downloads = []
    for run in runs:
        model, task = models.get(run.model), TASKS.get(run.task)
        if run.weights != model.repository:
            if not (Path(run.weights) / "config.json").is_file():
                raise FileNotFoundError(f"{run.weights} has no config.json; name a folder with a transformers model")
        elif state := _get_cache_state(model.repository, "model") or ("" if model.is_loadable else "not converted"):
            hint = "" if model.is_loadable else f"; convert them to transformers and pass --models {model.name}=FOLDER"
            size = f"weights, about {2 * model.billions:.0f} GB{hint}"
            downloads.append(Download(model.repository, "model", size, state))
        if task is not None and (state := _get_cache_state(task.repository, "dataset")):
            content = f"{task.title}, {task.questions:,} questions" + (f"; {task.access}" if task.access else "")
            downloads.append(Download(task.repository, "dataset", content, state))
    return list(dict.fromkeys(downloads))


def check_downloads(runs: Iterable[EvalRun]) -> None:
    """Raise ValueError if something has to be downloaded first."""
    if downloads := find_downloads(runs):
        lines = "\n".join(f"  {download}" for download in downloads)
        hint = "get them with the commands above (older releases: huggingface-cli)"
        raise ValueError(f"weights or datasets are missing in {get_hub_cache()}:\n{lines}\n{hint}")


def get_hub_cache() -> Path:
    """Return the cache folder of Hugging Face, by its own rules."""
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface"))
    return Path(os.environ.get("HF_HUB_CACHE", home / "hub")).expanduser()


def _get_cache_state(repository: str, kind: str) -> str:
    """Return "missing", "incomplete", or "" if the cache has all of a repository."""
    folder = get_hub_cache() / f"{kind}s--{repository.replace('/', '--')}"
    snapshots = [path for path in (folder / "snapshots").glob("*") if any(path.iterdir())]
    if not snapshots:
        return "missing"
    is_complete = kind == "dataset" or any(map(_has_weights, snapshots))
    return "" if is_complete and not any((folder / "blobs").glob("*.incomplete")) else "incomplete"


def _has_weights(snapshot: Path) -> bool:
    index = snapshot / "model.safetensors.index.json"
    if not index.exists():
        return (snapshot / "model.safetensors").exists()
    return all((snapshot / name).exists() for name in set(json.loads(index.read_text())["weight_map"].values()))


def preview_plan(
    runs: Sequence[EvalRun], folder: ResultFolder, command: CommandBuilder, worker: str = "0"
) -> dict[str, Any]:
    """Return a plan with tokens, times, commands and downloads, JSON-serialisable."""
    gpus = split_gpus(worker)
    states = [{"state": folder.get_state(run), "command": command(run, folder.get_output(run), gpus)} for run in runs]
    return {
        "runs": [{**_preview_run(run), **state} for run, state in zip(runs, states, strict=True)],
        "assumed": models.list_assumptions(dict.fromkeys(run.model for run in runs)),
        "estimate": ESTIMATE,
        "missing": [{"repository": download.repository, "get": str(download)} for download in find_downloads(runs)],
    }


def _preview_run(run: EvalRun) -> dict[str, Any]:
    tokens, video_tokens = (run.video_model.count_tokens(run.max_frames, size) for size in (None, WIDE))
    score, times = run.find_paper_score(), estimate_time(run)
    return {
        **asdict(run),
        "name": run.name,
        "tokens": tokens,  # at most
        "kept": run.count_kept(tokens),
        "video_tokens": video_tokens,  # of a 16:9 video
        "video_kept": run.count_kept(video_tokens),
        **(dict.fromkeys(TimeEstimate._fields) if times is None else times._asdict()),
        "paper": None if score is None else score.value,
    }
