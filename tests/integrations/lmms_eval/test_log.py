"""Tests of the cost of a sample, and of the log that holds it."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

import floc
from floc.integrations.lmms_eval import SampleCost
from floc.integrations.lmms_eval.log import MeasuredRecipe, VideoCost

COST = SampleCost(tokens=112, kept=14, coverage=0.87, select_s=0.01, total_s=0.9, shapes=[(4, 4, 7)])
PAGE = Path(__file__).parents[3] / "docs" / "guides" / "evaluation.md"


def test_cost_equals_compress() -> None:
    first, second = torch.randn(4, 3, 3, 8), torch.randn(10, 3, 3, 8)
    recipe = MeasuredRecipe(ratio="1/4", method="floc")
    recipe(first)
    recipe(second)
    cost = recipe.pop_cost(total_s=100.0)
    expected = [floc.compress(video, ratio=1 / 4) for video in (first, second)]
    assert (cost.tokens, cost.kept) == (36 + 90, 9 + 23)
    assert cost.shapes == [(4, 3, 3), (10, 3, 3)]
    assert cost.coverage == pytest.approx((36 * expected[0].coverage + 90 * expected[1].coverage) / 126)
    assert 0 < cost.select_s < cost.total_s < 100


def test_total_excludes_time_of_coverage() -> None:
    recipe = MeasuredRecipe(ratio=1)
    recipe.videos.append(VideoCost((1, 2, 2), 1, 0.5, select_s=1.0, coverage_s=3.0))
    recipe.videos.append(VideoCost((1, 1, 2), 1, 0.8, select_s=2.0, coverage_s=4.0))
    cost = recipe.pop_cost(total_s=20.0)
    assert (cost.select_s, cost.total_s) == (3.0, 13.0)
    assert cost.coverage == pytest.approx((4 * 0.5 + 2 * 0.8) / 6)


def test_pop_cost_forgets_the_videos() -> None:
    recipe = MeasuredRecipe(budget=2)
    recipe(torch.randn(2, 2, 2, 4))
    recipe.pop_cost(1.0)
    cost = recipe.pop_cost(1.0)
    assert (cost.tokens, cost.kept, cost.coverage, cost.shapes) == (0, 0, None, [])


def test_coverage_of_all_tokens_is_one() -> None:
    recipe = MeasuredRecipe(ratio=1)
    tokens = torch.randn(3, 2, 2, 4)
    assert len(recipe(tokens)) == 12
    assert recipe.pop_cost(1.0).coverage == pytest.approx(1)


def test_docs_snippet_reads_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (snippet,) = [text for text in snippets if "token_counts" in text]
    folder = tmp_path / "out" / "Qwen__Qwen2.5-VL-7B-Instruct"
    folder.mkdir(parents=True)
    lines = [{"doc_id": 3, "token_counts": [{"floc": asdict(COST)}]}, {"doc_id": 4, "token_counts": [None]}]
    log = folder / "20260101_000000_samples_videomme.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.chdir(tmp_path)
    printed: list[tuple[Any, ...]] = []
    exec(snippet, {"print": lambda *words: printed.append(words)})
    assert printed == [(3, 14, "of", 112, 0.87)]


def test_docs_explain_every_field() -> None:
    page = PAGE.read_text()
    for name in asdict(COST):
        assert f"\n| `{name}` |" in page
