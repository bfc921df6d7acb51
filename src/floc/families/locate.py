"""Find the tokens of videos in a prompt, and the grid of each video.

Families differ in how the grid of a video is known:

* grids: `video_grid_thw` has slices, rows and columns in patches (Qwen-VL, GLM-V, VideoLLaMA3);
* stacked frames: `pixel_values_videos` has the frames, and every frame is a square of tokens (LLaVA);
* labelled images: a video is a sequence of images with a label each, and only the prompt shows it (InternVL, SmolVLM).
"""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

Shape: TypeAlias = tuple[int, int, int]  # slices, rows, columns
# Arguments of one call of the multimodal model by name; "tower": the last grids and merge sizes of its vision encoder
Arguments: TypeAlias = Mapping[str, Any]

# A frame's label is the text between it and the frame before, such as "</img>\nFrame12: <img>"
LABEL_TOKENS = range(3, 33)  # its length, without the token that opens an image
LABEL_SHARED = 2  # distinct tokens it shares with the label before: "Frame" and ":"
LABEL_HEAD = 3  # tokens before its number: "</img>", "\n" and "Frame"


@dataclass(frozen=True)
class PromptVideo:
    """The placeholder tokens of one video in a prompt."""

    row: int  # of the batch
    columns: torch.Tensor  # [n] int64, positions in the sequence, in grid order
    newline: torch.Tensor  # [0 or 1] int64, position of the extra placeholder after them
    shape: Shape
    index: int  # of the video among those given


