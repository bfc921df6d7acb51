"""Synthetic videos: shapes, and kinds that differ in noise, cuts and number of scenes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from examples import synthetic


@dataclass(frozen=True)
class Shape:
    """The shape of a video's tokens."""

    frames: int
    height: int
    width: int
    dim: int

    @property
    def n(self) -> int:
        """Number of tokens."""
        return self.frames * self.height * self.width

    def make_tokens(self, seed: int = 0) -> np.ndarray:
        """[frames, height, width, dim] float16."""
        return synthetic.make_tokens(self.frames, self.height, self.width, self.dim, seed=seed)


@dataclass(frozen=True)
class VideoKind:
    """A kind of synthetic video."""

    name: str
    seed: int
    noise: float
    shot_frames: int
    scenes: int = 5

    def make_tokens(self, shape: Shape) -> np.ndarray:
        """[frames, height, width, dim] float16."""
        return self.make_tokens_and_cuts(shape)[0]

    def make_tokens_and_cuts(self, shape: Shape) -> tuple[np.ndarray, list[int]]:
        """[frames, height, width, dim] float16, and the frames at which another scene begins."""
        return synthetic.make_tokens_and_cuts(
            shape.frames,
            shape.height,
            shape.width,
            shape.dim,
            seed=self.seed,
            noise=self.noise,
            shot_frames=self.shot_frames,
            scenes=self.scenes,
        )


EDITED, NOISY, QUICK_CUTS, LONG_TAKES, FIXED_CAMERA = KINDS = (
    VideoKind("edited", seed=1, noise=0.35, shot_frames=40),
    VideoKind("edited, noisy", seed=2, noise=0.7, shot_frames=40),
    VideoKind("quick cuts, many scenes", seed=3, noise=0.35, shot_frames=8, scenes=12),
    VideoKind("long takes", seed=4, noise=0.35, shot_frames=150, scenes=3),
    VideoKind("fixed camera, clean", seed=5, noise=0.15, shot_frames=400, scenes=1),
)
