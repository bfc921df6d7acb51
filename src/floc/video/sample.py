"""Choose the frames to sample: targets are evenly spaced in time, and each takes the frame on screen at that time.

Times are ticks, the unit of a stream's timestamps, counted from the first frame. They are exact (int or Fraction):
in floats, 3 frames of a tenth of a second are not 0.3 s, and the sampler would miss a frame.
"""

import math
import sys
from collections.abc import Sequence
from fractions import Fraction

Ticks = int | Fraction
# Matroska rounds timestamps to milliseconds, so a frame due at 2/3 s has the timestamp 0.667 s.
ROUNDING_S = Fraction(1, 2000)
ALL_TARGETS = range(sys.maxsize)


def compute_step(fps: float | None, max_frames: int | None, duration_s: Fraction, count: int | None) -> Fraction | None:
    """Return the seconds between targets; None takes every frame.

    Args:
        fps: targets per second; None for every frame.
        max_frames: if more frames would come, spread this many targets over the whole video; None for no limit.
        duration_s, count: length of the video, and its number of frames if known.

    >>> compute_step(2, 7200, Fraction(60), None), compute_step(2, 10, Fraction(60), None)
    (Fraction(1, 2), Fraction(6, 1))
    """
    step = None if fps is None else 1 / Fraction(fps)
    if max_frames is not None and count_samples(step, None, duration_s, count) > max_frames:
        return duration_s / max_frames
    return step


def count_samples(step: Fraction | None, max_frames: int | None, duration_s: Fraction, count: int | None) -> int:
    """Return the maximum number of sampled frames if the stated duration is right. Needs `step` or `count`.

    >>> count_samples(Fraction(1), 7200, Fraction(159, 2), 795), count_samples(Fraction(1, 60), None, Fraction(10), 250)
    (80, 250)
    """
    limits = [max_frames, count, None if step is None else max(1, math.ceil(duration_s / step))]
    return min(limit for limit in limits if limit is not None)


class Sampler:
    """Selects, from frames in display order, those on screen at a target; each frame at most once.

    Args:
        step: ticks between targets; None takes every frame.
        rounding: maximum rounding error of a timestamp in ticks.
        limit: maximum number of frames.
        targets: numbers of the targets.
    """

    def __init__(self, step: Ticks | None, rounding: Ticks, limit: int | None, targets: range = ALL_TARGETS) -> None:
        self._step, self._rounding, self._limit = step, rounding, limit
        self._end: Ticks | float = math.inf if step is None else targets.stop * step + rounding
        self.count = 0
        # the first frame is at 0, without a rounding error
        self.target: Ticks | float = -math.inf if step is None else targets.start * step + (targets.start and rounding)

    @property
    def done(self) -> bool:
        return self.count == self._limit or self.target >= self._end

    def count_wanted(self, until: Ticks) -> int:
        """Return 1 to take the frame that is on screen until `until`, else 0. Call once per frame, in display order.

        >>> sampler = Sampler(step=10, rounding=0, limit=None)
        >>> [frame for frame in range(0, 42, 3) if sampler.count_wanted(until=frame + 3)]
        [0, 9, 18, 30, 39]
        """
        if self.target >= until:
            return 0
        self.count += 1
        if self._step is not None:
            # skip the other targets at which this frame is on screen
            number = max(1, math.ceil((until - self._rounding) / Fraction(self._step)))
            self.target = number * self._step + self._rounding
        return 1


class ListSampler:
    """Selects frames by their display times; a time may be listed several times.

    Args:
        times: ticks, ascending.
    """

    def __init__(self, times: Sequence[Ticks]) -> None:
        self._times = times
        self.count = 0

    @property
    def target(self) -> Ticks | float:
        return math.inf if self.done else self._times[self.count]

    @property
    def done(self) -> bool:
        return self.count == len(self._times)

    def count_wanted(self, until: Ticks) -> int:
        """Return how often to take the frame that is on screen until `until`. Call once per frame, in display order.

        >>> sampler = ListSampler([0, 6, 6, 9])
        >>> [sampler.count_wanted(until=frame + 3) for frame in range(0, 12, 3)]
        [1, 0, 2, 1]
        """
        before = self.count
        while self.target < until:
            self.count += 1
        return self.count - before