def assign_videos(counts: Sequence[int], sizes: Sequence[int]) -> list[list[int]] | None:
    """Return the videos of each row from the rows' and the videos' token counts, or None if they do not fit.

    Videos are in the order of the rows. If there are more tokens than videos, each row was repeated equally often, or
    every row has all videos.

    >>> assign_videos([5, 0, 9], [5, 4, 5]), assign_videos([5, 5, 4, 4], [5, 4]), assign_videos([9, 9], [5, 4])
    ([[0], [], [1, 2]], [[0], [0], [1], [1]], [[0, 1], [0, 1]])
    """
    filled = [row for row, count in enumerate(counts) if count]
    videos: list[list[int]] = [[] for _ in counts]
    if filled and all(counts[row] == sum(sizes) for row in filled):
        for row in filled:
            videos[row] = [*range(len(sizes))]
        return videos
    ends = [0, *itertools.accumulate(sizes)]
    repeats = max(1, sum(counts) // max(1, ends[-1]))
    start = 0
    for first in range(0, len(filled), repeats):
        rows = filled[first : first + repeats]
        stop = start + counts[rows[0]]
        if len(rows) < repeats or len({counts[row] for row in rows}) > 1 or stop not in ends:
            return None
        for row in rows:
            videos[row] = [*range(ends.index(start), ends.index(stop))]
        start = stop
    return videos if start == ends[-1] else None


def find_marked_videos(config: Any, ids: torch.Tensor) -> torch.Tensor:
    """Return [B, L] bool, True at image tokens between the video marks: GLM-V uses one placeholder for both."""
    depth = (ids == config.video_start_token_id).cumsum(-1) - (ids == config.video_end_token_id).cumsum(-1)
    return (ids == config.image_token_id) & (depth > 0)


def read_grids(config: Any, arguments: Arguments) -> list[Shape]:
    """Read the grids of videos from `video_grid_thw`, or from the vision encoder's last call."""
    mask = arguments.get("video_compression_mask")
    if mask is not None and not bool(mask.all()):
        raise ValueError("video_compression_mask drops tokens; prepare the inputs with use_token_compression=False")
    grids, merges = arguments.get("video_grid_thw"), arguments.get("video_merge_sizes")
    if grids is not None:
        return _in_tokens(config, grids, merges)
    if arguments.get("tower") is None:
        raise ValueError("a prompt with a video needs video_grid_thw, as the model's processor returns it")
    # newer releases encode before they call the model, without passing the grids on: the vision encoder had them
    features = arguments["mm_encoder_outputs"]["video"].pooler_output
    return _match_features(_in_tokens(config, *arguments["tower"]), features)


def _in_tokens(config: Any, grids: torch.Tensor, merges: torch.Tensor | None) -> list[Shape]:
    vision = config.vision_config
    side = getattr(vision, "spatial_merge_size", None) or getattr(vision, "merge_size", 1)
    frames = getattr(vision, "temporal_merge_size", 1)
    sides = [side] * len(grids) if merges is None else merges.tolist()
    return [(t // frames, h // side, w // side) for (t, h, w), side in zip(grids.tolist(), sides, strict=True)]


def _match_features(encoded: list[Shape], features: Sequence[torch.Tensor]) -> list[Shape]:
    """Return the grid of each video's features, from the grids that were encoded: one per video or per frame."""
    distinct = {video.data_ptr(): video for video in features}  # beams repeat videos, in the same memory
    if sum(map(math.prod, encoded)) != sum(map(len, distinct.values())):
        remedy = "pass pixel_values_videos and video_grid_thw instead of mm_encoder_outputs"
        raise ValueError(f"floc knows a video's grid only if the vision encoder runs while floc is attached; {remedy}")
    shapes, remaining = {}, iter(encoded)
    for pointer in sorted(distinct):
        t, h, w = next(remaining)
        while t * h * w < len(distinct[pointer]):
            t += next(remaining)[0]
        shapes[pointer] = (t, h, w)
    return [shapes[video.data_ptr()] for video in features]


def read_llava_next_grids(config: Any, arguments: Arguments) -> list[Shape]:
    """Read the grids of videos of LLaVA-NeXT-Video."""
    side = config.vision_config.image_size // config.vision_config.patch_size // config.spatial_pool_stride
    return _read_stacked_grids(arguments, side, 0)


def read_llava_onevision_grids(config: Any, arguments: Arguments) -> list[Shape]:
    """Read the grids of videos of LLaVA-OneVision, whose features end with a newline token."""
    side = math.ceil(config.vision_config.image_size // config.vision_config.patch_size / 2)
    return _read_stacked_grids(arguments, side, 1)


def _read_stacked_grids(arguments: Arguments, side: int, newlines: int) -> list[Shape]:
    pixels = arguments.get("pixel_values_videos")
    if pixels is not None:
        return [(pixels.shape[1], side, side)] * pixels.shape[0]
    features = arguments["mm_encoder_outputs"]["video"].pooler_output
    counts = [video.shape[:-1].numel() - newlines for video in features]
    return [(count // side**2, side, side) for count in counts]


def find_labelled_frames(config: Any, ids: torch.Tensor) -> torch.Tensor:
    """Return [B, L] bool, True at images that are frames of a video."""
    mask = torch.zeros_like(ids, dtype=torch.bool)
    for video in _find_runs(config, ids):
        for row, start, stop in video:
            mask[row, start:stop] = True
    return mask


def read_labelled_grids(config: Any, arguments: Arguments) -> list[Shape]:
    """Read the grids of videos whose frames are labelled images."""
    shapes = []
    for video in _find_runs(config, arguments["input_ids"]):
        _, start, stop = video[0]
        side = math.isqrt(stop - start)
        shapes.append((len(video), side, side) if side**2 == stop - start else (len(video), 1, stop - start))
    return shapes


def _find_runs(config: Any, ids: torch.Tensor) -> list[list[tuple[int, int, int]]]:
    """Find runs of image tokens that are frames of one video. Returns (row, start, stop) of each frame, by video.

    A frame is a run as long as the run before it, after a label that equals the label before but for a number or a
    time. Images have no such labels, so a single frame is read as an image. All labels of a row start alike; other text
    separates two videos.
    """
    videos = []
    for row, line in enumerate(ids.cpu().numpy()):
        edges = np.flatnonzero(np.diff(np.pad(line == config.image_token_id, 1).astype(np.int8)))
        runs = edges.reshape(-1, 2).tolist()
        labels = [_read_label(line, *pair) for pair in itertools.pairwise(runs)]
        heads = Counter(label[:LABEL_HEAD] for label in labels if label is not None).most_common(1)
        video: list[tuple[int, int, int]] = []
        for label, (start, stop) in zip([None, *labels], runs, strict=False):
            if label is None or label[:LABEL_HEAD] != heads[0][0]:
                videos.append(video)
                video = []
            video.append((row, start, stop))
        videos.append(video)
    return [video for video in videos if len(video) > 1]


def _read_label(line: np.ndarray, before: list[int], run: list[int]) -> tuple[int, ...] | None:
    """Return the label between two runs, or None if there is none or it differs from the label before."""
    (start, stop), (next_start, next_stop) = before, run
    label = line[stop : next_start - 1]  # without the token that opens an image
    if stop - start != next_stop - next_start or len(label) not in LABEL_TOKENS:
        return None
    label_before = line[max(0, start - len(label) - 1) : start - 1]
    return tuple(label.tolist()) if len(np.intersect1d(label, label_before)) >= LABEL_SHARED else None
