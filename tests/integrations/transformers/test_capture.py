"""`floc.capture` from prepared inputs, frames and files, in one piece or several."""

from __future__ import annotations

import contextlib
import copy
import importlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import floc
from floc.captured import pieces
from floc.encoders import vision_tower
from floc.families import FAMILIES
from floc.families.processing import VideoPreparer
from floc.tokens import Frames
from tests.integrations.transformers.helpers import CLOSE, RATIO, create_prompt, forbid_vision, record_bare_call
from tests.integrations.transformers.processors import PARTS, apply_template, create_processor, create_turn
from tests.integrations.transformers.tiny_configs import create_model
from tests.integrations.transformers.video_types import NOTES
from tests.integrations.transformers.zoo import Image, Text, Video, prompt, side, transformers, without_pixels

captures = importlib.import_module("floc.integrations.transformers.capture")  # the function has its name
QUESTION = "What is on the table?"
BROKEN = {kind: NOTES[kind] for kind in ("kimi_k25", "nemotron_h_omni")}
MISSING = f"not in transformers {transformers.__version__}"


def list_kinds() -> list[Any]:
    """Return all model types, those that cannot be tested with the reason."""
    reasons = {kind: MISSING for kind in PARTS if kind not in transformers.CONFIG_MAPPING} | BROKEN
    return [pytest.param(kind, marks=pytest.mark.skip(reasons[kind])) if kind in reasons else kind for kind in PARTS]


KINDS = pytest.mark.parametrize("kind", list_kinds())
GREEDY: Any = dict(max_new_tokens=3, do_sample=False, output_logits=True, return_dict_in_generate=True)


def read_with_processor(kind: str, path: Path) -> dict[str, torch.Tensor]:
    """Return what the processor makes of a file, frames decoded by floc and nothing else by it."""
    processor = create_processor(kind)
    preparer = VideoPreparer(processor)
    plan = preparer.plan(floc.video.read_facts(path))
    pixels = np.concatenate([batch.pixels for batch in floc.video.read(path, fps=None, max_frames=None)])
    options = {"do_sample_frames": False, "video_metadata": [plan.describe()], "return_metadata": True}
    changed = ("cap_pixels_per_frame", "use_token_compression", "do_resize")
    options |= {name: value for name, value in preparer.settings.items() if name in changed}
    options |= {} if plan.fps is None else {"fps": plan.fps}
    options |= (
        {"return_mm_token_type_ids": True} if FAMILIES[create_model(kind).config.model_type].asks_token_types else {}
    )
    return apply_template(processor, [create_turn(QUESTION, ("video", pixels[plan.indices]))], **options)


