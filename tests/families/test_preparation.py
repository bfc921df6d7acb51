"""Records of what a processor did, as files of strangers have them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from floc.families.preparation import Preparation
from floc.video.choice import VideoFacts


def create_values() -> dict[str, Any]:
    facts = VideoFacts(40, 25.0, 64, 48)
    record = Preparation("AVideoProcessor", {"patch_size": 14}, facts, np.array([0, 0, 5, 39]), [28, 56], 2.0)
    return json.loads(json.dumps(record.as_dict()))


def test_a_record_survives_json() -> None:
    record = Preparation.from_dict(create_values())
    assert record.as_dict() == create_values()
    assert record.facts == VideoFacts(40, 25.0, 64, 48)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("indices", []),
        ("indices", [3, 2]),
        ("indices", [40]),
        ("indices", [-1]),
        ("indices", [1.0]),
        ("indices", [True]),
        ("indices", [10**30]),
        ("indices", "0"),
        ("indices", {}),
        ("video", [40, 0, 64, 48]),
        ("video", [40, float("inf"), 64, 48]),
        ("video", [40, 25.0, 1 << 20, 1 << 20]),
        ("video", [0, 25.0, 64, 48]),
        ("video", [40, 25.0]),
        ("size", [0, 56]),
        ("size", [1 << 20, 1 << 20]),
        ("fps", float("nan")),
        ("fps", -1),
        ("taken", 0),
        ("taken", 1.5),
        ("processor", 3),
        ("settings", []),
    ],
)
def test_rejects_damaged_records(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match="preparation"):
        Preparation.from_dict({**create_values(), name: value})


def test_another_preparation_is_named() -> None:
    record = Preparation.from_dict(create_values())
    record.require_same("AVideoProcessor", {"patch_size": 14, "new": 1})
    with pytest.raises(ValueError, match="by 'AVideoProcessor', but this is Other"):
        record.require_same("Other", {})
    with pytest.raises(ValueError, match="with patch_size 14, but this processor has 16"):
        record.require_same("AVideoProcessor", {"patch_size": 16})
