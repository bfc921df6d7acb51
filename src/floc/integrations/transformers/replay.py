"""Ask about videos that were captured: their tokens go where the pixels would have put them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from floc.captured.captured import Captured
from floc.captured.identity import Identity
from floc.integrations.transformers.families import Clip
from floc.integrations.transformers.shorten import Choice, Hooked, Positions, Shortener


class Replaying(Hooked):
    """Videos that were captured, in the place of pixels, until it is detached."""

    def __init__(self, model: Any, videos: Sequence[Captured], positions: Positions) -> None:
        here = Identity.of(model)
        for video in videos:
            video.model.require(here)
        self.videos = [_on(video, model.device) for video in videos]
        super().__init__(Shortener(model, self._choose, positions, shapes=[video.shape for video in videos]))

    def _choose(self, clips: list[Clip], embeds: torch.Tensor) -> list[Choice | None]:
        chosen = [self.videos[clip.video] for clip in clips]
        return [Choice(video.indices, video.features, deep=video.deep) for video in chosen]


def _on(video: Captured, device: torch.device) -> Captured:
    return replace(
        video,
        features=video.features.to(device),
        indices=video.indices.to(device),
        deep=tuple(each.to(device) for each in video.deep),
    )


def replay(model: Any, video: Captured | Sequence[Captured], *, positions: Positions = "keep") -> Replaying:
    """Ask about videos that were captured: inside the with block, prompts need no pixels and no vision tower.

        video = floc.load("talk.floc")
        with floc.replay(model, video):
            answer = model.generate(**video.inputs(model, tokenizer, "What is on the table?"))

    The inputs are those the model's processor gives for the video, all placeholders in it, without the pixels;
    `inputs` of a captured video writes them. Rows of a batch may all ask about the same videos.

    Args:
        model: the model they were captured with.
        video: one, or several in the order of the prompt.
        positions: as in `floc.attach`.
    """
    return Replaying(model, [video] if isinstance(video, Captured) else list(video), positions)
