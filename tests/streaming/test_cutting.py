"""Scene cuts of a stream: breaks equal those of the whole video, and the state survives saving."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from floc import scenes
from floc._checked_file import Fields
from floc.streaming.cutting import SceneCutter
from floc.streaming.past import SavedStream
from tests.test_scenes import plain_breaks, random_tokens


@pytest.mark.parametrize("frames", [3, 4, 11])
def test_breaks_equal_those_of_the_whole_video(frames: int) -> None:
    tokens = torch.from_numpy(random_tokens((frames, 2, 3, 8)))
    cutter = SceneCutter()
    for t in range(frames):
        cutter.observe(tokens[: t + 1])
    spread = scenes.compute_spread(cutter.total, cutter.squares, frames, 6)
    np.testing.assert_allclose(np.array(cutter.recent) / spread, plain_breaks(tokens.numpy())[1:-1], atol=1e-5)


@pytest.mark.parametrize("frames", [0, 1, 2, 30])
def test_restored_cutter_continues_identically(frames: int) -> None:
    tokens = torch.from_numpy(random_tokens((frames + 5, 2, 3, 8)))
    original, restored = SceneCutter(), SceneCutter()
    for t in range(frames):
        original.observe(tokens[: t + 1])
    device, dtype = torch.device("cpu"), torch.float32
    saved = SavedStream(0, None, frames, 6, 8, 8, dtype, device, first_s=0, last_s=frames - 1, end_s=0)
    restored.restore(Fields(json.loads(json.dumps(original.metadata()))), saved)
    for t in range(frames, frames + 5):
        original.observe(tokens[: t + 1])
        restored.observe(tokens[: t + 1])
    assert original.metadata() == restored.metadata()
