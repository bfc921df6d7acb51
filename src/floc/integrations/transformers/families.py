"""Where the tokens of videos are in a prompt, and which frame and cell each stands for: a line for each family.

A model of transformers scatters visual features over placeholder tokens, in order. Three kinds of family differ in how
a video's grid is known:

* grids: `video_grid_thw` gives frames, rows and columns in patches (the Qwen-VL and GLM-V kind, VideoLLaMA3);
* frames: `pixel_values_videos` has the frames, every frame a square of tokens (LLaVA);
* runs: a video is a row of pictures with a label each, and only the prompt shows it (InternVL, SmolVLM).

To add a family whose decoder gets its inputs by keyword, add a line to `FAMILIES`: that is all `floc.attach` needs,
and the tests run over that table. To capture films takes a line in `floc.encoders.hf` too, prompts one in `prompts`.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

Shape: TypeAlias = tuple[int, int, int]  # frames, rows, columns
# of one call of the multimodal model, by name; "tower": the grids and merge sizes that its vision tower got last
Arguments: TypeAlias = Mapping[str, Any]

# A frame's label is what stands between it and the frame before, such as "</img>\nFrame12: <img>"
LABEL_TOKENS = range(3, 33)  # how long it is, without the mark that opens a picture
LABEL_SHARED = 2  # how many different tokens it has in common with the label before: "Frame" and ":"
LABEL_HEAD = 3  # tokens before its number: "</img>", "\n" and "Frame"


@dataclass(frozen=True)
class Clip:
    """One video's tokens in a prompt."""

    row: int  # of the batch
    places: torch.Tensor  # [n] int64, where in the sequence, in the order of the grid
    closing: torch.Tensor  # the same for placeholders after it that belong to no cell
    shape: Shape
    video: int  # which of those given it is


@dataclass(frozen=True)
class Family:
    """How a kind of model marks the tokens of videos."""

    kind: str
    carrier: str  # the argument that holds the pixels
    marks: Callable[[Any, torch.Tensor], torch.Tensor]  # config, [B, L] ids -> [B, L] bool, the tokens of videos
    shapes: Callable[[Any, Arguments], list[Shape]]  # the videos' grids, in order
    placeholders: str | None = None  # the config's name for the id of all visual tokens, where `marks` has to guess
    trailing: int = 0  # placeholders after a video's tokens that belong to no cell
    closing: str | None = None  # the multimodal model's parameter that stands at them
    has_grid_positions: bool = False  # positions of a token are its frame, row and column, not a plain number

    def carries_pixels(self, arguments: Arguments) -> bool:
        """Whether a call brings pixels, or what a vision tower made of them."""
        if arguments.get(self.carrier) is not None:
            return True
        encoded = arguments.get("mm_encoder_outputs")
        if not isinstance(encoded, Mapping):
            return encoded is not None
        return encoded.get("image" if self.carrier == "pixel_values" else "video") is not None

    def marked(self, config: Any, ids: torch.Tensor, *, only_videos: bool) -> torch.Tensor:
        """[B, L] bool, the tokens of videos; `only_videos`: the prompt has no pictures beside them."""
        if only_videos and self.placeholders is not None:
            return ids == getattr(config, self.placeholders)
        return self.marks(config, ids)

    def clips(self, config: Any, arguments: Arguments, shapes: Sequence[Shape] | None = None) -> list[Clip]:
        """The videos of a prompt, in order.

        Args:
            config: the model's.
            arguments: of the multimodal model.
            shapes: the videos' grids, where they are known without pixels; rows may repeat them.
        """
        ids = arguments.get("input_ids")
        if ids is None:
            raise ValueError("floc finds the tokens of a video by input_ids; pass them instead of inputs_embeds")
        marked = self.marked(config, ids, only_videos=shapes is not None)
        given = self.shapes(config, arguments) if shapes is None else shapes
        counts = marked.sum(1).tolist()
        sizes = [math.prod(shape) + self.trailing for shape in given]
        videos = _by_row(counts, sizes)
        if videos is None:
            raise ValueError(
                f"the prompt has {counts} tokens of videos in its rows, but the videos given, {list(given)} in frames, "
                f"rows and columns, have {sizes}; prepare both with the model's processor"
            )
        found = []
        for row, mine in enumerate(videos):
            places = marked[row].nonzero()[:, 0]
            for video in mine:
                inside, closing, places = places.split(
                    [sizes[video] - self.trailing, self.trailing, len(places) - sizes[video]]
                )
                found.append(Clip(row, inside, closing, given[video], video))
        return found


