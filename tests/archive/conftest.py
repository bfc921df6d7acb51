from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from floc import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    from floc import Store

    return Store(tmp_path / "store", create=True)


@pytest.fixture(scope="session")
def archive(tmp_path_factory) -> Path:
    """A folder of 200 videos, a copy of one of them, and two files that are not videos."""
    from tests.archive.films import FILMS, make_films

    folder = tmp_path_factory.mktemp("archive")
    films = make_films(folder / "films", FILMS)
    (folder / "again.mkv").write_bytes(films[0].read_bytes())
    (folder / "broken.mkv").write_bytes(films[1].read_bytes()[:300])
    (folder / "empty.mp4").touch()
    return folder
