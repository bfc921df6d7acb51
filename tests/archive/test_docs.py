"""The snippets of docs/store.md run. tests/docs runs those of the guide."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("lance", reason="Lance is not installed: pip install 'floc-video[store]'")

from tests.archive.builders import make_piece

PAGE = Path(__file__).parents[2] / "docs" / "store.md"


def test_snippets_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_piece(12).save("talk.floc")
    names: dict[str, object] = {}
    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(snippets) == 3
    for snippet in snippets:
        if "lance.dataset" in snippet:
            names["store"].add("talk.floc")  # type: ignore[attr-defined]  # the first snippet removed it
        exec(snippet, names)
    assert len(names["moments"]) == 2  # type: ignore[arg-type]
    assert names["first"].shape[1] == 8  # type: ignore[attr-defined]
    assert Path("again.floc").exists()
