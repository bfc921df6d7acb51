"""FLoC on the video models of transformers: attach it to a model, or capture a video once and ask many times."""

from .attach import Attached, attach
from .families import FAMILIES

__all__ = ["FAMILIES", "Attached", "attach"]
