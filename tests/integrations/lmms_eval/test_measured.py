"""The figures of a sample, against what compress says."""

from __future__ import annotations

import pytest
import torch

import floc
from floc.integrations.lmms_eval.measured import Measured, Note, figures


def test_figures_are_those_of_what_was_kept() -> None:
    first, second = torch.randn(4, 3, 3, 8), torch.randn(10, 3, 3, 8)
    recipe = Measured(ratio="1/4", method="floc")
    recipe(first)
    recipe(second)
    found = recipe.take(total_s=100.0)
    expected = [floc.compress(each, ratio=1 / 4) for each in (first, second)]
    assert (found.tokens, found.kept) == (36 + 90, 9 + 23)
    assert found.shapes == [(4, 3, 3), (10, 3, 3)]
    assert found.coverage == pytest.approx((36 * expected[0].coverage + 90 * expected[1].coverage) / 126)
    assert 0 < found.select_s < found.total_s < 100


def test_what_measuring_took_is_nobodys_time() -> None:
    notes = [Note((1, 2, 2), 1, 0.5, select_s=1.0, measure_s=3.0), Note((1, 1, 2), 1, 0.8, select_s=2.0, measure_s=4.0)]
    found = figures(notes, total_s=20.0)
    assert (found.select_s, found.total_s) == (3.0, 13.0)
    assert found.coverage == pytest.approx((4 * 0.5 + 2 * 0.8) / 6)


def test_notes_are_taken_once() -> None:
    recipe = Measured(budget=2)
    recipe(torch.randn(2, 2, 2, 4))
    recipe.take(1.0)
    found = recipe.take(1.0)
    assert (found.tokens, found.kept, found.coverage, found.shapes) == (0, 0, None, [])


def test_all_tokens_cover_all() -> None:
    recipe = Measured(ratio=1)
    tokens = torch.randn(3, 2, 2, 4)
    assert len(recipe(tokens)) == 12
    assert recipe.take(1.0).coverage == pytest.approx(1)
