"""Read videos: sample frames of a file in batches (`read`), or frames of a camera or a growing file (`live`)."""

from floc.video.choice import FrameChoice as FrameChoice
from floc.video.choice import VideoFacts as VideoFacts
from floc.video.container import check_file as check_file
from floc.video.read import Video as Video
from floc.video.read import read as read
from floc.video.read import read_facts as read_facts
