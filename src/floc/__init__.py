"""FLoC: keep the few visual tokens of a long video that best stand in for all the others."""

from typing import TYPE_CHECKING, Any

from . import methods, scenes
from .compress import compress
from .integrations.transformers import Captured, attach, capture, load, replay
from .selection import Selection, select
from .stream import Stream
from .types import Kept

if TYPE_CHECKING:
    from .corpus import Store

__version__ = "0.1.0"

__all__ = [
    "Captured",
    "Kept",
    "Selection",
    "Store",
    "Stream",
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
        from .corpus import Store

        return Store
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
