"""Frames of another size, in tokens."""

# no `from __future__ import annotations`: see tests/integrations/transformers/tiny_configs.py
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floc.families.frame_size import fit_grid, limit_frame_tokens
from floc.families.processing import VideoPreparer
from floc.planning.frames import count_tokens
from floc.video.choice import VideoFacts
from tests.integrations.transformers.processors import create_processor, transformers
from tests.integrations.transformers.tiny_configs import create_config, set_token_ids


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 2000))
def test_a_grid_has_at_most_so_many_cells(width: int, height: int, limit: int) -> None:
    rows, columns = fit_grid(width, height, limit)
    assert 1 <= rows <= max(1, height)
    assert 1 <= columns <= max(1, width)
    assert rows * columns <= limit
    if width * height <= limit:
        assert (rows, columns) == (height, width)
    elif min(width, height) * 4 > max(width, height) and limit >= 100:
        assert rows * columns > 0.8 * limit


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "glm4v", "video_llama_3"])
@pytest.mark.parametrize("limit", [1, 10, 37])
def test_frames_have_at_most_so_many_tokens(kind: str, limit: int) -> None:
    """Fewer and more than the processor's own: 18 and 28 in these settings."""
    if kind not in transformers.CONFIG_MAPPING:
        pytest.skip(f"{kind} is not in this release")
    preparer, config = VideoPreparer(create_processor(kind)), create_config(kind)
    set_token_ids(config, kind)
    facts = VideoFacts(24, 8.0, 128, 80)
    plan = limit_frame_tokens(preparer, preparer.plan(facts, fps="all"), limit)
    slices = math.ceil(24 / preparer.frames_per_slice)
    tokens, _ = count_tokens(preparer, plan, config)
    assert 0.7 * limit <= tokens / slices <= limit
    pixels = np.random.default_rng(0).integers(0, 256, (4, 80, 128, 3), np.uint8)
    prepared = preparer.prepare(plan, pixels)["video_grid_thw"][0].tolist()
    assert prepared[1:] == plan.outputs["video_grid_thw"][0].tolist()[1:]


@pytest.mark.parametrize(("kind", "tokens"), [("internvl", 9), ("llava_onevision", 9), ("llava_next_video", 9)])
def test_frames_of_one_size_cannot_be_changed(kind: str, tokens: int) -> None:
    preparer = VideoPreparer(create_processor(kind))
    plan = preparer.plan(VideoFacts(24, 8.0, 128, 80))
    with pytest.raises(ValueError, match=f"frame_tokens=12 cannot be set: .*, {tokens} tokens each; leave it out"):
        limit_frame_tokens(preparer, plan, 12)
    with pytest.raises(ValueError, match="frame_tokens must be a whole number of tokens, at least 1; got 0"):
        limit_frame_tokens(preparer, plan, 0)
