"""Read the pages of the documentation, and prepare what their snippets use."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch

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


class FakeProcessor:
    """Stands in for a model's processor, which needs torchvision: writes the prompt of a video with random pixels."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.video: dict[str, Any] = {}

    def apply_chat_template(self, conversation: list[dict[str, Any]], **arguments: Any) -> Any:
        from transformers.feature_extraction_utils import BatchFeature
        from transformers.processing_utils import ProcessorMixin

        import floc
        from floc.integrations.transformers.ask import Session

        assert arguments.keys() <= inspect.signature(ProcessorMixin.apply_chat_template).parameters.keys()
        (turn,) = conversation
        self.video, question = turn["content"]
        session = Session(str(self.source), "cpu")
        video = floc.capture(session.model, self.video["path"], ratio=1, source=session.source)
        inputs = video.inputs(session.model, session.tokenizer, question["text"])
        inputs["pixel_values_videos"] = torch.randn(int(inputs["video_grid_thw"].prod()), 96)
        return BatchFeature(inputs)

    def decode(self, ids: torch.Tensor, skip_special_tokens: bool) -> str:
        return " ".join(map(str, ids.tolist()))


def use_tiny_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> FakeProcessor:
    """Let `from_pretrained` and `load_tokenizer` of any model id load a tiny Qwen2.5-VL with random weights."""
    transformers = pytest.importorskip("transformers", reason="models need pip install 'floc-video[hf]'")
    from floc.integrations import transformers as integration
    from tests.integrations.transformers.checkpoints import save

    source = save("qwen2_5_vl", folder)
    processor = FakeProcessor(source)
    load_model = transformers.AutoModelForImageTextToText.from_pretrained
    load_tokenizer = integration.load_tokenizer
    monkeypatch.setattr(
        transformers.AutoModelForImageTextToText,
        "from_pretrained",
        lambda name, dtype=None, device_map=None, **options: load_model(source, dtype=dtype, **options),
    )
    monkeypatch.setattr(transformers.AutoProcessor, "from_pretrained", lambda name: processor)
    monkeypatch.setattr(integration, "load_tokenizer", lambda name: load_tokenizer(str(source)))
    return processor
