"""Tests of frame sampling on fakes of lmms-eval's models."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from floc.integrations.lmms_eval import sampling
from floc.integrations.lmms_eval.sampling import FrameSampling


@pytest.mark.parametrize(
    ("given", "count"),
    [
        (FrameSampling(max_frames=10), 10),
        (FrameSampling(max_frames=100), 80),  # all frames
        (FrameSampling(fps=1), 20),
        (FrameSampling(fps=100), 80),
        (FrameSampling(fps=0.01), 1),
        (FrameSampling(fps=1, max_frames=7), 7),
        (FrameSampling(fps=1, max_frames=70), 20),
    ],
)
def test_count(given: FrameSampling, count: int) -> None:
    assert given.count(80, rate=4) == count


@pytest.mark.parametrize(
    ("override", "package"),
    [(sampling.override_qwen, "qwen_vl_utils"), (sampling.override_qwen_omni, "qwen_omni_utils.v2_5")],
    ids=["qwen", "qwen omni"],
)
def test_qwen_reads_pairs_of_frames(override: Any, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    utils, process = ModuleType(package), ModuleType(f"{package}.vision_process")
    process.smart_nframes = original = lambda *args: 0
    utils.vision_process = process
    monkeypatch.setitem(sys.modules, package.split(".")[0], ModuleType(package.split(".")[0]))
    monkeypatch.setitem(sys.modules, package, utils)
    monkeypatch.setitem(sys.modules, f"{package}.vision_process", process)
    model = SimpleNamespace(max_num_frames=32)
    with override(model, FrameSampling(max_frames=7)):
        assert process.smart_nframes({"fps": 2}, total_frames=80, video_fps=4.0) == 6
        assert process.smart_nframes({"nframes": 64}, total_frames=3, video_fps=4.0) == 2
        assert model.max_num_frames >= 80
    assert process.smart_nframes is original
    assert model.max_num_frames == 32


def test_internvl_reads_requested_count() -> None:
    class VideoProcessor:
        def sample_frames(self, metadata: Any, num_frames: int, initial_shift: bool) -> tuple[int, bool]:
            return num_frames, initial_shift

    processor = VideoProcessor()
    model = SimpleNamespace(processor=SimpleNamespace(video_processor=processor))
    metadata = SimpleNamespace(total_num_frames=80, fps=4.0)
    with sampling.override_internvl(model, FrameSampling(fps=1, max_frames=64)):
        assert processor.sample_frames(metadata, num_frames=32, initial_shift=True) == (20, True)
    assert processor.sample_frames(metadata, num_frames=32, initial_shift=True) == (32, True)


@pytest.mark.parametrize("is_list", [False, True], ids=["path", "list of one"])
def test_llava_count_follows_video_length(is_list: bool, tmp_path: Path) -> None:
    for package in ("av", "PIL"):
        pytest.importorskip(package, reason="needs pip install 'floc-video[video]'")
    from examples.demo.film import render

    path = str(render(tmp_path / "home.mp4", seconds=6, fps=4, width=112, height=84).path)
    given: Any = [path] if is_list else path

    class Model:
        def load_video(self, video_path: Any, max_frames_num: int) -> tuple[Any, int]:
            return video_path, max_frames_num

    model = Model()
    with sampling.override_llava(model, FrameSampling(fps=1)):
        assert model.load_video(given, 32) == (given, 6)
    with sampling.override_llava(model, FrameSampling(max_frames=100)):
        assert model.load_video(given, 32) == (given, 24)
    assert model.load_video(given, 32) == (given, 32)


def test_override_is_restored_after_an_error() -> None:
    owner = SimpleNamespace(frames=8)
    with pytest.raises(RuntimeError), sampling.override_attribute(owner, "frames", 4):
        raise RuntimeError
    assert owner.frames == 8
