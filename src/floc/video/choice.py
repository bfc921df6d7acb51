"""How another part of floc chooses the frames of a video: from facts about it, before it is decoded."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class VideoFacts:
    """What must be known of a video before it is decoded."""

    frames: int
    fps: float
    width: int  # of the upright video, in square pixels
    height: int

    @property
    def duration_s(self) -> float:
        return self.frames / self.fps


@dataclass(frozen=True)
class FrameChoice:
    """The frames to take of a video, and how to resize them."""

    indices: np.ndarray  # [F] int64, numbers of frames in display order, ascending; a frame may occur several times
    width: int  # of the resized frames
    height: int
    resize: Callable[[np.ndarray], np.ndarray] | None = None  # of uint8 [height, width, 3]; None: the decoder does it
    # of a frame in the video's own size and its place among `indices`, before it is resized
    draw: Callable[[np.ndarray, int], np.ndarray] | None = None


ChooseFrames = Callable[[VideoFacts], FrameChoice]
