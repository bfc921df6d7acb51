"""Fixtures of the commands."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.archive.conftest import store
from tests.cli.helpers import invoke

__all__ = ["store"]


@pytest.fixture
def npy(tmp_path: Path, tokens: np.ndarray) -> Path:
    """A file of tokens."""
    np.save(tmp_path / "tokens.npy", tokens)
    return tmp_path / "tokens.npy"


@pytest.fixture(scope="session")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A video of 16 seconds; skips without PyAV and Pillow."""
    pytest.importorskip("av", reason="video needs PyAV: pip install 'floc-video[video]'")
    pytest.importorskip("PIL", reason="pictures need Pillow: pip install 'floc-video[report]'")
    from examples.demo.film import render

    return render(tmp_path_factory.mktemp("film") / "my film.mp4", seconds=16, fps=4, width=256, height=144).path


@pytest.fixture(scope="session")
def ingested(tmp_path_factory) -> tuple[Path, Path]:
    """A folder of three videos and a text file named as one, and the store they were ingested into."""
    pytest.importorskip("lance", reason="Lance is not installed: pip install 'floc-video[store]'")
    from tests.archive.films import make_films

    folder = tmp_path_factory.mktemp("commands")
    make_films(folder / "films", 3, seconds=12)
    (folder / "films" / "none.mp4").write_text("not a video")
    done = invoke(
        "ingest", folder / "films", "--store", folder / "store", "--encoder", "pixels", "--ratio", "1/4", "--json"
    )
    assert done.exit_code == 1, done.stderr  # one failed
    summary = json.loads(done.stdout)
    assert (summary["done"], summary["failed"], summary["videos"]) == (3, 1, 4)
    assert "none.mp4: ValueError" in done.stderr
    assert "3 of 4 ingested" in done.stderr
    return folder / "films", folder / "store"
