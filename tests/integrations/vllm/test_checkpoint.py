"""The identity of a model that is not loaded equals that of the loaded model."""

# no `from __future__ import annotations`: see tests/integrations/transformers/tiny_configs.py
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="models need pip install 'floc-video[hf]'")
safetensors_torch = pytest.importorskip("safetensors.torch")

from floc.captured.identity import Identity  # noqa: E402
from floc.integrations.vllm.checkpoint import identify_model  # noqa: E402
from tests.integrations.transformers.checkpoints import save  # noqa: E402


def describe(folder: Path, **changes: Any) -> Any:
    """Return what vLLM's config of a model holds, as far as it is read."""
    config = transformers.AutoConfig.from_pretrained(folder)
    return SimpleNamespace(
        **{"hf_config": config, "model": str(folder), "revision": None, "quantization": None} | changes
    )


def rewrite(folder: Path, shards: int, tower: str) -> None:
    """Write the weights of a checkpoint into several files, with another name of the vision encoder."""
    files = [*folder.glob("*.safetensors")]
    weights = {name: weight for file in files for name, weight in safetensors_torch.load_file(file).items()}
    for file in files:
        file.unlink()
    named = [(re.sub(r"^(model\.)?visual", tower, name), weight) for name, weight in weights.items()]
    parts = {f"model-{shard}.safetensors": dict(named[shard::shards]) for shard in range(shards)}
    for file, part in parts.items():
        safetensors_torch.save_file(part, folder / file)
    index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_equals_the_loaded_model(kind: str, tmp_path: Path) -> None:
    folder = save(kind, tmp_path / kind)
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    expected, found = Identity.from_model(model), identify_model(describe(folder))
    assert len(found.weights) == len(expected.weights) > 100
    assert found.weights == pytest.approx(expected.weights)
    assert (found.kind, found.config, found.hidden_size) == (expected.kind, expected.config, expected.hidden_size)
    assert found.name == str(folder)
    for tower in ("visual", "model.visual"):  # as older and newer checkpoints have it
        rewrite(folder, 3, tower)
        assert identify_model(describe(folder)).weights == found.weights


def test_weights_that_cannot_be_compared(tmp_path: Path) -> None:
    folder = save("qwen2_5_vl", tmp_path / "model")
    whole = identify_model(describe(folder))
    unknown = [identify_model(describe(folder, quantization="awq"))]
    rewrite(folder, 1, "tower")
    unknown.append(identify_model(describe(folder)))
    (folder / "model.safetensors.index.json").write_text("{")
    unknown.append(identify_model(describe(folder)))
    (folder / "model.safetensors.index.json").unlink()
    unknown.append(identify_model(describe(folder)))
    for identity in unknown:
        assert (identity.weights, identity.config) == ([], whole.config)
        whole.require(identity)
