"""Synthetic video-like tokens, generated from a seed, for examples, benchmarks and tests.

A video is a sequence of shots. Each shot shows one of a few scenes, so scenes return, as in edited footage. A scene is
a smooth field of background tokens that changes little from frame to frame; objects cross it; occasionally one frame
shows something unique. All tokens share a common direction, as those of vision encoders do, and carry noise.
"""

from __future__ import annotations

from typing import Any

import numpy as np

LATENT = 96  # dimensions of the content; the others carry noise only


def make_tokens(frames: int, height: int = 6, width: int = 10, dim: int = 3584, **options: Any) -> np.ndarray:
    """Generate the tokens [frames, height, width, dim] of a video. The same seed gives the same video.

    Args:
        **options: See `make_tokens_and_cuts`.

    >>> make_tokens(4, 2, 3, dim=8).shape
    (4, 2, 3, 8)
    """
    return make_tokens_and_cuts(frames, height, width, dim, **options)[0]


def make_tokens_and_cuts(
    frames: int,
    height: int = 6,
    width: int = 10,
    dim: int = 3584,
    *,
    seed: int = 0,
    scenes: int = 5,
    shot_frames: int = 40,
    objects: int = 3,
    rare_every: int = 50,
    noise: float = 0.35,
    dtype: type = np.float16,
) -> tuple[np.ndarray, list[int]]:
    """Generate the tokens of a video, and the frames at which a new scene starts.

    Args:
        scenes: Number of different scenes.
        shot_frames: Mean length of a shot.
        objects: Number of objects that move through each shot.
        rare_every: One frame in `rare_every`, on average, shows something unique.
        noise: Length of the noise vector of a token, relative to a content of about 1.

    Returns:
        [frames, height, width, dim] tokens, and the cuts in ascending order.
    """
    rng = np.random.default_rng(seed)
    latent = min(LATENT, dim)
    basis = rng.standard_normal((latent, dim), dtype=np.float32) / np.sqrt(dim)  # [latent, D]
    common = _direction(rng, latent)
    fields = [_smooth_field(rng, height, width, latent) for _ in range(scenes)]
    tokens: np.ndarray = np.empty((frames, height, width, dim), dtype)
    scene, remaining = -1, 0
    cuts = []
    for t in range(frames):
        if remaining == 0:
            before, scene = scene, int(rng.integers(scenes))
            if t and scene != before:  # consecutive shots may show the same scene
                cuts.append(t)
            remaining = 1 + int(rng.poisson(shot_frames - 1))
            looks = [_direction(rng, latent) for _ in range(objects)]
            places = rng.uniform(0, 1, (objects, 2))
            speeds = rng.normal(0, 0.03, (objects, 2))
            drift = 0.15 * _smooth_field(rng, height, width, latent)
        remaining -= 1
        fields[scene] += 0.02 * _smooth_field(rng, height, width, latent)  # slow changes of light and camera
        content = fields[scene] + drift  # [H, W, latent]
        for look, (y, x) in zip(looks, places, strict=True):
            content[int(y % 1 * height), int(x % 1 * width)] = look
        places += speeds
        if rng.uniform() < 1 / rare_every:
            content[rng.integers(height), rng.integers(width)] = _direction(rng, latent)
        content = 0.8 * common + content
        content = content + noise * rng.standard_normal(content.shape, dtype=np.float32) / np.sqrt(latent)
        texture = (noise / 2) * rng.standard_normal((height, width, dim), dtype=np.float32) / np.sqrt(dim)
        tokens[t] = 20 * (content.astype(np.float32) @ basis + texture)
    return tokens, cuts


def _direction(rng: np.random.Generator, dim: int) -> np.ndarray:
    vector = rng.standard_normal(dim, dtype=np.float32)
    return vector / np.linalg.norm(vector)


def _smooth_field(rng: np.random.Generator, height: int, width: int, dim: int) -> np.ndarray:
    """Return [height, width, dim] vectors, similar for neighbouring cells only, of unit length on average."""
    corners = rng.standard_normal((height // 2 + 2, width // 2 + 2, dim), dtype=np.float32)
    y, x = np.arange(height) / 2, np.arange(width) / 2
    y0, x0 = y.astype(int), x.astype(int)
    fy, fx = (y - y0)[:, None, None], (x - x0)[None, :, None]
    top = corners[y0][:, x0] * (1 - fx) + corners[y0][:, x0 + 1] * fx
    low = corners[y0 + 1][:, x0] * (1 - fx) + corners[y0 + 1][:, x0 + 1] * fx
    field = top * (1 - fy) + low * fy
    return field / np.sqrt((field**2).sum(-1).mean())
