"""Read videos: sample frames of a file in batches (`read`), or frames of a camera or a growing file (`live`)."""

from floc.video.container import check_file as check_file
from floc.video.read import Video as Video
from floc.video.read import read as read
