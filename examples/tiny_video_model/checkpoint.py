"""Trained models as folders or .tar files, loaded only if their files are those that training wrote."""

from __future__ import annotations

import hashlib
import json
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers

from floc._atomic import write_atomic

CHECKPOINT = Path(__file__).with_name("checkpoint")
SUMS, LOG, WEIGHTS = "SHA256SUMS", "training.json", "model.safetensors"
LOADED = (".json", ".jinja", ".safetensors")  # files that transformers may read


def load_checkpoint(source: Path = CHECKPOINT, device: str = "cpu") -> tuple[Any, Any]:
    """Return the model, in float32, and its processor; raise ValueError if a file is missing or was changed."""
    with open_checkpoint(source) as folder:
        return _load_model(folder, device), transformers.AutoProcessor.from_pretrained(folder)


def describe_checkpoint(source: Path) -> dict[str, Any]:
    """Return the hashes of a checkpoint's files, and device, versions and settings of its training."""
    with open_checkpoint(source) as folder:
        if not (folder / LOG).exists():
            raise ValueError(f"{source}: no {LOG}, so its settings are not known; pass what training wrote")
        sums = (folder / SUMS).read_text().splitlines()
        return {"checkpoint": sums, "training": json.loads((folder / LOG).read_text())[0]}


def load_answerer(source: Path = CHECKPOINT, device: str = "cpu") -> tuple[Any, Any]:
    """Return the model and its tokenizer like `load_checkpoint`; the processor's other parts need torchvision."""
    with open_checkpoint(source) as folder:
        return _load_model(folder, device), transformers.AutoTokenizer.from_pretrained(folder)


def _load_model(folder: Path, device: str) -> Any:
    model: Any = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    return model.to(device).eval()


@contextmanager
def open_checkpoint(source: Path) -> Iterator[Path]:
    """Yield the folder of a checkpoint whose files were checked; that of a .tar file lasts as long as the context."""
    if source.is_dir():
        check_files(source)
        yield source
        return
    with tempfile.TemporaryDirectory() as folder:
        try:
            with tarfile.open(source, "r:") as archive:
                archive.extractall(folder, filter="data")
        except tarfile.TarError as error:
            problem = f"{source} is not the .tar file of a checkpoint ({error})"
            raise ValueError(f"{problem}; pass a folder or a .tar file that training wrote") from error
        check_files(Path(folder))
        yield Path(folder)


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


def pack_checkpoint(folder: Path, path: Path) -> None:
    """Write the files of a checkpoint into one .tar file, which is whole at any time."""

    def write(temporary: Path) -> None:
        with tarfile.open(temporary, "w") as archive:
            for file in (*_list_files(folder), folder / SUMS):
                archive.add(file, file.name)

    write_atomic(path, write)


def _list_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in LOADED)
