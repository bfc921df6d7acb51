"""`floc.capture` from prepared inputs, frames and files, in one piece or several."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import floc
from floc.captured import pieces
from floc.tokens import Frames
from tests.integrations.transformers.helpers import CLOSE, RATIO, create_prompt, record_bare_call
from tests.integrations.transformers.zoo import Image, Text, Video, prompt, side, transformers, without_pixels

SQUARES = ("internvl", "smolvlm", "llava_next_video", "llava_onevision")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with a preprocessor file."""
    path = tmp_path_factory.mktemp("preprocessing")
    values = dict(
        image_mean=[0.5, 0.4, 0.3],
        image_std=[0.2, 0.3, 0.25],
        min_pixels=16 * 24,
        max_pixels=16 * 24,
        size=dict(height=24, width=24),
    )
    (path / "preprocessor_config.json").write_text(json.dumps(values))
    return path


def create_frames(frames: int, width: int = 24, height: int = 16) -> list[Frames]:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (frames, height, width, 3), dtype=np.uint8)
    return [Frames(pixels[i : i + 7], np.arange(i, min(i + 7, frames)) * 0.5) for i in range(0, frames, 7)]


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl", "llava_onevision"])
@pytest.mark.parametrize("budget", [{"ratio": RATIO}, {"budget": 31, "dedupe": 1}, {"coverage": 0.9}])
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
    video = floc.capture(bare, example.inputs, budget=31, block=block)
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


def test_video_shorter_than_announced_keeps_its_budget(models, folder: Path) -> None:
    class ShortList(list):  # type: ignore[type-arg]
        """Frames whose length is longer than their iterator."""

        def __iter__(self) -> Iterator[Frames]:
            return iter([*super().__iter__()][:2])

    video = floc.capture(models["qwen2_5_vl", "sdpa"], ShortList(create_frames(70)), budget=30, source=str(folder))
    assert video.shape[0] == 7
    assert len(video) == 30


def test_frames_equal_inputs_of_a_processor(models, folder: Path) -> None:
    bare = models["qwen2_5_vl", "sdpa"]
    frames = create_frames(9)
    video = floc.capture(bare, frames, ratio=RATIO, source=str(folder), fps=2)
    assert video.shape == (5, 2, 3)
    assert video.times_s is not None
    assert video.last_s is not None
    assert video.times_s.tolist() == [0, 1, 2, 3, 4]
    assert video.last_s.tolist() == [0.5, 1.5, 2.5, 3.5, 4]  # the last slice has one frame
    pixels = np.concatenate([batch.pixels for batch in frames])
    pixels = np.concatenate([pixels, pixels[-1:]])
    normal = (pixels / 255 - [0.5, 0.4, 0.3]) / [0.2, 0.3, 0.25]
    patches = [
        normal[t : t + 2, y + dy : y + dy + 4, x + dx : x + dx + 4].transpose(3, 0, 1, 2).ravel()
        for t in range(0, 10, 2)
        for y in range(0, 16, 8)
        for x in range(0, 24, 8)
        for dy in (0, 4)
        for dx in (0, 4)
    ]
    prepared = {
        "pixel_values_videos": torch.tensor(np.array(patches), dtype=torch.float32),
        "video_grid_thw": torch.tensor([[5, 4, 6]]),
    }
    other = floc.capture(bare, prepared, ratio=RATIO)
    assert video.indices.tolist() == other.indices.tolist()
    torch.testing.assert_close(video.features, other.features, **CLOSE)


