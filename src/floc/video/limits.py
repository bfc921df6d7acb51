"""Decode within limits on memory and work that grow with the length of the source.

A few bytes can state a large frame, and a few more can repeat it. The smallest videos that encoders write are blank:
in 1080p, AV1 has 100,000 decoded bytes for each byte of the file, H.264 30,000. Recordings of a screen with small text
and a moving pointer have 1,000 to 4,000.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import av

# Bytes of frames that a decoder may hold: for any source, and for each of its bytes. A blank 8K video of 8 bits gets
# nine frames, more than the levels of H.264 and HEVC allow at that size; a second of filmed 8K gets all it needs.
MEMORY_BYTES, MEMORY_PER_BYTE = 7 << 26, 1 << 8
# Bytes of frames to decode. For a source of 50 KB, the work takes a few seconds.
WORK_BYTES, WORK_PER_BYTE = 1 << 30, 1 << 17
CONVERSION_WORK = 2  # of a frame that is converted to RGB, in units of the work of decoding it, which is added
DELAYED_FRAMES = 17  # that a codec may hold back to reorder them
THREADED_BYTES = 1 << 25  # of a frame: larger ones are not decoded in parallel, since each thread holds one


class LimitError(Exception):
    """A source needs more memory or work than its length allows."""


def count_bytes(width: int, height: int, pixels: av.VideoFormat | None) -> int:
    """Return the bytes of a decoded frame."""
    return width * height * (12 if pixels is None else pixels.padded_bits_per_pixel) // 8


class LimitedDecoder:
    """Decodes the packets of a stream, as far as the limits allow."""

    def __init__(self, stream: av.VideoStream) -> None:
        self._stream: Any = stream
        self._waiting = 0  # packets whose frames have not been returned yet
        self._buffers: set[int] = set()  # addresses of frames: ffmpeg uses the memory of earlier ones again
        self._frame_bytes = self._read_bytes = self._work_bytes = self._converted = 0

    def decode(self, packet: av.Packet | None, converted: int = 0) -> list[av.VideoFrame]:
        """Decode a packet, or None for the last frames; `converted` frames were converted to RGB so far."""
        context = self._stream.codec_context
        frames: list[av.VideoFrame] = context.decode(packet)
        packet_bytes = packet.size if packet else 0
        self._waiting = max(0, min(self._waiting + (packet_bytes > 0), DELAYED_FRAMES) - len(frames))
        for frame in frames:
            frame_bytes = count_bytes(frame.width, frame.height, frame.format)
            if frame_bytes != self._frame_bytes:
                self._frame_bytes, self._buffers = frame_bytes, set()
            self._buffers.add(frame.planes[0].buffer_ptr)
            self._work_bytes += frame_bytes
        self._work_bytes += CONVERSION_WORK * (converted - self._converted) * self._frame_bytes
        self._converted = converted
        self._read_bytes += packet_bytes
        source_bytes = max(self._stream.container.size, self._read_bytes)  # the size is negative if it is unknown
        delayed_bytes = self._waiting * count_bytes(context.width, context.height, context.format)
        seen_bytes = len(self._buffers) * self._frame_bytes
        # threads decode many small frames at once, mostly into buffers that were used before
        held_bytes = max(delayed_bytes, seen_bytes + delayed_bytes * (self._frame_bytes > THREADED_BYTES))
        if held_bytes > max(self._frame_bytes, MEMORY_BYTES + MEMORY_PER_BYTE * source_bytes):
            raise LimitError(f"its frames need {held_bytes >> 20} MiB at once, too much for {source_bytes:,} bytes")
        if self._work_bytes > WORK_BYTES + WORK_PER_BYTE * source_bytes:
            raise LimitError(f"its frames are too large and too many for {source_bytes:,} bytes")
        return frames
