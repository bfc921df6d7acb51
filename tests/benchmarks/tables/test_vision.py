"""The table "vision": features are compared before they are timed."""

import pytest
import torch

from benchmarks.tables import vision


def test_vision_runs_small(run_small):
    document = run_small("vision")
    assert {(record["what"], record["chunk"]) for record in document["towers"]} == {
        (what, chunk) for what in (vision.BARE, vision.FAST) for chunk in vision.SMALL_CHUNKS
    }
    assert all(record["equal"] and record["seconds"] > 0 for record in document["towers"])
    table = vision._show(document)
    assert table.count("| fast vision |") == 4
    assert "waits" not in table  # of a GPU


def test_other_features_are_not_timed():
    features = torch.randn(4, 8)
    assert vision._compare(features, features)["equal"]
    with pytest.raises(AssertionError, match="has other features"):
        vision._compare(features, features.roll(1, 0))


def test_variants_are_undone():
    for name in vision.VARIANTS:
        before = [getattr(vision.fast_attention, key) for key in vision.VARIANTS[name]]
        with vision._vary(name):
            assert before != [getattr(vision.fast_attention, key) for key in vision.VARIANTS[name]]
        assert before == [getattr(vision.fast_attention, key) for key in vision.VARIANTS[name]]
