"""Scenes: breaks against a plain double loop, cuts in films that tell where they are, and blocks that partition."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import floc
from floc import blocks, scenes
from floc.synthetic import film_and_cuts
from floc.tokens import TokenGrid


def random_tokens(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def plain_breaks(tokens: np.ndarray) -> np.ndarray:
    """The definition, one pair of frames at a time."""
    unit = tokens.astype(np.float64) / np.linalg.norm(tokens.astype(np.float64), axis=-1, keepdims=True)
    flat = unit.reshape(-1, tokens.shape[-1])
    spread = np.mean([1 - a @ b for a in flat for b in flat])

    def apart(s: int, t: int) -> float:
        return float(
            np.mean(
                [
                    1 - a @ b
                    for a, b in zip(unit[s].reshape(-1, flat.shape[1]), unit[t].reshape(-1, flat.shape[1]), strict=True)
                ]
            )
        )

    found = np.zeros(len(tokens))
    for t in range(1, len(tokens)):
        pairs = [(t - 1, t), (t - 2, t), (t - 1, t + 1)]
        found[t] = min(apart(s, e) for s, e in pairs if s >= 0 and e < len(tokens))
    return found / spread


@pytest.mark.parametrize("shape", [(2, 1, 1, 3), (3, 2, 2, 4), (4, 1, 5, 2), (9, 3, 2, 6)])
@pytest.mark.parametrize("frames_together", [1, 2, 100])
def test_breaks_are_what_the_definition_says(monkeypatch, shape: tuple[int, ...], frames_together: int) -> None:
    monkeypatch.setattr(scenes, "TILE_BYTES", frames_together * 4 * int(np.prod(shape[1:])))
    tokens = random_tokens(shape)
    np.testing.assert_allclose(scenes.measure_breaks(torch.from_numpy(tokens)), plain_breaks(tokens), atol=1e-5)


@pytest.mark.parametrize("frames", [3, 4, 11])
def test_breaks_of_a_video_that_goes_on_are_those_of_all_of_it(frames: int) -> None:
    tokens = torch.from_numpy(random_tokens((frames, 2, 3, 8)))
    running = scenes.RunningScenes()
    for t in range(frames):
        running.see(tokens, t + 1)
    spread = scenes._spread(running.total, running.squares, frames, 6)
    np.testing.assert_allclose(np.array(running.recent) / spread, plain_breaks(tokens.numpy())[1:-1], atol=1e-5)


@pytest.mark.parametrize("frames", [0, 1, 2, 30])
def test_what_was_seen_of_a_video_that_goes_on_is_restored(frames: int) -> None:
    tokens = torch.from_numpy(random_tokens((frames + 5, 2, 3, 8)))
    one, other = scenes.RunningScenes(), scenes.RunningScenes()
    for t in range(frames):
        one.see(tokens, t + 1)
    other.restore(json.loads(json.dumps(one.about())))
    for t in range(frames, frames + 5):
        one.see(tokens, t + 1)
        other.see(tokens, t + 1)
    assert one.about() == other.about()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_any_precision_and_scale(dtype: torch.dtype) -> None:
    tokens, cuts = film_and_cuts(70, 3, 4, 48, seed=1, scenes=6, shot_frames=12)
    given_ = (torch.from_numpy(tokens) * (1 + torch.arange(70))[:, None, None, None]).to(dtype)
    assert scenes.find_cuts(given_) == cuts
    assert scenes.find_cuts(given_.flatten(1, 2)) == cuts


@pytest.mark.parametrize("noise", [0.05, 0.35, 0.7, 1.4])
@pytest.mark.parametrize(("seed", "count"), [(2, 7), (3, 8), (4, 5)])
def test_all_cuts_are_found_and_no_others_clean_or_noisy(noise: float, seed: int, count: int) -> None:
    tokens, cuts = film_and_cuts(200, 6, 10, 96, seed=seed, shot_frames=20, noise=noise)
    assert len(cuts) == count
    assert scenes.find_cuts(tokens) == cuts


@pytest.mark.parametrize("noise", [0.0, 0.15, 1.0])
def test_one_scene_has_no_cuts(noise: float) -> None:
    tokens, _ = film_and_cuts(150, 5, 6, 64, seed=4, scenes=1, shot_frames=1000, noise=noise)
    assert scenes.find_cuts(tokens) == []


def test_a_frame_of_something_else_is_no_scene() -> None:
    tokens, cuts = film_and_cuts(40, 3, 4, 48, seed=5, scenes=1, shot_frames=1000)
    flashed = tokens.copy()
    flashed[[9, 20, 31]] = random_tokens((3, 3, 4, 48))
    assert scenes.find_cuts(flashed) == cuts == []
    flashed[20:26] = flashed[20]
    assert scenes.find_cuts(flashed) == [20, 26]


def test_of_cuts_that_are_close_the_clearest_counts() -> None:
    here, there, else_ = torch.eye(6)[:2], torch.eye(6)[2:4], torch.eye(6)[4:]
    between = 0.3 * here + 0.95 * else_
    tokens = torch.stack([here] * 8 + [between] * 2 + [there] * 8)
    assert scenes.find_cuts(tokens) == [10]
    assert scenes.find_cuts(tokens, shortest=2) == [8, 10]


@pytest.mark.parametrize(
    "tokens",
    [
        np.ones((1, 2, 2, 4), np.float32),
        np.ones((2, 2, 2, 4), np.float32),
        random_tokens((7, 1, 3)),
        np.ones((50, 3, 4), np.float32),
        np.zeros((50, 3, 4), np.float32),
        np.repeat(random_tokens((1, 3, 4, 16)), 50, 0),
        random_tokens((50, 3, 4, 32)),
        random_tokens((50, 1, 1, 64)),
    ],
    ids=["1 frame", "2 frames", "short", "constant", "zero", "frames alike", "frames unlike", "one cell of noise"],
)
def test_nothing_to_find(tokens: np.ndarray) -> None:
    assert scenes.find_cuts(tokens) == []
    assert scenes.split_scenes(tokens) == [0]
    assert len(floc.compress(tokens, budget=2, block="scene")) == 2


def test_one_cell_is_enough() -> None:
    places = random_tokens((3, 64))
    tokens = np.repeat(places, [10, 20, 6], 0) + 0.05 * random_tokens((36, 64), seed=1)
    assert scenes.find_cuts(tokens[:, None]) == [10, 30]


def test_zero_frames_are_a_scene_of_their_own() -> None:
    tokens = np.repeat(random_tokens((1, 2, 3, 16)), 30, 0)
    tokens[10:20] = 0
    assert scenes.find_cuts(tokens) == [10, 20]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 9), st.integers(0, 40), st.integers(0, 9))
def test_blocks_partition_within_their_lengths(lengths: list[int], shortest: int, more: int, seed: int) -> None:
    longest = 2 * shortest - 1 + more
    tokens = np.repeat(random_tokens((len(lengths), 2, 2, 8), seed), lengths, 0)
    tokens += 0.02 * random_tokens(tokens.shape, seed + 1)
    starts = scenes.split_scenes(tokens, shortest=shortest, longest=longest)
    blocks.check_block(starts)
    spans = blocks.split_blocks(len(tokens), starts)
    assert [t for span in spans for t in range(span.start, span.stop)] == list(range(len(tokens)))
    sizes = [span.stop - span.start for span in spans]
    assert max(sizes) <= longest
    assert min(sizes) >= min(shortest, len(tokens))
    assert set(scenes.find_cuts(tokens, shortest=shortest)) <= set(starts)


@given(
    st.lists(st.integers(0, 60), max_size=30),
    st.integers(1, 60),
    st.integers(1, 8),
)
def test_spacing_leaves_out_only_what_is_too_close(candidates: list[int], frames: int, shortest: int) -> None:
    candidates = [each for each in candidates if each <= frames]
    found = scenes._spaced(candidates, frames, shortest)
    ends = [0, *found, frames]
    assert not found or min(np.diff(ends)) >= shortest
    for each in set(candidates) - set(found):
        assert min(abs(each - end) for end in ends) < shortest


def test_a_long_scene_is_cut_into_equal_parts() -> None:
    tokens = np.repeat(random_tokens((1, 2, 2, 8)), 200, 0)
    assert scenes.split_scenes(tokens) == [0, 50, 100, 150]


@pytest.mark.parametrize("method", ["floc", "floc-paper", "divprune", "kmeans", "kmedoids", "spectral"])
def test_methods_take_scenes(method: str) -> None:
    tokens, cuts = film_and_cuts(70, 3, 4, 48, seed=1, scenes=6, shot_frames=12, dtype=np.float32)
    assert len(cuts) == 5
    kept = floc.compress(tokens, ratio=1 / 8, method=method, block="scene")
    same = floc.compress(tokens, ratio=1 / 8, method=method, block=list(np.array([0, *cuts])))
    other = floc.compress(tokens, ratio=1 / 8, method=method)
    np.testing.assert_array_equal(kept.indices, same.indices)
    assert kept.indices.tolist() != other.indices.tolist()
    assert kept.settings["block"] == "scene"
    assert json.loads(json.dumps(same.settings))["block"] == [0, *cuts]


def test_shares_are_by_the_length_of_scenes() -> None:
    tokens, cuts = film_and_cuts(70, 3, 4, 48, seed=1, scenes=6, shot_frames=12)
    kept = floc.compress(tokens, ratio=1 / 8, method="floc-paper", block="scene")
    sizes = np.diff([0, *cuts, 70]) * 12
    got = np.bincount(np.searchsorted(cuts, kept.positions[:, 0], side="right"))
    np.testing.assert_array_equal(got, blocks.share_budget(sizes, 105))


def test_spans_of_any_block(tokens: np.ndarray) -> None:
    grid = TokenGrid.from_array(tokens)
    assert scenes.find_blocks(grid, 32) == blocks.split_blocks(70, 32)
    assert scenes.find_blocks(grid, None) == [slice(0, 70)]
    assert scenes.find_blocks(grid, [0, 3]) == [slice(0, 3), slice(3, 70)]
    assert scenes.find_blocks(grid, "scene") == blocks.split_blocks(70, scenes.split_scenes(tokens))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (dict(shortest=0), "shortest must be a number of frames, at least 1; got 0"),
        (dict(shortest=2.5), "shortest.*got 2.5"),
        (dict(longest=6), "longest must be.*at least 7.*shortest=4; got 6"),
        (dict(longest=True), "longest must be.*got True"),
    ],
)
def test_lengths_are_checked(options: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        scenes.split_scenes(np.ones((20, 2, 2), np.float32), **options)


def test_tokens_are_checked() -> None:
    with pytest.raises(ValueError, match="frames first"):
        scenes.find_cuts(np.ones((20, 4), np.float32))
    bad = np.ones((20, 2, 2), np.float32)
    bad[3, 1, 0] = np.nan
    with pytest.raises(ValueError, match="finite"):
        scenes.split_scenes(bad)


# ---- boundaries from PySceneDetect


@pytest.fixture
def detected(monkeypatch, tmp_path: Path):
    """A stand-in that finds scenes at given seconds."""

    def finds(*starts_s: float) -> Path:
        ends = [*starts_s[1:], 100.0]
        found = [(SimpleNamespace(seconds=a), SimpleNamespace(seconds=b)) for a, b in zip(starts_s, ends, strict=False)]
        fake = SimpleNamespace(detect=lambda path, detector: found, AdaptiveDetector=lambda: None)
        monkeypatch.setitem(sys.modules, "scenedetect", fake)
        path = tmp_path / "film.mp4"
        path.touch()
        return path

    return finds


def test_seconds_become_the_first_sampled_frame_of_the_scene(detected) -> None:
    times_s = np.arange(30) / 2
    assert scenes.from_scenedetect(detected(0.0, 4.9, 7.5004, 14.9), times_s) == [0, 10, 15]
    assert scenes.from_scenedetect(detected(), times_s) == [0]


def test_they_are_made_to_fit(detected) -> None:
    times_s = np.arange(40)
    assert scenes.from_scenedetect(detected(0, 20, 22, 30), times_s, longest=10) == [0, 10, 20, 30]


def test_bad_times_and_paths(detected, tmp_path: Path) -> None:
    path = detected(0.0)
    for times_s in ([], [[0.0, 1.0]], [1.0, 0.5]):
        with pytest.raises(ValueError, match="times_s must be"):
            scenes.from_scenedetect(path, times_s)
    with pytest.raises(FileNotFoundError, match="no such file"):
        scenes.from_scenedetect(tmp_path / "none.mp4", [0.0, 1.0])


def test_without_it_an_error_says_what_to_install(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "scenedetect", None)
    path = tmp_path / "film.mp4"
    path.touch()
    with pytest.raises(ImportError, match=r"pip install 'floc-video\[scenes\]', or pass block='scene'"):
        scenes.from_scenedetect(path, [0.0, 1.0])


# ---- a rendered film, from the file


def test_cuts_of_a_rendered_film_are_found(tmp_path: Path) -> None:
    pytest.importorskip("av")
    pytest.importorskip("PIL")
    from examples.demo.film import render
    from floc.encoders.load import load_tokens

    made = render(tmp_path / "keys.mp4", seconds=40, fps=4, width=256, height=144)
    film = load_tokens(made.path, fps=None, encoder="pixels")
    assert len(made.cuts_s) == 4
    want = np.searchsorted(film.times_s, np.array(made.cuts_s) - 1e-3).tolist()
    assert scenes.find_cuts(film.tokens) == want


@pytest.mark.filterwarnings("ignore")  # of what OpenCV and PySceneDetect import
def test_pyscenedetect_finds_them_too(tmp_path: Path) -> None:
    pytest.importorskip("scenedetect")
    from examples.demo.film import render

    made = render(tmp_path / "keys.mp4", seconds=40, fps=4, width=256, height=144)
    times_s = np.arange(160) / 4
    want = np.searchsorted(times_s, made.cuts_s).tolist()
    found = scenes.from_scenedetect(made.path, times_s)
    assert set(want) & set(found) == set(want)
