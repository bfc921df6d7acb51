"""Tiny models of every family, with random weights, and prompts for them, created without a processor.

A prompt has what the family's processor would return: placeholders with the tokens around them, patches or frames,
grids, and rows padded on the left. Pixels are noise.
"""

# no `from __future__ import annotations`: dataclasses cannot resolve them in a file that is loaded by its path
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install 'floc-video[hf]'")

# ---- parts of a prompt


@dataclass(frozen=True)
class Video:
    """A video in slices of rows x columns tokens; families with square frames take only `side(kind)`."""

    slices: int
    rows: int
    columns: int


@dataclass(frozen=True)
class Image:
    """An image of rows x columns tokens; families that cut images into tiles take multiples of `side(kind)`."""

    rows: int
    columns: int


@dataclass(frozen=True)
class Text:
    """Random text tokens."""

    tokens: int


@dataclass(frozen=True)
class Clip:
    """The tokens of one video in grid order (t, y, x), without labels and newlines around them."""

    row: int
    places: np.ndarray  # [slices * rows * columns] int64, positions in the padded sequence
    shape: tuple[int, int, int]


@dataclass(frozen=True)
class Prompt:
    """The inputs of a model, and the videos in them, in order."""

    inputs: dict[str, torch.Tensor]
    clips: list[Clip]


# ---- the vocabulary

PAD, NEWLINE, COMMA = 0, 1, 2
WORDS = range(10, 150)
IMAGE, VIDEO, START, END, VIDEO_START, VIDEO_END, FAKE, GLOBAL, TILE = range(150, 159)
VOCABULARY = 200
LABEL = -1  # a few words, such as a timestamp
FRAME, COLON = 3, 4
NUMBER = -2  # a number of one to three digits


@dataclass(frozen=True)
class Writing:
    """How a family writes a video."""

    placeholder: int = VIDEO
    opening: tuple[int, ...] = ()
    before: tuple[int, ...] = ()  # each slice
    after: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    closing: tuple[int, ...] = ()


# ---- the models

HIDDEN = 64
# three layers: deepstack adds to the first two
TEXT = dict(
    vocab_size=VOCABULARY,
    hidden_size=HIDDEN,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=4096,
    pad_token_id=PAD,
    bos_token_id=None,
    eos_token_id=None,
)
EXPERTS = dict(num_experts_per_tok=2, moe_intermediate_size=24)
MROPE = dict(rope_type="default", rope_theta=1e4, mrope_section=[2, 3, 3])
PATCH, MERGE = 4, 2
TOWER = dict(hidden_size=32, intermediate_size=48, num_heads=2, patch_size=PATCH, out_hidden_size=HIDDEN)
CLIP = dict(hidden_size=24, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2, patch_size=PATCH)
SIDE = 3  # tokens on a side of a square frame
PIXELS = SIDE * MERGE * PATCH  # on a side: six patches, two per token
ODD_PIXELS = PIXELS - PATCH  # LLaVA-OneVision rounds up: five patches make three tokens too
LONGEST = 3  # tiles on a side of an image of LLaVA
SPECIAL = dict(image_token_id=IMAGE, video_token_id=VIDEO)
QWEN = dict(SPECIAL, vision_start_token_id=START, vision_end_token_id=END)


def _grid_text(**more: Any) -> dict[str, Any]:
    return dict(TEXT, rope_parameters=MROPE, **more)


def _qwen2(kind: str) -> Any:
    vision = dict(depth=2, embed_dim=32, hidden_size=HIDDEN, num_heads=2, mlp_ratio=2, patch_size=PATCH)
    return transformers.CONFIG_MAPPING[kind](text_config=_grid_text(), vision_config=vision, **QWEN)


def _qwen2_5(kind: str) -> Any:
    vision = dict(TOWER, depth=2, window_size=16, fullatt_block_indexes=[1], tokens_per_second=4)
    return transformers.CONFIG_MAPPING[kind](text_config=_grid_text(), vision_config=vision, **QWEN)


def _qwen3(kind: str, **text: Any) -> Any:
    vision = dict(TOWER, depth=3, num_position_embeddings=36, deepstack_visual_indexes=[0, 1])
    return transformers.CONFIG_MAPPING[kind](text_config=_grid_text(**text), vision_config=vision, **QWEN)


