"""What a plan needs that is not on this machine, and how to get it. Nothing here uses the network."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from floc.evaluation import models
from floc.evaluation.plan import Cell
from floc.evaluation.tasks import find


@dataclass(frozen=True)
class Download:
    """A repository that is missing, whole or in part, or that cannot be used as it is."""

    repository: str
    kind: str  # model or dataset
    what: str  # in words
    state: str  # missing, incomplete or not converted

    @property
    def command(self) -> str:
        """What fetches it."""
        return f"hf download {self.repository}" + (" --repo-type dataset" if self.kind == "dataset" else "")

    def __str__(self) -> str:
        return f"{self.command}   # {self.state}: {self.what}"


def missing(cells: Iterable[Cell]) -> list[Download]:
    """What cells need and the cache of Hugging Face does not have."""
    return list(dict.fromkeys(_missing(cells)))


def explain(needed: Iterable[Download]) -> str:
    """What to do about it, in words."""
    lines = "\n".join(f"  {each}" for each in needed)
    return (
        f"these are not in {cache()}, or not ready for use:\n{lines}\n"
        "get them with the commands above (older releases: huggingface-cli)"
    )


def cache() -> Path:
    """Where repositories from Hugging Face are kept, by its own rules."""
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface"))
    return Path(os.environ.get("HF_HUB_CACHE", home / "hub")).expanduser()


def _missing(cells: Iterable[Cell]) -> Iterator[Download]:
    for cell in cells:
        model, task = models.get(cell.model), find(cell.task)
        if cell.weights != model.repository:
            _require_weights(Path(cell.weights))
        elif (state := _state_of_weights(model)) != "there":
            yield Download(model.repository, "model", _about_weights(model), state)
        if task is not None and (state := _state(task.repository, "dataset")) != "there":
            access = f"; {task.access}" if task.access else ""
            hours = f"videos of {task.title}, {task.questions:,} questions{access}"
            yield Download(task.repository, "dataset", hours, state)


def _state_of_weights(model: models.Model) -> str:
    state = _state(model.repository, "model")
    return "not converted" if state == "there" and not model.is_loadable else state


def _about_weights(model: models.Model) -> str:
    size = f"weights, about {model.size_bytes / 1e9:.0f} GB"
    if model.is_loadable:
        return size
    return f"{size}; convert them to the format of transformers, and pass --models {model.name}=FOLDER"


def _require_weights(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder}: no config.json there; name a folder with a model of transformers")


def _state(repository: str, kind: str) -> str:
    """Whether a repository is in the cache: there, missing or incomplete."""
    folder = cache() / f"{kind}s--{repository.replace('/', '--')}"
    snapshots = [each for each in (folder / "snapshots").glob("*") if any(each.iterdir())]
    if not snapshots:
        return "missing"
    if any((folder / "blobs").glob("*.incomplete")):
        return "incomplete"
    whole = kind == "dataset" or any(_has_weights(each) for each in snapshots)
    return "there" if whole else "incomplete"


def _has_weights(snapshot: Path) -> bool:
    """Whether all files that the index of the weights names are there, or the one file without an index."""
    index = snapshot / "model.safetensors.index.json"
    if not index.exists():
        return (snapshot / "model.safetensors").exists()
    return all((snapshot / name).exists() for name in set(json.loads(index.read_text())["weight_map"].values()))
