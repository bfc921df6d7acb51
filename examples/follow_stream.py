"""Compress a video while it goes on: `python examples/follow_stream.py talk.mp4`."""

import sys

import floc
from floc import encoders, video


def main(path: str) -> None:
    """Push the frames of a video into a stream that keeps 256 tokens, and print a line now and then."""
    encoder = encoders.get("pixels")  # or "mobilenet", or "hf:MODEL" for the vision encoder of a model
    stream = floc.Stream(budget=256)
    for batch in video.read(path, fps=1, max_frames=None, size=encoder.frame_size):
        stream.push(encoder(batch.pixels), time_s=batch.times_s)
        now = stream.kept()  # at any time
        print(f"{batch.times_s[-1]:.0f} s: kept {len(now)} of {now.n} tokens")
    stream.close()


if __name__ == "__main__":
    main(sys.argv[1])