def _by_row(counts: Sequence[int], sizes: Sequence[int]) -> list[list[int]] | None:
    """Which videos are in which row, None where they do not fit.

    Videos come in the order of the rows; where there are more tokens than videos, each row was repeated as often as it
    takes, or every row has all of them.

    >>> _by_row([5, 0, 9], [5, 4, 5]), _by_row([5, 5, 4, 4], [5, 4]), _by_row([9, 9], [5, 4])
    ([[0], [], [1, 2]], [[0], [0], [1], [1]], [[0, 1], [0, 1]])
    """
    filled = [row for row, count in enumerate(counts) if count]
    found: list[list[int]] = [[] for _ in counts]
    if filled and all(counts[row] == sum(sizes) for row in filled):
        for row in filled:
            found[row] = [*range(len(sizes))]
        return found
    many = max(1, sum(counts) // max(1, sum(sizes)))
    video = 0
    for first in range(0, len(filled), many):
        rows = filled[first : first + many]
        mine: list[int] = []
        while sum(sizes[each] for each in mine) < counts[rows[0]] and video < len(sizes):
            mine.append(video)
            video += 1
        if any(counts[row] != sum(sizes[each] for each in mine) for row in rows) or len(rows) < many:
            return None
        for row in rows:
            found[row] = mine
    return found if video == len(sizes) else None


def family_of(config: Any) -> Family:
    """The family of a model, by its config."""
    kind = getattr(config, "model_type", None)
    if kind not in FAMILIES:
        raise ValueError(
            f"floc does not know video models of type {kind!r} yet; it knows: {', '.join(sorted(FAMILIES))} "
            "(docs/models/README.md says how to add one)"
        )
    return FAMILIES[kind]


def _by_token(name: str) -> Callable[[Any, torch.Tensor], torch.Tensor]:
    return lambda config, ids: ids == getattr(config, name)


def _between_video_marks(config: Any, ids: torch.Tensor) -> torch.Tensor:
    """GLM-V writes the token of images for videos too, between marks of its own."""
    opened = (ids == config.video_start_token_id).cumsum(-1) - (ids == config.video_end_token_id).cumsum(-1)
    return (ids == config.image_token_id) & (opened > 0)


def _grid_shapes(config: Any, arguments: Arguments) -> list[Shape]:
    dropped = arguments.get("video_compression_mask")
    if dropped is not None and not bool(dropped.all()):
        raise ValueError(
            "video_compression_mask drops tokens before floc can choose; "
            "prepare the inputs with use_token_compression=False"
        )
    grids, merges = arguments.get("video_grid_thw"), arguments.get("video_merge_sizes")
    if grids is not None:
        return _in_tokens(config, grids, merges)
    if arguments.get("tower") is None:
        raise ValueError("a prompt with a video needs video_grid_thw, as the model's processor gives it")
    # newer releases encode before they call the model, and keep the grids to themselves: the vision tower saw them
    return _of_features(_in_tokens(config, *arguments["tower"]), arguments["mm_encoder_outputs"]["video"].pooler_output)


def _in_tokens(config: Any, grids: torch.Tensor, merges: torch.Tensor | None) -> list[Shape]:
    sides = [config.vision_config.spatial_merge_size] * len(grids) if merges is None else merges.tolist()
    return [(t, h // side, w // side) for (t, h, w), side in zip(grids.tolist(), sides, strict=True)]


def _of_features(seen: list[Shape], features: Sequence[torch.Tensor]) -> list[Shape]:
    """The grids of videos, of which beams may repeat some, from those the vision tower saw: a video or a frame each."""
    firsts = {each.data_ptr(): each for each in features}  # repeated ones are the same memory
    if sum(map(math.prod, seen)) != sum(map(len, firsts.values())):
        raise ValueError(
            "floc knows the grid of a video only where its vision tower runs while floc is attached; "
            "pass pixel_values_videos and video_grid_thw instead of mm_encoder_outputs"
        )
    shapes, left = {}, iter(seen)
    for place in sorted(firsts):
        t, h, w = next(left)
        while t * h * w < len(firsts[place]):
            t += next(left)[0]
        shapes[place] = (t, h, w)
    return [shapes[each.data_ptr()] for each in features]


def _llava_next_video_shapes(config: Any, arguments: Arguments) -> list[Shape]:
    side = config.vision_config.image_size // config.vision_config.patch_size // config.spatial_pool_stride
    return _frame_shapes(arguments, side, 0)


def _llava_onevision_shapes(config: Any, arguments: Arguments) -> list[Shape]:
    side = math.ceil(config.vision_config.image_size // config.vision_config.patch_size / 2)
    return _frame_shapes(arguments, side, 1)


def _frame_shapes(arguments: Arguments, side: int, trailing: int) -> list[Shape]:
    """Every frame is a square of tokens."""
    pixels = arguments.get("pixel_values_videos")
    if pixels is not None:
        return [(pixels.shape[1], side, side)] * pixels.shape[0]
    features = arguments["mm_encoder_outputs"]["video"].pooler_output
    counts = [each.shape[:-1].numel() - trailing for each in features]
    return [(count // side**2, side, side) for count in counts]


def _labelled_runs(config: Any, ids: torch.Tensor) -> list[list[tuple[int, int, int]]]:
    """Runs of picture tokens that are frames of one video: for each video its (row, start, stop).

    A frame is a run as long as the one before it, with a label between the two that is like the one before, but for a
    number or a time. Pictures have no such labels, and one frame alone cannot be told from a picture. All labels of a
    row begin alike; what begins otherwise is text between two videos.
    """
    found = []
    for row, line in enumerate(ids.cpu().numpy()):
        edges = np.flatnonzero(np.diff(np.pad(line == config.image_token_id, 1).astype(np.int8)))
        runs = edges.reshape(-1, 2).tolist()
        labels = [_label(line, *pair) for pair in itertools.pairwise(runs)]
        common = Counter(label[:LABEL_HEAD] for label in labels if label is not None).most_common(1)
        video: list[tuple[int, int, int]] = []
        for label, (start, stop) in zip([None, *labels], runs, strict=False):
            if label is None or label[:LABEL_HEAD] != common[0][0]:
                found.append(video)
                video = []
            video.append((row, start, stop))
        found.append(video)
    return [video for video in found if len(video) > 1]


def _label(line: np.ndarray, before: list[int], run: list[int]) -> tuple[int, ...] | None:
    """The label between two runs, None where there is none or it is not like the one before."""
    (start, stop), (next_start, next_stop) = before, run
    label = line[stop : next_start - 1]  # without the mark that opens a picture
    if stop - start != next_stop - next_start or len(label) not in LABEL_TOKENS:
        return None
    label_before = line[max(0, start - len(label) - 1) : start - 1]
    return tuple(label.tolist()) if len(np.intersect1d(label, label_before)) >= LABEL_SHARED else None


def _run_marks(config: Any, ids: torch.Tensor) -> torch.Tensor:
    marked = torch.zeros_like(ids, dtype=torch.bool)
    for video in _labelled_runs(config, ids):
        for row, start, stop in video:
            marked[row, start:stop] = True
    return marked


def _run_shapes(config: Any, arguments: Arguments) -> list[Shape]:
    shapes = []
    for video in _labelled_runs(config, arguments["input_ids"]):
        _, start, stop = video[0]
        side = math.isqrt(stop - start)
        shapes.append((len(video), side, side) if side**2 == stop - start else (len(video), 1, stop - start))
    return shapes


def _grids(kind: str, marks: Callable[[Any, torch.Tensor], torch.Tensor], positions: bool = True) -> Family:
    return Family(kind, "pixel_values_videos", marks, _grid_shapes, has_grid_positions=positions)


_VIDEO = _by_token("video_token_id")

FAMILIES: dict[str, Family] = {
    family.kind: family
    for family in (
        _grids("qwen2_vl", _VIDEO),
        _grids("qwen2_5_vl", _VIDEO),
        _grids("qwen3_vl", _VIDEO),
        _grids("qwen3_vl_moe", _VIDEO),
        _grids("cosmos3_omni", _VIDEO),
        _grids("glm4v", _between_video_marks),
        _grids("glm4v_moe", _between_video_marks),
        _grids("glm46v", _between_video_marks),
        _grids("glmga", _between_video_marks),
        _grids("glm_ocr", _between_video_marks),
        _grids("video_llama_3", _VIDEO, positions=False),
        Family("llava_next_video", "pixel_values_videos", _VIDEO, _llava_next_video_shapes),
        Family(
            "llava_onevision",
            "pixel_values_videos",
            _VIDEO,
            _llava_onevision_shapes,
            trailing=1,
            closing="image_newline",
        ),
        Family("internvl", "pixel_values", _run_marks, _run_shapes, placeholders="image_token_id"),
        Family("smolvlm", "pixel_values", _run_marks, _run_shapes, placeholders="image_token_id"),
    )
}
