"""Tiny models as vLLM takes them: its attention on CPUs wants heads of 32 channels or more."""

from __future__ import annotations

from pathlib import Path

from ..lmms_eval import tiny
from ..zoo import MROPE

TEXT = dict(
    num_attention_heads=2, num_key_value_heads=1, head_dim=32, rope_parameters=dict(MROPE, mrope_section=[4, 6, 6])
)


def write(kind: str, folder: Path) -> Path:
    """A model, its tokenizer and its processor, in a folder of its own."""
    folder.mkdir()
    return tiny.write(kind, folder, **TEXT)
