"""Fixtures shared with the tests of the archive."""

from tests.archive.conftest import store

__all__ = ["store"]
