"""Tests of the table of model families."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from floc.families import FAMILIES, find_family
from floc.families.locate import PromptVideo

VIDEO, IMAGE = 7, 8
CONFIG = SimpleNamespace(
    video_token_id=VIDEO, image_token_id=IMAGE, vision_config=SimpleNamespace(spatial_merge_size=2)
)


def find_columns(videos: list[PromptVideo]) -> list[tuple[int, list[int], list[int], int]]:
    return [(video.row, video.columns.tolist(), video.newline.tolist(), video.index) for video in videos]


def test_finds_the_family_of_a_config() -> None:
    assert find_family(SimpleNamespace(model_type="qwen2_5_vl")) is FAMILIES["qwen2_5_vl"]


@pytest.mark.parametrize("config", [None, SimpleNamespace(), SimpleNamespace(model_type="bert")])
def test_rejects_other_models(config: object) -> None:
    with pytest.raises(ValueError, match=r"does not support video models of type .*; it supports: .*qwen2_5_vl"):
        find_family(config)


@pytest.mark.parametrize("name", FAMILIES)
def test_entries_are_consistent(name: str) -> None:
    family = FAMILIES[name]
    assert family.takes_images == (family.pixels == "pixel_values")
    assert family.placeholder in ("video_token_id", "image_token_id")
    # images and videos with one placeholder need a function that tells them apart, unless a call cannot have both
    is_shared = family.placeholder == "image_token_id" and name != "nemotron_h_omni"
    assert (family.find_tokens is not None) == is_shared


def test_type_that_follows_the_protocol_needs_no_entry(monkeypatch) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install -e '.[hf]'")
    common, other = transformers.Qwen2VLConfig(), transformers.LlavaNextVideoConfig()
    expected = FAMILIES["qwen2_vl"]
    monkeypatch.delitem(FAMILIES, "qwen2_vl")
    monkeypatch.delitem(FAMILIES, "llava_next_video")
    assert find_family(common) is expected
    with pytest.raises(ValueError, match="no get_video_features with video_grid_thw"):
        find_family(other)


def test_model_that_also_speaks_has_the_family_of_its_thinker() -> None:
    thinker = SimpleNamespace(model_type="qwen2_5_omni_thinker")
    config = SimpleNamespace(model_type="qwen2_5_omni", thinker_config=thinker)
    assert find_family(config) is FAMILIES["qwen2_5_omni_thinker"]


def test_knows_calls_with_videos() -> None:
    videos, images = FAMILIES["qwen2_vl"], FAMILIES["internvl"]
    assert videos.carries_pixels({"pixel_values_videos": torch.zeros(1)})
    assert not videos.carries_pixels({"pixel_values": torch.zeros(1)})
    assert not videos.carries_pixels({"mm_encoder_outputs": {"image": 1}})
    assert videos.carries_pixels({"mm_encoder_outputs": {"video": 1}})
    assert images.carries_pixels({"pixel_values": torch.zeros(1)})
    assert images.carries_pixels({"mm_encoder_outputs": {"image": 1}})


def test_finds_videos_in_rows() -> None:
    ids = torch.tensor([[0, VIDEO, VIDEO, 0, VIDEO, VIDEO], [IMAGE, 0, VIDEO, VIDEO, VIDEO, VIDEO]])
    grids = torch.tensor([[2, 2, 2], [1, 2, 4], [1, 4, 4]])  # 2, 2 and 4 tokens
    videos = FAMILIES["qwen2_vl"].find_videos(CONFIG, {"input_ids": ids, "video_grid_thw": grids})
    assert find_columns(videos) == [(0, [1, 2], [], 0), (0, [4, 5], [], 1), (1, [2, 3, 4, 5], [], 2)]
    assert [video.shape for video in videos] == [(2, 1, 1), (1, 1, 2), (1, 2, 2)]


def test_newline_follows_the_tokens_of_a_video() -> None:
    ids = torch.tensor([[0, VIDEO, VIDEO, VIDEO, 0]])
    videos = FAMILIES["llava_onevision"].find_videos(CONFIG, {"input_ids": ids}, shapes=[(2, 1, 1)])
    assert find_columns(videos) == [(0, [1, 2], [3], 0)]


def test_replayed_frames_are_all_images_of_the_prompt() -> None:
    ids = torch.tensor([[0, IMAGE, IMAGE, 0, IMAGE, IMAGE]])
    videos = FAMILIES["internvl"].find_videos(CONFIG, {"input_ids": ids}, shapes=[(2, 1, 2)])
    assert find_columns(videos) == [(0, [1, 2, 4, 5], [], 0)]


def test_rejects_prompts_that_do_not_fit_their_videos() -> None:
    family = FAMILIES["qwen2_vl"]
    with pytest.raises(ValueError, match="needs input_ids"):
        family.find_videos(CONFIG, {"inputs_embeds": torch.zeros(1, 2, 3)})
    with pytest.raises(ValueError, match=r"have \[1\] video tokens, but the videos, .* have \[4\]"):
        family.find_videos(CONFIG, {"input_ids": torch.tensor([[VIDEO, 0]])}, shapes=[(1, 2, 2)])
