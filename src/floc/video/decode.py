"""Decode packets to frames, and skip the packets that no sampled frame depends on.

A keyframe shown at or before the next target makes every packet before it unnecessary, since the frame on screen at
the target is that keyframe or a later frame. So packets are held back until one is later than the target, and dropped
when a keyframe comes first. The frames are the same as when decoding everything, and no index is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from floc._checks import is_positive_int, shorten
from floc.video.container import MAX_PICTURE_PIXELS, Clock, Orientation, PacketReader, describe_error
from floc.video.limits import LimitedDecoder, LimitError
from floc.video.sample import ListSampler, Sampler, Ticks

if TYPE_CHECKING:
    import av

# Packets held back beyond this are decoded even if not needed: about ten seconds of 4K.
HELD_BYTES = 32 << 20

FrameSize = Callable[[int, int], tuple[int, int]]  # (width, height) of the upright video -> (width, height) wanted


class FalseKeyframeError(Exception):
    """A packet is marked as a keyframe, but the decoder cannot start there."""


class FrameDecoder:
    """Decodes one pass over a video, and records what went wrong."""

    def __init__(
        self,
        packets: PacketReader,
        stream: av.VideoStream,
        clock: Clock,
        sampler: Sampler | ListSampler,
        skipping: bool,
    ) -> None:
        self._reader, self._stream, self._clock, self._sampler = packets, stream, clock, sampler
        # without reliable timestamps, a frame's time is known only by counting all frames before it
        self._skipping = skipping and not clock.counts
        self._shown: Ticks = -1  # display time of the last decoded frame
        self._decoded = 0
        self._entry: int | None = None  # timestamp of the keyframe the decoder was restarted at
        self._end_s = Fraction(0)  # end of the packets read so far
        self.damaged = 0  # frames that could not be decoded completely
        self.damage, self._damage_s = "", 0.0  # reason for the first of them, and its time
        self._reached_end = False  # read to the end of the file, not only to the last wanted frame
        self.stop_reason = ""  # why reading stopped before the end of the video
        self._decoder = LimitedDecoder(stream)

    def __iter__(self) -> Iterator[tuple[Ticks, av.VideoFrame]]:
        """Yield decoded frames and their display times, as far as the limits allow."""
        try:
            yield from self._decode_all()
        except LimitError as error:
            self.stop_reason = str(error)

    def _decode_all(self) -> Iterator[tuple[Ticks, av.VideoFrame]]:
        held: list[av.Packet] = []
        held_bytes, fresh, last_key = 0, False, -math.inf
        for packet in self._packets():
            waits = False
            if self._skipping and packet.pts is not None:
                shown = packet.pts - self._clock.origin
                if packet.is_keyframe:
                    self._skipping = shown > last_key  # else the clock was set back, and times do not order frames
                    last_key = shown
                waits = self._skipping and shown <= self._sampler.target
                if waits and packet.is_keyframe and not packet.is_discard:
                    held, held_bytes, fresh = [], 0, True
            held.append(packet)
            held_bytes += packet.size
            if not waits or held_bytes > HELD_BYTES:
                yield from self._decode_held(held, fresh)
                held, held_bytes, fresh = [], 0, False
        yield from self._decode_held(held, fresh)
        yield from self._decode(None)

    def _decode_held(self, packets: list[av.Packet], fresh: bool) -> Iterator[tuple[Ticks, av.VideoFrame]]:
        if fresh:
            self._stream.codec_context.flush_buffers()
            self._entry = packets[0].pts
        for packet in packets:
            yield from self._decode(packet)

    def _packets(self) -> Iterator[av.Packet]:
        """Yield the video's packets, except an incomplete one at the end of a file that is cut off."""
        torn: av.Packet | None = None
        for packet in self._reader:
            if packet.pts is not None and packet.time_base and not packet.is_corrupt:
                self._end_s = max(self._end_s, (packet.pts + (packet.duration or 0)) * packet.time_base)
            if packet.stream_index != self._stream.index:
                continue
            if torn:
                yield torn  # not the last packet: let the decoder report what is wrong with it
            torn = packet if packet.is_corrupt else None
            if not torn:
                yield packet
        self._reached_end = True
        self.stop_reason = self._reader.stop_reason or ("its last frame is incomplete" if torn else "")

    def _decode(self, packet: av.Packet | None) -> Iterator[tuple[Ticks, av.VideoFrame]]:
        import av
        from av.video.frame import PictureType

        try:
            frames = self._decoder.decode(packet, self._sampler.count)
        except av.FFmpegError as error:
            self._record_damage(describe_error(error), None if packet is None else packet.pts)
            return
        for frame in frames:
            if self._entry is not None:
                # a decoder drops the frames shown before the keyframe it starts at, so the keyframe comes first
                if frame.pts != self._entry or frame.pict_type != PictureType.I:
                    raise FalseKeyframeError
                self._entry = None
            if frame.is_corrupt:
                self._record_damage("data is missing or wrong", frame.pts)
            self._shown = self._clock.time(frame, self._decoded, self._shown)
            self._decoded += 1
            yield self._shown, frame

    def _record_damage(self, reason: str, stamp: int | None) -> None:
        if not self.damaged:
            self.damage = reason
            shown = self._shown if stamp is None or self._clock.counts else stamp - self._clock.origin
            self._damage_s = self._clock.seconds(max(0, shown))
        self.damaged += 1

    def warnings(self, name: str, duration_s: float) -> Iterator[str]:
        """Yield a message for damaged frames, and one if the video ended before `duration_s`."""
        if self.damaged:
            first = f"the first at {self._damage_s:.1f} s ({self.damage})"
            count = format_frames(self.damaged)
            yield f"{name} is damaged: {count} could not be decoded completely, {first}; the other frames are used"
        if self._clock.counts:
            reached_s = self._clock.seconds(max(0, self._shown) + self._clock.frame_ticks)
        else:
            # not the time of the last decoded frame: frames after the last target are not decoded
            reached_s = float(self._end_s) - self._clock.seconds(self._clock.origin)
        missing_s = duration_s - reached_s
        if self._reached_end and not self.stop_reason and missing_s > max(0.5, 2 / float(self._clock.rate)):
            self.stop_reason = "the file ends there"
        if self.stop_reason:
            place = f"{reached_s:.1f} s of {duration_s:.1f} s ({self.stop_reason})"
            yield f"{name} is damaged or cut off: decoding stopped at {place}; the frames before are used"


