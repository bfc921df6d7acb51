"""Tests of the table of models and its entry point."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import namedtuple
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from floc.integrations.lmms_eval import LMMS_MODELS, manifests

ROOT = Path(__file__).parents[3]
NAMES = {
    "floc_qwen2_5_vl",
    "floc_qwen2_vl",
    "floc_qwen3_vl",
    "floc_qwen3_5",
    "floc_qwen3_omni",
    "floc_internvl3",
    "floc_llava_video",
}
WITHOUT = """
import sys
for name in ("lmms_eval", "loguru", "tqdm", "qwen_vl_utils", "qwen_omni_utils", "av", "transformers"):
    sys.modules[name] = None
import floc.integrations.lmms_eval
print(*floc.integrations.lmms_eval.LMMS_MODELS)
"""


def test_imports_without_lmms_eval() -> None:
    process = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False)
    assert set(process.stdout.split()) == NAMES, process.stderr


def test_every_model_has_a_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = ModuleType("lmms_eval.models.registry_v2")
    fake.ModelManifest = namedtuple("ModelManifest", "model_id simple_class_path chat_class_path")
    for name in ("lmms_eval", "lmms_eval.models"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "lmms_eval.models.registry_v2", fake)
    by_name = {manifest.model_id: manifest for manifest in manifests()}
    assert by_name.keys() == NAMES == LMMS_MODELS.keys()
    for name, model in LMMS_MODELS.items():
        path = "floc.integrations.lmms_eval.models." + name
        assert by_name[name].chat_class_path == (f"{path}_chat" if model.is_chat else None)
        assert by_name[name].simple_class_path == (f"{path}_simple" if model.is_simple else None)


def test_entry_point_is_manifests() -> None:
    table = (ROOT / "pyproject.toml").read_text().partition('[project.entry-points."lmms_eval.models"]\n')[2]
    match = re.match(r'floc = "([\w.]+):(\w+)"', table)
    assert match is not None
    assert getattr(import_module(match[1]), match[2]) is manifests


def test_docs_list_every_model() -> None:
    page = (ROOT / "docs" / "guides" / "evaluation.md").read_text()
    for name, model in LMMS_MODELS.items():
        assert f"| `{name}` | `{model.wraps}`" in page
