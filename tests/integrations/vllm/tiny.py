"""Tiny models as vLLM takes them: its attention on CPUs wants heads of 32 channels or more."""

from __future__ import annotations

import json
from pathlib import Path

from ..lmms_eval import tiny
from ..zoo import MROPE

FRAMES = 64
ROPE = dict(MROPE, mrope_section=[4, 6, 6])
TEXT = dict(num_attention_heads=2, num_key_value_heads=1, head_dim=32)


def write(kind: str, folder: Path) -> Path:
    """A model, its tokenizer and its processor, in a folder of its own."""
    folder.mkdir()
    rope = dict(ROPE, mrope_interleaved=True) if kind == "qwen3_vl" else ROPE
    tiny.write(kind, folder, **TEXT, rope_parameters=rope)
    if kind == "qwen3_vl":  # which takes the limit for a whole film, not for a frame
        path = folder / "video_preprocessor_config.json"
        about = json.loads(path.read_text())
        about["size"]["longest_edge"] *= FRAMES
        path.write_text(json.dumps(about))
    return folder
