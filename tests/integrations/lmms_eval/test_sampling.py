"""Frames that a model takes, with what lmms-eval's models have for it stood in for."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from floc.integrations.lmms_eval import sampling
from floc.integrations.lmms_eval.sampling import Sampling


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (Sampling(max_frames=10), 10),
        (Sampling(max_frames=100), 80),  # all there are
        (Sampling(fps=1), 20),
        (Sampling(fps=100), 80),
        (Sampling(fps=0.01), 1),
        (Sampling(fps=1, max_frames=7), 7),
        (Sampling(fps=1, max_frames=70), 20),
    ],
)
def test_counts(given: Sampling, taken: int) -> None:
    assert given.count(80, rate=4) == taken


def test_all_readers_of_qwen_take_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    utils, process = ModuleType("qwen_vl_utils"), ModuleType("qwen_vl_utils.vision_process")
    process.smart_nframes = as_it_was = lambda *args: 0
    utils.vision_process = process
    monkeypatch.setitem(sys.modules, "qwen_vl_utils", utils)
    monkeypatch.setitem(sys.modules, "qwen_vl_utils.vision_process", process)
    model = SimpleNamespace(max_num_frames=32)
    with sampling.of_qwen(model, Sampling(max_frames=7)):
        assert process.smart_nframes({"fps": 2}, total_frames=80, video_fps=4.0) == 6
        assert process.smart_nframes({"nframes": 64}, total_frames=3, video_fps=4.0) == 2
        assert model.max_num_frames >= 80
    assert process.smart_nframes is as_it_was
    assert model.max_num_frames == 32


def test_internvl_places_as_many_as_are_wanted() -> None:
    class Films:
        def sample_frames(self, metadata: Any, num_frames: int, initial_shift: bool) -> tuple[int, bool]:
            return num_frames, initial_shift

    films = Films()
    model = SimpleNamespace(processor=SimpleNamespace(video_processor=films))
    metadata = SimpleNamespace(total_num_frames=80, fps=4.0)
    with sampling.of_internvl(model, Sampling(fps=1, max_frames=64)):
        assert films.sample_frames(metadata, num_frames=32, initial_shift=True) == (20, True)
    assert films.sample_frames(metadata, num_frames=32, initial_shift=True) == (32, True)


@pytest.mark.parametrize("listed", [False, True], ids=["path", "list of one"])
def test_llava_is_told_by_the_length_of_the_film(listed: bool, tmp_path: Path) -> None:
    for package in ("av", "PIL"):
        pytest.importorskip(package, reason="films need pip install 'floc-video[video]'")
    from examples.demo.film import render

    path = str(render(tmp_path / "home.mp4", seconds=6, fps=4, width=112, height=84).path)
    given: Any = [path] if listed else path

    class Model:
        def load_video(self, video_path: Any, max_frames_num: int) -> tuple[Any, int]:
            return video_path, max_frames_num

    model = Model()
    with sampling.of_llava(model, Sampling(fps=1)):
        assert model.load_video(given, 32) == (given, 6)
    with sampling.of_llava(model, Sampling(max_frames=100)):
        assert model.load_video(given, 32) == (given, 24)
    assert model.load_video(given, 32) == (given, 32)


def test_what_was_changed_is_put_back_after_an_error() -> None:
    thing = SimpleNamespace(frames=8)
    with pytest.raises(RuntimeError), sampling.changed(thing, "frames", 4):
        raise RuntimeError
    assert thing.frames == 8
