"""The part of torchcodec's decoder that transformers uses."""

from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import torch


class VideoDecoder:
    """Decodes a short video at once."""

    def __init__(self, source: str, **options: Any) -> None:
        with av.open(source) as container:
            stream = container.streams.video[0]
            rate = float(stream.average_rate)
            frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
        self.frames = torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2)
        count, _, height, width = self.frames.shape
        self.metadata = SimpleNamespace(
            num_frames=count, average_fps=rate, duration_seconds=count / rate, height=height, width=width
        )

    def get_frames_at(self, indices: Any) -> Any:
        return SimpleNamespace(data=self.frames[torch.as_tensor(indices)])
