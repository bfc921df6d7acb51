"""What stands in `--model_args` goes where it belongs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import floc
from floc.integrations.lmms_eval.arguments import OWN, Arguments
from floc.integrations.lmms_eval.sampling import Sampling

ACCEPTED = ("pretrained", "device", "batch_size", "max_num_frames")


def sorted_out(**given: Any) -> Arguments:
    return Arguments.of(given, ACCEPTED)


def test_each_goes_where_it_belongs() -> None:
    found = sorted_out(
        pretrained="some/model", ratio="1/8", method="floc", block=16, dedupe=1, max_frames=64, fps=0.5, device="cpu"
    )
    assert found.wrapped == {"pretrained": "some/model", "device": "cpu"}
    assert (found.recipe.ratio, found.recipe.budget, found.recipe.method) == ("1/8", None, "floc")
    assert found.recipe.options == {"block": 16, "dedupe": 1}
    assert found.sampling == Sampling(64, 0.5)
    assert found.positions == "keep"


def test_a_model_keeps_its_own_names() -> None:
    found = sorted_out(budget=100, max_num_frames=4)
    assert found.wrapped == {"max_num_frames": 4}
    assert not found.sampling.is_given


@pytest.mark.parametrize(
    ("text", "value"), [("none", None), ("None", None), ("scene", "scene"), (8, 8)], ids=["none", "None", "scene", "8"]
)
def test_text_that_means_a_value_is_taken_for_it(text: Any, value: Any) -> None:
    assert sorted_out(ratio=1, block=text).recipe.options == {"block": value}


def test_options_may_stand_with_the_method() -> None:
    assert sorted_out(ratio=1, method="floc:detail=1", block=8).recipe.options == {"detail": 1, "block": 8}


@pytest.mark.parametrize("method", floc.methods.names())
def test_every_method_takes_its_options(method: str) -> None:
    names = [name for name in floc.methods.options(method) if name != "progress"]
    given = {name: floc.methods.defaults(method)[name] for name in names}
    found = sorted_out(ratio="1/2", method=method, **given)
    assert found.recipe.options == given
    assert not set(names) & set(OWN), "one name cannot mean two things"


@pytest.mark.parametrize("ratio", ["1/8", 0.125])
def test_it_keeps_what_compress_keeps(ratio: Any) -> None:
    tokens = torch.randn(6, 4, 4, 8)
    expected = floc.compress(tokens, ratio=1 / 8, block=2)
    assert sorted_out(ratio=ratio, block=2).recipe(tokens).indices.tolist() == expected.indices.tolist()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "exactly one of ratio=, budget= and coverage="),
        ({"ratio": "1/8", "budget": 5}, "exactly one of"),
        ({"ratio": 8}, r"ratio must be in \(0, 1\]"),
        ({"ratio": "an eighth"}, "ratio must be a number such as 0.125"),
        ({"budget": 2.5}, "budget must be a whole number"),
        ({"ratio": 1, "method": "flok"}, "unknown method 'flok': did you mean 'floc'"),
        ({"ratio": 1, "ratoi": 1}, "unknown model argument 'ratoi': did you mean 'ratio'"),
        ({"ratio": 1, "method": "random", "block": 8}, "unknown model argument 'block'"),
        ({"ratio": 1, "progress": 1}, "unknown model argument 'progress'"),
        ({"ratio": 1, "max_frames": 0}, "max_frames must be a whole number"),
        ({"ratio": 1, "fps": "two"}, "fps must be a number above 0"),
        ({"ratio": 1, "block": "[0, 8]"}, "first frames are those of one video"),
    ],
)
def test_what_is_wrong_is_said(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sorted_out(**given)
