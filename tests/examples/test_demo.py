"""The demo: which patches show the keys, which methods keep them, and the files it writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import floc
from examples.demo.__main__ import main
from examples.demo.demo import find_key_patches, score
from examples.demo.film import Sighting
from floc.encoders.base import VideoTokens


def test_prints_scores_of_all_methods_and_writes_film_and_report(tmp_path: Path, capsys) -> None:
    for package in ("av", "PIL", "sklearn"):
        pytest.importorskip(package, reason="the demo needs pip install 'floc-video[video,report]'")
    main(["-o", str(tmp_path / "demo"), "--seconds", "12", "--encoder", "pixels"])
    output = capsys.readouterr()
    text = (output.out + output.err).replace("\n", " ")
    assert "Who kept the keys?" in text
    assert "1/32" in text
    assert all(method in text for method in floc.methods.list_methods())
    assert (tmp_path / "demo" / "report.html").exists()
    assert (tmp_path / "demo" / "keys.mp4").exists()


def test_key_patches_are_those_covered_by_the_box() -> None:
    tokens = np.random.default_rng(0).standard_normal((3, 4, 8, 16)).astype(np.float32)
    video = VideoTokens(tokens, np.array([0.0, 0.5, 1.0]))
    # from the middle of column 2 to the end of column 3, in row 1; a sliver of row 2
    sightings = [Sighting(0.5, (2.5 / 8, 1 / 4, 4 / 8, 2.05 / 4)), Sighting(0.75, (0, 0, 1, 1))]
    patches = find_key_patches(video, sightings)
    assert patches.tolist() == [32 + 8 + 2, 32 + 8 + 3]
    everything = floc.compress(tokens, ratio=1)
    assert score(video, everything, patches)[:2] == (2, 2)
    one = floc.compress(tokens, budget=1, method="random", seed=1)
    key_score = score(video, one, patches)
    assert key_score.kept == len(set(one.indices) & set(patches))
    assert key_score.similarity < 0.99
