"""What the README shows, runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def test_readme_snippets_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("av", "PIL", "transformers"):
        pytest.importorskip(package, reason="the README's snippets need pip install 'floc-video[video,hf]'")
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(snippets) >= 2
    names = _a_model_and_a_film(tmp_path)
    monkeypatch.chdir(tmp_path)
    for snippet in snippets:
        exec(snippet, names)
    assert len(names["handle"].last) == 1
    assert len(names["video"]) == round(names["video"].n / 8)
    assert names["answer"].shape[0] == 1
    assert len(names["kept"]) == 720
    assert len(names["fewer"]) == 180
    assert names["enough"].coverage >= 0.9


def _a_model_and_a_film(folder: Path) -> dict[str, Any]:
    """What the snippets take for granted: a model, its tokenizer, prepared inputs, and talk.mp4."""
    import torch

    import floc
    from examples.demo.film import render
    from floc.integrations.transformers.ask import Session
    from tests.integrations.transformers.checkpoints import save

    render(folder / "talk.mp4", seconds=8, fps=4, width=128, height=72)
    session = Session(str(save("qwen2_5_vl", folder)), "cpu")
    video = floc.capture(session.model, folder / "talk.mp4", ratio=1, source=session.source)
    inputs = video.inputs(session.model, session.tokenizer, "Who is there?")
    inputs["pixel_values_videos"] = torch.randn(int(inputs["video_grid_thw"].prod()), 96)
    return {"model": session.model, "tokenizer": session.tokenizer, "inputs": inputs}


def test_snippets_on_video_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("av", "PIL", "sklearn"):
        pytest.importorskip(package, reason="video and reports need pip install 'floc-video[report]'")
    import floc
    from examples.demo.film import render

    render(tmp_path / "talk.mp4", seconds=4, fps=4, width=128, height=72)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for snippet in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "video.md").read_text(), re.DOTALL):
        if "footage" in names and "kept" not in names:
            tokens = names["footage"].tokens
            frame = next(iter(names["video"])).pixels[0]
            names |= {"tokens": tokens, "kept": floc.compress(tokens, ratio=1 / 8), "frame": frame, "t": 0}
            names["times_s"] = names["footage"].times_s
        exec(snippet, names)
    assert names["video"].warnings == []
    assert names["footage"].tokens.shape[0] == 4
    assert "analysis" in names


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_commands_in_the_readme_exist() -> None:
    import floc.cli

    known = {command.name or command.callback.__name__ for command in floc.cli.app.registered_commands}
    for command in re.findall(r"^floc (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE):
        assert command in known


def test_the_page_on_methods_is_what_the_methods_say() -> None:
    import floc

    assert (ROOT / "docs" / "methods.md").read_text() == floc.methods.markdown(), "run: floc methods --markdown"
