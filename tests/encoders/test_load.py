"""From a video file to tokens."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("av", reason="video needs PyAV: pip install 'floc-video[video]'")
pytest.importorskip("PIL", reason="pictures need Pillow: pip install 'floc-video[report]'")

import floc
from examples.demo.film import render
from floc import encoders
from floc.analysis import metrics
from floc.encoders.load import load_tokens
from floc.video import read

DATA = Path(os.environ.get("FLOC_DATA", Path(__file__).parents[3] / "shared" / "data")) / "videos"


def test_load_tokens_reads_and_encodes(tmp_path: Path) -> None:
    path = render(tmp_path / "film.mp4", seconds=8, fps=4, width=256, height=144).path
    shares: list[float] = []
    loaded = load_tokens(path, fps=2, encoder="pixels", with_thumbnails=True, progress=shares.append)
    encoder = encoders.get("pixels")
    expected = encoders.encode(read(path, fps=2, size=encoder.frame_size), encoder)
    np.testing.assert_array_equal(loaded.tokens, expected.tokens)
    assert loaded.times_s.tolist() == (np.arange(16) / 2).tolist()
    assert loaded.thumbnails is not None
    assert len(loaded.thumbnails) == 16
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert json.loads(json.dumps(loaded.describe()))["encoder"] == "pixels"
    assert dict(loaded.facts())["tokens"].startswith("2,304: 16 x 9 x 16")
    assert load_tokens(path, max_frames=3, encoder=encoder).thumbnails is None


def test_rejects_a_missing_file_before_loading_the_encoder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.mp4"):
        load_tokens(tmp_path / "none.mp4", encoder="no such encoder")


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no footage at {DATA}; set FLOC_DATA")
@pytest.mark.parametrize("name", ["vtest.avi", "bikes.mp4"])
def test_real_footage(name: str) -> None:
    loaded = load_tokens(DATA / name, encoder="pixels", with_thumbnails=True)
    t = loaded.tokens.shape[0]
    assert t == loaded.video.frames == len(loaded.thumbnails)
    assert abs(t - loaded.video.duration_s) <= 1
    kept, random = (floc.compress(loaded.tokens, ratio="1/8", method=method) for method in ("floc", "random"))
    assert metrics.coverage(loaded.tokens, kept) > metrics.coverage(loaded.tokens, random)
    assert dict(loaded.facts())["encoder"] == "pixels"
