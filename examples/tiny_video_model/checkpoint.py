"""The trained model of this repository, loaded only if its files are the expected ones."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
import transformers

CHECKPOINT = Path(__file__).with_name("checkpoint")
SUMS = "SHA256SUMS"


def load_checkpoint(folder: Path = CHECKPOINT, device: str = "cpu") -> tuple[Any, Any]:
    """Return the model, in float32, and its processor; raise ValueError if a file is missing or was changed."""
    check_files(folder)
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    return model, transformers.AutoProcessor.from_pretrained(folder)


def check_files(folder: Path) -> None:
    """Raise ValueError unless every file that SHA256SUMS names is there and unchanged."""
    sums = folder / SUMS
    if not sums.exists():
        raise ValueError(f"{folder}: no {SUMS}, so this is not a checkpoint of the tiny video model; train one first")
    for line in sums.read_text().splitlines():
        digest, name = line.split(maxsplit=1)
        path = folder / name
        if not path.exists():
            raise ValueError(f"{path} is missing; restore it, or train again")
        if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            raise ValueError(f"{path} is not the file that {SUMS} names; restore it, or train again")


def write_sums(folder: Path) -> None:
    """Write SHA256SUMS for the files that a model and its processor are loaded from."""
    paths = sorted(path for path in folder.iterdir() if path.suffix in (".json", ".jinja", ".safetensors"))
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in paths]
    (folder / SUMS).write_text("\n".join(lines) + "\n")
