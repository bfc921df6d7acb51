"""Capture once, replay many times: the same logits as attaching, no vision tower, and files that can be trusted."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import floc
from floc.captured import recipe
from floc.encoders.vision_tower import of_frames
from floc.integrations.transformers import FAMILIES
from floc.tokens import Frames
from tests.integrations.transformers.test_attach import (
    BOTH,
    CLOSE,
    MISPLACED,
    RATIO,
    bare_call,
    batch,
    decoder_calls,
    hooks_of,
    one,
)
from tests.integrations.transformers.zoo import (
    IMAGE_BESIDE_VIDEO,
    KINDS,
    Image,
    Text,
    Video,
    model,
    prompt,
    side,
    transformers,
    without_pixels,
)

ALL = pytest.mark.parametrize("kind", KINDS)
SQUARES = ("internvl", "smolvlm", "llava_next_video", "llava_onevision")


@pytest.fixture(scope="module")
def models() -> Any:
    class Lazy(dict):  # type: ignore[type-arg]
        def __missing__(self, key: Any) -> Any:
            self[key] = model(*key)
            return self[key]

    return Lazy()


@pytest.fixture(autouse=True)
def _light() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(threads)


@contextmanager
def blind(model: Any) -> Iterator[None]:
    """A vision tower that must not be called."""

    def refuse(*args: Any) -> None:
        raise AssertionError("the vision tower was called")

    decoder = model.get_decoder()
    towers = [each for each in model.base_model.children() if each is not decoder and list(each.parameters())]
    hooks = [each.register_forward_pre_hook(refuse) for each in towers]
    assert hooks
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@ALL
@BOTH
def test_replay_has_the_logits_of_attach(kind: str, attention: str, models, tmp_path: Path) -> None:
    bare, made = models[kind, attention], one(kind, slices=20)  # more than the tower takes at a time
    with floc.attach(bare, ratio=RATIO) as handle:
        expected = bare(**made.inputs).logits
        ids = bare.generate(**made.inputs, max_new_tokens=5)
    video = floc.capture(bare, made.inputs, ratio=RATIO)
    assert video.indices.tolist() == handle.last[0].indices.tolist()
    assert video.shape == made.clips[0].shape
    video.save(tmp_path / "talk.floc")
    before = hooks_of(bare)
    for again in (video, floc.load(tmp_path / "talk.floc")):
        with floc.replay(bare, again), blind(bare):
            question = without_pixels(made.inputs)
            torch.testing.assert_close(bare(**question).logits, expected, **CLOSE)
            assert bare.generate(**question, max_new_tokens=5).tolist() == ids.tolist()
    assert hooks_of(bare) == before


@ALL
def test_another_question_on_the_same_video(kind: str, models) -> None:
    bare, made = models[kind, "sdpa"], one(kind)
    other = {name: each.clone() for name, each in made.inputs.items()}
    other["input_ids"][0, -5:] = torch.tensor([11, 12, 13, 14, 15])
    video = floc.capture(bare, made.inputs, ratio=RATIO)
    with floc.attach(bare, ratio=RATIO):
        expected = bare(**other).logits
    with floc.replay(bare, video), blind(bare):
        torch.testing.assert_close(bare(**without_pixels(other)).logits, expected, **CLOSE)


@ALL
def test_rows_about_one_video_and_beams(kind: str, models) -> None:
    bare, made = models[kind, "sdpa"], one(kind)
    video = floc.capture(bare, made.inputs, ratio=RATIO)
    question = without_pixels(made.inputs)
    with floc.replay(bare, video):
        alone = bare(**question).logits
        # as many rows, whatever the tensors are that go with them
        twice = {name: torch.cat([each, each]) for name, each in question.items()}
        both = bare(**twice).logits
        torch.testing.assert_close(both[0], alone[0], **CLOSE)
        torch.testing.assert_close(both[1], alone[0], **CLOSE)
        if kind not in MISPLACED:
            beams = bare.generate(**question, num_beams=2, max_new_tokens=4)
    if kind not in MISPLACED:
        with floc.attach(bare, ratio=RATIO):
            assert beams.tolist() == bare.generate(**made.inputs, num_beams=2, max_new_tokens=4).tolist()


@ALL
def test_several_videos_in_a_prompt(kind: str, models) -> None:
    bare, size = models[kind, "sdpa"], Video(4, *side(kind))
    both = prompt(kind, [[Text(4), size, Text(15), size, Text(3)]], seed=3)
    halves = [_half(kind, both.inputs, i) for i in range(2)]
    cut = int(both.clips[0].places[-1]) + 12
    for name in ("input_ids", "attention_mask", "mm_token_type_ids"):
        for half, columns in zip(halves, (slice(0, cut), slice(cut, None)), strict=True):
            if name in half:
                half[name] = both.inputs[name][:, columns]
    videos = [floc.capture(bare, half, ratio=RATIO) for half in halves]
    with floc.attach(bare, ratio=RATIO):
        expected = bare(**both.inputs).logits
    with floc.replay(bare, videos), blind(bare):
        torch.testing.assert_close(bare(**without_pixels(both.inputs)).logits, expected, **CLOSE)
    with pytest.raises(ValueError, match="one video at a time"):
        floc.capture(bare, both.inputs, ratio=RATIO)


def _half(kind: str, inputs: dict[str, torch.Tensor], i: int) -> dict[str, torch.Tensor]:
    return {
        name: each if name in ("input_ids", "attention_mask", "mm_token_type_ids") else each.chunk(2)[i]
        for name, each in inputs.items()
    }


@pytest.mark.parametrize("kind", sorted(IMAGE_BESIDE_VIDEO - {"internvl", "smolvlm"}))
def test_pictures_beside_a_video_that_is_replayed(kind: str, models) -> None:
    bare = models[kind, "sdpa"]
    picture = Image(2, 3) if kind not in SQUARES else Image(*side(kind))
    made = prompt(kind, [[Text(6), picture, Text(7), Video(5, *side(kind)), Text(4)]], seed=2)
    video = floc.capture(bare, made.inputs, ratio=RATIO)
    with floc.attach(bare, ratio=RATIO):
        expected = bare(**made.inputs).logits
    with floc.replay(bare, video):
        torch.testing.assert_close(bare(**without_pixels(made.inputs)).logits, expected, **CLOSE)


@ALL
def test_a_smaller_budget_from_the_same_file(kind: str, models, tmp_path: Path) -> None:
    bare, made = models[kind, "sdpa"], one(kind, slices=8)
    floc.capture(bare, made.inputs, ratio=1 / 2).save(tmp_path / "a.floc")
    video = floc.load(tmp_path / "a.floc")
    with floc.attach(bare, ratio=1 / 2) as handle:
        bare(**made.inputs)
    smaller = video.at(ratio=1 / 8)
    expected = handle.last[0].at(ratio=1 / 8)
    assert smaller.indices.tolist() == expected.indices.tolist()
    assert torch.equal(smaller.features, expected.features)
    assert smaller.order.tolist() == expected.order.tolist()
    assert smaller.positions.tolist() == expected.positions.tolist()
    with floc.replay(bare, smaller), decoder_calls(bare) as calls:
        bare(**without_pixels(made.inputs))
    (call,) = calls
    assert call["inputs_embeds"].shape[1] == made.inputs["input_ids"].shape[1] - video.n + len(smaller)
    with pytest.raises(ValueError, match="capture again with a larger budget"):
        smaller.at(ratio=1 / 4)


@pytest.mark.parametrize("method", ["pooling", "prunevid", "divprune", "random", "floc-paper"])
def test_any_method(method: str, models) -> None:
    bare, made = models["qwen3_vl", "sdpa"], one("qwen3_vl", slices=8)
    with floc.attach(bare, ratio=RATIO, method=method):
        expected = bare(**made.inputs).logits
    video = floc.capture(bare, made.inputs, ratio=RATIO, method=method)
    assert video.made["method"] == method
    with floc.replay(bare, video):
        torch.testing.assert_close(bare(**without_pixels(made.inputs)).logits, expected, **CLOSE)
    if not video.nested:
        with pytest.raises(ValueError, match="no nested order"):
            video.at(ratio=1 / 8)


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl", "llava_onevision"])
@pytest.mark.parametrize("dial", [{"ratio": RATIO}, {"budget": 31, "dedupe": 1}, {"coverage": 0.9}])
def test_long_videos_go_in_segments(kind: str, dial: dict[str, Any], models, monkeypatch) -> None:
    bare, made = models[kind, "sdpa"], one(kind, slices=37)
    call = bare_call(bare, made.inputs)
    (clip,) = made.clips
    tokens = call["inputs_embeds"][0, clip.places].view(*clip.shape, -1)
    cells = int(np.prod(side(kind)))
    monkeypatch.setattr(recipe, "SEGMENT_TOKENS", 64)
    monkeypatch.setattr(recipe, "SEGMENT_FRAMES", 2)
    video = floc.capture(bare, made.inputs, **dial)
    # by hand: parts of the film, each with its share
    step = recipe.segment_frames(cells, 37)
    assert step * cells <= 64
    spent, expected = 0, []
    for start in range(0, 37, step):
        few = tokens[start : start + step]
        until = (start + len(few)) * cells
        share = {"coverage": 0.9}
        if "coverage" not in dial:
            due = round(until / 4 + 1e-9) if "ratio" in dial else 31 * until // (37 * cells)
            share, spent = {**dial, "ratio": None, "budget": due - spent}, due
        expected += (floc.compress(few, **share).indices + start * cells).tolist()
    assert video.indices.tolist() == expected
    assert len(video) == {"ratio": round(37 * cells / 4), "budget": 31, "coverage": len(video)}[next(iter(dial))]
    torch.testing.assert_close(video.features, tokens.reshape(-1, tokens.shape[-1])[video.indices], **CLOSE)
    # a prefix has its share of every segment
    smaller = video.at(budget=len(video) // 2)
    shares = np.bincount(smaller.indices.numpy() // (cells * step), minlength=37 // step)
    assert shares.min() > 0
    with pytest.raises(ValueError, match="budget must be at least"):
        floc.capture(bare, made.inputs, budget=2, method="divprune")


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl", "llava_onevision"])
@pytest.mark.parametrize("block", [4, "scene"])
def test_a_long_video_with_a_budget_goes_through_a_stream(kind: str, block: Any, models, monkeypatch) -> None:
    bare, made = models[kind, "sdpa"], one(kind, slices=37)
    everything = floc.capture(bare, made.inputs, ratio=1)
    monkeypatch.setattr(recipe, "SEGMENT_TOKENS", 64)
    video = floc.capture(bare, made.inputs, budget=31, block=block)
    stream = floc.Stream(budget=31, block=block, dedupe=2)
    stream.push(everything.features.view(*everything.shape, -1))
    expected = stream.close()
    assert video.indices.tolist() == expected.indices.tolist()
    assert video.order.tolist() == expected.order.tolist()
    assert video.made["coverage"] == pytest.approx(expected.coverage, abs=1e-6)
    assert video.made["method"] == "floc"
    for found, whole in zip((video.features, *video.deep), (everything.features, *everything.deep), strict=True):
        assert torch.equal(found, whole[video.indices])
    with floc.replay(bare, video.at(budget=12)):
        assert bare(**without_pixels(made.inputs)).logits.isfinite().all()


def test_no_segment_is_a_mere_rest() -> None:
    for cells in (1, 7, 60, 729, 70_000):
        for planned in (1, 31, 32, 33, 1025, 3600, 7200):
            size = recipe.segment_frames(cells, planned)
            assert size * cells <= max(recipe.SEGMENT_TOKENS, cells)
            rest = planned % size or size
            assert rest >= size - 32 * -(-planned // size) or size < 64, (cells, planned, size, rest)


def test_a_film_that_ends_before_its_time_keeps_its_budget(models, folder: Path) -> None:
    class Cut(list):  # type: ignore[type-arg]
        """Frames that promise more than there are."""

        def __iter__(self) -> Iterator[Frames]:
            return iter([*super().__iter__()][:2])

    video = floc.capture(models["qwen2_5_vl", "sdpa"], Cut(film(70)), budget=30, source=str(folder))
    assert video.shape[0] == 7
    assert len(video) == 30


@ALL
def test_a_film_of_one_frame(kind: str, models) -> None:
    """It looks like a picture, but is captured as a video, and must not be asked about unseen."""
    bare, made = models[kind, "sdpa"], prompt(kind, [[Text(4), Video(1, *side(kind)), Text(5)]])
    expected = bare(**made.inputs).logits
    carrier = FAMILIES[kind].carrier
    if carrier == "pixel_values":
        with pytest.raises(ValueError, match="the inputs have 0"):
            floc.capture(bare, made.inputs, ratio=1)
        seen = of_frames(kind, bare.model, made.inputs[carrier].flatten(0, -4))
        two = floc.capture(bare, one(kind).inputs, ratio=1)
        video = dataclasses.replace(
            two, features=seen.tokens.flatten(0, 2), indices=torch.arange(9), order=torch.arange(9), shape=(1, 3, 3)
        )
    else:
        video = floc.capture(bare, made.inputs, ratio=1)
    with floc.replay(bare, video), blind(bare):
        torch.testing.assert_close(bare(**without_pixels(made.inputs)).logits, expected, **CLOSE)


@pytest.mark.parametrize("kind", ["llava_next_video", "internvl"])
def test_compact_positions_in_replay(kind: str, models) -> None:
    bare, made = models[kind, "sdpa"], one(kind)
    video = floc.capture(bare, made.inputs, ratio=RATIO)
    with floc.attach(bare, ratio=RATIO, positions="compact"):
        expected = bare(**made.inputs).logits
    with floc.replay(bare, video, positions="compact"):
        torch.testing.assert_close(bare(**without_pixels(made.inputs)).logits, expected, **CLOSE)


# ---- straight from a film


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A preprocessor file, for models that were made here."""
    made = tmp_path_factory.mktemp("preprocessing")
    values = dict(
        image_mean=[0.5, 0.4, 0.3],
        image_std=[0.2, 0.3, 0.25],
        min_pixels=16 * 24,
        max_pixels=16 * 24,
        size=dict(height=24, width=24),
    )
    (made / "preprocessor_config.json").write_text(json.dumps(values))
    return made


