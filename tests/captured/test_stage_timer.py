"""The seconds of the stages of a capture."""

from __future__ import annotations

import pytest
import torch

from floc.captured.pieces import StageTimer


def test_waiting_is_split_by_the_work_that_was_waited_for() -> None:
    timer = StageTimer(torch.device("cpu"))
    timer.seconds = {"wait": 2.0, "vision": 5.0}
    timer.split("wait", {"decode": 9.0, "preprocess": 3.0})
    assert timer.seconds == pytest.approx({"vision": 5.0, "decode": 1.5, "preprocess": 0.5})
    timer.split("wait", {"decode": 0.0})  # nobody waited
    assert timer.seconds["decode"] == pytest.approx(1.5)
