"""Read the pages of the documentation, and prepare what their snippets use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.decoding import read_with_pyav

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]


def read_snippets(page: Path, language: str = "python") -> list[str]:
    """Return the code blocks of a page."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def read_commands(page: Path) -> list[str]:
    """Return the `floc` command lines of a page, without comments."""
    lines = [line.split("  #")[0].strip() for block in read_snippets(page, "bash") for line in block.splitlines()]
    return [line for line in lines if line.startswith("floc ")]


def render_video(path: Path) -> Path:
    """Render a video of 8 seconds."""
    for package in ("av", "PIL"):
        pytest.importorskip(package, reason="videos need pip install 'floc-video[video]'")
    from examples.demo.film import render

    render(path, seconds=8, fps=4, width=128, height=72)
    return path


def use_tiny_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `from_pretrained` of any model id load a tiny Qwen2.5-VL with random weights, and its real processor."""
    transformers = pytest.importorskip("transformers", reason="models need pip install 'floc-video[hf]'")
    from tests.integrations.transformers.checkpoints import save
    from tests.integrations.transformers.processors import create_processor

    source = save("qwen2_5_vl", folder)
    load_model = transformers.AutoModelForImageTextToText.from_pretrained
    monkeypatch.setattr(
        transformers.AutoModelForImageTextToText,
        "from_pretrained",
        lambda name, dtype=None, device_map=None, **options: load_model(source, dtype=dtype, **options),
    )
    monkeypatch.setattr(transformers.AutoProcessor, "from_pretrained", lambda name: create_processor("qwen2_5_vl"))
    read_with_pyav(monkeypatch)
