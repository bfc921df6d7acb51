"""FLoC keeps the few visual tokens of a long video that best represent all the others.

Names are loaded on first use, so that `import floc` and `floc --help` do not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from floc._version import __version__

if TYPE_CHECKING:
    from floc import methods, scenes
    from floc.archive import Store
    from floc.captured.captured import Captured
    from floc.captured.floc_file import load
    from floc.compression import compress
    from floc.integrations.transformers.attach import attach
    from floc.integrations.transformers.capture import capture
    from floc.integrations.transformers.replay import replay
    from floc.kept import Kept
    from floc.selection.select import Selection, select
    from floc.streaming.stream import Stream

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

_MODULES = {
    "Captured": "floc.captured.captured",
    "Kept": "floc.kept",
    "Selection": "floc.selection.select",
    "Store": "floc.archive.store",
    "Stream": "floc.streaming.stream",
    "attach": "floc.integrations.transformers.attach",
    "capture": "floc.integrations.transformers.capture",
    "compress": "floc.compression",
    "load": "floc.captured.floc_file",
    "replay": "floc.integrations.transformers.replay",
    "select": "floc.selection.select",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value = getattr(import_module(_MODULES[name]), name)
    elif name in ("methods", "scenes"):
        value = import_module(f"floc.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
