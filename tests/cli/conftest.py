"""Fixtures shared with the archive tests."""

from tests.archive.conftest import store

__all__ = ["store"]
