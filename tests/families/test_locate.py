"""Tests of how the tokens of videos are found in a prompt."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from floc.families import locate

IMAGE, OPEN, CLOSE, LINE, FRAME, COLON, TEXT, START, END = range(9)
NUMBERS = range(10, 40)  # tokens of frame numbers


def make_config(**more) -> SimpleNamespace:
    vision = SimpleNamespace(spatial_merge_size=2, image_size=56, patch_size=14)
    return SimpleNamespace(image_token_id=IMAGE, vision_config=vision, **more)


def write_frames(count: int, tokens: int) -> list[int]:
    """Write a video as labelled images: Frame 10: <img> tokens </img>."""
    frames = [[FRAME, NUMBERS[i], COLON, OPEN, *[IMAGE] * tokens, CLOSE, LINE] for i in range(count)]
    return [token for frame in frames for token in frame]


@pytest.mark.parametrize(
    ("counts", "sizes", "videos"),
    [
        ([], [], []),
        ([0, 0], [], [[], []]),
        ([6], [6], [[0]]),
        ([6, 6, 6], [6], [[0], [0], [0]]),  # beams
        ([10, 6], [4, 6, 6], [[0, 1], [2]]),
        ([10, 10], [4, 6], [[0, 1], [0, 1]]),  # every row has all videos
        ([4, 4, 6, 6], [4, 6], [[0], [0], [1], [1]]),  # each row repeated
        ([5], [6], None),
        ([4, 6, 4], [4, 6], None),
        ([3, 3], [6], None),
    ],
)
def test_assigns_videos_to_rows(counts: list[int], sizes: list[int], videos: list[list[int]] | None) -> None:
    assert locate.assign_videos(counts, sizes) == videos


def test_marked_videos_are_image_tokens_between_the_marks() -> None:
    config = make_config(video_start_token_id=START, video_end_token_id=END)
    ids = torch.tensor([[IMAGE, START, IMAGE, TEXT, IMAGE, END, IMAGE], [TEXT, TEXT, START, IMAGE, IMAGE, END, TEXT]])
    expected = [[2, 4], [3, 4]]
    assert [row.nonzero()[:, 0].tolist() for row in locate.find_marked_videos(config, ids)] == expected


def test_reads_grids_in_tokens() -> None:
    grids = torch.tensor([[3, 4, 8], [1, 6, 2]])
    assert locate.read_grids(make_config(), {"video_grid_thw": grids}) == [(3, 2, 4), (1, 3, 1)]
    merges = torch.tensor([1, 2])
    given = {"video_grid_thw": grids, "video_merge_sizes": merges}
    assert locate.read_grids(make_config(), given) == [(3, 4, 8), (1, 3, 1)]


def test_reads_grids_from_the_vision_encoder() -> None:
    first, second = torch.zeros(2 * 2 * 4, 3), torch.zeros(6, 3)
    outputs = {"video": SimpleNamespace(pooler_output=[first, second, first])}  # a beam repeats the first
    tower = (torch.tensor([[1, 4, 8], [1, 4, 8], [1, 4, 6]]), None)  # one grid for each frame of the first
    if first.data_ptr() > second.data_ptr():
        tower = (tower[0].flip(0), None)
    shapes = locate.read_grids(make_config(), {"mm_encoder_outputs": outputs, "tower": tower})
    assert shapes == [(2, 2, 4), (1, 2, 3), (2, 2, 4)]
    with pytest.raises(ValueError, match="only if the vision encoder runs while floc is attached"):
        locate.read_grids(make_config(), {"mm_encoder_outputs": outputs, "tower": (tower[0][:1], None)})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "needs video_grid_thw"),
        ({"video_compression_mask": torch.tensor([True, False])}, "use_token_compression=False"),
    ],
)
def test_rejects_prompts_without_a_grid(given: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        locate.read_grids(make_config(), given)


def test_reads_grids_of_stacked_frames() -> None:
    config = make_config(spatial_pool_stride=2)
    pixels = {"pixel_values_videos": torch.zeros(2, 5, 3, 56, 56)}
    assert locate.read_llava_next_grids(config, pixels) == [(5, 2, 2)] * 2
    assert locate.read_llava_onevision_grids(config, pixels) == [(5, 2, 2)] * 2
    outputs = SimpleNamespace(pooler_output=[torch.zeros(3 * 4 + 1, 8)])  # the last is the newline
    encoded = {"mm_encoder_outputs": {"video": outputs}}
    assert locate.read_llava_onevision_grids(config, encoded) == [(3, 2, 2)]


def test_frames_have_labels_and_images_have_none() -> None:
    image = [TEXT, OPEN, *[IMAGE] * 4, CLOSE, TEXT]
    row = [*image, *write_frames(3, 4), TEXT, TEXT, *write_frames(2, 9), *image]
    ids = torch.tensor([row])
    assert locate.read_labelled_grids(make_config(), {"input_ids": ids}) == [(3, 2, 2), (2, 3, 3)]
    mask = locate.find_labelled_frames(make_config(), ids)[0]
    assert int(mask.sum()) == 3 * 4 + 2 * 9
    assert not mask[: len(image)].any()
    assert not mask[-len(image) :].any()


def test_frames_that_are_not_square_have_one_row() -> None:
    ids = torch.tensor([write_frames(3, 6)])
    assert locate.read_labelled_grids(make_config(), {"input_ids": ids}) == [(3, 1, 6)]
