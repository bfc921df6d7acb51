"""Checks of mp4 files: a short file must not make ffmpeg reserve gigabytes for its index."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

av = pytest.importorskip("av", reason="PyAV is not installed: pip install 'floc-video[video]'")

from floc import video  # noqa: E402
from floc.video import live  # noqa: E402


def change(path: Path, mark: bytes, offset: int, *values: int) -> None:
    data = bytearray(path.read_bytes())
    struct.pack_into(f">{len(values)}I", data, data.index(mark) + 4 + offset, *values)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("container", "mark", "offset"),
    [({"movflags": "faststart"}, b"stsz", 4), ({"movflags": "frag_keyframe+empty_moov"}, b"trun", 0)],
)
def test_rejects_more_samples_than_bytes(film, container: dict[str, str], mark: bytes, offset: int) -> None:
    path = film("many.mp4", 20, container=container)
    change(path, mark, offset, 1, 60_000_000)
    message = r"many\.mp4: its index lists 60,000,000 samples, more than it has bytes; copy it again"
    with pytest.raises(ValueError, match=message):
        video.read(path)
    with pytest.raises(ValueError, match=message):
        list(live.read_frames(str(path), fps=None, size=lambda w, h: (w, h), follow=True, patience_s=0))


def test_other_files_are_not_searched(film) -> None:
    """The first bytes of other containers are no box, or one that is longer than the file."""
    for name in ("a.mkv", "a.ts", "a.avi"):
        path = film(name, 3, codec="mpeg4" if name == "a.avi" else "libx264")
        path.write_bytes(path.read_bytes() + b"trun" + b"\xff" * 20)
        assert sum(len(frames.times_s) for frames in video.read(path, fps=None)) == 3
