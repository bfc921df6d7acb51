"""Video-like tokens made from a seed: for the demo, the benchmarks and the tests, where no footage is at hand.

A film is a sequence of shots. A shot shows one of a few scenes, so scenes come back, as in any edited or
panned footage. A scene is a smooth field of background tokens that hardly changes from frame to frame;
objects cross it; now and then one frame shows something that appears nowhere else. All tokens share a
common direction, as those of vision towers do, and carry sensor noise.
"""

from __future__ import annotations

from typing import Any

import numpy as np

LATENT = 96  # dimensions in which content lives; the rest of D only carries noise


def film(frames: int, height: int = 6, width: int = 10, dim: int = 3584, **options: Any) -> np.ndarray:
    """Tokens [frames, height, width, dim] of a made-up film; the same seed gives the same film.

    Args:
        **options: as for `film_and_cuts`.

    >>> film(4, 2, 3, dim=8).shape
    (4, 2, 3, 8)
    """
    return film_and_cuts(frames, height, width, dim, **options)[0]


def film_and_cuts(
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
    """Tokens [frames, height, width, dim] of a made-up film, and the frames at which another scene begins.

    Args:
        scenes: how many different places the film returns to.
        shot_frames: mean length of a shot.
        objects: how many objects move through each shot.
        rare_every: one frame in so many shows something of its own.
        noise: length of the noise on a token, against a content of about 1.
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
            if t and scene != before:  # a shot may show the same place again
                cuts.append(t)
            remaining = 1 + int(rng.poisson(shot_frames - 1))
            looks = [_direction(rng, latent) for _ in range(objects)]
            places = rng.uniform(0, 1, (objects, 2))
            speeds = rng.normal(0, 0.03, (objects, 2))
            drift = 0.15 * _smooth_field(rng, height, width, latent)
        remaining -= 1
        fields[scene] += 0.02 * _smooth_field(rng, height, width, latent)  # light and camera wander
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
    """[height, width, dim]: neighbouring cells are alike, distant ones are not; unit length on average."""
    corners = rng.standard_normal((height // 2 + 2, width // 2 + 2, dim), dtype=np.float32)
    y, x = np.arange(height) / 2, np.arange(width) / 2
    y0, x0 = y.astype(int), x.astype(int)
    fy, fx = (y - y0)[:, None, None], (x - x0)[None, :, None]
    top = corners[y0][:, x0] * (1 - fx) + corners[y0][:, x0 + 1] * fx
    low = corners[y0 + 1][:, x0] * (1 - fx) + corners[y0 + 1][:, x0 + 1] * fx
    field = top * (1 - fy) + low * fy
    return field / np.sqrt((field**2).sum(-1).mean())