def _glm(kind: str, **text: Any) -> Any:
    # positions rotate half of a head
    rope = dict(MROPE, mrope_section=[2, 1, 1], partial_rotary_factor=0.5)
    return transformers.CONFIG_MAPPING[kind](
        text_config=dict(TEXT, rope_parameters=rope, **text),
        vision_config=dict(TOWER, depth=2, image_size=PIXELS),
        image_start_token_id=START,
        image_end_token_id=END,
        video_start_token_id=VIDEO_START,
        video_end_token_id=VIDEO_END,
        **SPECIAL,
    )


def _video_llama_3(kind: str) -> Any:
    vision = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, patch_size=PATCH)
    return transformers.CONFIG_MAPPING[kind](
        text_config=dict(TEXT, model_type="qwen2"), vision_config=vision, **SPECIAL
    )


def _tilings(pixels: int) -> list[list[int]]:
    sizes = [pixels * tiles for tiles in range(1, LONGEST + 1)]
    return [[height, width] for height in sizes for width in sizes]


def _llava_next_video(kind: str) -> Any:
    return transformers.CONFIG_MAPPING[kind](
        text_config=dict(TEXT, model_type="llama"),
        vision_config=dict(CLIP, model_type="clip_vision_model", image_size=PIXELS, projection_dim=16),
        image_grid_pinpoints=_tilings(PIXELS),
        spatial_pool_stride=MERGE,
        image_token_index=IMAGE,
        video_token_index=VIDEO,
    )


def _llava_onevision(kind: str) -> Any:
    return transformers.CONFIG_MAPPING[kind](
        text_config=dict(TEXT, model_type="qwen2"),
        vision_config=dict(CLIP, model_type="siglip_vision_model", image_size=ODD_PIXELS, vision_use_head=False),
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        image_grid_pinpoints=_tilings(ODD_PIXELS),
        image_token_index=IMAGE,
        video_token_index=VIDEO,
    )


def _internvl(kind: str) -> Any:
    return transformers.CONFIG_MAPPING[kind](
        text_config=dict(TEXT, model_type="qwen2"),
        vision_config=dict(CLIP, image_size=[PIXELS, PIXELS], patch_size=[PATCH, PATCH]),
        downsample_ratio=1 / MERGE,
        image_token_id=IMAGE,
        tie_word_embeddings=False,
    )


def _smolvlm(kind: str) -> Any:
    return transformers.CONFIG_MAPPING[kind](
        text_config=dict(TEXT, model_type="llama"),
        vision_config=dict(CLIP, image_size=PIXELS),
        scale_factor=MERGE,
        image_token_id=IMAGE,
        pad_token_id=PAD,
    )


IN_ONE = Writing(opening=(START,), closing=(END,))
# the start and end of the chat template stay around those of the slices
BY_TIME = Writing(opening=(START,), before=(LABEL, START), after=(END,), closing=(END,))
BY_FRAME = Writing(IMAGE, (VIDEO_START,), (START,), (END, LABEL), closing=(VIDEO_END,))
FAMILIES: dict[str, tuple[Callable[[str], Any], Writing]] = {
    "qwen2_vl": (_qwen2, IN_ONE),
    "qwen2_5_vl": (_qwen2_5, IN_ONE),
    "qwen3_vl": (_qwen3, BY_TIME),
    "qwen3_vl_moe": (partial(_qwen3, num_experts=4, **EXPERTS), BY_TIME),
    "cosmos3_omni": (_qwen3, BY_TIME),
    "glm4v": (_glm, BY_FRAME),
    "glm4v_moe": (partial(_glm, n_routed_experts=4, **EXPERTS), BY_FRAME),
    "glm46v": (_glm, BY_FRAME),
    "glmga": (_glm, BY_FRAME),
    "glm_ocr": (_glm, BY_FRAME),
    "video_llama_3": (_video_llama_3, Writing(before=(LABEL,), between=(COMMA,))),
    "llava_next_video": (_llava_next_video, Writing()),
    "llava_onevision": (_llava_onevision, Writing(closing=(VIDEO,))),  # a newline of the model
    "internvl": (_internvl, Writing(IMAGE, before=(FRAME, NUMBER, COLON, START), after=(END,), between=(NEWLINE,))),
    "smolvlm": (
        _smolvlm,
        Writing(IMAGE, (LABEL,), (NEWLINE, FRAME, NUMBER, COLON, FAKE, GLOBAL), (FAKE,), closing=(NEWLINE, NEWLINE)),
    ),
}
KINDS = tuple(kind for kind in FAMILIES if kind in transformers.CONFIG_MAPPING)  # older releases lack some
GLMS = frozenset({"glm4v", "glm4v_moe", "glm46v", "glmga", "glm_ocr"})
# positions have three axes, and the model needs mm_token_type_ids
MROPES = GLMS | {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "cosmos3_omni"}
GRIDS = MROPES | {"video_llama_3"}
# videos are stacked into one tensor, so all videos of a batch have the same number of slices
STACKED = frozenset({"llava_next_video", "llava_onevision"})
# GLM-V has one placeholder for images and videos, and fails if a call has both
IMAGE_BESIDE_VIDEO = frozenset(KINDS) - GLMS


