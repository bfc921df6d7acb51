"""Counts of frames and tokens equal those of the model's own processor."""

# no `from __future__ import annotations`: see tests/integrations/transformers/tiny_configs.py
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from floc.families.processing import VideoPreparer
from floc.planning import frames as planning
from floc.planning.costs import ModelCosts, Workload, build_without_weights
from floc.planning.frames import count_tokens, describe_workload, plan_more_frames
from floc.planning.planner import load_planner
from floc.video.choice import VideoFacts
from tests.integrations.transformers.processors import PARTS, create_processor, transformers
from tests.integrations.transformers.tiny_configs import create_config, set_token_ids
from tests.planning import hub

FILM = VideoFacts(18_000, 30.0, 1920, 1080)  # ten minutes


def run_processor(preparer: VideoPreparer, facts: VideoFacts, frames: Any, **options: Any) -> torch.Tensor:
    """Return the prompt [L] that the processor itself writes for all frames of a video."""
    from transformers.video_utils import VideoMetadata

    size = {"width": facts.width, "height": facts.height, "duration": facts.duration_s}
    metadata = VideoMetadata(total_num_frames=facts.frames, fps=facts.fps, video_backend="pyav", **size)
    names = ("cap_pixels_per_frame", "use_token_compression")
    chosen = {name: preparer.settings[name] for name in names if name in preparer.settings}
    content = [{"type": "video", "video": frames}, {"type": "text", "text": ""}]
    inputs = preparer.processor.apply_chat_template(
        [{"role": "user", "content": content}],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
        processor_kwargs={"do_sample_frames": True, "video_metadata": [metadata], **chosen, **options},
    )
    return inputs["input_ids"][0]


@pytest.mark.parametrize("kind", hub.FILES)
def test_a_long_film_has_as_many_tokens_as_the_processor_makes(kind: str, tmp_path: Path) -> None:
    """With preprocessor files as on the hub, and ten minutes of 1080p."""
    preparer, costs = load_planner(str(hub.save(kind, tmp_path)))
    plan = preparer.plan(FILM)
    work = describe_workload(preparer, plan, costs)
    film = torch.empty(FILM.frames, 3, FILM.height, FILM.width, dtype=torch.uint8, device="meta")  # no memory
    # processors that would take every frame are asked for two a second
    takes_all = kind in ("qwen2_5_vl", "internvl")
    ids = run_processor(preparer, FILM, film, **({"fps": 2} if takes_all else {}))
    tokens = int((ids == ids.mode().values).sum())  # no other token is as frequent
    assert work.tokens == tokens
    assert work.text == pytest.approx(len(ids) - tokens, rel=0.06)  # of a long prompt only a part was written


@pytest.mark.parametrize("kind", PARTS)
def test_every_family_has_as_many_tokens_as_its_processor_makes(kind: str) -> None:
    if kind not in transformers.CONFIG_MAPPING:
        pytest.skip(f"{kind} is not in this release")
    preparer, config = VideoPreparer(create_processor(kind)), create_config(kind)
    set_token_ids(config, kind)
    facts = VideoFacts(48, 8.0, 64, 40)
    plan = preparer.plan(facts, max_frames=48)
    tokens, text = count_tokens(preparer, plan, config)
    ids = preparer.write_prompt(plan, "")["input_ids"][0]
    assert tokens + text == len(ids)
    # a newline token after the video is not a token of a frame
    assert int((ids == ids.mode().values).sum()) - tokens in (0, 1)
    assert tokens % math.ceil(len(plan.indices) / preparer.frames_per_slice) == 0 or kind.startswith("ernie")


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl", "internvl", "llava_onevision"])
@pytest.mark.parametrize("frames", [99, 100, 301])
def test_token_count_extrapolated_from_a_part_is_exact(kind: str, frames: int, monkeypatch: pytest.MonkeyPatch) -> None:
    preparer, config = VideoPreparer(create_processor(kind)), create_config(kind)
    set_token_ids(config, kind)
    plan = preparer.plan(VideoFacts(frames, 2.0, 90, 124), fps="all", max_frames="all")
    tokens, text = count_tokens(preparer, plan, config)
    monkeypatch.setattr(planning, "COUNTED_FRAMES", 10**6)
    exact, exact_text = count_tokens(preparer, plan, config)
    assert tokens == exact
    assert text == pytest.approx(exact_text, rel=0.05)
    monkeypatch.setattr(planning, "COUNTED_FRAMES", 16)
    assert count_tokens(preparer, plan, config)[0] == exact


def create_planner(kind: str, **text: Any) -> tuple[VideoPreparer, ModelCosts]:
    config = create_config(kind)
    set_token_ids(config, kind)
    config.get_text_config().update(text)
    return VideoPreparer(create_processor(kind)), ModelCosts.from_model(build_without_weights(config))


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl", "internvl", "llava_onevision"])
@pytest.mark.parametrize("frames", [100, 600])
def test_more_frames_are_compressed_to_the_usual_tokens(kind: str, frames: int) -> None:
    """In the shorter video Qwen3-VL would make more frames smaller."""
    preparer, costs = create_planner(kind, max_position_embeddings=10**6)
    facts = VideoFacts(frames, 25.0, 128, 80)
    usual_plan = preparer.plan(facts)
    usual = describe_workload(preparer, usual_plan, costs)
    more = plan_more_frames(preparer, facts, costs, None)
    work = describe_workload(preparer, more.plan, costs)
    assert more.budget == usual.tokens
    assert work.frames == min(frames, 32 * usual.frames)
    assert work.tokens / work.slices == usual.tokens / usual.slices  # frames are as large as usual


def test_more_frames_leave_room_in_the_context_for_their_times() -> None:
    preparer, costs = create_planner("qwen3_vl", max_position_embeddings=12_000)
    facts = VideoFacts(6000, 25.0, 128, 80)
    more = plan_more_frames(preparer, facts, costs, None)
    work = describe_workload(preparer, more.plan, costs)
    assert len(preparer.plan(facts).indices) < work.frames < 6000
    assert 0.8 * 12_000 < more.budget + work.text <= 12_000


def test_more_frames_fit_the_memory() -> None:
    preparer, costs = create_planner("qwen2_5_vl", max_position_embeddings=10**6)

    class OneByteATokenCosts(ModelCosts):
        """Costs that are easy to check."""

        def count_capture_bytes(self, work: Workload) -> int:
            return work.tokens

    costs = OneByteATokenCosts(**vars(costs))
    facts = VideoFacts(6000, 25.0, 128, 80)
    usual = describe_workload(preparer, preparer.plan(facts), costs)
    more = plan_more_frames(preparer, facts, costs, 3 * usual.tokens)
    work = describe_workload(preparer, more.plan, costs)
    assert 2 * usual.tokens < work.tokens <= 3 * usual.tokens
    loaded = OneByteATokenCosts(**{**vars(costs), "loaded_bytes": 2 * usual.tokens})  # part of the cost is paid
    same = plan_more_frames(preparer, facts, loaded, usual.tokens)
    assert same.plan.indices.tolist() == more.plan.indices.tolist()
    least = plan_more_frames(preparer, facts, costs, 1)
    assert least.plan.indices.tolist() == preparer.plan(facts).indices.tolist()
    assert least.budget == more.budget == usual.tokens
