"""One picture, as frames of a film are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from floc.video.container import Upright, check_file, opened
from floc.video.read import converter, wanted_size


def read_picture(
    picture: str | Path | np.ndarray, size: Callable[[int, int], tuple[int, int]] | None = None
) -> np.ndarray:
    """[height, width, 3] uint8 RGB of a picture.

    Args:
        picture: a file that ffmpeg reads, of a film the first frame; or [h, w, 3] uint8.
        size: as in `floc.video.read`: from its width and height to those wanted.
    """
    import av

    if isinstance(picture, np.ndarray):
        if picture.ndim != 3 or picture.shape[-1] != 3 or picture.dtype != np.uint8 or not picture.size:
            raise ValueError(f"a picture must be [h, w, 3] uint8 RGB, got {picture.shape} {picture.dtype}")
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
        return converter(Upright.of(frame), *wanted_size(size, (frame.width, frame.height)))(frame)
    path = Path(picture)
    check_file(path)
    with opened(path) as container:
        if not container.streams.video:
            raise ValueError(f"{path}: there is no picture in it")
        stream = container.streams.video[0]
        try:
            decoded = next(iter(container.decode(stream)), None)
        except av.FFmpegError as error:
            raise ValueError(f"{path}: the picture cannot be decoded ({error.strerror})") from None
        if decoded is None:
            raise ValueError(f"{path}: there is no picture in it")
        upright = Upright.of(decoded)
        return converter(upright, *wanted_size(size, upright.size_of(decoded, stream)))(decoded)
