"""The corpus: many videos compressed once, in one store, to be asked about for years."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from floc.archive.search import Moment
    from floc.archive.store import Store
    from floc.archive.tables import Piece, StoreError, Video, video_id
    from floc.archive.upkeep import Compacted, Fault

__all__ = ["Compacted", "Fault", "Moment", "Piece", "Store", "StoreError", "Video", "video_id"]

_ROOMS = {
    "Compacted": "upkeep",
    "Fault": "upkeep",
    "Moment": "search",
    "Piece": "tables",
    "Store": "store",
    "StoreError": "tables",
    "Video": "tables",
    "video_id": "tables",
}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_ROOMS[name]}", __name__), name)
