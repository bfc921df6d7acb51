"""Check the boxes of an mp4 or mov file, before or after ffmpeg reads it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

READ_BYTES = 64 << 20  # of a box
MAX_BOXES = 500_000  # of a file: half a second
MIN_SAMPLES = 1 << 20  # so many samples may be listed in any file, also in one that still grows
# The number of samples, in lists that store nothing for each of them: all of one size, or a run without flags.
SAMPLE_COUNT = re.compile(rb"(?s)(?:stsz.{4}(?!\0{4}).{4}|trun.{4})(.{4})")


def check_samples(path: Path) -> None:
    """Raise ValueError if an mp4 file lists more samples than it has bytes: ffmpeg would take 50 bytes for each."""
    size_bytes, count = path.stat().st_size, 0
    with path.open("rb") as file:
        for name, start, end in _read_boxes(file):
            # the first bytes of other containers may look like a box longer than the file; an index may be cut off
            if name in (b"mdat", b"free", b"skip") or (end > size_bytes and name not in (b"moov", b"moof")):
                continue
            file.seek(start)
            for match in SAMPLE_COUNT.finditer(file.read(min(end - start, READ_BYTES))):
                count += int.from_bytes(match[1], "big")
            if count > max(size_bytes, MIN_SAMPLES):
                raise ValueError(f"{path}: its index lists {count:,} samples, more than it has bytes; copy it again")


def check_index(path: Path) -> None:
    """Raise ValueError if an mp4 file has no complete index (moov box)."""
    with path.open("rb") as file:
        boxes = list(_read_boxes(file))
        size = file.seek(0, 2)
    if boxes and boxes[0][0] == b"ftyp" and not any(name == b"moov" and end <= size for name, _, end in boxes):
        problem = "this mp4 is cut off or its recording was never finished"
        raise ValueError(f"{path}: {problem}: its index (moov), needed to read it, is missing; copy the file again")


def _read_boxes(file: BinaryIO) -> Iterator[tuple[bytes, int, int]]:
    """Yield name, start and end of the outermost boxes, as far as the file has any."""
    start, length = 0, file.seek(0, 2)
    for _ in range(MAX_BOXES):
        if start >= length:
            return
        file.seek(start)
        header = file.read(16)
        size, name = int.from_bytes(header[:4], "big"), header[4:8]
        if size == 0:  # to the end of the file
            size = length - start
        elif size == 1:  # a 64-bit size follows the name
            size = int.from_bytes(header[8:], "big")
        if size < 8 or not re.fullmatch(rb"[A-Za-z0-9 ]{4}", name):
            return
        yield name, start, start + size
        start += size
