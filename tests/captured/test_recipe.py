"""Recipes: what they accept, and which of them a stream can follow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import floc
from examples.synthetic import make_tokens
from floc.captured import pieces
from floc.captured.recipe import Recipe
from floc.encoders.base import FrameTokens


def test_blocks_can_follow_scenes() -> None:
    tokens = torch.from_numpy(make_tokens(70, 3, 4, 48, seed=1, scenes=6, shot_frames=12))
    kept = Recipe(ratio=1 / 8, options={"block": "scene"})(tokens)
    assert (len(kept), kept.settings["block"]) == (105, "scene")


@pytest.mark.parametrize("starts", [[0, 57], (0, 57)])
def test_rejects_blocks_by_first_frames(starts: list[int] | tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"0, 57.*lists first frames, which fit only one video.*or 'scene'"):
        Recipe(ratio=1 / 8, options={"block": starts})


@pytest.mark.parametrize(
    ("given", "streams"),
    [
        ({"budget": 9}, True),
        ({"budget": 9, "options": {"block": "scene", "dedupe": 2}}, True),
        ({"budget": 9, "options": {"block": "scene"}}, False),
        ({"ratio": 1 / 8}, True),
        ({"ratio": 1 / 8, "options": {"block": 8}}, False),
        ({"coverage": 0.9}, False),
        ({"budget": 9, "method": "floc-paper"}, False),
        ({"budget": 9, "method": "divprune"}, False),
        ({"budget": 9, "options": {"horizon": None}}, False),
        ({"budget": 9, "options": {"metric": "gaussian"}}, False),
        ({"budget": 9, "options": {"horizon": "auto"}}, True),
        ({"ratio": 1 / 8, "options": {"horizon": 3}}, True),
        ({"coverage": 0.9, "options": {"horizon": 3}}, False),
    ],
)
def test_streaming_options(given: dict[str, Any], streams: bool) -> None:
    options = Recipe(**given).get_stream_options()
    assert (options is not None) == streams
    if options is not None:
        floc.Stream(ratio=given.get("ratio"), budget=given.get("budget"), **options)


def test_a_video_longer_than_announced_keeps_no_more_than_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_TOKENS", 64)
    tokens = torch.from_numpy(np.random.default_rng(0).standard_normal((90, 2, 2, 8)).astype(np.float32))
    model: Any = None
    selector = pieces.create_selector(Recipe(budget=20), model, FrameTokens(tokens[:1]), 45)
    monkeypatch.setattr(pieces, "capture_kept", lambda kept, *_: kept)
    selector.add(FrameTokens(tokens))
    (kept,) = selector.finish()
    assert len(kept) == 20
    assert kept.n == 360
