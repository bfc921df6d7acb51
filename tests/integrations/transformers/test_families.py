"""`floc.attach` on every model type of transformers that takes videos, with inputs of its real processor.

The first oracle is the bare model, whose decoder is called with inputs that were cut by hand. The second masks the
dropped tokens, for models whose attention is full. Both start from what the bare model passes to its decoder.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import floc
from floc.families import find_family
from tests.integrations.transformers.helpers import CANNOT_REPEAT, IS_NEW, MISPLACED, list_hooks
from tests.integrations.transformers.processors import (
    PARTS,
    apply_template,
    create_processor,
    create_turn,
    transformers,
)
from tests.integrations.transformers.tiny_configs import create_config, create_model
from tests.integrations.transformers.video_types import REASONS, list_video_types
from tests.integrations.transformers.zoo import GLMS

CLOSE = dict(atol=2e-4, rtol=1e-4)
FRAMES = 8
WORDS = 256  # ids from here on are special tokens, such as placeholders, which an answer must not have
# types with layers of linear, indexed or sliding attention, in which a masked token still counts
NOT_FULL = {
    *("exaone4_5", "gemma4", "gemma4_unified", "glm5_next", "minicpm_ocr", "minicpmv4_6", "minicpmv4_7"),
    *("muse_glimmer", "muse_spark", "nemotron_h_omni", "qwen3_5", "qwen3_5_moe", "qwen4_exp"),
}
# types that take images or videos, but not both in one call; the processor of SmolVLM loses the images
IMAGES_OR_VIDEOS = {*GLMS, "molmo2", "nemotron_h_omni", "smolvlm"}
# types whose bare model loses videos, or puts them into the wrong rows, if beams repeat a prompt
FEW_BEAMS = ("exaone4_5", "kimi_k25", "minimax_m3_vl", "muse_glimmer", "qwen2_5_omni", "qwen3_omni_moe")
WITHOUT_BEAMS = {*MISPLACED, *(("glm5_next", "nemotron_h_omni") if IS_NEW else FEW_BEAMS)}
STATEFUL = "transformers does not assist models whose layers have a state"
WITHOUT_LOOKUP = {
    **dict.fromkeys(("glm5_next", "minicpmv4_6", "minicpmv4_7", "minicpm_ocr", "nemotron_h_omni"), STATEFUL),
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe", "qwen4_exp"), STATEFUL),
    "ernie4_5_vl_moe": "the bare model fails: it is given no types of experts for guesses",
}
MISSING = pytest.mark.skip(reason=f"not in transformers {transformers.__version__}")


def over(kinds: Iterable[str]) -> Any:
    known = [kind if kind in transformers.CONFIG_MAPPING else pytest.param(kind, marks=MISSING) for kind in kinds]
    return pytest.mark.parametrize("kind", known)


KINDS = over(PARTS)
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of processors that pass tensors to numpy
    pytest.mark.filterwarnings("ignore:.pixel_values_images:FutureWarning"),  # of what Video-LLaVA's processor returns
]


@cache
def create_inputs(kind: str, *questions: str, media: tuple[str, ...] = ("video",)) -> dict[str, Any]:
    """Return what the processor of a type makes of short videos or images and questions, one row per question."""
    from transformers.video_utils import VideoMetadata

    rows = []
    settings: dict[str, Any] = {"do_sample_frames": False, "return_metadata": True, "padding": True}
    settings |= {"padding_side": "left", "video_metadata": []}
    for question in questions or ["What?"]:
        rng = np.random.default_rng(len(question))
        pixels = {"video": rng.integers(0, 256, (FRAMES, 40, 64, 3), np.uint8)}
        pixels["image"] = Image.fromarray(rng.integers(0, 256, (40, 48, 3), np.uint8))
        rows.append([create_turn(question, *((name, pixels[name]) for name in media))])
        size = {"width": 64, "height": 40, "duration": FRAMES / 4}
        about = VideoMetadata(total_num_frames=FRAMES, fps=4.0, frames_indices=list(range(FRAMES)), **size)
        settings["video_metadata"].append([about] * media.count("video"))
    if kind == "nemotron_h_omni" or "video" not in media:
        del settings["video_metadata"]  # the processor of Nemotron of transformers 5.22 fails with a list of them
    if "mm_token_type_ids" in inspect.signature(create_model(kind).base_model.forward).parameters:
        settings["return_mm_token_type_ids"] = True
    processor = create_processor(kind)
    if kind == "kimi_k25":  # the model of transformers 5.22 fails if several frames are joined
        processor = copy.copy(processor)
        processor.video_processor = type(processor.video_processor)(**PARTS[kind].settings, temporal_patch_size=1)
    return apply_template(processor, rows, **settings)


def encode(model: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return inputs with encoded images and videos in place of pixels, as generation passes them, if needed.

    In transformers 5.22, the forward of Gemma 4 does not pass the number of frames on, and that of Nemotron takes only
    a list of features.
    """
    if "num_frames_per_video" not in inputs and model.config.model_type != "nemotron_h_omni":
        return inputs
    others, encoded = dict(inputs), {}
    for modality in ("image", "video"):
        encoder = getattr(model.base_model, f"get_{modality}_features")
        names = inspect.signature(encoder).parameters.keys() & inputs.keys()
        if names:
            features = encoder(**{name: others.pop(name) for name in names}, return_dict=True)
            features.pooler_output = tuple(features.pooler_output)
            encoded[modality] = features
    return {**others, "mm_encoder_outputs": encoded}


