"""Read videos: sample frames of a file in batches (`read`), or frames of a camera or a growing file (`live`)."""

from floc.video.container import check_file
from floc.video.read import Video, read

__all__ = ["Video", "check_file", "read"]
