"""Tests that `VideoPreparer` gives what a model's own processor gives for a whole video, for every model type."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from floc.families.processing import DEFAULT_FPS, PIXELS, VideoFacts, VideoPlan, VideoPreparer
from tests.decoding import read_with_pyav
from tests.integrations.transformers.processors import PARTS, apply_template, create_processor, create_turn

pytest.importorskip("torchvision", reason="torchvision is not installed: pip install 'floc-video[hf]'")

FRAMES, HEIGHT, WIDTH, FPS = 37, 90, 124, 8.0
VIDEO = np.random.default_rng(20).integers(0, 256, (FRAMES, HEIGHT, WIDTH, 3), np.uint8)
FACTS = VideoFacts(FRAMES, FPS, WIDTH, HEIGHT)
QUESTION = "What is shown?"
HISTORY = (("What comes first?", "A door."), ("And then?", "A dog."))
# what `VideoPreparer` sets, where a processor accepts it
SETTINGS = {"cap_pixels_per_frame": True, "use_token_compression": False}
# its processor does not resize unless told to
MORE_SETTINGS: dict[str, dict[str, Any]] = {"minimax_m3_vl": {"do_resize": True}}
WITHOUT_METADATA = ("nemotron_h_omni",)  # its processor takes no list of metadata
# processors that refuse a rate or ignore it: they are given the sampled frames
WITHOUT_RATE = (
    *(*WITHOUT_METADATA, "gemma4", "gemma4_unified", "glm46v", "glm_ocr", "minicpmv4_6", "minicpmv4_7", "minicpm_ocr"),
)


def build(kind: str) -> Any:
    """Return the processor of a model type, or skip the test if the release of transformers does not have it."""
    from transformers.models.auto.video_processing_auto import VIDEO_PROCESSOR_MAPPING_NAMES as MAPPING

    if not any(MAPPING.get(name) for name in (kind, PARTS[kind].like)):
        pytest.skip("not in this release")
    return create_processor(kind)


def describe(frames: int = FRAMES, indices: Sequence[int] | None = None) -> Any:
    from transformers.video_utils import VideoMetadata

    return VideoMetadata(
        total_num_frames=frames,
        fps=FPS,
        width=WIDTH,
        height=HEIGHT,
        duration=frames / FPS,
        video_backend="pyav",
        frames_indices=indices,
    )


def ask_processor(kind: str, video: Any, history: Sequence[tuple[str, str]] = (), **options: Any) -> dict[str, Any]:
    """Return what the processor gives for a whole video in one call."""
    processor = build(kind)
    questions, answers = [*(asked for asked, _ in history), QUESTION], [answer for _, answer in history]
    turns = [create_turn(questions[0], ("video", video))]
    for answer, question in zip(answers, questions[1:], strict=True):
        turns += [{"role": "assistant", "content": [{"type": "text", "text": answer}]}, create_turn(question)]
    accepted = processor.video_processor.valid_kwargs.__annotations__
    settings = {name: value for name, value in SETTINGS.items() if name in accepted}
    options = {"return_metadata": True, **settings, **MORE_SETTINGS.get(kind, {}), **options}
    if kind in WITHOUT_METADATA:
        options.pop("video_metadata", None)
    return apply_template(processor, turns, **options)


def give_frames(kind: str, plan: VideoPlan, history: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
    """Return what the processor gives for the frames of a plan."""
    metadata = describe(plan.facts.frames, plan.indices.tolist())
    rate = {} if plan.fps is None else {"fps": plan.fps}
    return ask_processor(kind, VIDEO[plan.indices], history, do_sample_frames=False, video_metadata=[metadata], **rate)


def prepare_chunks(preparer: VideoPreparer, plan: VideoPlan, frames: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    """Return the pixels of a video, prepared in chunks of three slices and joined."""
    size = 3 * preparer.frames_per_slice
    outputs = [preparer.prepare(plan, frames[start : start + size]) for start in range(0, len(frames), size)]
    chunks = [output[plan.pixels[0]] for output in outputs]
    if chunks[0].ndim == like.ndim + 1:  # some processors remove the axis of videos
        chunks = [chunk[0] for chunk in chunks]
    axis = next((i for i in range(like.ndim) if chunks[0].shape[i] != like.shape[i]), 0)
    return torch.cat(chunks, axis)


def check_equal(
    preparer: VideoPreparer,
    plan: VideoPlan,
    expected: dict[str, Any],
    history: Sequence[tuple[str, str]] = (),
    frames: np.ndarray | None = None,
) -> None:
    """Compare all that a processor returned with prompt and pixels of a plan."""
    (name,) = (name for name in PIXELS if name in expected)
    pixels = expected.pop(name)
    prompt = preparer.write_prompt(plan, QUESTION, history)
    assert prompt.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(prompt[key], value), key
    frames = VIDEO[plan.indices] if frames is None else frames
    assert torch.equal(prepare_chunks(preparer, plan, frames, pixels), pixels)
    if plan.resizing is not None:
        resized = np.stack([plan.resizing(frame) for frame in frames])
        assert resized.shape[2:0:-1] == plan.frame_size
        assert torch.equal(prepare_chunks(preparer, plan, resized, pixels), pixels)
    assert np.prod(plan.pixels[1]) == pixels.numel()


# types with the processor of another type; slow tests run with them, too
SAME = {
    **dict.fromkeys(("qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "qwen4_exp", "cosmos3_omni"), "qwen3_vl"),
    "glm4v_moe": "glm4v",
    "glm_ocr": "glm46v",
}
ALL = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow) if kind in SAME else kind for kind in PARTS]
)


@pytest.mark.parametrize("kind", SAME)
def test_types_left_to_slow_tests_have_the_processor_of_another(kind: str) -> None:
    own, other = build(kind), build(SAME[kind])
    for part in ("", "video_processor", "image_processor"):
        ours, theirs = (getattr(processor, part) if part else processor for processor in (own, other))
        assert type(ours) is type(theirs)
        if part:
            assert ours.to_dict() == theirs.to_dict()
    assert own.chat_template == other.chat_template


@ALL
def test_defaults_equal_the_processor(kind: str) -> None:
    preparer = VideoPreparer(build(kind))
    plan = preparer.plan(FACTS)
    if kind in WITHOUT_METADATA:
        expected = give_frames(kind, plan, HISTORY)
    else:
        own = [getattr(preparer.video_processor, name, None) for name in ("fps", "num_frames")]
        rate = {"fps": DEFAULT_FPS} if own == [None, None] else {}
        expected = ask_processor(kind, VIDEO, HISTORY, do_sample_frames=True, video_metadata=[describe()], **rate)
    check_equal(preparer, plan, expected, HISTORY)


@ALL
def test_rate_equals_the_processor(kind: str) -> None:
    preparer = VideoPreparer(build(kind))
    plan = preparer.plan(FACTS, fps=3)
    if kind in WITHOUT_RATE:
        assert len(plan.indices) == 13  # of 4.6 seconds
        expected = give_frames(kind, plan)
    else:
        rate = {"fps": 3, "num_frames": None} if kind == "molmo2" else {"fps": 3}
        expected = ask_processor(kind, VIDEO, do_sample_frames=True, video_metadata=[describe()], **rate)
    check_equal(preparer, plan, expected)


@ALL
@pytest.mark.parametrize("most", [5, 7])
def test_frame_limit(kind: str, most: int) -> None:
    preparer = VideoPreparer(build(kind))
    plan = preparer.plan(FACTS, max_frames=most)
    assert 1 < len(plan.indices) <= most
    assert np.all(np.diff(plan.indices) >= 0)
    check_equal(preparer, plan, give_frames(kind, plan))


@pytest.mark.parametrize("kind", ["gemma4", "molmo2"])
def test_frame_limit_replaces_the_number_of_frames(kind: str) -> None:
    preparer = VideoPreparer(build(kind))
    plan = preparer.plan(FACTS, max_frames=9)
    expected = ask_processor(kind, VIDEO, do_sample_frames=True, video_metadata=[describe()], num_frames=9)
    check_equal(preparer, plan, expected)
    assert len(VideoPreparer(build("gemma4")).plan(FACTS, max_frames=35).indices) == 35  # its own number is 32


def find_refusal(kind: str, frames: int) -> Exception | None:
    """Return the error of the processor for a video of so few frames, if it refuses it."""
    own = create_processor(kind).video_processor
    rate = {} if own.num_frames or own.fps else {"fps": DEFAULT_FPS}
    try:
        ask_processor(kind, VIDEO[:frames], do_sample_frames=True, video_metadata=[describe(frames)], **rate)
    except (ValueError, ZeroDivisionError, RuntimeError) as error:
        # not refusals: the only frame of a sample loses its axis; metadata is needed but not taken
        is_fault = "permute" in str(error) or kind in WITHOUT_METADATA
        return None if is_fault else error
    return None


@ALL
@pytest.mark.parametrize("frames", [1, 2, 3])
def test_short_videos(kind: str, frames: int) -> None:
    preparer = VideoPreparer(build(kind))
    facts = VideoFacts(frames, FPS, WIDTH, HEIGHT)
    if find_refusal(kind, frames) is not None:
        with pytest.raises(ValueError, match=f"cannot take this video, {frames} frames of 124 x 90 at 8 per second"):
            preparer.plan(facts)
    else:
        plan = preparer.plan(facts)
        check_equal(preparer, plan, give_frames(kind, plan))


FILE_KINDS = ["qwen2_5_vl", "qwen3_vl", "qwen3_5", "qwen3_omni_moe", "internvl", "gemma4", "glm4v", "smolvlm"]


def write_film(path: Path) -> Path:
    av = pytest.importorskip("av", reason="PyAV is not installed: pip install 'floc-video[video]'")
    ys, xs = np.mgrid[:HEIGHT, :WIDTH]
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=int(FPS))
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for i in range(FRAMES):
            picture = np.stack([xs * 2 + i, ys * 2 - i, 128 + 100 * np.sin((xs + ys + 5 * i) / 9)], -1)
            frame = av.VideoFrame.from_ndarray(picture.astype(np.int64).astype(np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_file_equals_the_processor(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare floc's reader with PyAV's in transformers, whose usual decoder, torchcodec, needs FFmpeg's libraries."""
    from floc.video import read
    from floc.video.choice import FrameChoice

    path = write_film(tmp_path / "film.mp4")
    preparer = VideoPreparer(build(kind))
    read_with_pyav(monkeypatch)
    rate = {} if kind == "gemma4" else {"fps": 2.0}
    expected = ask_processor(kind, str(path), do_sample_frames=True, **rate)
    plans = []

    def choose(facts: VideoFacts) -> FrameChoice:
        plans.append(preparer.plan(facts, **rate))
        return FrameChoice(plans[0].indices, facts.width, facts.height)

    pixels = np.concatenate([frames.pixels for frames in read(path, choose=choose)])
    assert plans[0].facts == FACTS
    check_equal(preparer, plans[0], expected, frames=pixels)


