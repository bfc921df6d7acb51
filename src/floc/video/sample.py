"""Which frames to take: targets evenly spaced in time, and for each the frame that is on screen then.

Times are ticks, the unit a stream's timestamps are in, counted from the first frame; they are exact (int or Fraction),
because 3 frames of a tenth of a second are not 0.3 s in floats, and a frame would be missed by that.
"""

from __future__ import annotations

import math
from fractions import Fraction

Ticks = int | Fraction
# Matroska rounds timestamps to whole milliseconds, so a frame due at 2/3 s says 0.667 s
ROUNDING_S = Fraction(1, 2000)


def step_s(fps: float | None, max_frames: int | None, duration_s: Fraction, count: int | None) -> Fraction | None:
    """Seconds between targets, None to take every frame.

    Args:
        fps: targets a second; None for every frame.
        max_frames: where more would come, as many targets as this are spread over the whole film; None for no limit.
        duration_s: how long the film is.
        count: how many frames it has, where that is known.

    >>> step_s(2, 7200, Fraction(60), None), step_s(2, 10, Fraction(60), None), step_s(None, 10, Fraction(60), 9)
    (Fraction(1, 2), Fraction(6, 1), None)
    """
    step = None if fps is None else 1 / Fraction(fps)
    expected = planned(step, None, duration_s, count)
    if max_frames is not None and expected > max_frames:
        return duration_s / max_frames
    return step


def planned(step: Fraction | None, max_frames: int | None, duration_s: Fraction, count: int | None) -> int:
    """The most frames that come where the film is as long as it says; `step` or `count` must be there.

    >>> planned(Fraction(1), 7200, Fraction(159, 2), 795), planned(Fraction(1, 60), None, Fraction(10), 250)
    (80, 250)
    """
    limits = [max_frames, count, None if step is None else max(1, math.ceil(duration_s / step))]
    return min(each for each in limits if each is not None)


class Sampler:
    """Says of frames that go by in order which are wanted: those on screen at a target, each once."""

    def __init__(
        self,
        step: Ticks | None,
        rounding: Ticks,
        limit: int | None,
        *,
        first: int = 0,
        end: float = math.inf,
    ) -> None:
        """Args:
        step: ticks from target to target; None takes every frame.
        rounding: ticks that a timestamp may be off by.
        limit: at most so many frames.
        first: targets that are left out at the start.
        end: how many targets there are at the most, those included.
        """
        self._step, self._rounding, self._limit = step, rounding, limit
        self._end: Ticks | float = math.inf if step is None or end == math.inf else int(end) * step + rounding
        self.taken = 0
        self.target: Ticks | float = -math.inf if step is None else first * step + rounding

    @property
    def done(self) -> bool:
        return self.taken == self._limit or self.target >= self._end

    def wants(self, until: Ticks) -> bool:
        """Whether the frame on screen until then is wanted. A frame before it would have been asked about already.

        >>> sampler = Sampler(step=10, rounding=0, limit=None)
        >>> [frame for frame in range(0, 42, 3) if sampler.wants(until=frame + 3)]
        [0, 9, 18, 30, 39]
        """
        if self.target >= until:
            return False
        self.taken += 1
        if self._step is not None:
            # further targets that this frame is on screen for are not asked again
            self.target = math.ceil((until - self._rounding) / Fraction(self._step)) * self._step + self._rounding
        return True
