import json

import pytest

from benchmarks import harness
from benchmarks.harness import Contender


class FakeClock:
    """A clock that only contenders advance, so that ratios are exact."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def contender(self, name, *seconds):
        calls = iter(range(1_000_000))

        def run():
            self.now += seconds[min(next(calls), len(seconds) - 1)]

        return Contender(name, run)


@pytest.fixture
def clock():
    return FakeClock()


def test_ratio_is_time_over_the_baselines(clock):
    contenders = [clock.contender("ours", 0.5), clock.contender("theirs", 2.0)]
    ours, theirs = harness.compare(contenders, "ours", rounds=3, clock=clock)
    assert (ours.ms, ours.ratio) == pytest.approx((500, 1))
    assert (theirs.ms, theirs.ratio, theirs.ratio_p20, theirs.ratio_p80) == pytest.approx((2000, 4, 4, 4))
    assert theirs.baseline == "ours"


def test_slow_round_leaves_the_ratio(clock):
    slowing = (1, 1, 10, 1)  # the warm-up, then three rounds
    contenders = [clock.contender("a", *slowing), clock.contender("b", *(3 * seconds for seconds in slowing))]
    timing = harness.compare(contenders, "a", rounds=3, clock=clock)[1]
    assert (timing.ratio_p20, timing.ratio, timing.ratio_p80) == pytest.approx((3, 3, 3))


def test_percentiles_of_the_ratios(clock):
    contenders = [clock.contender("a", 1), clock.contender("b", 9, 1, 2, 3, 4, 5, 6)]
    timing = harness.compare(contenders, "a", rounds=6, clock=clock)[1]
    assert (timing.ratio_p20, timing.ratio, timing.ratio_p80) == pytest.approx((2, 3.5, 5))


def test_ratios_refer_to_the_fastest_baseline(clock):
    contenders = [clock.contender(name, seconds) for name, seconds in (("slow", 4), ("fast", 2), ("ours", 3))]
    timings = harness.compare(contenders, ("slow", "fast"), rounds=2, clock=clock)
    assert [timing.baseline for timing in timings] == ["fast"] * 3
    assert timings[2].ratio == pytest.approx(1.5)


def test_slow_contender_has_fewer_turns_but_not_the_baseline(clock):
    contenders = [clock.contender("base", 10), clock.contender("slow", 10), clock.contender("quick", 1)]
    base, slow, quick = harness.compare(contenders, "base", rounds=5, allowance_s=5, clock=clock)
    assert (base.rounds, slow.rounds, quick.rounds) == (5, 2, 5)


def test_contender_beyond_patience_counts_its_warm_up_only(clock):
    contenders = [clock.contender("base", 10), clock.contender("slow", 12), clock.contender("quick", 1)]
    base, slow, quick = harness.compare(contenders, "base", rounds=5, patience_s=5, clock=clock)
    assert (base.rounds, slow.rounds, quick.rounds) == (5, 1, 5)
    assert (slow.ms, slow.ratio) == pytest.approx((12_000, 1.2))


def test_short_call_is_repeated(clock):
    calls = []
    contender = Contender("tiny", lambda: (calls.append(0), setattr(clock, "now", clock.now + 0.001)))
    timing = harness.compare([contender], "tiny", rounds=2, clock=clock)[0]
    assert len(calls) == 1 + 2 * 20
    assert timing.ms == pytest.approx(1)


def test_environment_is_json_serialisable():
    environment = harness.describe_environment()
    assert environment["device"]["cores"] >= 1
    assert environment["versions"]["numpy"]
    assert environment["date"].endswith("+00:00")
    json.dumps(environment)


def test_failures_are_collected_and_do_not_stop_the_others():
    lines = []
    failures = harness.Failures(lines.append)
    assert [failures.attempt("a half", lambda: 1 / 2), failures.attempt("a zero", lambda: 1 / 0)] == [0.5, None]
    assert failures.reasons == ["a zero: ZeroDivisionError: division by zero"]
    assert lines == ["failed: a zero: ZeroDivisionError: division by zero"]
