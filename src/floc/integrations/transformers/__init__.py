"""FLoC on the video models of transformers: attach it to a model, or capture a video once and ask many times."""

from floc.captured.captured import Captured, load
from floc.integrations.transformers.attach import Attached, attach
from floc.integrations.transformers.capture import capture
from floc.integrations.transformers.families import FAMILIES
from floc.integrations.transformers.prompts import prompt, tokenizer
from floc.integrations.transformers.replay import Replaying, replay

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
