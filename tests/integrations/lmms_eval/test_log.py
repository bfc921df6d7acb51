"""The samples log, read back."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from floc.integrations.lmms_eval import Figures, read

FIGURES = Figures(tokens=112, kept=14, coverage=0.87, select_s=0.01, total_s=0.9, shapes=[(4, 4, 7)])


def write(path: Path, *samples: Any) -> Path:
    path.write_text("".join(each if isinstance(each, str) else json.dumps(each) + "\n" for each in samples))
    return path


def sample(doc_id: int, *counts: Any) -> dict[str, Any]:
    return {"doc_id": doc_id, "filtered_resps": "A", "token_counts": [*counts]}


def test_what_was_logged_is_read(tmp_path: Path) -> None:
    still = Figures(tokens=0, kept=0, coverage=None, select_s=0.0, total_s=0.1, shapes=[])
    log = write(
        tmp_path / "log.jsonl",
        sample(3, {"output_tokens": 8, "floc": FIGURES.as_json()}),
        sample(5, {"floc": still.as_json()}),
        sample(6, None),  # from a cache
        sample(7, {"output_tokens": 8}),
    )
    assert list(read(log)) == [(3, FIGURES), (5, still)]


@pytest.mark.parametrize("line", ["{", {"doc_id": 1}, sample(1, {"floc": {"tokens": 1}}), sample(1, 7), [1]], ids=str)
def test_a_line_that_is_no_sample_is_named(line: Any, tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", sample(0, {"floc": FIGURES.as_json()}), line)
    with pytest.raises(ValueError, match=r"log.jsonl: line 2 is no sample .* --log_samples"):
        list(read(log))


def test_the_page_reads_it_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).parents[3] / "docs" / "eval.md"
    (snippet,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    folder = tmp_path / "out" / "Qwen__Qwen2.5-VL-7B-Instruct"
    folder.mkdir(parents=True)
    write(folder / "20260101_000000_samples_videomme.jsonl", sample(3, {"floc": FIGURES.as_json()}))
    monkeypatch.chdir(tmp_path)
    said: list[tuple[Any, ...]] = []
    exec(snippet, {"print": lambda *words: said.append(words)})
    assert said == [(3, 14, "of", 112, 0.87, 0.01, 0.9)]


def test_the_page_has_every_figure() -> None:
    page = (Path(__file__).parents[3] / "docs" / "eval.md").read_text()
    for name in FIGURES.as_json():
        assert f"\n| `{name}` |" in page
