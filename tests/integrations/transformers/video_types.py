"""The model types of transformers that answer questions about videos, found in the library itself."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'floc-video[hf]'")

# types that floc does not support, and why
REASONS = {
    "instructblip": "takes images only; the library lists a video processor for converted checkpoints",
    "instructblipvideo": "its visual tokens are queries without a place, and its generate bypasses its forward",
    "paddleocr_vl": "takes images only; transformers 5.17 mentions videos in its code",
}

# types that floc supports only in part, because transformers 5.22 itself fails there
NOTES = {
    "ernie4_5_vl_moe": "its processor draws times into frames, so a capture takes files, not frames, of its videos",
    "glm5_next": "capture: refused where the processor makes the frames of a long video smaller",
    "kimi_k25": "capture: its vision encoder fails in transformers 5.22 if frames are joined",
    "nemotron_h_omni": "capture: its processor fails in transformers 5.22 with the metadata of a video",
    "minicpmv4_7": "two videos without text between them are one: nothing in the prompt or the inputs tells them apart",
    "minimax_m3_vl": "its vision encoder attends to the whole video, so a capture holds all frames",
}


def list_video_types() -> list[str]:
    """Return the model types with a language model that have a video processor, or a model that takes videos."""
    from transformers.models.auto.configuration_auto import model_type_to_module_name
    from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES
    from transformers.models.auto.video_processing_auto import VIDEO_PROCESSOR_MAPPING_NAMES

    def takes_videos(model_type: str) -> bool:
        module = model_type_to_module_name(model_type)
        spec = importlib.util.find_spec(f"transformers.models.{module}")
        if spec is None or spec.origin is None:
            return False
        path = Path(spec.origin).with_name(f"modeling_{module}.py")  # read, not imported: there are hundreds
        return path.exists() and "pixel_values_videos" in path.read_text(encoding="utf-8")

    types = MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES
    return sorted(name for name in types if name in VIDEO_PROCESSOR_MAPPING_NAMES or takes_videos(name))
