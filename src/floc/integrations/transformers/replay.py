"""Ask questions about captured videos, whose tokens take the place of pixels."""

from collections.abc import Sequence
from typing import Any

import torch

from floc.captured.captured import Captured
from floc.captured.identity import Identity
from floc.families.locate import PromptVideo
from floc.families.parts import find_device, unwrap_model
from floc.integrations.transformers.cut import VideoSelection
from floc.integrations.transformers.hooks import DecoderHooks, Positions


class ReplayHandle(DecoderHooks):
    """Captured videos in a model, until it is detached."""

    def __init__(self, model: Any, videos: Sequence[Captured], positions: Positions) -> None:
        model = unwrap_model(model)
        identity = Identity.from_model(model)
        device = find_device(model)
        self.selections = []
        for video in videos:
            video.model.require(identity)
            indices, features, *deep = (part.to(device) for part in (video.indices, video.features, *video.deep))
            self.selections.append(VideoSelection(indices, features, deep=deep))
        super().__init__(model, positions, [video.shape for video in videos])

    def select(self, videos: list[PromptVideo], embeds: torch.Tensor, ids: torch.Tensor) -> list[VideoSelection | None]:
        return [self.selections[video.index] for video in videos]


def replay(model: Any, video: Captured | Sequence[Captured], *, positions: Positions = "keep") -> ReplayHandle:
    """Ask about captured videos: inside the with block, prompts need no pixels, and no vision encoder runs.

        video = floc.load("talk.floc")
        with floc.replay(model, video):
            answer = model.generate(**video.inputs(processor, "What is on the table?").to(model.device))

    Inputs are those of the model's processor for the whole video, without pixels. Rows may ask about the same videos.

    Args:
        model: the model that the videos were captured with.
        video: one, or several in the order of the prompt.
        positions: as in `floc.attach`.
    """
    return ReplayHandle(model, [video] if isinstance(video, Captured) else list(video), positions)