def side(kind: str) -> tuple[int, int]:
    """Return the rows and columns of tokens of a frame that the family takes."""
    return (2, 3) if kind in GRIDS else (SIDE, SIDE)


def model(kind: str, attention: str = "sdpa", dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    """Create the model with its head; weights are so large that every token changes the logits."""
    config = FAMILIES[kind][0](kind)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        made = transformers.AutoModelForImageTextToText.from_config(config, dtype=dtype, attn_implementation=attention)
        torch.manual_seed(seed)
        for name, weight in made.named_parameters():
            # all but the scales of norms, and the same for every dtype, so that models differ only by rounding
            if weight.ndim > 1 or not name.endswith("weight"):
                weight.copy_(torch.randn(weight.shape) * 0.25)
    # answers have exactly max_new_tokens tokens
    made.generation_config.update(eos_token_id=None, bos_token_id=None, pad_token_id=PAD, do_sample=False)
    # and no placeholders, which would be misread in the next prompt
    made.generation_config.suppress_tokens = list(range(IMAGE, TILE + 1))
    return made.eval()


# ---- the prompts


@dataclass
class _Row:
    """One row before padding."""

    ids: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)  # 1 at image placeholders, 2 at video placeholders
    clips: list[tuple[np.ndarray, tuple[int, int, int]]] = field(default_factory=list)

    def write(self, ids: list[int], kind: int = 0) -> range:
        """Append ids and return their columns."""
        self.ids += ids
        self.kinds += [kind] * len(ids)
        return range(len(self.ids) - len(ids), len(self.ids))


def _words(rng: np.random.Generator, count: int) -> list[int]:
    return rng.integers(WORDS.start, WORDS.stop, count).tolist()


def _expand(ids: tuple[int, ...], rng: np.random.Generator) -> Iterator[int]:
    for token in ids:
        # timestamps and numbers differ in length
        length = rng.integers(2, 5) if token == LABEL else rng.integers(1, 4)
        yield from _words(rng, int(length)) if token in (LABEL, NUMBER) else [token]


def _write_video(writing: Writing, row: _Row, video: Video, rng: np.random.Generator) -> None:
    places: list[int] = []
    row.write([*_expand(writing.opening, rng)])
    for t in range(video.slices):
        row.write([*_expand(writing.between if t else (), rng), *_expand(writing.before, rng)])
        places += row.write([writing.placeholder] * (video.rows * video.columns), kind=2)
        row.write([*_expand(writing.after, rng)])
    row.write([*_expand(writing.closing, rng)])
    row.clips.append((np.array(places, dtype=np.int64), (video.slices, video.rows, video.columns)))


def _pixels(kind: str) -> int:
    return ODD_PIXELS if kind == "llava_onevision" else PIXELS


def _tiles(image: Image) -> tuple[int, int]:
    return image.rows // SIDE, image.columns // SIDE


