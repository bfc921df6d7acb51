"""Checks of mp4 files: a short file must not make ffmpeg reserve gigabytes for its index."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

av = pytest.importorskip("av", reason="PyAV is not installed: pip install 'floc-video[video]'")

from floc import video  # noqa: E402
from floc.video import boxes, live  # noqa: E402

MANY = 60_000_000


def box(name: bytes, *content: bytes) -> bytes:
    data = b"".join(content)
    return struct.pack(">I4s", 8 + len(data), name) + data


def change(path: Path, mark: bytes, offset: int, *values: int) -> None:
    data = bytearray(path.read_bytes())
    struct.pack_into(f">{len(values)}I", data, data.index(mark) + 4 + offset, *values)
    path.write_bytes(data)


def insert(data: bytes, box_name: bytes, place: int, content: bytes, around: tuple[bytes, ...]) -> bytes:
    """Put content into a box, after `place` bytes, and correct the sizes of the box and of those around it."""
    changed = bytearray(data)
    start = data.index(box_name)
    for name in (*around, box_name):
        at = data.index(name) - 4
        changed[at : at + 4] = struct.pack(">I", int.from_bytes(data[at : at + 4], "big") + len(content))
    return bytes(changed[: start + 4 + place] + content + changed[start + 4 + place :])


@pytest.mark.parametrize(
    ("container", "mark", "offset"),
    [({"movflags": "faststart"}, b"stsz", 4), ({"movflags": "frag_keyframe+empty_moov"}, b"trun", 0)],
)
def test_rejects_more_samples_than_bytes(film, container: dict[str, str], mark: bytes, offset: int) -> None:
    path = film("many.mp4", 20, container=container)
    change(path, mark, offset, 1, MANY)
    message = r"many\.mp4: its index lists 60,000,\d+ samples, more than it has bytes; copy it again"
    with pytest.raises(ValueError, match=message):
        video.read(path)
    with pytest.raises(ValueError, match=message):
        list(live.read_frames(str(path), fps=None, size=lambda w, h: (w, h), follow=True, patience_s=0))


TABLE = box(b"stsz", struct.pack(">III", 0, 700, MANY))
STBL = (b"moov", b"trak", b"mdia", b"minf")


def pad(index: bytes, media: bytes) -> bytes:
    """Make the file longer than the number of samples."""
    return media + box(b"moov", box(b"abcd", bytes(64 << 20)), index)


def overlap(index: bytes, media: bytes) -> bytes:
    """Put the name of the table into the box before it."""
    place = index.index(b"stsz") - 4 - index.index(b"stbl") - 4
    return media + insert(box(b"moov", index), b"stbl", place, box(b"abcd", b"stsz"), STBL)


HIDDEN: dict[str, tuple[str, Callable[[bytes, bytes], bytes]]] = {
    "a box with an odd name": ("lists", lambda index, media: box(b"\xa9abc", bytes(8)) + media + box(b"moov", index)),
    "overlapping names": ("lists", overlap),
    "a late index": ("lists", pad),
    "a 64-bit size": (
        "lists",
        lambda index, media: media + struct.pack(">I4sQ", 1, b"moov", 16 + len(index)) + index,
    ),
    "a compressed index": (
        "has a box cmov",
        lambda index, media: media + box(b"moov", box(b"cmov", box(b"dcom", b"zlib"), zlib.compress(index))),
    ),
    "an index in free space": ("is in a box for unused space", lambda index, media: media + box(b"free", index)),
    "an index with another name": ("has a box hoov", lambda index, media: media + box(b"hoov", index)),
    "an index in user data": ("has a box moov", lambda index, media: media + box(b"udta", box(b"moov", index))),
    "an index in metadata": (
        "has a box moov",
        lambda index, media: media + box(b"meta", bytes(4), box(b"hdlr", bytes(25)), box(b"moov", index)),
    ),
    "two indexes": ("lists", lambda index, media: media + box(b"moov", index) * 2),
}


@pytest.mark.parametrize("hidden", HIDDEN)
def test_rejects_many_samples_wherever_they_are_listed(film, hidden: str) -> None:
    """ffmpeg finds all of these."""
    path = film("hidden.mov", 20)
    change(path, b"stsz", 4, 700, MANY)
    data = path.read_bytes()
    place = data.index(b"moov")
    message, hide = HIDDEN[hidden]
    head = data[: data.index(b"mdat") - 4]
    path.write_bytes(head + hide(data[place + 4 :], data[len(head) : place - 4]))
    with pytest.raises(ValueError, match=rf"hidden\.mov: its index {message}"):
        video.read(path)


@pytest.mark.parametrize(
    ("name", "place", "around", "message"),
    [(b"avc1", 78, (*STBL, b"stbl", b"stsd"), "stsd with unusual"), (b"dinf", 0, STBL, "stsz in an unusual")],
)
def test_rejects_tables_in_other_boxes(film, name: bytes, place: int, around: tuple[bytes, ...], message: str) -> None:
    path = film("inside.mov", 20)
    path.write_bytes(insert(path.read_bytes(), name, place, TABLE, around))
    with pytest.raises(ValueError, match=message):
        video.read(path)


def test_rejects_edits_that_repeat_many_samples(film) -> None:
    path = film("edits.mov", 20)
    data = path.read_bytes()
    entry = data.index(b"elst") + 12
    edits = data[entry : entry + 12] * 200
    path.write_bytes(insert(data, b"elst", 8, edits, (b"moov", b"trak", b"edts")))
    change(path, b"elst", 4, 201)
    assert sum(len(frames.times_s) for frames in video.read(path, fps=None)) >= 20
    change(path, b"stsz", 4, 1, 1_000_000)
    with pytest.raises(ValueError, match="lists 200,000,000 samples"):
        video.read(path)


def test_rejects_chunks_of_many_samples_of_sound(film_with_sound) -> None:
    path = film_with_sound("sound.mov", frames=10)
    data = path.read_bytes()
    place = data.index(b"soun")
    changed = bytearray(data)
    stts, stsc = data.index(b"stts", place) + 8, data.index(b"stsc", place) + 8
    struct.pack_into(">III", changed, stts, 1, 2**31 - 1, 1)  # a sample takes one tick: uncompressed sound
    struct.pack_into(">III", changed, stsc, 1, 1, 2**31 - 1)
    path.write_bytes(changed)
    with pytest.raises(ValueError, match=r"its index lists [\d,]+ samples, more than it has bytes"):
        video.read(path)


def test_rejects_too_many_boxes(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(boxes, "MAX_BOXES", 1000)
    path = tmp_path / "boxes.mp4"
    path.write_bytes(box(b"ftyp", b"isom", bytes(4)) + box(b"abcd") * 1000)
    with pytest.raises(ValueError, match=r"boxes\.mp4: its index has more than 1,000 boxes"):
        video.read(path)


def test_sizes_beyond_the_file_are_no_error_of_python(film) -> None:
    path = film("huge.mp4", 20)
    data = path.read_bytes()
    place = data.index(b"moov") - 4
    huge = struct.pack(">I4sQ", 1, b"moov", 2**64 - 1 - place) + struct.pack(">I4sQ", 1, b"abcd", 2**64 - 999 - place)
    path.write_bytes(data[:place] + huge + data[place + 8 :])
    with pytest.raises(ValueError, match=r"huge\.mp4: "):
        video.read(path)


@pytest.mark.parametrize("container", [{}, {"movflags": "faststart"}, {"movflags": "frag_every_frame+empty_moov"}])
def test_ordinary_files_are_read_without_their_media(film, container, monkeypatch) -> None:
    path = film("a.mov", 40, container=container)
    read, count = boxes._Box.read, 0

    def record(self, file, offset, length):
        nonlocal count
        assert self.name != b"mdat"
        count += length
        return read(self, file, offset, length)

    monkeypatch.setattr(boxes._Box, "read", record)
    assert sum(len(frames.times_s) for frames in video.read(path, fps=None)) == 40
    assert 0 < count < 10_000


def test_an_index_in_unused_space_is_ignored(film) -> None:
    """Editors of tags write the index again elsewhere and rename the old one."""
    path = film("edited.mp4", 20)
    data = path.read_bytes()
    index = data[data.index(b"moov") - 4 :]
    path.write_bytes(data + index.replace(b"moov", b"free", 1))
    assert sum(len(frames.times_s) for frames in video.read(path, fps=None)) == 20


def test_other_files_are_not_searched(film) -> None:
    """The first bytes of other containers are no box, or one that is longer than the file."""
    for name in ("a.mkv", "a.ts", "a.avi"):
        path = film(name, 3, codec="mpeg4" if name == "a.avi" else "libx264")
        path.write_bytes(path.read_bytes() + b"trun" + b"\xff" * 20)
        assert sum(len(frames.times_s) for frames in video.read(path, fps=None)) == 3
