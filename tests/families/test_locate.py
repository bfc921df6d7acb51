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
    assert locate.read_video_llava_grids(config, pixels) == [(5, 1, 17)] * 2  # 4 x 4 patches and a class token


def test_reads_the_patch_size_from_the_name_of_the_vision_encoder() -> None:
    config = make_config(projector_pooling_ratio=2)
    config.vision_config.architecture = "vit_large_patch14_336"
    pixels = {"pixel_values_videos": torch.zeros(1, 5, 3, 56, 56)}
    assert locate.read_perception_lm_grids(config, pixels) == [(5, 2, 2)]
    config.vision_config.architecture = "resnet50"
    with pytest.raises(ValueError, match="must have its patch size, such as patch14; got 'resnet50'"):
        locate.read_perception_lm_grids(config, pixels)


def test_an_odd_frame_fills_a_slice() -> None:
    config = make_config(video_temporal_patch_size=2, downsample_ratio=0.5)
    pixels = {"pixel_values_videos": torch.zeros(5, 3, 56, 84)}
    assert locate.read_nemotron_grids(config, pixels) == [(3, 2, 3)]


def test_reads_grids_from_the_places_of_patches() -> None:
    def place(rows: int, columns: int, frames: int) -> torch.Tensor:
        grid = [(x, y) for y in range(rows) for x in range(columns)]
        return torch.tensor([grid + [(-1, -1)] * (24 - len(grid))] * frames)

    config = make_config()
    config.vision_config.pooling_kernel_size = 2
    given = {"video_position_ids": torch.cat([place(4, 6, 3), place(2, 4, 2)]), "num_frames_per_video": [3, 2]}
    assert locate.read_gemma4_grids(config, given) == [(3, 2, 3), (2, 1, 2)]
    assert locate.read_gemma4_unified_grids(config, given) == [(3, 4, 6), (2, 2, 4)]


def write_runs(*lengths: int, between: int, tiles: int = 1) -> list[int]:
    """Write runs of visual tokens with text between them, after a mark: one for a frame, another for tiles."""
    row = [TEXT] * 5
    for index, length in enumerate(lengths):
        row += [TEXT] * (between - 1) + [START if index % tiles == 0 else OPEN] + [IMAGE] * length
    return row


def test_frames_with_little_between_them_are_one_video() -> None:
    config = make_config(video_token_id=IMAGE, downsample_mode="16x")
    sizes = {"target_sizes_videos": torch.tensor([[8, 12]] * 3 + [[8, 8]] * 2)}
    row = [*write_runs(6, 6, 6, between=2), *write_runs(4, 4, between=2)]
    assert locate.read_minicpm_grids(config, {**sizes, "input_ids": torch.tensor([row])}) == [(3, 2, 3), (2, 2, 2)]
    repeated = torch.tensor([row, row])  # two beams
    assert len(locate.read_minicpm_grids(config, {**sizes, "input_ids": repeated})) == 4
    alone = {"target_sizes_videos": torch.tensor([[8, 12]] * 3)}  # without a prompt
    assert locate.read_minicpm_grids(config, alone) == [(3, 2, 3)]
    assert locate.read_minicpm_grids(config, {**alone, "downsample_mode": "4x"}) == [(3, 4, 6)]


@pytest.mark.parametrize("size", [(8, 12), (8, 8)])  # of the whole frame: larger than its tiles, or equal
def test_frame_in_tiles_is_one_row(size: tuple[int, int]) -> None:
    config = make_config(video_token_id=IMAGE, downsample_mode="16x")
    lengths = [size[0] * size[1] // 16, 4, 4]
    sizes = {"target_sizes_videos": torch.tensor([size, (8, 8), (8, 8)] * 4)}
    row = write_runs(*lengths * 4, between=2, tiles=3)
    assert locate.read_minicpm_grids(config, {**sizes, "input_ids": torch.tensor([row])}) == [(4, 1, sum(lengths))]
    assert locate.read_minicpm_grids(config, {**sizes, "num_patches_per_frame": [3] * 4}) == [(4, 1, sum(lengths))]


def test_frames_of_unequal_size_are_one_row() -> None:
    config = make_config(video_token_id=IMAGE, downsample_mode="16x")
    sizes = {"target_sizes_videos": torch.tensor([[8, 12], [8, 8]] * 2)}
    row = write_runs(6, 4, 6, 4, between=2)
    assert locate.read_minicpm_grids(config, {**sizes, "input_ids": torch.tensor([row])}) == [(1, 1, 20)]


def test_reads_grids_of_frames_in_chunks() -> None:
    config = make_config(video_token_id=IMAGE)
    config.vision_config.merge_kernel_size = (2, 2)
    given = {"video_grid_thw": torch.tensor([[4, 4, 6], [4, 4, 6], [2, 4, 6]])}
    row = write_runs(6, 6, 6, between=12)
    assert locate.read_kimi_grids(config, {**given, "input_ids": torch.tensor([row])}) == [(3, 2, 3)]


def test_frames_have_labels_and_images_have_none() -> None:
    image = [TEXT, OPEN, *[IMAGE] * 4, CLOSE, TEXT]
    row = [*image, *write_frames(3, 4), TEXT, TEXT, *write_frames(2, 9), *image]
    ids = torch.tensor([row])
    assert locate.read_labelled_grids(make_config(), {"input_ids": ids}) == [(3, 2, 2), (2, 3, 3)]
    mask = locate.find_labelled_frames(make_config(), ids)[0]
    assert int(mask.sum()) == 3 * 4 + 2 * 9
    assert not mask[: len(image)].any()
    assert not mask[-len(image) :].any()


def test_the_first_label_starts_another_video() -> None:
    config = make_config(video_token_id=IMAGE)
    ids = torch.tensor([[LINE, *write_frames(4, 4), *write_frames(3, 4), *write_frames(2, 4)]])
    assert locate.read_labelled_grids(config, {"input_ids": ids}) == [(4, 2, 2), (3, 2, 2), (2, 2, 2)]
    config.vision_config.merge_kernel_size = (2, 2)
    given = {"video_grid_thw": torch.tensor([[1, 4, 4]] * 9), "input_ids": ids}
    assert locate.read_kimi_grids(config, given) == [(4, 2, 2), (3, 2, 2), (2, 2, 2)]


def test_frames_in_one_second_are_one_video() -> None:
    """Labels with times in seconds repeat, but never return."""
    seconds = [write_frames(1, 4), write_frames(1, 4), write_frames(2, 4)[-10:], write_frames(2, 4)[-10:]]
    ids = torch.tensor([[token for frame in seconds for token in frame]])
    assert locate.read_labelled_grids(make_config(), {"input_ids": ids}) == [(4, 2, 2)]


def test_frames_that_are_not_square_have_one_row() -> None:
    ids = torch.tensor([write_frames(3, 6)])
    assert locate.read_labelled_grids(make_config(), {"input_ids": ids}) == [(3, 1, 6)]