@ALL
def test_planning_takes_no_memory_for_the_frames(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a few slices of frames exist; all of them together exist only without values, on the device "meta"."""
    preparer = VideoPreparer(build(kind))
    describe_frames, calls = preparer._describe_frames, []

    def record(frames: int, facts: VideoFacts, size: Any, device: Any = None) -> dict[str, Any]:
        calls.append((frames, str(device)))
        return describe_frames(frames, facts, size, device)

    monkeypatch.setattr(preparer, "_describe_frames", record)
    # GLM-5 resizes in a way that floc cannot follow, and is refused
    with contextlib.suppress(ValueError) if kind == "glm5_next" else contextlib.nullcontext():
        assert len(preparer.plan(VideoFacts(1000, 10.0, 320, 180), fps=2, max_frames=150).indices) > 100
    assert max(frames for frames, device in calls if device == "None") <= 3 * preparer.frames_per_slice


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "internvl", "gemma4", "llava_onevision", "minimax_m3_vl"])
def test_a_rate_above_that_of_the_video_takes_every_frame(kind: str) -> None:
    plan = VideoPreparer(build(kind)).plan(VideoFacts(40, 10.0, 320, 180), fps=50)
    assert len(plan.indices) == 40


def test_a_video_that_is_too_narrow_is_described() -> None:
    with pytest.raises(ValueError, match=r"cannot take this video, 40 frames of 2048 x 8 .*aspect ratio"):
        VideoPreparer(build("qwen2_5_vl")).plan(VideoFacts(40, 10.0, 2048, 8))


@pytest.mark.parametrize("read", [np.asarray, torch.Tensor.tolist, lambda pixels: pixels.sum().item()])
def test_processor_may_read_pixels_to_write_a_prompt(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    processor = build("qwen2_5_vl")
    preparer = VideoPreparer(processor)
    plan = preparer.plan(FACTS)
    expected = preparer.write_prompt(plan, QUESTION)["input_ids"]
    write, seen = type(processor).replace_video_token, []

    def write_after_reading(self: Any, video_inputs: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(read(video_inputs["pixel_values_videos"]))
        return write(self, video_inputs, *args, **kwargs)

    monkeypatch.setattr(type(processor), "replace_video_token", write_after_reading)
    assert torch.equal(preparer.write_prompt(plan, QUESTION)["input_ids"], expected)
    assert seen
