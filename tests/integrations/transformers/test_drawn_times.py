"""Ernie's processor draws the time into every frame; floc draws it while it reads a file."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import floc
from floc.families.processing import VideoPreparer
from floc.tokens import Frames
from tests.integrations.transformers.processors import apply_template, create_processor, create_turn
from tests.integrations.transformers.test_capture import QUESTION
from tests.integrations.transformers.tiny_configs import create_model


def create_drawing_processor(**settings: Any) -> Any:
    """Return a processor that draws times into frames, with a font that comes with matplotlib."""
    matplotlib = pytest.importorskip("matplotlib", reason="its font is needed: pip install 'floc-video[report]'")
    processor = copy.copy(create_processor("ernie4_5_vl_moe"))
    processor.video_processor = copy.copy(processor.video_processor)
    processor.video_processor.draw_on_frames = True
    processor.video_processor.font = str(Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf")
    for name, value in settings.items():
        setattr(processor.video_processor, name, value)
    return processor


def test_times_are_drawn_into_frames(clip: Path, tmp_path: Path) -> None:
    """The pixels are those of the processor for all frames in one call."""
    model, processor = create_model("ernie4_5_vl_moe"), create_drawing_processor()
    preparer = VideoPreparer(processor)
    whole = np.concatenate([batch.pixels for batch in floc.video.read(clip, fps=None, max_frames=None)])
    prepared, plans = [], []
    for part in (slice(0, 5), slice(5, None)):  # a part of a video has the times of its own frames

        def choose(facts: Any) -> Any:
            plans.append(preparer.plan(facts, fps=7))
            return plans[-1].choose_frames()

        video = floc.video.read(clip, choose=choose, batch=2).part(2 * part.start, part.stop and 2 * part.stop)
        prepared += [preparer.prepare(plans[-1], frames.pixels)["pixel_values_videos"] for frames in video]
    plan = plans[-1]
    options = {"do_sample_frames": False, "video_metadata": [plan.describe()], "return_metadata": True}
    turn = create_turn(QUESTION, ("video", whole[plan.indices].copy()))  # the processor draws into what it is given
    inputs = apply_template(processor, [turn], **options)
    assert torch.equal(torch.cat(prepared), inputs["pixel_values_videos"])
    plain = apply_template(create_processor("ernie4_5_vl_moe"), [turn], **options)
    assert not torch.equal(plain["pixel_values_videos"], inputs["pixel_values_videos"])

    floc.capture(model, clip, processor=processor, ratio=1, fps=7).save(tmp_path / "clip.floc")
    video = floc.load(tmp_path / "clip.floc")
    torch.testing.assert_close(video.features, floc.capture(model, inputs, ratio=1).features, atol=2e-4, rtol=1e-4)
    assert torch.equal(video.inputs(processor, QUESTION)["input_ids"], inputs["input_ids"])
    with pytest.raises(ValueError, match="prepared with draw_on_frames True, but this processor has False"):
        video.inputs(create_processor("ernie4_5_vl_moe"), QUESTION)


def test_refuses_frames_without_times_and_a_missing_font(clip: Path) -> None:
    model = create_model("ernie4_5_vl_moe")
    frames = [Frames(np.zeros((8, 16, 24, 3), np.uint8), np.arange(8) / 2)]
    with pytest.raises(ValueError, match="draws the time into every frame, and these have none; pass the video file"):
        floc.capture(model, frames, processor=create_drawing_processor(), ratio=1 / 4)
    with pytest.raises(ValueError, match=r"cannot take this video.*open resource"):
        floc.capture(model, clip, processor=create_drawing_processor(font="no.ttf"), ratio=1 / 4)
