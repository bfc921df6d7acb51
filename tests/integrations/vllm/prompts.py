"""Prompts for vLLM: text, pictures and videos of noise, the same wherever they are made."""

from __future__ import annotations

from typing import Any

import numpy as np

PICTURE, VIDEO = (f"<|vision_start|><|{name}_pad|><|vision_end|>" for name in ("image", "video"))


def made(parts: list[Any], seed: int = 0) -> dict[str, Any]:
    """Of parts such as "text", ["image", height, width] and ["video", frames, height, width, fps], what vLLM takes."""
    rng = np.random.default_rng(seed)
    text, images, videos = "", [], []
    for part in parts:
        if isinstance(part, str):
            text += part
        elif part[0] == "image":
            images.append(rng.integers(0, 256, (*part[1:], 3), dtype=np.uint8))
            text += PICTURE
        else:
            videos.append(film(rng, *part[1:]))
            text += VIDEO
    from PIL import Image

    media = {"image": [Image.fromarray(each) for each in images], "video": videos}
    return {"prompt": text, "multi_modal_data": {name: each for name, each in media.items() if each}}


def film(rng: np.random.Generator, frames: int, height: int, width: int, fps: float) -> tuple[np.ndarray, dict]:
    """Frames, and what a reader of films says of them."""
    about = dict(
        fps=fps,
        total_num_frames=frames,
        duration=frames / fps,
        frames_indices=list(range(frames)),
        do_sample_frames=False,
        video_backend="noise",
    )
    return rng.integers(0, 256, (frames, height, width, 3), dtype=np.uint8), about
