"""FLoC: keep the few visual tokens of a long video that best stand in for all the others."""

from typing import TYPE_CHECKING, Any

from floc import methods, scenes
from floc._version import __version__
from floc.compress import compress
from floc.integrations.transformers import Captured, attach, capture, load, replay
from floc.kept import Kept
from floc.selection.select import Selection, select
from floc.streaming.stream import Stream

if TYPE_CHECKING:
    from floc.archive import Store

__all__ = [
    "Captured",
    "Kept",
    "Selection",
    "Store",
    "Stream",
    "__version__",
    "attach",
    "capture",
    "compress",
    "load",
    "methods",
    "replay",
    "scenes",
    "select",
]


def __getattr__(name: str) -> Any:
    if name == "Store":  # needs Lance, and nothing else does
        from floc.archive import Store

        return Store
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
