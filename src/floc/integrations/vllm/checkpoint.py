"""Identify the model of an engine in a process that has none of its weights."""

import json
from pathlib import Path
from typing import Any

import torch

from floc.captured.identity import Identity


def identify_model(model_config: Any) -> Identity:
    """Return the identity of an engine's model, with weights if its checkpoint is in safetensors files."""
    weights = _list_weights(model_config) if model_config.quantization is None else {}

    def read_rows(name: str, count: int) -> torch.Tensor | None:
        # older checkpoints have "visual.x" where newer ones have "model.visual.x"
        key = next((key for key in (f"model.{name}", name) if key in weights), None)
        return None if key is None else _read_rows(weights[key], key, count)

    identity = Identity.from_checkpoint(model_config.hf_config, read_rows)
    return Identity(**{**vars(identity), "name": str(model_config.model), "revision": model_config.revision})


def _read_rows(path: Path, key: str, count: int) -> torch.Tensor:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return file.get_slice(key)[:count]


def _list_weights(model_config: Any) -> dict[str, Path]:
    """Return the file of every weight of a checkpoint, in a folder or in the cache of the hub."""
    from safetensors import SafetensorError, safe_open
    from transformers.utils import cached_file

    def find(name: str) -> Path | None:
        found = cached_file(
            model_config.model,
            name,
            revision=model_config.revision,
            local_files_only=True,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
        return None if found is None else Path(found)

    try:
        if index := find("model.safetensors.index.json"):
            return {key: index.parent / name for key, name in json.loads(index.read_text())["weight_map"].items()}
        if single := find("model.safetensors"):
            with safe_open(single, framework="pt") as file:
                return dict.fromkeys(file.keys(), single)
    except (OSError, ValueError, KeyError, SafetensorError):
        pass  # the kind and the config of the model are compared nevertheless
    return {}
