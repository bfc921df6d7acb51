import json

import pytest

from benchmarks import harness
from benchmarks.harness import Contender


class FakeClock:
    """Time that only contenders spend, so that ratios can be checked to the digit."""

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


def test_ratio_is_times_as_long_as_the_baseline(clock):
    contenders = [clock.contender("ours", 0.5), clock.contender("theirs", 2.0)]
    ours, theirs = harness.compare(contenders, "ours", rounds=3, clock=clock)
    assert (ours.ms, ours.ratio) == pytest.approx((500, 1))
    assert (theirs.ms, theirs.ratio, theirs.ratio_p20, theirs.ratio_p80) == pytest.approx((2000, 4, 4, 4))
    assert theirs.baseline == "ours"


def test_a_slow_round_slows_both_and_leaves_the_ratio(clock):
    slowing = (1, 1, 10, 1)  # the warm-up, then three rounds
    contenders = [clock.contender("a", *slowing), clock.contender("b", *(3 * each for each in slowing))]
    timing = harness.compare(contenders, "a", rounds=3, clock=clock)[1]
    assert (timing.ratio_p20, timing.ratio, timing.ratio_p80) == pytest.approx((3, 3, 3))


def test_spread_of_the_ratios(clock):
    contenders = [clock.contender("a", 1), clock.contender("b", 9, 1, 2, 3, 4, 5, 6)]
    timing = harness.compare(contenders, "a", rounds=6, clock=clock)[1]
    assert (timing.ratio_p20, timing.ratio, timing.ratio_p80) == pytest.approx((2, 3.5, 5))


def test_of_several_baselines_the_fastest_counts(clock):
    contenders = [clock.contender(name, seconds) for name, seconds in (("slow", 4), ("fast", 2), ("ours", 3))]
    timings = harness.compare(contenders, ("slow", "fast"), rounds=2, clock=clock)
    assert [timing.baseline for timing in timings] == ["fast"] * 3
    assert timings[2].ratio == pytest.approx(1.5)


def test_slow_contenders_have_fewer_turns_and_baselines_all(clock):
    contenders = [clock.contender("base", 10), clock.contender("slow", 10), clock.contender("quick", 1)]
    base, slow, quick = harness.compare(contenders, "base", rounds=5, allowance_s=5, clock=clock)
    assert (base.rounds, slow.rounds, quick.rounds) == (5, 2, 5)


def test_beyond_patience_the_warm_up_was_the_only_turn(clock):
    contenders = [clock.contender("base", 10), clock.contender("slow", 12), clock.contender("quick", 1)]
    base, slow, quick = harness.compare(contenders, "base", rounds=5, patience_s=5, clock=clock)
    assert (base.rounds, slow.rounds, quick.rounds) == (5, 1, 5)
    assert (slow.ms, slow.ratio) == pytest.approx((12_000, 1.2))


def test_what_is_over_at_once_is_repeated(clock):
    calls = []
    contender = Contender("tiny", lambda: (calls.append(0), setattr(clock, "now", clock.now + 0.001)))
    timing = harness.compare([contender], "tiny", rounds=2, clock=clock)[0]
    assert len(calls) == 1 + 2 * 20
    assert timing.ms == pytest.approx(1)


def test_environment_names_what_was_measured():
    found = harness.environment()
    assert found["device"]["cores"] >= 1
    assert found["versions"]["numpy"]
    assert found["date"].endswith("+00:00")
    json.dumps(found)


def test_write_replaces_the_file_and_leaves_nothing_beside_it(tmp_path):
    path = tmp_path / "results" / "t.json"
    harness.write({"a": 1}, path)
    harness.write({"a": 2}, path)
    assert json.loads(path.read_text()) == {"a": 2}
    assert [each.name for each in path.parent.iterdir()] == ["t.json"]
