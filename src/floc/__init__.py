"""FLoC: keep the few visual tokens of a long video that best stand in for all the others."""

from . import methods, scenes
from .compress import compress
from .integrations.transformers import Captured, attach, capture, load, replay
from .selection import Selection, select
from .stream import Stream
from .types import Kept

__version__ = "0.1.0"

__all__ = [
    "Captured",
    "Kept",
    "Selection",
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
