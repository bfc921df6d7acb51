"""Prompts for vLLM with images and videos of seeded noise, with rendered films, or with stored videos."""

from __future__ import annotations

from typing import Any

import numpy as np

IMAGE, VIDEO = (f"<|vision_start|><|{name}_pad|><|vision_end|>" for name in ("image", "video"))
CLIP = "<video>"


def build(parts: list[Any], seed: int = 0) -> dict[str, Any]:
    """Build a prompt from parts.

    A part is "text", ["image", height, width], ["video", frames, height, width, fps], ["film", seed],
    ["stored", address], ["floc", settings of the request], or ["clip", frames, height, width]: a video of
    LLaVA-OneVision or InternVL.
    """
    from PIL import Image

    rng = np.random.default_rng(seed)
    text, images, videos, more = "", [], [], {}
    for part in parts:
        if isinstance(part, str):
            text += part
        elif part[0] == "floc":
            more = {} if part[1] is None else {"mm_processor_kwargs": {"floc": part[1]}}
        elif part[0] == "image":
            images.append(rng.integers(0, 256, (*part[1:], 3), dtype=np.uint8))
            text += IMAGE
        elif part[0] == "clip":
            videos.append(build_video(rng, *part[1:], 2.0)[0])
            text += CLIP
        else:
            videos.append(_build_medium(rng, *part))
            text += VIDEO
    media = {"image": [Image.fromarray(image) for image in images], "video": videos}
    return {"prompt": text, "multi_modal_data": {name: items for name, items in media.items() if items}, **more}


def _build_medium(rng: np.random.Generator, kind: str, *given: Any) -> Any:
    if kind == "stored":
        from floc.integrations.vllm import name_stored_video

        return name_stored_video(*given)
    return build_film(*given) if kind == "film" else build_video(rng, *given)


def build_video(rng: np.random.Generator, frames: int, height: int, width: int, fps: float) -> tuple[np.ndarray, dict]:
    """Return frames and the metadata that a video reader gives."""
    return rng.integers(0, 256, (frames, height, width, 3), dtype=np.uint8), _describe(frames, fps)


def build_film(seed: int) -> tuple[np.ndarray, dict]:
    """Return a film of `examples.tiny_video_model` and its metadata."""
    from examples.tiny_video_model.films import FPS, make_film
    from examples.tiny_video_model.rendering import render_film

    frames = render_film(make_film(seed))
    return frames, _describe(len(frames), FPS)


def _describe(frames: int, fps: float) -> dict:
    return dict(
        fps=fps,
        total_num_frames=frames,
        duration=frames / fps,
        frames_indices=list(range(frames)),
        do_sample_frames=False,
        video_backend="noise",
    )
