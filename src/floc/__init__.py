"""FLoC keeps the few visual tokens of a long video that best represent all the others.

Names are loaded on first use, so that `import floc` and `floc --help` do not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from floc._version import __version__ as __version__

if TYPE_CHECKING:  # the same names, for type checkers
    from floc import analysis as analysis
    from floc import encoders as encoders
    from floc import files as files
    from floc import methods as methods
    from floc import scenes as scenes
    from floc import video as video
    from floc.archive.store import Store as Store
    from floc.captured.captured import Captured as Captured
    from floc.captured.floc_file import load as load
    from floc.compression import compress as compress
    from floc.integrations.transformers.attach import attach as attach
    from floc.integrations.transformers.capture import capture as capture
    from floc.integrations.transformers.replay import replay as replay
    from floc.kept import Kept as Kept
    from floc.planning.planner import plan as plan
    from floc.selection.select import Selection as Selection
    from floc.selection.select import select as select
    from floc.streaming.stream import Stream as Stream

_MODULES = {
    "Captured": "captured.captured",
    "Kept": "kept",
    "Selection": "selection.select",
    "Store": "archive.store",
    "Stream": "streaming.stream",
    "analysis": "analysis",
    "attach": "integrations.transformers.attach",
    "capture": "integrations.transformers.capture",
    "compress": "compression",
    "encoders": "encoders",
    "files": "files",
    "load": "captured.floc_file",
    "methods": "methods",
    "plan": "planning.planner",
    "replay": "integrations.transformers.replay",
    "scenes": "scenes",
    "select": "selection.select",
    "video": "video",
}
__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"floc.{_MODULES[name]}")
    value = globals()[name] = module if name == _MODULES[name] else getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
