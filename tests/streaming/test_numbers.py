"""Options of a stream of any type of number."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import floc
from examples.synthetic import make_tokens


@pytest.mark.parametrize("number", [np.float32, np.float16, np.longdouble, Fraction, int])
def test_any_type_of_number_can_be_saved(number: Any, tmp_path: Path) -> None:
    stream = floc.Stream(budget=10**400, block=4, half_life_s=number(5), dedupe=number(2), detail=number(3))
    for frame in make_tokens(12, 2, 2, dim=8, dtype=np.float32):
        stream.push(frame)
    stream.save(tmp_path / "state")
    assert floc.Stream.load(tmp_path / "state").settings == stream.settings
    assert stream.settings["half_life_s"] == 5.0
    assert len(stream.kept()) == 48


@pytest.mark.parametrize(
    "options",
    [
        *(dict(half_life_s=Fraction(1, 10**400)), dict(half_life_s=10**400), dict(dedupe=Decimal("sNaN"))),
        *(dict(dedupe=torch.ones(2)), dict(block=10**400), dict(metric=np.array(["a", "b"])), dict(detail=10**5000)),
    ],
)
def test_odd_numbers_are_refused_clearly(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))}.*; "):
        floc.Stream(budget=3, **options)
