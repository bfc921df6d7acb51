"""FLoC on the video models of transformers: attach it to a model, or capture a video once and ask many questions."""

from floc.captured.captured import Captured
from floc.captured.floc_file import load
from floc.families import FAMILIES
from floc.integrations.transformers.attach import attach
from floc.integrations.transformers.capture import capture
from floc.integrations.transformers.question import embed_text
from floc.integrations.transformers.replay import replay

__all__ = ["FAMILIES", "Captured", "attach", "capture", "embed_text", "load", "replay"]