def _write_image(kind: str, row: _Row, image: Image, alone: bool) -> None:
    """Write an image; LLaVA-OneVision cuts only an image that is `alone` in its row into tiles."""
    down, across = _tiles(image)
    frame = SIDE * SIDE
    if kind == "smolvlm":
        for tile in range(down * across if down * across > 1 else 0):
            row.write([FAKE, TILE])
            row.write([IMAGE] * frame, kind=1)
            row.write([NEWLINE] * ((tile + 1) % across == 0))
        row.write([FAKE, GLOBAL])
        row.write([IMAGE] * frame, kind=1)
        row.write([FAKE])
    elif kind in STACKED:
        patches = _pixels(kind) // PATCH
        lines = down * patches
        whole = patches * patches  # the whole image comes first, then the tiles, with a newline after each line
        cut = kind == "llava_next_video" or alone
        row.write([IMAGE] * (whole + (lines * (across * patches + 1) if cut else 1)), kind=1)
    else:
        wrapped = kind != "video_llama_3"
        count = image.rows * image.columns if kind in GRIDS else frame * _count_views(image)
        row.write([START] * wrapped)
        row.write([IMAGE] * count, kind=1)
        row.write([END] * wrapped)


def _count_views(image: Image) -> int:
    """Return the number of tiles, plus one for the whole image if there are several."""
    down, across = _tiles(image)
    return down * across + (down * across > 1)


def _check(kind: str, rows: list[list[Text | Video | Image]]) -> None:
    videos = [part for row in rows for part in row if isinstance(part, Video)]
    images = [part for row in rows for part in row if isinstance(part, Image)]
    if kind not in GRIDS:
        for video in videos:
            if (video.rows, video.columns) != side(kind):
                raise ValueError(f"{kind} takes frames of {SIDE} x {SIDE} tokens, got {video}")
        for image in images:
            if image.rows % SIDE or image.columns % SIDE or max(_tiles(image)) > LONGEST:
                raise ValueError(f"{kind} takes images of 1 to {LONGEST} tiles of {SIDE} tokens a side, got {image}")
    if kind in STACKED and len({video.slices for video in videos}) > 1:
        raise ValueError(f"{kind} stacks its videos: give all the same number of slices, got {videos}")
    if kind not in IMAGE_BESIDE_VIDEO and videos and images:
        raise ValueError(f"{kind} of transformers takes images or videos, not both in one call")


def prompt(kind: str, rows: list[list[Text | Video | Image]], seed: int = 0) -> Prompt:
    """Create a batch with one prompt per row, padded on the left."""
    _check(kind, rows)
    rng = np.random.default_rng(seed)
    written = []
    for parts in rows:
        row = _Row()
        for part in parts:
            if isinstance(part, Text):
                row.write(_words(rng, part.tokens))
            elif isinstance(part, Video):
                _write_video(FAMILIES[kind][1], row, part, rng)
            else:
                _write_image(kind, row, part, alone=sum(isinstance(other, Image) for other in parts) == 1)
        written.append(row)
    length = max(len(row.ids) for row in written)
    pads = [length - len(row.ids) for row in written]
    inputs = {
        "input_ids": torch.tensor([[PAD] * pad + row.ids for pad, row in zip(pads, written, strict=True)]),
        "attention_mask": torch.tensor(
            [[0] * pad + [1] * len(row.ids) for pad, row in zip(pads, written, strict=True)]
        ),
    }
    if kind in MROPES:
        inputs["mm_token_type_ids"] = torch.tensor(
            [[0] * pad + row.kinds for pad, row in zip(pads, written, strict=True)]
        )
    pixels = _grid_pixels if kind in GRIDS else _stacked_pixels if kind in STACKED else _frame_pixels
    clips = [
        Clip(index, places + pads[index], shape) for index, row in enumerate(written) for places, shape in row.clips
    ]
    return Prompt(inputs | pixels(kind, rows, rng), clips)


def _noise(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))


