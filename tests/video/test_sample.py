"""The sampler against the definition: the frame on screen at each target, each frame once."""

from __future__ import annotations

import math
from fractions import Fraction

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given

from floc.video.sample import Sampler, compute_step, count_samples

gaps = st.lists(st.integers(1, 50) | st.integers(10**9, 10**12), min_size=1, max_size=30)
steps = st.fractions(Fraction(1, 100), 10**13).filter(bool)


@given(gaps, steps)
def test_takes_the_frame_on_screen_at_each_target(gaps: list[int], step: Fraction) -> None:
    starts = [sum(gaps[:i]) for i in range(len(gaps))]
    sampler = Sampler(step, 0, None)
    taken = [i for i, start in enumerate(starts) if sampler.count_wanted(until=start + gaps[i])]
    expected = [i for i, start in enumerate(starts) if math.ceil(start / step) * step < start + gaps[i]]
    assert taken == expected
    assert sampler.count == len(taken)


@given(gaps, steps.map(lambda step: step + 1), st.integers(0, 100))
def test_rounding_loses_no_first_frame(gaps: list[int], step: Fraction, rounding: int) -> None:
    sampler = Sampler(step, rounding, None)
    taken = [i for i in range(len(gaps)) if sampler.count_wanted(until=sum(gaps[: i + 1]))]
    count = math.ceil(sum(gaps) / step)
    assume(count < 200)
    targets = [0, *(number * step + rounding for number in range(1, count + 1))]
    shown = {sum(target >= sum(gaps[: i + 1]) for i in range(len(gaps))) for target in targets}
    assert taken == sorted(shown - {len(gaps)})


@given(gaps, steps, st.integers(1, 5))
def test_stops_at_the_limit(gaps: list[int], step: Fraction, limit: int) -> None:
    sampler, end = Sampler(step, 0, limit), 0
    for gap in gaps:
        if sampler.done:
            break
        end += gap
        sampler.count_wanted(until=end)
    assert sampler.count <= limit


@pytest.mark.parametrize("step", [None, Fraction(1, 3)])
def test_rounded_timestamps_count_as_exact(step: Fraction | None) -> None:
    sampler = Sampler(step, Fraction(1, 2000), None)
    assert all(sampler.count_wanted(until=Fraction(end, 1000)) for end in (333, 667, 1000))


@given(st.floats(1e-12, 1e6), st.none() | st.integers(1, 10**400), st.fractions(Fraction(1, 10**9), 10**7))
def test_step_respects_max_frames(fps: float, max_frames: int | None, duration_s: Fraction) -> None:
    step = compute_step(fps, max_frames, duration_s, None)
    count = count_samples(step, max_frames, duration_s, None)
    assert step > 0
    assert 1 <= count <= (max_frames or count)
    assert step == 1 / Fraction(fps) or step == duration_s / max_frames
