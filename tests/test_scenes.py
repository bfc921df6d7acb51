"""Scenes: breaks against a plain double loop, cuts of synthetic videos, and blocks along scenes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import floc
from examples.synthetic import make_tokens_and_cuts
from floc import blocks, scenes
from floc.tokens import TokenGrid


def random_tokens(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def plain_breaks(tokens: np.ndarray) -> np.ndarray:
    """Compute breaks from the definition, one pair of frames at a time."""
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
def test_breaks_equal_the_definition(monkeypatch, shape: tuple[int, ...], frames_together: int) -> None:
    monkeypatch.setattr(scenes, "TILE_BYTES", frames_together * 4 * int(np.prod(shape[1:])))
    tokens = random_tokens(shape)
    np.testing.assert_allclose(scenes.measure_breaks(torch.from_numpy(tokens)), plain_breaks(tokens), atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtype_and_scale_do_not_matter(dtype: torch.dtype) -> None:
    tokens, cuts = make_tokens_and_cuts(70, 3, 4, 48, seed=1, scenes=6, shot_frames=12)
    given_ = (torch.from_numpy(tokens) * (1 + torch.arange(70))[:, None, None, None]).to(dtype)
    assert scenes.find_cuts(given_) == cuts
    assert scenes.find_cuts(given_.flatten(1, 2)) == cuts


@pytest.mark.parametrize("noise", [0.05, 0.35, 0.7, 1.4])
@pytest.mark.parametrize(("seed", "count"), [(2, 7), (3, 8), (4, 5)])
def test_finds_exactly_the_cuts(noise: float, seed: int, count: int) -> None:
    tokens, cuts = make_tokens_and_cuts(200, 6, 10, 96, seed=seed, shot_frames=20, noise=noise)
    assert len(cuts) == count
    assert scenes.find_cuts(tokens) == cuts


@pytest.mark.parametrize("noise", [0.0, 0.15, 1.0])
def test_one_scene_has_no_cuts(noise: float) -> None:
    tokens, _ = make_tokens_and_cuts(150, 5, 6, 64, seed=4, scenes=1, shot_frames=1000, noise=noise)
    assert scenes.find_cuts(tokens) == []


def test_a_single_different_frame_is_no_scene() -> None:
    tokens, cuts = make_tokens_and_cuts(40, 3, 4, 48, seed=5, scenes=1, shot_frames=1000)
    flashed = tokens.copy()
    flashed[[9, 20, 31]] = random_tokens((3, 3, 4, 48))
    assert scenes.find_cuts(flashed) == cuts == []
    flashed[20:26] = flashed[20]
    assert scenes.find_cuts(flashed) == [20, 26]


def test_of_several_close_cuts_the_clearest_is_kept() -> None:
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
def test_no_cuts_without_scenes(tokens: np.ndarray) -> None:
    assert scenes.find_cuts(tokens) == []
    assert scenes.split_scenes(tokens) == [0]
    assert len(floc.compress(tokens, budget=2, block="scene")) == 2


def test_finds_cuts_with_one_cell() -> None:
    places = random_tokens((3, 64))
    tokens = np.repeat(places, [10, 20, 6], 0) + 0.05 * random_tokens((36, 64), seed=1)
    assert scenes.find_cuts(tokens[:, None]) == [10, 30]


def test_zero_frames_form_a_scene() -> None:
    tokens = np.repeat(random_tokens((1, 2, 3, 16)), 30, 0)
    tokens[10:20] = 0
    assert scenes.find_cuts(tokens) == [10, 20]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 9), st.integers(0, 40), st.integers(0, 9))
def test_split_scenes_partitions_frames_within_the_lengths(
    lengths: list[int], shortest: int, more: int, seed: int
) -> None:
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
def test_space_cuts_drops_only_close_cuts(candidates: list[int], frames: int, shortest: int) -> None:
    candidates = [each for each in candidates if each <= frames]
    found = scenes.space_cuts(candidates, frames, shortest)
    ends = [0, *found, frames]
    assert not found or min(np.diff(ends)) >= shortest
    for each in set(candidates) - set(found):
        assert min(abs(each - end) for end in ends) < shortest


def test_a_long_scene_is_split_into_equal_parts() -> None:
    tokens = np.repeat(random_tokens((1, 2, 2, 8)), 200, 0)
    assert scenes.split_scenes(tokens) == [0, 50, 100, 150]


@pytest.mark.parametrize("method", ["floc", "floc-paper", "divprune", "kmeans", "kmedoids", "spectral"])
def test_methods_accept_scenes(method: str) -> None:
    tokens, cuts = make_tokens_and_cuts(70, 3, 4, 48, seed=1, scenes=6, shot_frames=12, dtype=np.float32)
    assert len(cuts) == 5
    kept = floc.compress(tokens, ratio=1 / 8, method=method, block="scene")
    same = floc.compress(tokens, ratio=1 / 8, method=method, block=list(np.array([0, *cuts])))
    other = floc.compress(tokens, ratio=1 / 8, method=method)
    np.testing.assert_array_equal(kept.indices, same.indices)
    assert kept.indices.tolist() != other.indices.tolist()
    assert kept.settings["block"] == "scene"
    assert json.loads(json.dumps(same.settings))["block"] == [0, *cuts]


def test_shares_follow_the_lengths_of_scenes() -> None:
    tokens, cuts = make_tokens_and_cuts(70, 3, 4, 48, seed=1, scenes=6, shot_frames=12)
    kept = floc.compress(tokens, ratio=1 / 8, method="floc-paper", block="scene")
    sizes = np.diff([0, *cuts, 70]) * 12
    got = np.bincount(np.searchsorted(cuts, kept.positions[:, 0], side="right"))
    np.testing.assert_array_equal(got, blocks.share_budget(sizes, 105))


def test_find_blocks(tokens: np.ndarray) -> None:
    grid = TokenGrid.from_array(tokens)
    assert scenes.find_blocks(grid, 32) == blocks.split_blocks(70, 32)
    assert scenes.find_blocks(grid, None) == [slice(0, 70)]
    assert scenes.find_blocks(grid, [0, 3]) == [slice(0, 3), slice(3, 70)]
    assert scenes.find_blocks(grid, "scene") == blocks.split_blocks(70, scenes.split_scenes(tokens))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (dict(shortest=0), "shortest must be a whole number of frames, at least 1; got 0"),
        (dict(shortest=2.5), "shortest.*got 2.5"),
        (dict(longest=6), "longest must be.*at least 7.*shortest=4; got 6"),
        (dict(longest=True), "longest must be.*got True"),
    ],
)
def test_rejects_bad_lengths(options: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        scenes.split_scenes(np.ones((20, 2, 2), np.float32), **options)


def test_rejects_bad_tokens() -> None:
    with pytest.raises(ValueError, match="frames first"):
        scenes.find_cuts(np.ones((20, 4), np.float32))
    bad = np.ones((20, 2, 2), np.float32)
    bad[3, 1, 0] = np.nan
    with pytest.raises(ValueError, match="finite"):
        scenes.split_scenes(bad)


def test_finds_the_cuts_of_a_rendered_film(tmp_path: Path) -> None:
    pytest.importorskip("av")
    pytest.importorskip("PIL")
    from examples.demo.film import render
    from floc.encoders.load import load_tokens

    made = render(tmp_path / "keys.mp4", seconds=40, fps=4, width=256, height=144)
    film = load_tokens(made.path, fps=None, encoder="pixels")
    assert len(made.cuts_s) == 4
    want = np.searchsorted(film.times_s, np.array(made.cuts_s) - 1e-3).tolist()
    assert scenes.find_cuts(film.tokens) == want