def _grid_pixels(
    kind: str, rows: list[list[Text | Video | Image]], rng: np.random.Generator
) -> dict[str, torch.Tensor]:
    """Return patches in one tensor, and grids in patches."""
    frames = 1 if kind == "video_llama_3" else 2  # per slice
    tensors: dict[str, torch.Tensor] = {}
    for name, pixel_values, type_ in (("image", "pixel_values", Image), ("video", "pixel_values_videos", Video)):
        # VideoLLaMA3 merges patches of videos only
        merge = 1 if (kind, name) == ("video_llama_3", "image") else MERGE
        grids = [
            (getattr(part, "slices", 1), part.rows * merge, part.columns * merge)
            for row in rows
            for part in row
            if isinstance(part, type_)
        ]
        if not grids:
            continue
        tensors[f"{name}_grid_thw"] = torch.tensor(grids)
        tensors[pixel_values] = _noise(rng, sum(t * h * w for t, h, w in grids), 3 * frames * PATCH * PATCH)
        if kind == "video_llama_3":
            tensors[f"{name}_merge_sizes"] = torch.full((len(grids),), merge)
        if name == "video" and kind == "video_llama_3":
            # noise changes everywhere, so the processor drops no token
            tensors["video_compression_mask"] = torch.ones(
                sum(t * h * w for t, h, w in grids) // merge**2, dtype=torch.bool
            )
        if name == "video" and kind == "qwen2_5_vl":
            # some releases round 1.5 s to 1 s, others count 6 ticks of 1/4 s
            tensors["second_per_grid_ts"] = torch.tensor([(1.0, 2.0, 1.5)[i % 3] for i in range(len(grids))])
    return tensors


def _stacked_pixels(
    kind: str, rows: list[list[Text | Video | Image]], rng: np.random.Generator
) -> dict[str, torch.Tensor]:
    """Return videos [n, slices, 3, side, side] and images [n, tiles, 3, side, side], filled up with zeros."""
    pixels = _pixels(kind)
    tensors = {}
    videos = [part for row in rows for part in row if isinstance(part, Video)]
    if videos:
        tensors["pixel_values_videos"] = _noise(rng, len(videos), videos[0].slices, 3, pixels, pixels)
    images = [[part for part in row if isinstance(part, Image)] for row in rows]
    if any(images):
        counts = [
            1 if kind == "llava_onevision" and len(row) > 1 else 1 + _tiles(image)[0] * _tiles(image)[1]
            for row in images
            for image in row
        ]
        tensors["pixel_values"] = torch.zeros(len(counts), max(counts), 3, pixels, pixels)
        for index, count in enumerate(counts):
            tensors["pixel_values"][index, :count] = _noise(rng, count, 3, pixels, pixels)
        tensors["image_sizes"] = torch.tensor(
            [[tiles * pixels for tiles in _tiles(image)] for row in images for image in row]
        )
        if kind == "llava_onevision":
            tensors["batch_num_images"] = torch.tensor([len(row) for row in images])
    return tensors


def _frame_pixels(
    kind: str, rows: list[list[Text | Video | Image]], rng: np.random.Generator
) -> dict[str, torch.Tensor]:
    """Return frames and tiles in one tensor, in the order of the prompt."""
    parts = [[part for part in row if not isinstance(part, Text)] for row in rows]
    if not any(parts):
        return {}
    if kind == "smolvlm" and not any(isinstance(part, Image) for row in parts for part in row):
        parts = [[part] for row in parts for part in row]  # one line per video if there are only videos
    counts = [sum(part.slices if isinstance(part, Video) else _count_views(part) for part in row) for row in parts]
    if kind == "internvl":
        return {"pixel_values": _noise(rng, sum(counts), 3, PIXELS, PIXELS)}
    # [lines, max frames, 3, side, side]; frames of zeros are ignored
    frames = torch.zeros(len(counts), max(counts), 3, PIXELS, PIXELS)
    mask = torch.zeros(len(counts), max(counts), PIXELS, PIXELS, dtype=torch.int64)
    for index, count in enumerate(counts):
        frames[index, :count] = _noise(rng, count, 3, PIXELS, PIXELS)
        mask[index, :count] = 1
    return {"pixel_values": frames, "pixel_attention_mask": mask}


def without_pixels(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Remove the pixels of videos and, if frames are passed as images, of images."""
    has_separate_images = "image_grid_thw" in inputs or "image_sizes" in inputs
    removed = {"pixel_values_videos"} | (set() if has_separate_images else {"pixel_values", "pixel_attention_mask"})
    return {name: tensor for name, tensor in inputs.items() if name not in removed}
