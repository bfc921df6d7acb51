"""Read one picture the way video frames are read."""

from pathlib import Path

import numpy as np

from floc.video.container import MAX_PICTURE_PIXELS, Orientation, describe_error, import_av, limit_size, open_container
from floc.video.decode import FrameSize, make_converter, resolve_size


def read_picture(picture: str | Path | np.ndarray, size: FrameSize | None = None) -> np.ndarray:
    """Return a picture as [height, width, 3] uint8 RGB.

    Args:
        picture: an image file, a video file (its first frame is used), or an array [h, w, 3] uint8.
        size: maps (width, height) of the picture to the wanted (width, height), as in `floc.video.read`.
    """
    av = import_av()
    if isinstance(picture, np.ndarray):
        if picture.ndim != 3 or picture.shape[-1] != 3 or picture.dtype != np.uint8 or not picture.size:
            raise ValueError(f"a picture must be [h, w, 3] uint8 RGB, got {picture.shape} {picture.dtype}")
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
        return make_converter(Orientation(), *resolve_size(size, (frame.width, frame.height)), "picture")(frame)
    path = Path(picture)
    with open_container(path) as container:
        streams = container.streams.video
        if not streams or streams[0].codec_context is None:
            raise ValueError(f"{path}: there is no picture in it; give a picture or a video")
        limit_size(streams[0], path, MAX_PICTURE_PIXELS)
        try:
            frame = next(iter(container.decode(streams[0])), None)
        except av.FFmpegError as error:
            reason = describe_error(error)
            raise ValueError(f"{path}: the picture cannot be decoded ({reason}); copy it again") from None
        if frame is None:
            raise ValueError(f"{path}: there is no picture in it; give a picture or a video")
        orientation = Orientation.from_frame(frame)
        width, height = resolve_size(size, orientation.display_size(frame, streams[0]))
        return make_converter(orientation, width, height, path)(frame)
