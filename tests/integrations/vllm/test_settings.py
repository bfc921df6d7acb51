from __future__ import annotations

import math

import pytest

import floc
from floc.captured.recipe import Recipe
from floc.integrations.vllm.settings import Settings


@pytest.mark.parametrize("rate", [0.9, 0.875, 0.5, 2 / 3, 0.99])
@pytest.mark.parametrize("tokens", [1, 7, 1000, 4096])
def test_a_rate_keeps_what_a_ratio_keeps(rate: float, tokens: int) -> None:
    expected = max(1, math.floor(tokens * (1 - rate) + 0.5 + 1e-9))  # halves up
    assert Settings().at_rate(rate).count(tokens) == expected


@pytest.mark.parametrize("dial", [dict(ratio="1/8"), dict(ratio=0.3), dict(budget=64)])
def test_one_count_for_both_integrations(dial: dict) -> None:
    given = {"tokens" if name == "budget" else name: value for name, value in dial.items()}
    for tokens in (1, 63, 64, 65, 1000):
        assert Settings.of(given).count(tokens) == Recipe(**dial).count(tokens) == Recipe(**dial).due(tokens, tokens)


def test_options_are_those_of_the_method() -> None:
    settings = Settings.of({"ratio": "1/4", "block": None, "dedupe": 1, "detail": 1, "record": "kept.jsonl"})
    assert settings.options == {"block": None, "dedupe": 1, "detail": 1}
    assert Settings.of(settings.as_json()) == settings


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ratio": 2}, r"ratio must be in \(0, 1\]"),
        ({"ratio": "1/8", "tokens": 4}, "exactly one of"),
        ({"tokens": 0}, "at least 1"),
        ({"coverage": 0.9}, "unknown setting 'coverage'"),
        ({"bloc": 32}, "unknown setting 'bloc': did you mean 'block'"),
        ({"method": "flok"}, "unknown method 'flok'"),
        ({"method": "pooling"}, "'pooling' merges tokens; take one of .*divprune.*floc"),
        ({"method": "longvu"}, "'longvu' keeps at least the first frame of every 8"),
        ({"method": "frame_uniform"}, "'frame_uniform' keeps at least one frame"),
        ("1/8", "must be settings such as"),
    ],
)
def test_what_is_wrong_with_settings_is_said(given: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings.of(given)


@pytest.mark.parametrize("given", [{"tokens": 512}, {"ratio": "1/4"}])
def test_a_rate_and_another_count_cannot_both_decide(given: dict) -> None:
    with pytest.raises(ValueError, match=r"--video-pruning-rate 0.875 keeps 1/8 of the tokens, and floc was told"):
        Settings.of(given).at_rate(0.875)


def test_a_rate_and_the_same_ratio_may_both_be_given() -> None:
    assert Settings.of({"ratio": 0.125}).at_rate(0.875).count(80) == 10


def test_a_record_is_a_path() -> None:
    with pytest.raises(TypeError, match="record must be the path of a file, got 5"):
        Settings.of({"ratio": "1/8", "record": 5})


def test_a_backend_that_is_none() -> None:
    with pytest.raises(ValueError, match="unknown backend 'fpga'"):
        Settings.of({"ratio": "1/8", "backend": "fpga"})


def test_salts_tell_settings_and_releases_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [{"ratio": "1/8"}, {"ratio": "1/4"}, {"tokens": 8}, {"ratio": "1/8", "method": "random"}]
    given += [{"ratio": "1/8", "block": 16}, {"ratio": "1/8", "block": 16, "detail": 1}]
    salts = [Settings.of(each).salt for each in given]
    assert len({*salts}) == len(salts)
    assert Settings.of({"detail": 1, "block": 16, "ratio": "1/8"}).salt == salts[-1]
    assert Settings.of({"ratio": "1/8", "record": "kept.jsonl"}).salt == salts[0]
    monkeypatch.setattr(floc, "__version__", "0.0")
    assert Settings.of(given[0]).salt != salts[0]
