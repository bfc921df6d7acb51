"""FLoC on the video models of transformers: attach it to a model, or capture a video once and ask many times."""

from .attach import Attached, attach
from .capture import capture
from .captured import Captured, load
from .families import FAMILIES
from .prompts import prompt, tokenizer
from .replay import Replaying, replay

__all__ = [
    "FAMILIES",
    "Attached",
    "Captured",
    "Replaying",
    "attach",
    "capture",
    "load",
    "prompt",
    "replay",
    "tokenizer",
]