def create_frames(frames: int, width: int = 24, height: int = 16) -> list[Frames]:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (frames, height, width, 3), dtype=np.uint8)
    return [Frames(pixels[i : i + 7], np.arange(i, min(i + 7, frames)) * 0.5) for i in range(0, frames, 7)]


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl", "llava_onevision"])
@pytest.mark.parametrize("budget", [{"ratio": RATIO, "block": 32}, {"budget": 31, "block": 32}, {"coverage": 0.9}])
def test_long_video_is_compressed_in_pieces(kind: str, budget: dict[str, Any], models, monkeypatch) -> None:
    bare, example = models[kind, "sdpa"], create_prompt(kind, slices=37)
    call = record_bare_call(bare, example.inputs)
    (clip,) = example.clips
    tokens = call["inputs_embeds"][0, clip.places].view(*clip.shape, -1)
    cells = int(np.prod(side(kind)))
    monkeypatch.setattr(pieces, "PIECE_TOKENS", 64)
    monkeypatch.setattr(pieces, "PIECE_FRAMES", 2)
    video = floc.capture(bare, example.inputs, **budget)
    # by hand: each part of the video with its share
    step = pieces.count_piece_frames(cells, 37)
    assert step * cells <= 64
    spent, expected = 0, []
    for start in range(0, 37, step):
        part = tokens[start : start + step]
        until = (start + len(part)) * cells
        share = {"coverage": 0.9}
        if "coverage" not in budget:
            due = round(until / 4 + 1e-9) if "ratio" in budget else 31 * until // (37 * cells)
            share, spent = {**budget, "ratio": None, "budget": due - spent}, due
        expected += (floc.compress(part, **share).indices + start * cells).tolist()
    assert video.indices.tolist() == expected
    assert len(video) == {"ratio": round(37 * cells / 4), "budget": 31, "coverage": len(video)}[next(iter(budget))]
    torch.testing.assert_close(video.features, tokens.reshape(-1, tokens.shape[-1])[video.indices], **CLOSE)
    # a prefix has its share of every piece
    smaller = video.at(budget=len(video) // 2)
    shares = np.bincount(smaller.indices.numpy() // (cells * step), minlength=37 // step)
    assert shares.min() > 0
    with pytest.raises(ValueError, match="budget must be at least"):
        floc.capture(bare, example.inputs, budget=2, method="divprune")


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl", "llava_onevision"])
@pytest.mark.parametrize("block", [4, "scene"])
def test_long_video_with_a_budget_equals_a_stream(kind: str, block: Any, models, monkeypatch) -> None:
    bare, example = models[kind, "sdpa"], create_prompt(kind, slices=37)
    everything = floc.capture(bare, example.inputs, ratio=1)
    monkeypatch.setattr(pieces, "PIECE_TOKENS", 64)
    video = floc.capture(bare, example.inputs, budget=31, block=block, dedupe=2)
    stream = floc.Stream(budget=31, block=block, dedupe=2)
    stream.push(everything.features.view(*everything.shape, -1))
    expected = stream.close()
    assert video.indices.tolist() == expected.indices.tolist()
    assert video.order.tolist() == expected.order.tolist()
    assert video.made["coverage"] == pytest.approx(expected.coverage, abs=1e-6)
    assert video.made["method"] == "floc"
    for actual, whole in zip((video.features, *video.deep), (everything.features, *everything.deep), strict=True):
        assert torch.equal(actual, whole[video.indices])
    with floc.replay(bare, video.at(budget=12)):
        assert bare(**without_pixels(example.inputs)).logits.isfinite().all()


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("size", [{"ratio": "1/4"}, {"budget": 31}])
@pytest.mark.parametrize("horizon", [1, "auto"])
def test_long_video_with_a_horizon_is_not_cut_into_pieces(
    kind: str, size: Any, horizon: Any, models, monkeypatch
) -> None:
    bare, example = models[kind, "sdpa"], create_prompt(kind, slices=70)
    everything = floc.capture(bare, example.inputs, ratio=1)
    tokens = everything.features.view(*everything.shape, -1)
    whole = floc.capture(bare, example.inputs, **size, horizon=horizon)  # up to 65,536 tokens, as `floc.compress`
    want = floc.compress(tokens, **size, horizon=horizon)
    assert whole.indices.tolist() == want.indices.tolist()
    monkeypatch.setattr(pieces, "PIECE_TOKENS", 64)
    video = floc.capture(bare, example.inputs, **size, horizon=horizon)
    ratio = size.get("ratio", f"31/{everything.n}")
    stream = floc.Stream(ratio=ratio, horizon=horizon)
    stream.push(tokens)
    expected = stream.close()
    assert video.indices.tolist() == expected.indices.tolist()
    assert video.order.tolist() == expected.order.tolist()
    assert len(video) == len(whole)
    assert video.made["settings"]["horizon"] == whole.made["settings"]["horizon"]
    assert video.made["coverage"] == pytest.approx(want.coverage, abs=0.02)
    for actual, each in zip((video.features, *video.deep), (everything.features, *everything.deep), strict=True):
        assert torch.equal(actual, each[video.indices])
    assert len(video.at(budget=5)) == 5


def test_video_shorter_than_announced_keeps_its_budget() -> None:
    class ShortList(list):  # type: ignore[type-arg]
        """Frames whose length is longer than their iterator."""

        def __iter__(self) -> Iterator[Frames]:
            return iter([*super().__iter__()][:2])

    video = capture_frames("qwen2_5_vl", ShortList(create_frames(70)), budget=30)
    assert video.shape[0] == 7
    assert len(video) == 30


def capture_frames(kind: str, frames: Any, **settings: Any) -> floc.Captured:
    return floc.capture(create_model(kind), frames, processor=create_processor(kind), **settings)


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl", "internvl", "gemma4", "llava_next_video"])
def test_frames_equal_inputs_of_the_processor(kind: str) -> None:
    """Frames are prepared a few at a time; the oracle is the processor on all of them."""
    model, processor, frames = create_model(kind), create_processor(kind), create_frames(38, 50, 34)
    video = capture_frames(kind, frames, ratio=1)
    pixels = np.concatenate([batch.pixels for batch in frames])
    options = {
        "do_sample_frames": False,
        "video_metadata": [{"fps": 2.0, "total_num_frames": 38, "frames_indices": list(range(38))}],
    }
    if "cap_pixels_per_frame" in processor.video_processor.valid_kwargs.__annotations__:
        options["cap_pixels_per_frame"] = True
    inputs = apply_template(processor, [create_turn("?", ("video", pixels))], **options)
    other = floc.capture(model, inputs, ratio=1)
    assert video.shape == other.shape
    torch.testing.assert_close(video.features, other.features, **CLOSE)


def test_times_of_frames() -> None:
    shares: list[float] = []
    video = capture_frames("qwen2_5_vl", create_frames(9), ratio=RATIO, progress=shares.append)
    assert video.times_s is not None
    assert video.last_s is not None
    assert video.times_s.tolist() == [0, 1, 2, 3, 4]
    assert video.last_s.tolist() == [0.5, 1.5, 2.5, 3.5, 4]  # the last slice has one frame
    assert (video.fps, video.duration_s) == (2, 4.5)
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert {"decode", "preprocess", "vision", "select", "other", "total"} == video.made["seconds"].keys()


@KINDS
def test_file_with_all_tokens_equals_the_model_alone(kind: str, clip: Path, tmp_path: Path) -> None:
    """Capture, save, load and replay with ratio=1, against the model on what its processor makes of the file."""
    model, processor = create_model(kind), create_processor(kind)
    floc.capture(model, clip, processor=processor, ratio=1).save(tmp_path / "clip.floc")
    video = floc.load(tmp_path / "clip.floc")
    replayed = video.inputs(processor, QUESTION)
    inputs = read_with_processor(kind, clip)
    assert torch.equal(replayed["input_ids"], inputs["input_ids"])
    assert not {"pixel_values", "pixel_values_videos"} & replayed.keys()
    # transformers 5.17 calls the vision encoder of omni models without pixels, too
    is_called = "omni" in kind and transformers.__version__.startswith("5.17.")
    with floc.replay(model, video), contextlib.nullcontext() if is_called else forbid_vision(model):
        actual = model.generate(**replayed, **GREEDY)
    expected = model.generate(**inputs, **GREEDY)
    assert torch.equal(actual.sequences, expected.sequences)
    for step, other in zip(actual.logits, expected.logits, strict=True):
        torch.testing.assert_close(step, other, **CLOSE)


@KINDS
def test_fewer_tokens_of_a_file_equal_attach(kind: str, clip: Path) -> None:
    model, processor = create_model(kind), create_processor(kind)
    video = floc.capture(model, clip, processor=processor, ratio=RATIO)
    assert len(video) == max(1, round(video.n * RATIO))
    with floc.replay(model, video):
        actual = model.generate(**video.inputs(processor, QUESTION), **GREEDY)
    with floc.attach(model, ratio=RATIO) as handle:
        expected = model.generate(**read_with_processor(kind, clip), **GREEDY)
    assert video.indices.tolist() == handle.last[0].indices.tolist()
    for step, other in zip(actual.logits, expected.logits, strict=True):
        torch.testing.assert_close(step, other, **CLOSE)


def test_options_of_a_file(clip: Path, tmp_path: Path) -> None:
    model, processor = create_model("qwen2_5_vl"), create_processor("qwen2_5_vl")
    video = floc.capture(model, clip, processor=processor, ratio=RATIO, fps=4, max_frames=10)
    assert video.shape[0] == 5
    assert video.duration_s == pytest.approx(3, abs=0.2)
    assert video.made["source"] == "clip.mp4"
    assert floc.capture(model, clip, processor=processor, ratio=RATIO, fps="all").shape[0] == 18
    with pytest.raises(FileNotFoundError, match=r"nothing\.mp4"):
        floc.capture(model, tmp_path / "nothing.mp4", processor=processor, ratio=RATIO)
    with pytest.raises(ValueError, match="pass processor="):
        floc.capture(model, clip, ratio=RATIO)
    with pytest.raises(ValueError, match=r"which has no video processor"):
        floc.capture(model, clip, ratio=RATIO, processor=processor.tokenizer)


def test_part_of_a_stored_video_has_the_rate_of_the_whole(clip: Path, tmp_path: Path) -> None:
    pytest.importorskip("lance", reason="needs Lance: pip install 'floc-video[store]'")
    model, processor = create_model("qwen2_5_vl"), create_processor("qwen2_5_vl")
    video = floc.capture(model, clip, processor=processor, ratio=RATIO, fps="all")
    store = floc.Store(tmp_path / "store", create=True)
    part = store.open(store.add(video).id, start_s=1)
    smaller = store.open(store.add(part).id, start_s=2)
    assert len(smaller.times_s) < len(part.times_s) < len(video.times_s)
    expected = video.inputs(processor, QUESTION)["second_per_grid_ts"]
    for each in (part, smaller):
        torch.testing.assert_close(each.inputs(processor, QUESTION)["second_per_grid_ts"], expected)


def test_replay_refuses_another_preparation(clip: Path) -> None:
    model, processor = create_model("qwen2_5_vl"), create_processor("qwen2_5_vl")
    video = floc.capture(model, clip, processor=processor, ratio=RATIO)
    with pytest.raises(ValueError, match=r"prepared by .Qwen2VLVideoProcessor., but this is Qwen3VLVideoProcessor"):
        video.inputs(create_processor("qwen3_vl"), QUESTION)
    other = copy.copy(processor)
    other.video_processor = copy.copy(processor.video_processor)
    other.video_processor.image_mean = [0.1, 0.2, 0.3]
    with pytest.raises(ValueError, match=r"prepared with image_mean .* but this processor has"):
        video.inputs(other, QUESTION)
    with pytest.raises(ValueError, match="stands for a video in a prompt; remove it"):
        video.inputs(processor, f"What is {processor.video_token}?")
    silent = copy.copy(processor)
    silent.chat_template = None
    with pytest.raises(ValueError, match="has no chat template"):
        video.inputs(silent, QUESTION)


def test_iterator_of_frames() -> None:
    with pytest.raises(ValueError, match=r"'divprune' needs the length.*not an iterator"):
        capture_frames("qwen2_5_vl", iter(create_frames(9)), budget=5, method="divprune")
    assert len(capture_frames("qwen2_5_vl", iter(create_frames(9)), budget=5)) == 5
    video = capture_frames("qwen2_5_vl", iter(create_frames(9)), ratio=RATIO)
    assert len(video) == round(video.n * RATIO)
    with pytest.raises(ValueError, match="the video is empty"):
        capture_frames("qwen2_5_vl", [], ratio=RATIO)


@pytest.mark.parametrize("kind", ["internvl", "smolvlm"])
def test_rejects_an_image_beside_frames_passed_as_images(kind: str, models) -> None:
    bare = models[kind, "sdpa"]
    example = prompt(kind, [[Text(6), Image(3, 3), Text(7), Video(5, 3, 3), Text(4)]])
    with pytest.raises(ValueError, match="prepare the video alone"):
        floc.capture(bare, example.inputs, ratio=RATIO)
    with pytest.raises(ValueError, match="input_ids are needed"):
        floc.capture(bare, {"pixel_values": example.inputs["pixel_values"]}, ratio=RATIO)


def test_rejects_unsupported_models() -> None:
    config = transformers.LlamaConfig(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=9
    )
    with pytest.raises(ValueError, match="type 'llama'"):
        floc.capture(transformers.LlamaForCausalLM(config), {}, ratio=RATIO)


def test_frame_tokens_limit_the_size_of_a_frame(clip: Path) -> None:
    model, processor = create_model("qwen3_vl"), create_processor("qwen3_vl")
    usual = floc.capture(model, clip, processor=processor, ratio=RATIO)
    small = floc.capture(model, clip, processor=processor, ratio=RATIO, frame_tokens=6)
    assert usual.shape[0] == small.shape[0]
    assert small.shape[1] * small.shape[2] <= 6 < usual.shape[1] * usual.shape[2]
    with floc.replay(model, small):
        assert model(**small.inputs(processor, QUESTION)).logits.isfinite().all()
    with pytest.raises(ValueError, match="makes frames of one size, 9 tokens each"):
        capture_file("internvl", clip, ratio=RATIO, frame_tokens=4)


def capture_file(kind: str, clip: Path, **settings: Any) -> floc.Captured:
    return floc.capture(create_model(kind), clip, processor=create_processor(kind), **settings)


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl", "internvl"])
def test_more_frames_have_the_usual_number_of_tokens(kind: str, clip: Path) -> None:
    """The model reads as many tokens as without options, of more frames of the same size."""
    usual, more = capture_file(kind, clip, ratio=1), capture_file(kind, clip, more_frames=True)
    assert len(more) == len(usual) == usual.n
    assert more.shape[1:] == usual.shape[1:]
    assert more.shape[0] * more.frames_per_slice == 36  # all frames of the clip
    with pytest.raises(ValueError, match="more_frames chooses the frames and the budget"):
        capture_file(kind, clip, more_frames=True, ratio=RATIO)
    with pytest.raises(ValueError, match="are for a video file"):
        capture_frames(kind, create_frames(4), more_frames=True)


def test_warns_before_work_beyond_the_context(clip: Path, monkeypatch) -> None:
    model = create_model("qwen2_5_vl")
    monkeypatch.setattr(model.config.get_text_config(), "max_position_embeddings", 520)
    with pytest.warns(UserWarning, match=r"the prompt has .* but the model's context is 520"):
        capture_file("qwen2_5_vl", clip, ratio=RATIO)


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        ("internvl", "llava_onevision"),
        ("qwen2_5_vl", "qwen3_vl"),
        ("qwen3_vl", "qwen2_5_vl"),
        ("llava_onevision", "internvl"),
        ("gemma4", "qwen3_5"),
    ],
)
def test_rejects_the_processor_of_another_model(kind: str, other: str, clip: Path) -> None:
    with pytest.raises(ValueError, match="the processor is not that of the model: it has a"):
        floc.capture(create_model(kind), clip, processor=create_processor(other), ratio=RATIO)


