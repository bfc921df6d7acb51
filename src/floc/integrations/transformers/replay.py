"""Ask questions about captured videos, whose tokens take the place of pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from floc.captured.captured import Captured
from floc.captured.identity import Identity
from floc.families.locate import PromptVideo
from floc.integrations.transformers.cut import VideoSelection
from floc.integrations.transformers.hooks import DecoderHooks, HookHandle, Positions


class ReplayHandle(HookHandle):
    """Captured videos in a model, until it is detached."""

    def __init__(self, model: Any, videos: Sequence[Captured], positions: Positions) -> None:
        identity = Identity.from_model(model)
        for video in videos:
            video.model.require(identity)
        device = model.device
        self.selections = [
            VideoSelection(
                video.indices.to(device),
                video.features.to(device),
                deep=[layer.to(device) for layer in video.deep],
            )
            for video in videos
        ]
        super().__init__(DecoderHooks(model, self._select, positions, shapes=[video.shape for video in videos]))

    def _select(self, videos: list[PromptVideo], embeds: torch.Tensor) -> list[VideoSelection | None]:
        return [self.selections[video.index] for video in videos]


def replay(model: Any, video: Captured | Sequence[Captured], *, positions: Positions = "keep") -> ReplayHandle:
    """Ask about captured videos: inside the with block, prompts need no pixels, and no vision encoder runs.

        video = floc.load("talk.floc")
        with floc.replay(model, video):
            answer = model.generate(**video.inputs(model, tokenizer, "What is on the table?"))

    The inputs are those of the model's processor for the whole video, without the pixels; `Captured.inputs` builds
    them. All rows of a batch may ask about the same videos.

    Args:
        model: the model that the videos were captured with.
        video: one, or several in the order of the prompt.
        positions: as in `floc.attach`.
    """
    return ReplayHandle(model, [video] if isinstance(video, Captured) else list(video), positions)