def call(model: Any, inputs: dict[str, Any], **more: Any) -> Any:
    return model(**encode(model, inputs), **more)


@contextmanager
def change_decoder(model: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Iterator[None]:
    """Change the arguments of the decoder of a bare model."""
    hook = model.get_decoder().register_forward_pre_hook(
        lambda module, args, kwargs: (args, change(dict(kwargs))), with_kwargs=True
    )
    try:
        yield
    finally:
        hook.remove()


def cut_by_hand(kwargs: dict[str, Any], stays: list[int]) -> dict[str, Any]:
    """Cut the arguments of a decoder to some columns of its only row."""
    length = kwargs["inputs_embeds"].shape[1]
    positions = kwargs.get("position_ids")
    kwargs["position_ids"] = (torch.arange(length)[None] if positions is None else positions)[..., stays]
    if kwargs.get("deepstack_visual_embeds"):
        marked = kwargs["visual_pos_masks"][0].nonzero()[:, 0].tolist()
        rows = [i for i, column in enumerate(marked) if column in stays]
        kwargs["deepstack_visual_embeds"] = [layer[rows] for layer in kwargs["deepstack_visual_embeds"]]
    mask = kwargs.pop("attention_mask", None)
    for name, value in kwargs.items():
        if name != "position_ids" and isinstance(value, torch.Tensor) and value.shape[:2] == (1, length):
            kwargs[name] = value[:, stays]
    masks = mask if isinstance(mask, dict) else {"": mask}
    for kind, each in masks.items():
        if each is not None:
            masks[kind] = each[:, stays] if each.ndim == 2 else each[:, :, stays][..., stays]
    # a mask of ones: without any, positions with gaps are read as several packed prompts
    ones = torch.ones(1, len(stays), dtype=torch.long)
    kwargs["attention_mask"] = masks if isinstance(mask, dict) else ones if masks[""] is None else masks[""]
    return kwargs


def find_columns(kind: str, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    """Return the columns of the video; some types write it with the placeholders of an image, which comes before."""
    names = ["video_token_id", "image_token_id"]
    ids = [getattr(model.config, name) for name in names if getattr(model.config, name, None) is not None]
    found = [(inputs["input_ids"][0] == token).nonzero()[:, 0] for token in ids]
    columns = next(columns for columns in found if len(columns))
    alone = create_inputs(kind)
    return columns if inputs is alone else columns[-len(find_columns(kind, model, alone)) :]


def list_staying(kind: str, model: Any, inputs: dict[str, Any], handle: Any) -> list[int]:
    (kept,) = handle.last
    places = find_columns(kind, model, inputs)[: kept.n]  # a newline may follow
    dropped = set(places.tolist()) - set(places[torch.as_tensor(kept.indices)].tolist())
    assert 0 < len(kept) < kept.n
    assert len(dropped) == kept.n - len(kept)
    return [column for column in range(inputs["input_ids"].shape[1]) if column not in dropped]


def extend(inputs: dict[str, Any], ids: list[int]) -> dict[str, Any]:
    """Append text tokens to the prompt."""
    length = inputs["input_ids"].shape[1]
    more = dict(inputs)
    for name, value in inputs.items():
        if value.shape == (1, length):
            new = ids if name == "input_ids" else [int(name == "attention_mask")] * len(ids)
            more[name] = torch.cat([value, torch.tensor([new], dtype=value.dtype)], 1)
    return more


def compute_by_hand(model: Any, inputs: dict[str, Any], stays: list[int]) -> torch.Tensor:
    with change_decoder(model, lambda kwargs: cut_by_hand(kwargs, stays)):
        return call(model, inputs, use_cache=False).logits


def test_every_video_type_is_supported_or_has_a_reason() -> None:
    types = set(list_video_types())
    thinkers = {f"{kind}_thinker" for kind in PARTS}
    assert types - PARTS.keys() - thinkers == types & REASONS.keys()
    tested = types & PARTS.keys()
    assert len(tested) >= 30
    for kind in tested:
        find_family(create_config(kind))
    for kind in types & REASONS.keys():
        with pytest.raises(ValueError, match=f"does not support video models of type '{kind}'"):
            find_family(transformers.CONFIG_MAPPING[kind]())


@KINDS
def test_equals_inputs_cut_by_hand(kind: str) -> None:
    model, inputs = create_model(kind), create_inputs(kind)
    bare = call(model, inputs).logits
    before = list_hooks(model)  # the library adds hooks of its own in the first call
    with floc.attach(model, ratio=1 / 4) as handle:
        logits = call(model, inputs).logits
    stays = list_staying(kind, model, inputs, handle)
    torch.testing.assert_close(logits, compute_by_hand(model, inputs, stays), **CLOSE)
    assert not torch.allclose(logits[:, -1], bare[:, -1], **CLOSE)
    assert list_hooks(model) == before
    assert torch.equal(call(model, inputs).logits, bare)


def generate(model: Any, inputs: dict[str, Any], tokens: int, **settings: Any) -> torch.Tensor:
    """Return the tokens of greedy answers [B, tokens]."""
    given = encode(model, inputs) if model.config.model_type == "nemotron_h_omni" else inputs
    special = list(range(WORDS, model.config.get_text_config().vocab_size))
    settings = {"max_new_tokens": tokens, "do_sample": False, "suppress_tokens": special, **settings}
    return model.generate(**given, **settings)[:, -tokens:]


@KINDS
def test_generates_as_inputs_cut_by_hand(kind: str) -> None:
    model, inputs = create_model(kind), create_inputs(kind)
    with floc.attach(model, ratio=1 / 4) as handle:
        generated = generate(model, inputs, 4)[0].tolist()
    stays, length = list_staying(kind, model, inputs, handle), inputs["input_ids"].shape[1]
    expected: list[int] = []
    for _ in range(4):  # without a cache: a longer prompt for each token
        columns = [*stays, *range(length, length + len(expected))]
        logits = compute_by_hand(model, extend(inputs, expected), columns)
        expected.append(int(logits[0, -1, :WORDS].argmax()))
    assert generated == expected


@KINDS
def test_images_are_not_compressed(kind: str) -> None:
    if kind == "minicpmv4_6" and not IS_NEW:
        pytest.skip("not in this release: its vision encoder fails with the tiles of an image")
    model, only = create_model(kind), create_inputs(kind, media=("image",))
    bare = call(model, only).logits
    with floc.attach(model, ratio=1 / 4) as handle:
        assert torch.equal(call(model, only).logits, bare)
        assert handle.last == []
        if kind in IMAGES_OR_VIDEOS:
            pytest.skip("the model or its processor takes images or videos, not both in one call")
        inputs = create_inputs(kind, media=("image", "video"))
        logits = call(model, inputs).logits
    stays = list_staying(kind, model, inputs, handle)
    torch.testing.assert_close(logits, compute_by_hand(model, inputs, stays), **CLOSE)


# Molmo2 and Nemotron take one video; the prompts of MiniCPM-V 4.7 have no mark between two
@over(kind for kind in PARTS if kind not in ("molmo2", "nemotron_h_omni", "minicpmv4_7"))
def test_adjacent_videos_are_told_apart(kind: str) -> None:
    model, inputs = create_model(kind), create_inputs(kind, media=("video", "video"))
    with floc.attach(model, ratio=1 / 4) as handle:
        call(model, create_inputs(kind))
        (alone,) = handle.last
        call(model, inputs)
    assert [kept.shape for kept in handle.last] == [alone.shape] * 2
    assert [kept.indices.tolist() for kept in handle.last] == [alone.indices.tolist()] * 2


def search_by_hand(model: Any, inputs: dict[str, Any], stays: list[int], tokens: int, beams: int) -> list[int]:
    """Return the answer of a beam search without a cache: a longer prompt for each token of each beam."""
    length, found = inputs["input_ids"].shape[1], [(0.0, [])]
    for _ in range(tokens):
        longer = []
        for score, ids in found:
            columns = [*stays, *range(length, length + len(ids))]
            scores = compute_by_hand(model, extend(inputs, ids), columns)[0, -1].log_softmax(-1)[:WORDS]
            longer += [(score + float(scores[i]), [*ids, int(i)]) for i in scores.topk(beams).indices]
        found = sorted(longer, reverse=True)[:beams]
    return found[0][1]


@KINDS
def test_beam_search_equals_inputs_cut_by_hand(kind: str) -> None:
    if kind in WITHOUT_BEAMS:
        pytest.skip(CANNOT_REPEAT)
    model, inputs = create_model(kind), create_inputs(kind)
    with floc.attach(model, ratio=1 / 4) as handle:
        generated = generate(model, inputs, 3, num_beams=2)[0].tolist()
    stays = list_staying(kind, model, inputs, handle)
    assert generated == search_by_hand(model, inputs, stays, 3, 2)


@KINDS
def test_prompt_lookup_generates_the_same(kind: str) -> None:
    """Guesses, some of them wrong, change nothing; `test_generates_as_inputs_cut_by_hand` is the oracle of answers."""
    if kind in WITHOUT_LOOKUP:
        pytest.skip(WITHOUT_LOOKUP[kind])
    model, tokens, letters = create_model(kind), 6, [97, 98, 99]
    inputs = extend(create_inputs(kind), [97, 98, 99, 97, 99, 98])
    others = [i for i in range(model.config.get_text_config().vocab_size) if i not in letters]
    settings = {"suppress_tokens": others}  # of three letters, so that there are guesses for every token
    lookup = {**settings, "prompt_lookup_num_tokens": 2}
    calls: list[dict[str, Any]] = []
    with floc.attach(model, ratio=1 / 4):
        expected = generate(model, inputs, tokens, **settings)
        with change_decoder(model, lambda kwargs: calls.append(kwargs) or kwargs):
            assert generate(model, inputs, tokens, **lookup).tolist() == expected.tolist()
    assert len(calls) <= tokens
    assert any(step["inputs_embeds"].shape[1] > 1 for step in calls[1:])  # guesses


@KINDS
def test_second_turn_continues_from_the_cache(kind: str) -> None:
    model, inputs = create_model(kind), create_inputs(kind)
    length, ids = inputs["input_ids"].shape[1], [9, 8, 7]
    turn, longer = {"input_ids": torch.tensor([ids])}, extend(inputs, ids)
    cache = call(model, inputs, use_cache=True).past_key_values
    bare = model(**turn, past_key_values=cache, use_cache=True).logits
    if not torch.allclose(bare[:, -1], call(model, longer).logits[:, -1], **CLOSE):
        pytest.skip("the bare model continues otherwise from a cache than from the whole prompt")
    with floc.attach(model, ratio=1 / 4) as handle:
        cache = call(model, inputs, use_cache=True).past_key_values
        stays = list_staying(kind, model, inputs, handle)
        logits = model(**turn, past_key_values=cache, use_cache=True).logits
    expected = compute_by_hand(model, longer, [*stays, *range(length, length + len(ids))])
    torch.testing.assert_close(logits[:, -1], expected[:, -1], **CLOSE)


def mask_by_hand(kwargs: dict[str, Any], stays: list[int]) -> dict[str, Any]:
    """Mask all columns but some in the arguments of a decoder, and keep the positions of all."""
    length = kwargs["inputs_embeds"].shape[1]
    if kwargs.get("position_ids") is None:
        kwargs["position_ids"] = torch.arange(length)[None]
    is_open = torch.zeros(1, length, dtype=torch.long)
    is_open[:, stays] = 1
    mask = kwargs.get("attention_mask")
    kwargs["attention_mask"] = is_open if mask is None or mask.ndim == 2 else mask & is_open.bool()
    return kwargs


@over(kind for kind in PARTS if kind not in NOT_FULL)
def test_equals_the_bare_model_with_dropped_tokens_masked(kind: str) -> None:
    model, inputs = create_model(kind), create_inputs(kind)
    with floc.attach(model, ratio=1 / 4) as handle:
        logits = call(model, inputs).logits
    stays = list_staying(kind, model, inputs, handle)
    with change_decoder(model, lambda kwargs: mask_by_hand(kwargs, stays)):
        whole = call(model, inputs, use_cache=False).logits
    torch.testing.assert_close(logits, whole[:, stays], **CLOSE)


# Nemotron takes one video at a time, and the bare MiniMax answers otherwise in a batch
BATCHES = [kind for kind in PARTS if kind not in ("nemotron_h_omni", "minimax_m3_vl")]
QUESTIONS = ("What?", "What is this, and where?")


@over(BATCHES)
def test_rows_of_a_batch_are_as_alone(kind: str) -> None:
    model, both = create_model(kind), create_inputs(kind, *QUESTIONS)
    with floc.attach(model, ratio=1 / 4):
        logits = call(model, both).logits[:, -1]
        for row, question in enumerate(QUESTIONS):
            alone = call(model, create_inputs(kind, question)).logits[0, -1]
            torch.testing.assert_close(logits[row], alone, **CLOSE)


@over(kind for kind in BATCHES if kind != "molmo2")  # the bare model has another mask with a static cache
def test_static_cache_generates_the_same(kind: str) -> None:
    model, inputs = create_model(kind), create_inputs(kind, *QUESTIONS)
    calls: list[dict[str, Any]] = []
    with floc.attach(model, ratio=1 / 4):
        expected = generate(model, inputs, 3)
        with change_decoder(model, lambda kwargs: calls.append(kwargs) or kwargs):
            static = generate(model, inputs, 3, cache_implementation="static", disable_compile=True)
    assert static.tolist() == expected.tolist()
    masks = [step["attention_mask"] for step in calls[1:]]  # compiled code must not see another shape in each step
    masks = [[*mask.values()] if isinstance(mask, dict) else [mask] for mask in masks]
    shapes = [[None if mask is None else mask.shape for mask in step] for step in masks]
    assert shapes[0] == shapes[1]


@over(["gemma4", "gemma4_unified"])
def test_sliding_window_counts_the_tokens_that_stay(kind: str, monkeypatch) -> None:
    """Masks that the model builds for the whole prompt are built anew for the tokens that stay."""
    model, inputs, window = create_model(kind), create_inputs(kind), 48
    monkeypatch.setattr(model.config.text_config, "sliding_window", window)
    for layer in model.get_decoder().layers:
        if layer.self_attn.is_sliding:
            monkeypatch.setattr(layer.self_attn, "sliding_window", window)
    masks = []
    with (
        floc.attach(model, ratio=1 / 4) as handle,
        change_decoder(model, lambda kwargs: masks.append(kwargs) or kwargs),
    ):
        call(model, inputs, use_cache=False)
    stays = list_staying(kind, model, inputs, handle)
    mask = masks[0]["attention_mask"]["sliding_attention"][0, 0]
    assert mask.shape == (len(stays), len(stays))
    is_visual = inputs["mm_token_type_ids"][0, stays].bool()
    for query in range(len(stays)):
        seen = mask[query].nonzero()[:, 0]
        assert seen.min() == max(0, query - window + 1)
        assert seen.max() == query or is_visual[query : seen.max() + 1].all()


@over(["qwen2_5_omni", "qwen3_omni_moe"])
def test_model_that_also_speaks(kind: str) -> None:
    thinker, inputs = create_model(kind), create_inputs(kind)
    whole = transformers.CONFIG_MAPPING[kind](thinker_config=thinker.config.to_dict(), enable_audio_output=False)
    model = transformers.AutoModelForMultimodalLM.from_config(whole).eval()
    model.thinker, model.talker = thinker, torch.nn.Identity()
    model.speaker_map, model.talker.codec_pad_token = {"Chelsie": {}}, 0  # generate reads them even for a text
    with floc.attach(thinker, ratio=1 / 4):
        expected = thinker.generate(**inputs, max_new_tokens=3, do_sample=False)
    with floc.attach(model, ratio=1 / 4) as handle:
        ids = model.generate(**inputs, thinker_max_new_tokens=3, thinker_do_sample=False, return_audio=False)
        with pytest.raises(ValueError, match="return_audio=False"):
            model.talker(ids)
    assert len(handle.last) == 1
    assert ids.tolist() == expected.tolist()
    assert model.talker(ids) is ids
