"""The second pass over a film too long for one."""

from __future__ import annotations

import numpy as np
import pytest

import floc
from floc import blocks
from floc.methods import floc as module
from floc.synthetic import film


@pytest.mark.parametrize("counts", [[5], [3] * 10, [20, 1, 1, 20], [1, 2, 3, 4, 5, 6, 7], [9, 9, 9]])
@pytest.mark.parametrize("most", [1, 8, 9, 1000])
def test_packed_holds_no_more_than_it_must(counts: list[int], most: int) -> None:
    found = blocks.pack_blocks(np.array(counts), most)
    assert [b for each in found for b in each] == list(range(len(counts)))
    assert all(sum(counts[b] for b in each) <= most or len(each) == 1 for each in found)


@pytest.mark.parametrize("options", [{}, {"metric": "gaussian"}, {"backend": "torch"}, {"detail": 1}])
def test_windows_choose_as_films_of_their_own_would(options: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = film(256, 2, 3, dim=32, seed=2, dtype=np.float32)
    monkeypatch.setattr(module, "SURVIVORS_TOGETHER", 200)
    whole = floc.compress(tokens, ratio=1 / 8, **options)  # 384 survivors in eight blocks: two windows
    assert len(whole) == 192
    assert whole.represents.max() < 192
    rows = tokens.reshape(-1, 32) / np.linalg.norm(tokens.reshape(-1, 32), axis=1, keepdims=True)
    cosine = (rows * rows[whole.indices[whole.represents]]).sum(1)
    assert whole.coverage == pytest.approx(cosine.mean(), abs=1e-4)
    # nobody represents a token of another window
    apart = [np.unique(whole.represents[part]) for part in np.split(np.arange(len(rows)), 8)]
    crossing = [b for b in range(7) if set(apart[b]) & set(apart[b + 1])]
    assert len(crossing) < 7
    assert (
        floc.compress(tokens, ratio=1 / 8, **options).at(budget=40).indices.tolist()
        == whole.at(budget=40).indices.tolist()
    )
    assert 0 < whole.bound <= 1


def test_windows_lose_little(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = film(512, 3, 4, dim=48, seed=5, dtype=np.float32)
    together = floc.compress(tokens, ratio=1 / 16).coverage
    paper = floc.compress(tokens, ratio=1 / 16, dedupe=1).coverage
    monkeypatch.setattr(module, "SURVIVORS_TOGETHER", 200)
    windows = floc.compress(tokens, ratio=1 / 16).coverage
    assert paper < windows < together
    assert (windows - paper) / (together - paper) > 0.3