def test_rejects_a_processor_with_other_patches(clip: Path) -> None:
    other = copy.copy(create_processor("qwen2_5_vl"))
    other.video_processor = type(other.video_processor)(patch_size=14)
    with pytest.raises(ValueError, match="its patch_size is 14, but that of the model is 4"):
        floc.capture(create_model("qwen2_5_vl"), clip, processor=other, ratio=RATIO)


def test_a_video_that_is_read_is_prepared_like_its_file(clip: Path) -> None:
    """The frames of Qwen3-VL get smaller the more there are; `Video` knows how many it will return."""
    video = floc.video.read(clip, fps=None, max_frames=None, batch=4)
    read = capture_frames("qwen3_vl", video, ratio=RATIO)
    listed = capture_frames("qwen3_vl", list(video), ratio=RATIO)
    assert read.shape == listed.shape
    with pytest.raises(ValueError, match="depends on how many there are; pass a file or a list"):
        capture_frames("qwen3_vl", iter(list(video)), ratio=RATIO)
    with pytest.raises(ValueError, match="are for a video file"):
        capture_frames("qwen3_vl", list(video), ratio=RATIO, fps=1)


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl", "glm4v", "internvl"])
@pytest.mark.parametrize("patches", [1, 200, 10**6], ids=["a slice", "a few slices", "the video"])
def test_chunks_by_memory(kind: str, patches: int, clip: Path, monkeypatch) -> None:
    """As on a GPU: chunks of any size, prepared in a thread, keep the same tokens."""
    model, processor = create_model(kind), create_processor(kind)
    expected = floc.capture(model, clip, processor=processor, ratio=RATIO, fps="all")
    sizes = []
    monkeypatch.setattr(vision_tower, "limit_patches", lambda base: patches)
    monkeypatch.setattr(captures, "limit_patches", lambda base: patches)
    monkeypatch.setattr(captures, "runs_ahead", lambda device: True)
    encode = captures.encode_prepared

    def record(base: Any, prepared: Any, **options: Any) -> Any:
        encoded = encode(base, prepared, **options)
        sizes.append(len(encoded.tokens))
        return encoded

    monkeypatch.setattr(captures, "encode_prepared", record)
    video = floc.capture(model, clip, processor=processor, ratio=RATIO, fps="all")
    assert video.shape == expected.shape
    assert video.indices.tolist() == expected.indices.tolist()
    torch.testing.assert_close(video.features, expected.features, **CLOSE)
    assert video.times_s.tolist() == expected.times_s.tolist()
    slices = video.shape[0]
    assert sum(sizes) == slices
    assert sizes == ([1] * slices if patches == 1 else [slices] if patches == 10**6 else sizes)
    assert not [thread for thread in threading.enumerate() if thread.name == "floc-prepare"]
    seconds = dict(video.made["seconds"])
    assert sum(seconds.values()) == pytest.approx(2 * seconds["total"])  # the stages add up to the total
    assert min(seconds.values()) >= 0


def test_error_while_frames_are_prepared_ahead(monkeypatch) -> None:
    def read() -> Iterator[Frames]:
        yield from create_frames(16)
        raise ValueError("a damaged file")

    class Frozen(list):  # type: ignore[type-arg]
        """Frames that end in an error."""

        def __iter__(self) -> Iterator[Frames]:
            return read()

    monkeypatch.setattr(captures, "runs_ahead", lambda device: True)
    with pytest.raises(ValueError, match="a damaged file"):
        capture_frames("qwen2_5_vl", Frozen(create_frames(32)), ratio=RATIO)
    assert not [thread for thread in threading.enumerate() if thread.name == "floc-prepare"]
