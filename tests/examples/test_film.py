"""The rendered film: its content, its file, and the place of the keys."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

import av
import numpy as np
import pytest

from examples.demo import film

SMALL = dict(seconds=5, fps=4, width=96, height=54)


def make_plan(**changes: object) -> film._Plan:
    return film._make_plan(**{**SMALL, "seed": 0, **changes})


def digest(plan: film._Plan) -> str:
    hashed = hashlib.sha256()
    for frame in film._render_frames(plan):
        hashed.update(frame.tobytes())
    return hashed.hexdigest()


def decode(path: Path) -> tuple[np.ndarray, np.ndarray]:
    with av.open(str(path)) as container:
        frames = [(frame.to_ndarray(format="rgb24"), frame.time) for frame in container.decode(video=0)]
    pixels, times = zip(*frames, strict=True)
    return np.stack(pixels), np.array(times)


def pixel_box(sighting: film.Sighting, width: int, height: int) -> tuple[int, ...]:
    return tuple(round(each) for each in np.array(sighting.box) * (width, height, width, height))


def test_seed_determines_every_pixel() -> None:
    assert digest(make_plan(seed=3)) == digest(make_plan(seed=3))
    assert digest(make_plan(seed=3)) != digest(make_plan(seed=4))


def test_all_frames_differ() -> None:
    frames = [frame.tobytes() for frame in film._render_frames(make_plan())]
    assert len(frames) == 20
    assert len(set(frames)) == 20


@pytest.mark.parametrize(
    ("seed", "width", "height"), [(0, 96, 54), (1, 96, 72), (2, 128, 64), (3, 320, 180), (4, 512, 288), (5, 64, 48)]
)
def test_keys_change_only_the_pixels_in_their_box(seed: int, width: int, height: int) -> None:
    plan = make_plan(seed=seed, width=width, height=height)
    boxes = {round(each.time_s * 4): pixel_box(each, width, height) for each in film._locate_keys(plan)}
    pairs = zip(film._render_frames(plan), film._render_frames(plan, keys=False), strict=True)
    for frame, (with_keys, without) in enumerate(pairs):
        differ = (with_keys != without).any(-1)  # [height, width]
        assert differ.any() == (frame in boxes)
        if frame in boxes:
            left, top, right, bottom = boxes[frame]
            assert 0 <= left < right <= width
            assert 0 <= top < bottom <= height
            rows, columns = np.flatnonzero(differ.any(1)), np.flatnonzero(differ.any(0))
            found = np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])
            slack = (found - boxes[frame]) * (1, 1, -1, -1)
            assert slack.min() >= 0, "the keys reach beyond their box"
            assert slack.max() <= 3, "the box is larger than the keys"


@pytest.mark.parametrize("seed", range(12))
def test_keys_are_visible_for_a_second_and_the_table_before_and_after(seed: int) -> None:
    plan = make_plan(seed=seed, seconds=120, fps=8, width=512, height=288)
    times = [each.time_s for each in film._locate_keys(plan)]
    np.testing.assert_allclose(np.diff(times), 1 / 8)
    assert 0.75 <= len(times) / 8 <= 1.25
    shot = next(each for each in plan.shots if each.first <= plan.keys_from < each.end)
    assert shot.scene == film.STUDY
    assert shot.first + 4 <= plan.keys_from
    assert plan.keys_until + 4 <= shot.end
    assert any(each.scene == film.STUDY and each.end <= shot.first for each in plan.shots)
    assert any(each.scene == film.STUDY and each.first >= shot.end for each in plan.shots)
    for each in film._locate_keys(plan):
        left, top, right, bottom = pixel_box(each, 512, 288)
        assert 28 <= right - left <= 96  # one to three cells of 32, wherever the grid falls
        assert 14 <= bottom - top <= 64
        assert min(left, top) >= 8
        assert right <= 504
        assert bottom <= 280


@pytest.mark.parametrize("seed", range(20))
def test_scenes_return_after_cuts(seed: int) -> None:
    plan = make_plan(seed=seed, seconds=120, fps=8)
    scenes = [shot.scene for shot in plan.shots]
    assert set(scenes) == set(film.SCENES)
    assert len(scenes) > len(set(scenes))
    assert all(a != b for a, b in itertools.pairwise(scenes))
    assert [shot.first for shot in plan.shots] == [0, *(shot.end for shot in plan.shots[:-1])]
    assert plan.shots[-1].end == plan.frames == 960


def test_seed_moves_the_keys_in_time_and_on_the_table() -> None:
    plans = [make_plan(seed=seed, seconds=120) for seed in range(20)]
    assert len({each.keys_from for each in plans}) > 10
    assert len({each.keys_at for each in plans}) == 20


@pytest.mark.parametrize(("seconds", "fps"), [(3, 2), (3.3, 2.5), (5, 4), (12, 29.97), (24, 3), (61.7, 7.5)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_keys_are_visible_at_any_length_and_rate(seconds: float, fps: float, seed: int) -> None:
    plan = make_plan(seconds=seconds, fps=fps, seed=seed)
    assert abs(plan.frames - seconds * fps) <= 0.6
    sightings = film._locate_keys(plan)
    assert 0.75 <= len(sightings) / fps <= 1.25
    shot = next(each for each in plan.shots if each.first <= plan.keys_from < each.end)
    assert shot.first < plan.keys_from
    assert plan.keys_until < shot.end


@pytest.mark.parametrize("codec", ["libx264", "mpeg4"])
def test_file_has_the_rendered_frames_at_their_times(tmp_path: Path, codec: str, monkeypatch) -> None:
    if codec not in av.codecs_available:
        pytest.skip(f"this PyAV was built without {codec}")
    monkeypatch.setattr(av, "codecs_available", {codec})
    shares: list[float] = []
    rendered = film.render(
        tmp_path / "film.mp4", seconds=9, fps=4, width=192, height=108, seed=7, progress=shares.append
    )
    assert rendered.path == tmp_path / "film.mp4"
    assert [path.name for path in tmp_path.iterdir()] == ["film.mp4"]
    assert rendered.duration_s == 9
    assert shares == [(i + 1) / 36 for i in range(36)]
    pixels, times = decode(rendered.path)
    np.testing.assert_allclose(times, np.arange(36) / 4, atol=1e-4)
    plan = make_plan(seconds=9, width=192, height=108, seed=7)
    without = np.stack(list(film._render_frames(plan, keys=False))).astype(int)
    assert np.abs(pixels - without).mean() < 6  # good quality
    at = [int(np.abs(times - each.time_s).argmin()) for each in rendered.sightings]
    left, top, right, bottom = pixel_box(rendered.sightings[0], 192, 108)
    there = np.abs(pixels - without)[:, top:bottom, left:right].mean((1, 2, 3))  # [frames]
    shown = np.isin(np.arange(36), at)
    assert 3 <= shown.sum() <= 5
    assert there[shown].min() > 1.5 * there[~shown].max()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dict(seconds=2), "seconds must be a number in 3..86400, got 2"),
        (dict(seconds=float("nan")), "seconds must be a number"),
        (dict(seconds="long"), "seconds must be a number in 3..86400, got 'long'"),
        (dict(fps=1), "fps must be a number in 2..60, got 1"),
        (dict(fps=True), "fps must be a number"),
        (dict(width=95), "width must be an even number of pixels in 48..4096, as the codec requires; got 95"),
        (dict(height=54.0), "height must be an even number"),
        (dict(width=16, height=10), "width must be an even number"),
        (dict(width=96, height=96), "between 4:3 and 2:1 to show the table; got 96 x 96"),
        (dict(width=400, height=54), "between 4:3 and 2:1"),
        (dict(seed=-1), "seed must be a whole number, at least 0; got -1"),
        (dict(seed=0.5), "seed must be a whole number"),
    ],
)
def test_rejects_bad_arguments(tmp_path: Path, wrong: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        film.render(tmp_path / "film.mp4", **{**SMALL, **wrong})
    assert list(tmp_path.iterdir()) == []


def test_rejects_bad_paths(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"name it film\.mp4, got film\.avi"):
        film.render(tmp_path / "film.avi", **SMALL)
    with pytest.raises(FileNotFoundError, match="does not exist; create it first"):
        film.render(tmp_path / "no" / "film.mp4", **SMALL)


def test_interrupt_leaves_no_file(tmp_path: Path) -> None:
    def stop(done: float) -> None:
        if done == 1:  # by now much of the file is written
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        film.render(tmp_path / "film.mp4", **SMALL, progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_picture_changes_at_cuts(tmp_path: Path) -> None:
    rendered = film.render(tmp_path / "film.mp4", seconds=30, fps=4, width=96, height=54)
    pixels, times = decode(rendered.path)
    change = np.abs(np.diff(pixels.astype(float), axis=0)).mean((1, 2, 3))
    assert len(rendered.cuts_s) == 3
    np.testing.assert_allclose(np.sort(times[1:][np.argsort(change)[-3:]]), rendered.cuts_s)
