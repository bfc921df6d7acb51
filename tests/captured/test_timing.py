"""Seconds by stage."""

from __future__ import annotations

import time

import pytest
import torch

from floc.captured.pieces import StageTimer


def test_stages_add_up_even_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    timer = StageTimer(torch.device("cpu"))
    with timer.measure("decode"):
        pass
    with pytest.raises(KeyError), timer.measure("decode"):
        raise KeyError
    assert timer.seconds == {"decode": 2}


def test_measure_items_counts_the_time_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    timer = StageTimer(torch.device("cpu"))
    for item in timer.measure_items("decode", "abc"):
        assert item in "abc"
        time.perf_counter()  # time spent on the item
    assert timer.seconds == {"decode": 4}  # three items and the end
