"""The second pass: windows, and selection among a stream's survivors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import floc
from examples.synthetic import make_tokens
from floc import second_pass
from floc.selection import backends, reference
from floc.selection.engine import Reach
from floc.selection.objective import SCALE, WEIGHT_SCALE, Similarity
from tests.selection.matrices import sharpen


def test_every_set_has_a_survivor() -> None:
    group, rank = second_pass.merge_survivors([np.array([9, 8, 7]), np.array([1, 0]), np.array([5, 5])], 4)
    assert list(zip(group.tolist(), rank.tolist(), strict=True)) == [(0, 0), (2, 0), (1, 0), (0, 1)]


def test_representatives_are_the_closest_picks_of_their_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_pass, "SURVIVORS_TOGETHER", 40)
    tokens = torch.from_numpy(make_tokens(20, 2, 3, dim=16, dtype=np.float32)).flatten(0, 2)
    unit = torch.nn.functional.normalize(tokens, dim=1)
    sums = unit * torch.linspace(1, 9, 120)[:, None]
    engine = backends.create_engine("auto", tokens.device)
    selection = second_pass.select_survivors(engine, Similarity("cosine", 1), tokens, sums, 30)
    window = np.arange(120) // 40
    cosine = (unit[selection.picks] @ unit.T).numpy()
    cosine[window[selection.picks][:, None] != window] = -2  # of another window
    np.testing.assert_allclose(cosine[selection.representatives, np.arange(120)], cosine.max(0), atol=1e-3)


@pytest.mark.parametrize("options", [{}, {"metric": "gaussian"}, {"backend": "torch"}, {"detail": 1}])
def test_windows_keep_their_own_representatives(options: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = make_tokens(256, 2, 3, dim=32, seed=2, dtype=np.float32)
    monkeypatch.setattr(second_pass, "SURVIVORS_TOGETHER", 200)
    whole = floc.compress(tokens, ratio=1 / 8, dedupe=2, **options)  # 384 survivors in eight blocks: two windows
    assert len(whole) == 192
    assert whole.represents.max() < 192
    rows = tokens.reshape(-1, 32) / np.linalg.norm(tokens.reshape(-1, 32), axis=1, keepdims=True)
    cosine = (rows * rows[whole.indices[whole.represents]]).sum(1)
    assert whole.coverage == pytest.approx(cosine.mean(), abs=1e-4)
    # no kept token represents tokens of another window
    apart = [np.unique(whole.represents[part]) for part in np.split(np.arange(len(rows)), 8)]
    crossing = [b for b in range(7) if set(apart[b]) & set(apart[b + 1])]
    assert len(crossing) < 7
    assert (
        floc.compress(tokens, ratio=1 / 8, dedupe=2, **options).at(budget=40).indices.tolist()
        == whole.at(budget=40).indices.tolist()
    )
    assert 0 < whole.bound <= 1


def test_windows_lose_little_coverage(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = make_tokens(512, 3, 4, dim=48, seed=5, dtype=np.float32)
    together = floc.compress(tokens, ratio=1 / 16, dedupe=2).coverage
    paper = floc.compress(tokens, ratio=1 / 16, block=32).coverage
    monkeypatch.setattr(second_pass, "SURVIVORS_TOGETHER", 200)
    windows = floc.compress(tokens, ratio=1 / 16, dedupe=2).coverage
    assert paper < windows < together
    assert (windows - paper) / (together - paper) > 0.3


@pytest.mark.parametrize("horizon", [0, 3, 100])
def test_survivors_represent_each_other_within_reach_only(horizon: int) -> None:
    """The picks are those of plain greedy on a matrix that is 0 beyond the reach."""
    rng = np.random.default_rng(horizon)
    tokens = rng.standard_normal((40, 8)).astype(np.float32)
    frames = np.sort(rng.integers(0, 20, 40))
    sums = torch.from_numpy(tokens / np.linalg.norm(tokens, axis=1, keepdims=True))
    engine, similarity = backends.create_engine("torch", sums.device), Similarity("cosine", 2)
    reach = Reach(frames, horizon)
    selection = second_pass.select_survivors(engine, similarity, torch.from_numpy(tokens), sums, 12, reach)
    cosine = (sums @ sums.T).clamp(0, 1)
    matrix = np.rint(sharpen(cosine.numpy(), 2) * SCALE).astype(np.int16)
    matrix[abs(frames[:, None] - frames) > horizon] = 0
    np.testing.assert_array_equal(selection.picks, reference.greedy(matrix, 12, np.full(40, WEIGHT_SCALE))[0])
    for token, place in enumerate(selection.representatives):
        distance = abs(frames[selection.picks] - frames[token])
        near = distance <= horizon
        if near.any() and matrix[selection.picks[near], token].max() > 0:
            assert matrix[selection.picks[place], token] == matrix[selection.picks[near], token].max()
        elif not near.any():
            assert distance[place] == distance.min()
