from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="package")
def film(tmp_path_factory) -> Path:
    """A video of 150 seconds."""
    from tests.archive.films import make_film

    return make_film(tmp_path_factory.mktemp("films") / "long.mkv", 150, seed=5)


@pytest.fixture
def small_pieces(monkeypatch) -> None:
    """Pieces of 32 frames, and spans of two pieces."""
    from floc.archive.ingest import worker

    monkeypatch.setattr(worker, "PIECE_LIMIT", 32)
    monkeypatch.setattr(worker, "SPAN_S", 64)


@pytest.fixture
def worker(tmp_path: Path):
    """A worker with the pixels encoder and an empty store."""
    from floc.archive import Store
    from floc.archive.ingest.worker import Worker
    from tests.archive.ingest.running import OPTIONS

    Store(tmp_path / "store", create=True)
    return Worker(OPTIONS, str(tmp_path / "store"))
