"""Files written before the package was renamed, by version 0.1.0, still load: those in `tests/fixtures/old`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import floc
from floc.files import read_kept

OLD = Path(__file__).parent / "fixtures" / "old"
EXPECTED = json.loads((OLD / "expected.json").read_text())
TOKENS = np.random.default_rng(0).standard_normal((10, 2, 3, 8)).astype(np.float32)


@pytest.mark.parametrize("name", ["tokens", "video"])
def test_kept_tokens(name: str) -> None:
    kept = read_kept(OLD / f"{name}.safetensors")
    assert kept.indices.tolist() == EXPECTED[name]["indices"]
    assert kept.coverage == EXPECTED[name]["coverage"]
    np.testing.assert_array_equal(
        kept.features, TOKENS.reshape(-1, 8)[kept.indices].astype(kept.features.numpy().dtype)
    )
    assert (kept.times_s is not None) == (name == "video")


def test_kept_tokens_of_a_stream() -> None:
    kept = read_kept(OLD / "stream.safetensors")
    assert (len(kept), kept.n, kept.span_s) == (6, 42, (0.0, 3.0))
    np.testing.assert_array_equal(kept.times_s, kept.positions[:, 0] / 2)


def test_captured_video() -> None:
    video = floc.load(OLD / "video.floc")
    assert video.indices.tolist() == EXPECTED["floc"]
    assert torch.equal(video.deep[1], video.features * 3)
    assert (video.fps, video.duration_s, video.frames_per_slice) == (2.0, 10.0, 2)
    assert len(video.at(budget=3)) == 3


@pytest.mark.parametrize("name", ["stream", "growing"])
def test_stream_state(name: str) -> None:
    stream = floc.Stream.load(OLD / f"{name}.state")
    stream.push(TOKENS[7:], time_s=np.arange(7, 10) / 2 if name == "stream" else None)
    assert stream.kept().indices.tolist() == EXPECTED[name]


def test_store(tmp_path: Path) -> None:
    pytest.importorskip("lance", reason="Lance is not installed: pip install 'floc-video[store]'")
    shutil.copytree(OLD / "store", tmp_path / "store")
    store = floc.Store(tmp_path / "store")
    (video,) = store.videos()
    assert store.open(video.id).indices.tolist() == EXPECTED["floc"]
