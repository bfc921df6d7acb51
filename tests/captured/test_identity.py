"""Identities of models: read from files, compared up to rounding."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from floc._checked_file import Fields
from floc.captured.identity import Identity
from floc.encoders import base

MODEL = Identity("qwen3_vl", "some/model", None, "0123456789abcdef", 64, [0.5, -1.0])


def test_from_fields_reads_what_was_written() -> None:
    assert Identity.from_fields(Fields(asdict(MODEL))) == MODEL
    for name, value in (("kind", 1), ("name", None), ("revision", 3), ("hidden_size", 0), ("weights", [float("nan")])):
        with pytest.raises(ValueError, match=f"{name}.* must be"):
            Identity.from_fields(Fields({**asdict(MODEL), name: value}))


def test_require_takes_the_same_model_in_another_precision() -> None:
    MODEL.require(replace(MODEL, name="a copy", weights=[0.502, -1.001]))
    MODEL.require(replace(MODEL, weights=[]))  # not in memory
    with pytest.raises(
        ValueError, match=r"captured for qwen3_vl 'some/model', .* but the model is .*; capture it again"
    ):
        MODEL.require(replace(MODEL, config="other"))
    with pytest.raises(ValueError, match="has other weights; capture it again"):
        MODEL.require(replace(MODEL, weights=[0.5, 1.0]))
    with pytest.raises(ValueError, match="has other weights"):
        MODEL.require(replace(MODEL, weights=[0.5]))


def test_from_encoder_without_a_language_model() -> None:
    identity = Identity.from_encoder(base.get("pixels"))
    assert (identity.kind, identity.name, identity.weights) == ("pixels", "pixels", [])
    assert identity.hidden_size > 0