@pytest.mark.parametrize("kind", ["qwen3_vl", "glm4v", "video_llama_3", "internvl", "llava_next_video", "smolvlm"])
def test_frames_of_every_layout(kind: str, models, folder: Path, tmp_path: Path) -> None:
    bare = models[kind, "sdpa"]
    per_slice = 2 if kind in ("qwen3_vl", "glm4v") else 1
    frames = create_frames(40) if kind not in SQUARES else create_frames(40, 24, 24)
    shares: list[float] = []
    video = floc.capture(bare, frames, budget=50, source=str(folder), fps=2, progress=shares.append)
    assert video.shape == (40 // per_slice, *((2, 3) if kind not in SQUARES else (3, 3)))
    assert len(video) == 50
    assert shares[-1] == 1
    assert sorted(shares) == shares
    assert {"decode", "vision", "select", "total"} == video.made["seconds"].keys()
    video.save(tmp_path / "video.floc")
    again = floc.load(tmp_path / "video.floc")
    assert torch.equal(again.features, video.features)
    assert len(again.deep) == (2 if kind == "qwen3_vl" else 0)
    assert again.times_s is not None
    assert again.times_s.tolist() == (np.arange(40 // per_slice) * per_slice / 2).tolist()
    assert (again.fps, again.frames_per_slice) == (2, per_slice)


def test_video_file(models, folder: Path, tmp_path: Path) -> None:
    av = pytest.importorskip("av", reason="av is not installed: pip install 'floc-video[video]'")
    path = tmp_path / "clip.mp4"
    with av.open(path, "w") as out:
        stream = out.add_stream("mpeg4", rate=8)
        stream.width, stream.height = 48, 32
        for i in range(48):
            picture = np.full((32, 48, 3), i * 5, np.uint8)
            picture[:, i : i + 4] = 255 - i
            out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        out.mux(stream.encode())
    bare = models["qwen2_5_vl", "sdpa"]
    video = floc.capture(bare, path, ratio=RATIO, source=str(folder), fps=2)
    assert video.shape == (6, 2, 3)
    assert video.duration_s == pytest.approx(6, abs=0.2)
    assert video.made["source"] == "clip.mp4"
    with pytest.raises(FileNotFoundError, match=r"nothing\.mp4"):
        floc.capture(bare, tmp_path / "nothing.mp4", ratio=RATIO, source=str(folder))


def test_fps_and_duration_from_times(models, folder: Path) -> None:
    bare = models["qwen2_5_vl", "sdpa"]
    pixels = np.zeros((16, 16, 24, 3), np.uint8)
    video = floc.capture(bare, [Frames(pixels, np.arange(16) * 0.1)], ratio=RATIO, source=str(folder))
    assert video.fps == pytest.approx(10)
    assert video.duration_s == pytest.approx(1.6)
    with pytest.raises(ValueError, match="pass source="):
        floc.capture(bare, [Frames(pixels, np.arange(16) * 0.1)], ratio=RATIO)


def test_iterator_of_frames(models, folder: Path) -> None:
    bare = models["qwen2_5_vl", "sdpa"]
    with pytest.raises(ValueError, match=r"'divprune' needs the length.*not an iterator"):
        floc.capture(bare, iter(create_frames(9)), budget=5, method="divprune", source=str(folder))
    assert len(floc.capture(bare, iter(create_frames(9)), budget=5, source=str(folder))) == 5
    assert len(floc.capture(bare, iter(create_frames(9)), ratio=RATIO, source=str(folder))) == 8
    with pytest.raises(ValueError, match="the video is empty"):
        floc.capture(bare, [], ratio=RATIO, source=str(folder))


@pytest.mark.parametrize("kind", ["internvl", "smolvlm"])
def test_rejects_an_image_beside_frames_passed_as_images(kind: str, models) -> None:
    bare = models[kind, "sdpa"]
    example = prompt(kind, [[Text(6), Image(3, 3), Text(7), Video(5, 3, 3), Text(4)]])
    with pytest.raises(ValueError, match="prepare the video alone"):
        floc.capture(bare, example.inputs, ratio=RATIO)
    with pytest.raises(ValueError, match="input_ids are needed"):
        floc.capture(bare, {"pixel_values": example.inputs["pixel_values"]}, ratio=RATIO)


def test_rejects_families_without_frame_preparation(models, folder: Path) -> None:
    with pytest.raises(ValueError, match=r"'cosmos3_omni' \(supported types: .*\); pass the inputs"):
        floc.capture(models["cosmos3_omni", "sdpa"], create_frames(3), ratio=RATIO, source=str(folder))


def test_rejects_unsupported_models() -> None:
    config = transformers.LlamaConfig(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=9
    )
    with pytest.raises(ValueError, match="type 'llama'"):
        floc.capture(transformers.LlamaForCausalLM(config), {}, ratio=RATIO)
