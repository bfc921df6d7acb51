"""The snippets of the pages on archives run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("lance", reason="Lance is not installed: pip install 'floc-video[store]'")
pytest.importorskip("av", reason="PyAV is not installed: pip install 'floc-video[video]'")

from tests.archive.builders import make_piece
from tests.archive.films import make_films

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [page for page in (DOCS / "guides" / "archive.md", DOCS / "store.md") if page.exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_snippets_run_in_order(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_piece(12).save("talk.floc")
    make_films(Path("footage"), 2)
    names: dict[str, object] = {}
    snippets = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert len(snippets) == 3
    for snippet in snippets:
        if "lance.dataset" in snippet and "status" not in names:
            names["store"].add("talk.floc")  # type: ignore[attr-defined]  # the first snippet removed it
        exec(snippet, names)
    assert len(names["moments"]) == 2  # type: ignore[arg-type]
    assert len(names["first"])  # type: ignore[arg-type]
    assert Path("again.floc").exists()
    if "status" in names:
        assert names["status"].done == 2  # type: ignore[attr-defined]
