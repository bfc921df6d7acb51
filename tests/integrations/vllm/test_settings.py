"""Tests of the plugin's settings."""

from __future__ import annotations

import math

import pytest

from floc.captured.recipe import Recipe
from floc.integrations.vllm.settings import Settings


@pytest.mark.parametrize("rate", [0.9, 0.875, 0.5, 2 / 3, 0.99])
@pytest.mark.parametrize("tokens", [1, 7, 1000, 4096])
def test_rate_keeps_the_complementary_ratio(rate: float, tokens: int) -> None:
    expected = max(1, math.floor(tokens * (1 - rate) + 0.5 + 1e-9))  # halves are rounded up
    assert Settings().with_rate(rate).count(tokens) == expected


@pytest.mark.parametrize("budget", [dict(ratio="1/8"), dict(ratio=0.3), dict(budget=64)])
def test_count_equals_recipe(budget: dict) -> None:
    recipe = Recipe(**budget)
    for tokens in (1, 63, 64, 65, 1000):
        assert Settings.from_dict(budget).count(tokens) == recipe.count(tokens) == recipe.count_so_far(tokens, tokens)


def test_other_keys_are_method_options() -> None:
    settings = Settings.from_dict({"ratio": "1/4", "block": None, "dedupe": 1, "detail": 1, "record": "kept.jsonl"})
    assert settings.options == {"block": None, "dedupe": 1, "detail": 1}
    assert Settings.from_dict(settings.to_dict()) == settings


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ratio": 2}, r"ratio must be in \(0, 1\]"),
        ({"ratio": "1/8", "budget": 4}, "exactly one of"),
        ({"budget": 0}, "at least 1"),
        ({"coverage": 0.9}, "unknown setting 'coverage'"),
        ({"bloc": 32}, "unknown setting 'bloc'; did you mean 'block'"),
        ({"method": "flok"}, "unknown method 'flok'"),
        ({"method": "pooling"}, "'pooling' merges tokens; use one of .*divprune.*floc"),
        ({"method": "longvu"}, "'longvu' keeps at least the first frame of every 8"),
        ({"method": "frame_uniform"}, "'frame_uniform' keeps at least one frame"),
        ({"ratio": "1/8", "backend": "fpga"}, "unknown backend 'fpga'"),
        ("1/8", "must be an object such as"),
    ],
)
def test_rejects_invalid_settings(given: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings.from_dict(given)


def test_rejects_record_that_is_no_path() -> None:
    with pytest.raises(TypeError, match="record must be a file path, got 5"):
        Settings.from_dict({"ratio": "1/8", "record": 5})


@pytest.mark.parametrize("stored", ["/data", 5, [5], [""], {"a": 1}])
def test_rejects_stored_that_is_no_list_of_folders(stored: object) -> None:
    with pytest.raises(TypeError, match="stored must be a list of folders, got"):
        Settings.from_dict({"ratio": "1/8", "stored": stored})


def test_stored_videos_need_pruning_in_vllm() -> None:
    """vLLM takes embeddings with positions only if its pruning rate is above 0."""
    assert Settings.from_dict({"ratio": 1}).rate == 0.5  # requests may ask for less
    assert Settings.from_dict({"ratio": 1, "stored": ["/data"]}).rate == 0.5
    assert Settings.from_dict({"ratio": "1/4", "stored": ["/data"]}).rate == 0.75
    settings = Settings.from_dict({"budget": 8, "stored": ["/data"]})
    assert Settings.from_dict(settings.to_dict()) == settings
    assert settings.salt == Settings.from_dict({"budget": 8}).salt


@pytest.mark.parametrize("given", [{"budget": 512}, {"ratio": "1/4"}])
def test_rejects_rate_that_contradicts_the_count(given: dict) -> None:
    with pytest.raises(ValueError, match=r"--video-pruning-rate 0.875 keeps 1/8 of the tokens, but floc has"):
        Settings.from_dict(given).with_rate(0.875)


def test_accepts_rate_that_equals_the_ratio() -> None:
    assert Settings.from_dict({"ratio": 0.125}).with_rate(0.875).count(80) == 10


def test_salt_differs_by_settings_and_version(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [{"ratio": "1/8"}, {"ratio": "1/4"}, {"budget": 8}, {"ratio": "1/8", "method": "random"}]
    given += [{"ratio": "1/8", "block": 16}, {"ratio": "1/8", "block": 16, "detail": 1}]
    salts = [Settings.from_dict(each).salt for each in given]
    assert len({*salts}) == len(salts)
    assert Settings.from_dict({"detail": 1, "block": 16, "ratio": "1/8"}).salt == salts[-1]
    assert Settings.from_dict({"ratio": "1/8", "record": "kept.jsonl"}).salt == salts[0]
    monkeypatch.setattr("floc._version.__version__", "0.0")
    assert Settings.from_dict(given[0]).salt != salts[0]


SETTINGS = Settings(ratio="1/8", images="1/2", options={"block": 16})


@pytest.mark.parametrize(
    ("given", "video", "image"),
    [
        (None, 125, 500),
        (False, 1000, 1000),
        ({"ratio": "1/16"}, 63, 500),
        ({"tokens": 40}, 40, 500),
        ({"budget": 40}, 40, 500),
        ({"images": "1/4"}, 125, 250),
        ({"images": None}, 125, 1000),
        ({"images": False, "ratio": 1}, 1000, 1000),
        ({"tokens": 40, "images": 0.1}, 40, 100),
    ],
)
def test_settings_of_a_request(given: object, video: int, image: int) -> None:
    settings = SETTINGS.for_request(given)
    assert (settings.count(1000), settings.count(1000, "image")) == (video, image)
    assert settings.options == SETTINGS.options
    assert Settings(budget=64).for_request({"ratio": "1/4"}).count(1000) == 250


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (True, r'give \{"floc": \{"ratio": "1/16"\}\}.*; got True'),
        ("1/8", "got '1/8'"),
        ([1], "got a list of 1 values"),
        ({}, "got an object of 0 values"),
        ({"ratio": None}, 'give {"floc": {"ratio"'),
        ({"ratio": 2}, r"ratio must be in \(0, 1\]"),
        ({"ratio": {}}, "ratio must be a number"),
        ({"ratio": float("nan")}, "ratio must be"),
        ({"tokens": 0}, "at least 1"),
        ({"tokens": "many"}, "budget must be"),
        ({"ratio": "1/8", "tokens": 4}, "exactly one of"),
        ({"budget": 4, "tokens": 4}, "the same setting; give one"),
        ({"images": 2}, r"images: ratio must be in \(0, 1\]"),
        ({"method": "random"}, "unknown setting of a request 'method'; choose one of: ratio, tokens, budget, images"),
        ({"record": "/etc/passwd"}, "unknown setting of a request 'record'"),
    ],
)
def test_rejects_settings_of_a_request(given: object, message: str) -> None:
    with pytest.raises(ValueError, match=f"floc in mm_processor_kwargs: .*{message}"):
        SETTINGS.for_request(given)


def test_salts_of_requests() -> None:
    given: list[object] = [None, False, {"ratio": "1/16"}, {"tokens": 64}, {"tokens": 65}]
    assert len({SETTINGS.for_request(each).salt for each in given}) == len(given)
    assert SETTINGS.for_request({"ratio": 0.125}).salt == SETTINGS.salt
    other_video = SETTINGS.for_request({"ratio": "1/16"})
    assert other_video.get_salt("image") == SETTINGS.get_salt("image") != SETTINGS.salt
    salts = {SETTINGS.for_request({"images": ratio}).get_salt("image") for ratio in ("1/4", 0.5, None)}
    assert len(salts) == 3
