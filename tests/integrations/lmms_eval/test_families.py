"""The table of models, and the door through which lmms-eval finds it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import namedtuple
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from floc.integrations.lmms_eval import FAMILIES, manifests

ROOT = Path(__file__).parents[3]
NAMES = {"floc_qwen2_5_vl", "floc_qwen2_vl", "floc_qwen3_vl", "floc_internvl3", "floc_llava_video"}
WITHOUT = """
import sys
for name in ("lmms_eval", "loguru", "tqdm", "qwen_vl_utils", "av", "transformers"):
    sys.modules[name] = None
import floc.integrations.lmms_eval
print(*floc.integrations.lmms_eval.FAMILIES)
"""


def test_it_imports_without_lmms_eval() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False)
    assert set(done.stdout.split()) == NAMES, done.stderr


def test_each_has_a_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = ModuleType("lmms_eval.models.registry_v2")
    stand_in.ModelManifest = namedtuple("ModelManifest", "model_id simple_class_path chat_class_path")
    for name in ("lmms_eval", "lmms_eval.models"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "lmms_eval.models.registry_v2", stand_in)
    found = {each.model_id: each for each in manifests()}
    assert found.keys() == NAMES == FAMILIES.keys()
    for name, family in FAMILIES.items():
        place = "floc.integrations.lmms_eval.models." + name
        assert found[name].chat_class_path == (f"{place}_chat" if family.is_chat else None)
        assert found[name].simple_class_path == (f"{place}_simple" if family.is_simple else None)


def test_the_entry_point_leads_there() -> None:
    table = (ROOT / "pyproject.toml").read_text().partition('[project.entry-points."lmms_eval.models"]\n')[2]
    found = re.match(r'floc = "([\w.]+):(\w+)"', table)
    assert found is not None
    assert getattr(import_module(found[1]), found[2]) is manifests


def test_the_page_has_every_model() -> None:
    page = (ROOT / "docs" / "eval.md").read_text()
    for name, family in FAMILIES.items():
        assert f"| `{name}` | `{family.wraps}`" in page
