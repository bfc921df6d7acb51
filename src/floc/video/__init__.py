"""Video in: a film is opened, and a few of its frames come out in batches; `live` is for what may not end."""

from floc.video.container import check_file
from floc.video.read import Video, read

__all__ = ["Video", "check_file", "read"]
