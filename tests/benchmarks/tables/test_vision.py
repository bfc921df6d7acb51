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


def test_a_contender_that_fails_does_not_cost_the_others(run_small, monkeypatch):
    attend = vision.fast_attention.attend_windows

    def fail(module, query, *args, **kwargs):
        if query.shape[2] > 240:
            raise RuntimeError("no kernel image is available")
        return attend(module, query, *args, **kwargs)

    monkeypatch.setattr(vision.fast_attention, "_get_uncompiled_attention", lambda: fail)
    document = run_small("vision")
    assert {(record["what"], record["chunk"]) for record in document["towers"]} == {
        (vision.BARE, 1),
        (vision.FAST, 1),
        (vision.BARE, 4),
    }
    assert len(document["failed"]) == 2  # one for each tower
    assert "no kernel image is available" in vision._show(document)


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
