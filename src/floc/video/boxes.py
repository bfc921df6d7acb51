"""Check the boxes of an mp4 or mov file before or after ffmpeg reads it. Media data is not read.

ffmpeg takes about 50 bytes for each sample that the index lists, but a list may store nothing for each of them. So the
numbers of samples are compared with the length of the file.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

MAX_BOXES = 1_000_000  # of a file: two seconds
MAX_DEPTH = 12  # of boxes in boxes; ffmpeg refuses more than 10
MAX_DESCRIPTION_BYTES = 1 << 24  # of a box stsd or meta
# Samples that any file may list, also one that still grows; and the limit for long files: 150 hours, 600 MB.
MIN_SAMPLES, MAX_SAMPLES = 1 << 20, 1 << 24
# Boxes in which ffmpeg looks for other boxes.
CONTAINERS = frozenset(b"moov trak mdia minf stbl edts dinf udta mvex moof traf tref wave meta ilst sinf schi".split())
# Boxes for which ffmpeg allocates memory, and the box that must contain them; ordinary files lack the last two.
PLACES = {b"moov": b"", b"moof": b"", b"trak": b"moov", b"traf": b"moof", b"trun": b"traf", b"elst": b"edts"}
PLACES |= dict.fromkeys((b"stsz", b"stz2", b"stsc", b"stco", b"co64"), b"stbl") | {b"cmov": b"-", b"hoov": b"-"}
NEEDED = PLACES.keys() | CONTAINERS | {b"ftyp", b"mdat", b"free", b"stsd", b"hdlr", b"stts"}


class _Box(NamedTuple):
    name: bytes
    start: int  # of the content
    end: int
    parent: bytes = b""  # name of the box around it

    def read(self, file: BinaryIO, offset: int, length: int) -> bytes:
        file.seek(self.start + offset)
        return file.read(length)

    def read_number(self, file: BinaryIO, offset: int) -> int:
        return int.from_bytes(self.read(file, offset, 4), "big")

    def read_all(self, file: BinaryIO) -> bytes:
        if self.end - self.start > MAX_DESCRIPTION_BYTES:
            raise _IndexError(f"has a box {self.name.decode()} that is too long")
        return self.read(file, 0, self.end - self.start)


class _IndexError(Exception):
    """An index is unusual, and may be an attack."""


@dataclass
class _Track:
    """The numbers that determine how many samples ffmpeg lists for a track."""

    samples: int = 0
    edits: int = 0
    chunks: int = 0
    handlers: set[bytes] = field(default_factory=set)
    durations: set[int] = field(default_factory=set)  # of samples, in ticks; 0 for several
    runs: list[np.ndarray] = field(default_factory=list)  # [R, 3] each: number of the first chunk, samples in a chunk

    def add(self, box: _Box, file: BinaryIO, size_bytes: int) -> None:
        """Add the numbers in a box. ffmpeg reads entries past the end of a box."""
        if box.name in (b"stsz", b"stz2"):
            self.samples += box.read_number(file, 8)
        elif box.name == b"elst":
            self.edits += min(box.read_number(file, 4), (box.end - box.start) // 12)
        elif box.name in (b"stco", b"co64"):
            self.chunks += min(box.read_number(file, 4), size_bytes // 4)
        elif box.name == b"hdlr":
            self.handlers |= {box.read(file, 8, 4)} & {b"vide", b"soun"}
        elif box.name == b"stts":
            self.durations.add(box.read_number(file, 12) if box.read_number(file, 4) == 1 else 0)
        elif box.name == b"stsc":
            data = box.read(file, 8, 12 * min(box.read_number(file, 4), size_bytes // 12))
            self.runs.append(np.frombuffer(data[: len(data) // 12 * 12], ">u4").reshape(-1, 3).astype(np.float64))

    def count_samples(self) -> int:
        """Return the number of samples to list, each as often as edits may repeat it."""
        samples = self.samples
        if self.handlers == {b"soun"} and self.durations == {1}:  # uncompressed sound: a chunk is listed in parts
            parts = [int(np.abs(np.diff(run[:, 0], append=self.chunks + 1)) @ run[:, 1]) >> 8 for run in self.runs]
            samples = self.chunks + sum(parts)
        return samples * max(1, self.edits - 1)  # an edit that delays the start repeats nothing


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    """Open a file; errors of reading and of its boxes name it."""
    try:
        with path.open("rb") as file:
            yield file
    except _IndexError as error:
        raise ValueError(f"{path}: its index {error}; copy it again, or convert it") from None
    except OSError as error:
        if error.filename is not None:  # it names the file
            raise
        raise OSError(f"{path}: cannot be read ({error.strerror}); copy it again") from None


def check_samples(path: Path) -> None:
    """Raise ValueError if an mp4 file lists more samples than it has bytes, or lists them in an unusual place."""
    size_bytes = path.stat().st_size
    with _open(path) as file:
        count = _count_samples(file, size_bytes)
        if count > min(max(size_bytes, MIN_SAMPLES), MAX_SAMPLES):
            limit = "it has bytes" if count > size_bytes else f"the limit of {MAX_SAMPLES:,}"
            raise _IndexError(f"lists {count:,} samples, more than {limit}")


def _count_samples(file: BinaryIO, size_bytes: int) -> int:
    """Return the number of samples that ffmpeg would list."""
    tracks, fragments, names = [_Track()], 0, set()
    for box in _walk(file):
        if PLACES.get(box.name, box.parent) != box.parent:
            raise _IndexError(f"has a box {box.name.decode()} in an unusual place")
        if box.name == b"stsd":  # ffmpeg reads all boxes in a description of a codec
            if any(name in box.read_all(file) for name in PLACES):
                raise _IndexError("has a box stsd with unusual content")
        elif box.name == b"free" and box.read(file, 4, 4) in (b"mvhd", b"cmov"):
            names.add(b"free")
        elif box.name == b"trun":
            fragments += box.read_number(file, 4)
        elif box.name == b"trak":
            tracks.append(_Track())
        elif box.name == b"moov":
            names.add(b"moov")
        tracks[-1].add(box, file, size_bytes)
    if names == {b"free"}:  # ffmpeg takes it for the index
        raise _IndexError("is in a box for unused space")
    return fragments + sum(track.count_samples() for track in tracks)


def check_index(path: Path) -> None:
    """Raise ValueError if an mp4 file has no complete index (moov box)."""
    boxes = _list_outermost(path)
    if boxes and boxes[0][0] == b"ftyp" and (b"moov", True) not in boxes:
        problem = "this mp4 is cut off or its recording was never finished"
        raise ValueError(f"{path}: {problem}: its index (moov), needed to read it, is missing; copy the file again")


def is_finished(path: Path) -> bool:
    """Return whether an mp4 file has its index after its media, where a recorder writes it last."""
    boxes = _list_outermost(path)
    return (b"mdat", True) in boxes and (b"moov", True) in boxes[boxes.index((b"mdat", True)) :]


def _list_outermost(path: Path) -> list[tuple[bytes, bool]]:
    """Return the names of the outermost boxes, and whether they are complete."""
    with _open(path) as file:
        size = file.seek(0, 2)
        return [(box.name, box.end <= size) for box in _walk(file, depth=1)]


def _walk(
    file: BinaryIO, around: _Box | None = None, depth: int = MAX_DEPTH, numbers: Iterator[int] | None = None
) -> Iterator[_Box]:
    """Yield the boxes of a file that are needed here, as ffmpeg finds them. Other files have none."""
    around = around or _Box(b"", 0, file.seek(0, 2))
    numbers = numbers or iter(range(MAX_BOXES))
    start = around.start
    while start + 8 <= around.end:
        if next(numbers, None) is None:
            raise _IndexError(f"has more than {MAX_BOXES:,} boxes")
        file.seek(start)
        header = file.read(16)
        size, name, content = int.from_bytes(header[:4], "big"), header[4:8], start + 8
        if size == 1:  # a 64-bit size follows the name
            size, content = int.from_bytes(header[8:], "big"), start + 16
        end = start + size if size else around.end
        if end < content:
            return
        start = end if around.name == b"" else min(end, around.end)
        if name not in NEEDED:
            continue
        yield _Box(name, content, start, around.name)
        if name not in CONTAINERS or depth == 1:
            continue
        box = _Box(name, content, min(start, around.end))  # a box may state more than the file has
        if name == b"meta":  # its boxes start with hdlr, in some files after four other bytes
            text = box.read_all(file)
            first = next((place for place in range(0, len(text), 4) if text[place : place + 4] == b"hdlr"), 0)
            box = box._replace(start=content + first - 4 if first else box.end)
        yield from _walk(file, box, depth - 1, numbers)
