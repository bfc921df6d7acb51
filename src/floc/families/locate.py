"""Find the tokens of videos in a prompt, and the grid of each video.

Families differ in how the grid of a video is known:

* grids: `video_grid_thw` has slices, rows and columns in patches (Qwen-VL, GLM-V, VideoLLaMA3, most others);
* stacked frames: `pixel_values_videos` has the frames, all of one size (LLaVA, Perception LM, Nemotron);
* single frames: the model knows the size of every frame, the prompt shows where a video ends (Kimi, MiniCPM-V);
* labelled images: a video is a sequence of images with a label each, and only the prompt shows it (InternVL, SmolVLM).
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

Shape: TypeAlias = tuple[int, int, int]  # slices, rows, columns
# Arguments by name: of one call of the multimodal model, with those of its `get_video_features`; or of a processor
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
    """Read the grids of videos from `video_grid_thw`."""
    mask = arguments.get("video_compression_mask")
    if mask is not None and not bool(mask.all()):
        raise ValueError("video_compression_mask drops tokens; prepare the inputs with use_token_compression=False")
    grids, merges = _require(arguments, "video_grid_thw"), arguments.get("video_merge_sizes")
    vision = config.vision_config
    side = getattr(vision, "spatial_merge_size", None) or getattr(vision, "merge_size", 1)
    frames = getattr(vision, "temporal_merge_size", 1)
    sides = [side] * len(grids) if merges is None else merges.tolist()
    return [(t // frames, h // side, w // side) for (t, h, w), side in zip(grids.tolist(), sides, strict=True)]


def _require(arguments: Arguments, name: str) -> torch.Tensor:
    if arguments.get(name) is None:
        known = "the grid of a video is known only if the model encodes it while floc is attached"
        remedy = "pass all that the model's processor returns, and no mm_encoder_outputs"
        raise ValueError(f"a prompt with a video needs {name}: {known}; {remedy}")
    return arguments[name]


def read_molmo2_grids(config: Any, arguments: Arguments) -> list[Shape]:
    """Read the grids of videos of Molmo2, in tokens."""
    return [(t, h, w) for t, h, w in _require(arguments, "video_grids").tolist()]


def read_gemma4_grids(config: Any, arguments: Arguments) -> list[Shape]:
    """Read the grids of videos of Gemma 4 from the (x, y) of every patch."""
    return _read_patch_grids(arguments, config.vision_config.pooling_kernel_size)


def read_gemma4_unified_grids(config: Any, arguments: Arguments) -> list[Shape]:
    """Read the grids of videos of Gemma 4 without a vision encoder: a patch is a token."""
    return _read_patch_grids(arguments, 1)


def _read_patch_grids(arguments: Arguments, side: int) -> list[Shape]:
    places = _require(arguments, "video_position_ids")  # [F, patches, 2], -1 for padding; [videos, F, ...] before 5.22
    frames = arguments.get("num_frames_per_video")
    counts = [places.shape[-3]] * math.prod(places.shape[:-3]) if frames is None else torch.as_tensor(frames).tolist()
    places = places.flatten(0, -3)
    firsts = itertools.accumulate(counts[:-1], initial=0)
    sizes = [(places[first].amax(0) + 1).tolist() for first in firsts]
    return [(count, h // side, w // side) for count, (w, h) in zip(counts, sizes, strict=True)]


def read_llava_next_grids(config: Any, arguments: Arguments) -> list[Shape]:
    """Read the grids of videos of LLaVA-NeXT-Video."""
    side = config.vision_config.image_size // config.vision_config.patch_size // config.spatial_pool_stride
    return _read_stacked_grids(arguments, side, side)


def read_llava_onevision_grids(config: Any, arguments: Arguments) -> list[Shape]:
    """Read the grids of videos of LLaVA-OneVision."""
    side = math.ceil(config.vision_config.image_size // config.vision_config.patch_size / 2)
    return _read_stacked_grids(arguments, side, side)


def read_video_llava_grids(config: Any, arguments: Arguments) -> list[Shape]:
    """Read the grids of videos of Video-LLaVA: a frame is one row, because it has a class token before its patches."""
    return _read_stacked_grids(
        arguments, 1, 1 + (config.vision_config.image_size // config.vision_config.patch_size) ** 2
    )


def read_perception_lm_grids(config: Any, arguments: Arguments) -> list[Shape]:
    """Read the grids of videos of Perception LM, whose vision encoder has its patch size in its name."""
    name = config.vision_config.architecture
    patch = re.search(r"patch(\d+)", name)
    if patch is None:
        raise ValueError(f"the vision encoder's name must have its patch size, such as patch14; got {name!r}")
    side = int(patch[1]) * config.projector_pooling_ratio
    height, width = _require(arguments, "pixel_values_videos").shape[-2:]
    return _read_stacked_grids(arguments, height // side, width // side)


def _read_stacked_grids(arguments: Arguments, rows: int, columns: int) -> list[Shape]:
    videos, frames = _require(arguments, "pixel_values_videos").shape[:2]
    return [(frames, rows, columns)] * videos


def read_nemotron_grids(config: Any, arguments: Arguments) -> list[Shape]:
    """Read the grid of the video of Nemotron Omni; a call has one video."""
    frames, _, height, width = _require(arguments, "pixel_values_videos").shape
    side = round(config.vision_config.patch_size / config.downsample_ratio)
    return [(math.ceil(frames / config.video_temporal_patch_size), height // side, width // side)]


def read_kimi_grids(config: Any, arguments: Arguments) -> list[Shape]:
    """Read the grids of videos of Kimi, which encodes a few frames at a time into the tokens of one."""
    rows, columns = config.vision_config.merge_kernel_size
    sizes = [(h // rows, w // columns) for _, h, w in _require(arguments, "video_grid_thw").tolist()]
    return _group_frames(config, arguments, sizes, LABEL_TOKENS.stop)


def read_minicpm_grids(config: Any, arguments: Arguments) -> list[Shape]:
    """Read the grids of videos of MiniCPM-V; a frame that is cut into tiles is one row."""
    side = 2 if (arguments.get("downsample_mode") or config.downsample_mode) == "4x" else 4
    sizes = [(h // side, w // side) for h, w in _require(arguments, "target_sizes_videos").tolist()]
    return _group_frames(config, arguments, sizes, 3)  # a line break between two marks


def _group_frames(config: Any, arguments: Arguments, sizes: list[tuple[int, int]], longest: int) -> list[Shape]:
    """Return the grid of each video from the sizes of single frames, or of tiles of frames.

    Frames of one video have at most `longest` other tokens between them, and the same token before them; tiles have
    another. A label that is that of the first frame starts another video. Without a prompt, all frames are one video.
    """
    ids, tiles = arguments.get("input_ids"), arguments.get("num_patches_per_frame")
    per_frame = 1 if tiles is None else int(tiles[0])
    videos = [[(i % per_frame, h * w) for i, (h, w) in enumerate(sizes)]]  # token before, length
    if ids is not None:
        videos = []
        for line in ids.cpu().numpy():
            first = last = end = -longest - 1
            for start, stop in _find_edges(line == config.video_token_id):
                is_labelled = start - end > LABEL_HEAD
                if start - end > longest or (is_labelled and _starts_again(line, first, last, line[end + 1 : start])):
                    videos.append([])
                    first = start
                last = start
                videos[-1].append((int(line[start - 1]), stop - start))
                end = stop
    by_length = {h * w: (h, w) for h, w in sizes}
    shapes = []
    for runs in videos:
        frames: list[list[int]] = []
        for before, length in runs:
            if before == runs[0][0]:
                frames.append([])
            frames[-1].append(length)
        if any(frame != frames[0] for frame in frames):
            shapes.append((1, 1, sum(map(sum, frames))))
        elif len(frames[0]) == 1 and frames[0][0] in by_length:
            shapes.append((len(frames), *by_length[frames[0][0]]))
        else:
            shapes.append((len(frames), 1, sum(frames[0])))
    return shapes


def _find_edges(line: np.ndarray) -> list[list[int]]:
    """Return [start, stop] of each run of True."""
    return np.flatnonzero(np.diff(np.pad(line, 1).astype(np.int8))).reshape(-1, 2).tolist()


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
        shapes.append(fold_frames(len(video), stop - start))
    return shapes


def fold_frames(frames: int, tokens: int) -> Shape:
    """Return the grid of frames of so many tokens each: squares, or rows if they cannot be."""
    side = math.isqrt(tokens)
    return (frames, side, side) if side**2 == tokens else (frames, 1, tokens)


def _find_runs(config: Any, ids: torch.Tensor) -> list[list[tuple[int, int, int]]]:
    """Find runs of image tokens that are frames of one video. Returns (row, start, stop) of each frame, by video.

    A frame is a run as long as the run before it, after a label that equals the label before but for a number or a
    time. Images have no such labels, so a single frame is read as an image. All labels of a row start alike; other text
    separates two videos, and so does the label of the first frame if it returns after other labels.
    """
    videos = []
    for row, line in enumerate(ids.cpu().numpy()):
        runs = _find_edges(line == config.image_token_id)
        labels = [_read_label(line, *pair) for pair in itertools.pairwise(runs)]
        heads = Counter(label[:LABEL_HEAD] for label in labels if label is not None).most_common(1)
        video: list[tuple[int, int, int]] = []
        for label, (start, stop) in zip([None, *labels], runs, strict=False):
            if (
                label is None
                or label[:LABEL_HEAD] != heads[0][0]
                or _starts_again(line, video[0][1] - 1, video[-1][1] - 1, label[LABEL_HEAD:])
            ):
                videos.append(video)
                video = []
            video.append((row, start, stop))
        videos.append(video)
    return [video for video in videos if len(video) > 1]


def _starts_again(line: np.ndarray, first: int, last: int, label: Sequence[int] | np.ndarray) -> bool:
    """Return whether a label is that of the frame that starts at `first`, but not of the one at `last`."""
    has_first, has_last = (np.array_equal(line[max(0, i - len(label)) : i], label) for i in (first, last))
    return has_first and not has_last


def _read_label(line: np.ndarray, before: list[int], run: list[int]) -> tuple[int, ...] | None:
    """Return the label between two runs, or None if there is none or it differs from the label before."""
    (start, stop), (next_start, next_stop) = before, run
    label = line[stop : next_start - 1]  # without the token that opens an image
    if stop - start != next_stop - next_start or len(label) not in LABEL_TOKENS:
        return None
    label_before = line[max(0, start - len(label) - 1) : start - 1]
    return tuple(label.tolist()) if len(np.intersect1d(label, label_before)) >= LABEL_SHARED else None
