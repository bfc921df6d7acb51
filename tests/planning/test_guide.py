"""The snippet of the guide runs."""

# no `from __future__ import annotations`: see tests/integrations/transformers/tiny_configs.py
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, read_snippets, render_video
from tests.integrations.transformers import checkpoints


def test_plan_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    render_video(Path("talk.mp4"))
    folder = checkpoints.save("qwen2_5_vl", tmp_path)
    (snippet,) = read_snippets(DOCS / "guides" / "plan.md")
    printed: list[object] = []
    names = {"print": lambda *words: printed.append(words)}
    exec(snippet.replace("Qwen/Qwen2.5-VL-7B-Instruct", str(folder)), names)
    frames, tokens, kept = printed[0]
    assert (frames, kept) == (16, round(tokens / 8))
    assert printed[2] == ([],)
