"""Tests of the parsing of `--model_args`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import floc
from floc.integrations.lmms_eval.arguments import OWN, ModelArguments
from floc.integrations.lmms_eval.sampling import FrameSampling

ACCEPTED = ("pretrained", "device", "batch_size", "max_num_frames")


def parse(**given: Any) -> ModelArguments:
    return ModelArguments.parse(given, ACCEPTED)


def test_splits_arguments() -> None:
    arguments = parse(
        pretrained="some/model", ratio="1/8", method="floc", block=16, dedupe=1, max_frames=64, fps=0.5, device="cpu"
    )
    assert arguments.wrapped == {"pretrained": "some/model", "device": "cpu"}
    assert (arguments.recipe.ratio, arguments.recipe.budget, arguments.recipe.method) == ("1/8", None, "floc")
    assert arguments.recipe.options == {"block": 16, "dedupe": 1}
    assert arguments.sampling == FrameSampling(64, 0.5)
    assert arguments.positions == "keep"


def test_passes_model_arguments_on() -> None:
    arguments = parse(budget=100, max_num_frames=4)
    assert arguments.wrapped == {"max_num_frames": 4}
    assert not arguments.sampling.is_given


@pytest.mark.parametrize(
    ("text", "value"), [("none", None), ("None", None), ("scene", "scene"), (8, 8)], ids=["none", "None", "scene", "8"]
)
def test_converts_text_to_values(text: Any, value: Any) -> None:
    assert parse(ratio=1, block=text).recipe.options == {"block": value}


def test_accepts_options_in_the_method() -> None:
    assert parse(ratio=1, method="floc:detail=1", block=8).recipe.options == {"detail": 1, "block": 8}


@pytest.mark.parametrize("method", floc.methods.list_methods())
def test_accepts_options_of_every_method(method: str) -> None:
    names = [name for name in floc.methods.list_options(method) if name != "progress"]
    given = {name: floc.methods.get_defaults(method)[name] for name in names}
    arguments = parse(ratio="1/2", method=method, **given)
    assert arguments.recipe.options == given
    assert not set(names) & set(OWN), "a method option has the name of a model argument"


@pytest.mark.parametrize("ratio", ["1/8", 0.125])
def test_recipe_equals_compress(ratio: Any) -> None:
    tokens = torch.randn(6, 4, 4, 8)
    expected = floc.compress(tokens, ratio=1 / 8, block=2)
    assert parse(ratio=ratio, block=2).recipe(tokens).indices.tolist() == expected.indices.tolist()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "exactly one of ratio=, budget= and coverage="),
        ({"ratio": "1/8", "budget": 5}, "exactly one of"),
        ({"ratio": 8}, r"ratio must be in \(0, 1\]"),
        ({"ratio": "an eighth"}, "ratio must be a number such as 0.125"),
        ({"budget": 2.5}, "budget must be a whole number"),
        ({"ratio": 1, "method": "flok"}, "unknown method 'flok'; did you mean 'floc'"),
        ({"ratio": 1, "ratoi": 1}, "unknown model argument 'ratoi'; did you mean 'ratio'"),
        ({"ratio": 1, "method": "random", "block": 8}, "unknown model argument 'block'"),
        ({"ratio": 1, "progress": 1}, "unknown model argument 'progress'"),
        ({"ratio": 1, "max_frames": 0}, "max_frames must be a whole number"),
        ({"ratio": 1, "fps": "two"}, "fps must be a number above 0"),
        ({"ratio": 1, "block": "[0, 8]"}, "lists first frames, which fit only one video"),
    ],
)
def test_rejects_invalid_arguments(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(**given)