def film(frames: int, width: int = 24, height: int = 16) -> list[Frames]:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (frames, height, width, 3), dtype=np.uint8)
    return [Frames(pixels[i : i + 7], np.arange(i, min(i + 7, frames)) * 0.5) for i in range(0, frames, 7)]


def test_frames_go_through_the_tower_as_a_processor_would_prepare_them(models, folder: Path) -> None:
    bare = models["qwen2_5_vl", "sdpa"]
    frames = film(9)
    video = floc.capture(bare, frames, ratio=RATIO, source=str(folder), fps=2)
    assert video.shape == (5, 2, 3)
    assert video.times_s is not None
    assert video.last_s is not None
    assert video.times_s.tolist() == [0, 1, 2, 3, 4]
    assert video.last_s.tolist() == [0.5, 1.5, 2.5, 3.5, 4]  # the last frame stands alone
    pixels = np.concatenate([each.pixels for each in frames])
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
def test_a_film_of_every_layout(kind: str, models, folder: Path, tmp_path: Path) -> None:
    bare = models[kind, "sdpa"]
    joined = 2 if kind in ("qwen3_vl", "glm4v") else 1
    frames = film(40) if kind not in SQUARES else film(40, 24, 24)
    shares: list[float] = []
    video = floc.capture(bare, frames, budget=50, source=str(folder), fps=2, progress=shares.append)
    assert video.shape == (40 // joined, *((2, 3) if kind not in SQUARES else (3, 3)))
    assert len(video) == 50
    assert shares[-1] == 1
    assert sorted(shares) == shares
    assert {"decode", "vision", "select", "total"} == video.made["seconds"].keys()
    video.save(tmp_path / "film.floc")
    again = floc.load(tmp_path / "film.floc")
    assert torch.equal(again.features, video.features)
    assert len(again.deep) == (2 if kind == "qwen3_vl" else 0)
    assert again.times_s is not None
    assert again.times_s.tolist() == (np.arange(40 // joined) * joined / 2).tolist()
    assert (again.fps, again.frames_per_slice) == (2, joined)


def test_a_video_file(models, folder: Path, tmp_path: Path) -> None:
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


def test_times_tell_how_often_frames_were_taken(models, folder: Path) -> None:
    bare = models["qwen2_5_vl", "sdpa"]
    pixels = np.zeros((16, 16, 24, 3), np.uint8)
    video = floc.capture(bare, [Frames(pixels, np.arange(16) * 0.1)], ratio=RATIO, source=str(folder))
    assert video.fps == pytest.approx(10)
    assert video.duration_s == pytest.approx(1.6)
    with pytest.raises(ValueError, match="pass source="):
        floc.capture(bare, [Frames(pixels, np.arange(16) * 0.1)], ratio=RATIO)


@pytest.mark.parametrize("kind", ["internvl", "smolvlm"])
def test_a_picture_beside_frames_that_are_pictures(kind: str, models) -> None:
    bare = models[kind, "sdpa"]
    made = prompt(kind, [[Text(6), Image(3, 3), Text(7), Video(5, 3, 3), Text(4)]])
    with pytest.raises(ValueError, match="prepare the video alone"):
        floc.capture(bare, made.inputs, ratio=RATIO)
    with pytest.raises(ValueError, match="found by input_ids"):
        floc.capture(bare, {"pixel_values": made.inputs["pixel_values"]}, ratio=RATIO)


def test_rows_with_videos_of_their_own_and_beams(models) -> None:
    kind = "qwen2_5_vl"
    bare = models[kind, "sdpa"]
    alone = [prompt(kind, [[Text(3 + i), Video(4 - i, *side(kind)), Text(4)]], seed=i) for i in range(2)]
    videos = [floc.capture(bare, each.inputs, ratio=RATIO) for each in alone]
    rows = prompt(kind, [[Text(3), Video(4, *side(kind)), Text(4)], [Text(4), Video(3, *side(kind)), Text(4)]])
    rows.inputs["pixel_values_videos"] = torch.cat([each.inputs["pixel_values_videos"] for each in alone])
    for settings in ({}, {"num_beams": 2}, {"num_beams": 3, "num_return_sequences": 3}):
        with floc.attach(bare, ratio=RATIO):
            expected = bare.generate(**rows.inputs, max_new_tokens=4, **settings)
        with floc.replay(bare, videos), blind(bare):
            found = bare.generate(**without_pixels(rows.inputs), max_new_tokens=4, **settings)
        assert found.tolist() == expected.tolist(), settings


def test_kinds_whose_films_cannot_be_prepared(models, folder: Path) -> None:
    with pytest.raises(ValueError, match=r"'cosmos3_omni' is not known here.*processor"):
        floc.capture(models["cosmos3_omni", "sdpa"], film(3), ratio=RATIO, source=str(folder))


def test_a_stream_of_frames(models, folder: Path) -> None:
    bare = models["qwen2_5_vl", "sdpa"]
    with pytest.raises(ValueError, match=r"'divprune' shares a budget.*not a stream"):
        floc.capture(bare, iter(film(9)), budget=5, method="divprune", source=str(folder))
    assert len(floc.capture(bare, iter(film(9)), budget=5, source=str(folder))) == 5
    assert len(floc.capture(bare, iter(film(9)), ratio=RATIO, source=str(folder))) == 8
    with pytest.raises(ValueError, match="gave none"):
        floc.capture(bare, [], ratio=RATIO, source=str(folder))


# ---- files that are not right


@pytest.fixture
def saved(models, tmp_path: Path) -> Path:
    path = tmp_path / "a.floc"
    floc.capture(models["qwen3_vl", "sdpa"], one("qwen3_vl").inputs, ratio=1 / 2).save(path)
    return path


def test_for_another_model(saved: Path, models) -> None:
    video = floc.load(saved)
    with pytest.raises(ValueError, match=r"captured for qwen3_vl.*the model is qwen2_5_vl"):
        floc.replay(models["qwen2_5_vl", "sdpa"], video)
    other = model("qwen3_vl", seed=5)
    before = hooks_of(other)
    with pytest.raises(ValueError, match="other weights in its vision tower"):
        floc.replay(other, video)
    assert hooks_of(other) == before
    near = model("qwen3_vl")
    for each in near.model.visual.parameters():
        each.mul_(1 + 0.03 * torch.randn(each.shape))
    with pytest.raises(ValueError, match="other weights in its vision tower"):
        floc.replay(near, video)
    with floc.replay(model("qwen3_vl", dtype=torch.bfloat16), video):  # the same model in another dtype
        pass
    away = model("qwen3_vl")
    away.model.visual.to("meta")  # a replay does without it
    with floc.replay(away, video):
        pass


@pytest.mark.parametrize("size", [0, 7, 100, 0.5, 0.99])
def test_cut_off(saved: Path, size: float) -> None:
    whole = saved.read_bytes()
    saved.write_bytes(whole[: int(size if size >= 1 else size * len(whole))])
    with pytest.raises(ValueError, match=r"a\.floc: not a readable \.floc file"):
        floc.load(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, a: t.update(features=t["features"][:-1]), "features has shape"),
        (lambda t, a: t.update(indices=t["indices"].flip(0)), "ascending"),
        (lambda t, a: t.update(indices=t["indices"] + 1000), "ascending within"),
        (lambda t, a: t.update(indices=t["indices"] - 1000), "ascending within"),
        (lambda t, a: t.update(order=t["order"] * 0), "order is not an order"),
        (lambda t, a: t.update(gains=t["gains"][:3]), "gains has shape"),
        (lambda t, a: t.update({"deep.1": t["deep.1"][:, :-1]}), "deep features"),
        (lambda t, a: t.pop("features"), "features"),
        (lambda t, a: t.pop("deep.0"), "deep features of 2 layers"),
        (lambda t, a: t.pop("deep.1"), "deep features of 2 layers"),
        (lambda t, a: t.update({"deep.2": t["deep.1"].clone()}), "deep features of 2 layers"),
        (lambda t, a: t["features"].fill_(torch.nan), "not finite"),
        (lambda t, a: t["deep.1"].fill_(torch.inf), "not finite"),
        (lambda t, a: t.update(features=t["features"].long()), "features has dtype"),
        (lambda t, a: t.update(indices=t["indices"].double()), "indices has dtype"),
        (
            lambda t, a: t.update(features=t["features"][:, :-1], **{"deep.0": t["deep.0"][:, :-1]}),
            "the model takes 64",
        ),
        (lambda t, a: a.update(shape=[30, True, True]), "not slices, rows and columns"),
        (lambda t, a: a.update(shape=[1 << 60, 1, 1]), "not slices, rows and columns"),
        (lambda t, a: a.update(fps="x"), "fps is 'x'"),
        (lambda t, a: a.update(nested="no"), "wrong kind"),
        (lambda t, a: a.update(made=[1]), "wrong kind"),
        (lambda t, a: a.update(shape=[0, 1, 2]), "not slices, rows and columns"),
        (lambda t, a: a.update(shape=[5, 2]), "not slices, rows and columns"),
        (lambda t, a: a.update(shape=[1, 1, 2]), "ascending within"),
        (lambda t, a: a.update(format=99), "format 99"),
        (lambda t, a: a.pop("model"), "model"),
        (lambda t, a: a.update(model={"kind": 1}), "missing"),
        (lambda t, a: t.update(times_s=torch.zeros(3)), "times_s is not a time for each"),
        (lambda t, a: t.update(times_s=torch.full((5,), torch.nan)), "times_s is not a time for each"),
    ],
)
def test_tampered_with(saved: Path, change: Any, message: str) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(saved, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        about = json.loads(file.metadata()["floc"])
    change(tensors, about)
    save_file({name: each.contiguous() for name, each in tensors.items()}, saved, {"floc": json.dumps(about)})
    with pytest.raises(ValueError, match=f"not a readable .floc file.*{message}"):
        floc.load(saved)


def test_other_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        floc.load(tmp_path / "none.floc")
    (tmp_path / "text.floc").write_text("no")
    with pytest.raises(ValueError, match="not a readable"):
        floc.load(tmp_path / "text.floc")


def test_a_write_that_fails_leaves_the_file_that_was_there(saved: Path, models, monkeypatch) -> None:
    before = saved.read_bytes()
    video = floc.load(saved)
    import safetensors.torch

    monkeypatch.setattr(safetensors.torch, "save_file", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        video.save(saved)
    assert saved.read_bytes() == before
    assert [each.name for each in saved.parent.iterdir()] == [saved.name]


def test_prompts_that_do_not_fit(models) -> None:
    bare, made = models["qwen2_5_vl", "sdpa"], one("qwen2_5_vl")
    video = floc.capture(bare, made.inputs, ratio=RATIO)
    with floc.replay(bare, video):
        with pytest.raises(ValueError, match="needs no pixels"):
            bare(**made.inputs)
        with pytest.raises(ValueError, match="the videos given"):
            bare(**without_pixels(one("qwen2_5_vl", slices=4).inputs))
        bare(input_ids=torch.tensor([[5, 6, 7]]))  # a prompt without a video is none of its business
        with pytest.raises(RuntimeError, match="attached to this model already"):
            floc.attach(bare, ratio=RATIO)
    with pytest.raises(ValueError, match="its times are not known"):
        video.inputs(bare, None, "?")
    with pytest.raises(ValueError, match="must have pixel_values_videos"):
        floc.capture(bare, without_pixels(made.inputs), ratio=RATIO)


def test_models_that_are_not_known() -> None:
    config = transformers.LlamaConfig(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=9
    )
    with pytest.raises(ValueError, match="type 'llama'"):
        floc.capture(transformers.LlamaForCausalLM(config), {}, ratio=RATIO)


def test_a_batch_of_questions(models) -> None:
    """Rows of unequal length about the same video."""
    kind = "llava_onevision"
    bare = models[kind, "sdpa"]
    made = batch(kind)
    assert made.inputs["input_ids"].shape[0] == 2
    size = Video(4, *side(kind))
    rows = prompt(kind, [[Text(3), size, Text(4)], [Text(9), size, Text(6)]])
    rows.inputs["pixel_values_videos"][1] = rows.inputs["pixel_values_videos"][0]
    with floc.attach(bare, ratio=RATIO) as handle:
        ids = bare.generate(**rows.inputs, max_new_tokens=4)
    assert len(handle.last) == 1  # one video, two questions
    alone = {"pixel_values_videos": rows.inputs["pixel_values_videos"][:1]}
    video = floc.capture(bare, alone, ratio=RATIO)
    with floc.replay(bare, video), blind(bare):
        assert bare.generate(**without_pixels(rows.inputs), max_new_tokens=4).tolist() == ids.tolist()
