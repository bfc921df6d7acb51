"""`python -m examples.demo`: which methods keep the keys."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("av", reason="video needs PyAV: pip install 'floc-video[video]'")
pytest.importorskip("PIL", reason="pictures need Pillow: pip install 'floc-video[report]'")

import floc
from examples.demo.demo import judge, patches_with_keys
from examples.demo.film import Sighting
from floc.encoders.base import VideoTokens


def test_prints_which_methods_kept_the_keys(tmp_path: Path, monkeypatch, capsys) -> None:
    from examples.demo.__main__ import main

    arguments = ("-o", tmp_path / "demo", "--seconds", 12, "--encoder", "pixels")
    monkeypatch.setattr(sys, "argv", ["demo", *map(str, arguments)])
    main()
    printed = capsys.readouterr().err
    assert "Who kept the keys?" in printed
    assert "1/32" in printed
    for method in floc.methods.names():
        assert method in printed.replace("\n", " ")
    assert (tmp_path / "demo" / "report.html").exists()
    assert (tmp_path / "demo" / "keys.mp4").exists()


def test_patches_with_keys_are_those_the_box_covers() -> None:
    tokens = np.random.default_rng(0).standard_normal((3, 4, 8, 16)).astype(np.float32)
    encoded = VideoTokens(tokens, np.array([0.0, 0.5, 1.0]))
    # from the middle of column 2 to the end of 3, in row 1; a sliver of row 2
    sightings = [Sighting(0.5, (2.5 / 8, 1 / 4, 4 / 8, 2.05 / 4)), Sighting(0.75, (0, 0, 1, 1))]
    truth = patches_with_keys(encoded, sightings)
    assert truth.tolist() == [32 + 8 + 2, 32 + 8 + 3]
    everything = floc.compress(tokens, ratio=1)
    assert judge(encoded, everything, truth)[:2] == (2, 2)
    one = floc.compress(tokens, budget=1, method="random", seed=1)
    verdict = judge(encoded, one, truth)
    assert verdict.kept == len(set(one.indices) & set(truth))
    assert verdict.closest < 0.99
