"""The trained model of this repository, loaded only if its files are the expected ones."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
import transformers

CHECKPOINT = Path(__file__).with_name("checkpoint")
SUMS = "SHA256SUMS"
LOADED = (".json", ".jinja", ".safetensors")  # files that transformers may read


def load_checkpoint(folder: Path = CHECKPOINT, device: str = "cpu") -> tuple[Any, Any]:
    """Return the model, in float32, and its processor; raise ValueError if a file is missing or was changed."""
    check_files(folder)
    model: Any = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    return model.to(device).eval(), transformers.AutoProcessor.from_pretrained(folder)


def check_files(folder: Path) -> None:
    """Raise ValueError unless every file that SHA256SUMS names is there and unchanged."""
    sums = folder / SUMS
    if not sums.exists():
        raise ValueError(f"{folder}: no {SUMS}, so this is not a checkpoint of the tiny video model; train one first")
    named = {name: digest for digest, _, name in (line.partition("  ") for line in sums.read_text().splitlines())}
    for path in sorted({folder / name for name in named} | set(_list_files(folder))):
        if not path.exists():
            raise ValueError(f"{path} is missing; restore it, or train again")
        if hashlib.sha256(path.read_bytes()).hexdigest() != named.get(path.name):
            raise ValueError(f"{path} is not the file that {SUMS} names; restore it, or train again")


def write_sums(folder: Path) -> None:
    """Write SHA256SUMS for the files that a model and its processor are loaded from."""
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in _list_files(folder)]
    (folder / SUMS).write_text("\n".join(lines) + "\n")


def _list_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in LOADED)