def format_frames(count: int) -> str:
    """Format a number of frames: "1 frame", "2 frames"."""
    return "1 frame" if count == 1 else f"{count} frames"


def select_frames(
    frames: Iterable[tuple[Ticks, av.VideoFrame]], sampler: Sampler | ListSampler, clock: Clock
) -> Iterator[tuple[Ticks, av.VideoFrame]]:
    """Yield the frames, in display order, that the sampler wants, each as often as it wants it."""
    on_screen: tuple[Ticks, av.VideoFrame] | None = None
    for ticks, frame in frames:
        if on_screen:
            yield from repeat(on_screen, sampler.count_wanted(until=ticks))
            if sampler.done:
                return
        on_screen = ticks, frame
    if on_screen:
        end = ticks + (frame.duration if frame.duration > 0 else clock.frame_ticks)
        yield from repeat(on_screen, sampler.count_wanted(until=end))


def resolve_size(size: FrameSize | None, source: tuple[int, int]) -> tuple[int, int]:
    """Return the (width, height) of the output frames for a video of size `source`."""
    if size is not None and not callable(size):
        raise ValueError(f"size= must be a function from (width, height) to (width, height), got {shorten(size)}")
    wanted = source if size is None else size(*source)
    if not isinstance(wanted, tuple | list) or len(wanted) != 2 or not all(map(is_positive_int, wanted)):
        raise ValueError(f"size= must return a width and a height of at least 1, got {shorten(wanted)}")
    width, height = wanted
    if width * height > MAX_PICTURE_PIXELS:
        problem = f"frames of {width} x {height} pixels are too large, the limit is {MAX_PICTURE_PIXELS:,} pixels"
        raise ValueError(f"{problem}; choose a smaller size=, or a video that is less narrow")
    return int(width), int(height)


def make_converter(
    orientation: Orientation, width: int, height: int, name: Path | str
) -> Callable[[av.VideoFrame], np.ndarray]:
    """Return a function from a decoded frame to upright [height, width, 3] uint8 RGB. Errors start with `name`."""
    import av
    from av.video.reformatter import Interpolation, VideoReformatter

    reformatter = VideoReformatter()
    stored_width, stored_height = orientation.swap_size(width, height)

    def convert(frame: av.VideoFrame) -> np.ndarray:
        # decide per frame: a video may change its size, while the output size is fixed
        shrinks = stored_width < frame.width or stored_height < frame.height
        interpolation = Interpolation.AREA if shrinks else Interpolation.BILINEAR
        try:
            rgb = reformatter.reformat(frame, stored_width, stored_height, "rgb24", interpolation=interpolation)
        except (av.FFmpegError, ValueError) as error:
            source, reason = f"{frame.width} x {frame.height} pixels", getattr(error, "strerror", error)
            problem = f"{source}, {frame.format.name}, cannot be converted to {stored_width} x {stored_height} RGB"
            raise ValueError(f"{name}: a frame of {problem} ({reason}); crop or convert the video first") from None
        return orientation.apply(rgb.to_ndarray())

    return convert
