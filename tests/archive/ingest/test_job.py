"""The options of an ingest: what identifies a video, and what is refused."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

pytest.importorskip("lance", reason="Lance is not installed: pip install 'floc-video[store]'")

from floc.archive.ingest.job import IngestOptions


def test_equal_options_give_equal_dictionaries() -> None:
    options = IngestOptions("pixels", ratio="1/16", fps=2, method_options={"block": 8})
    assert options.as_dict() == IngestOptions("pixels", ratio="0.0625", fps=2.0, method_options={"block": 8}).as_dict()
    elsewhere = IngestOptions("pixels", "1/16", None, "floc", {"block": 8}, 2, device="cuda:1")
    assert options.as_dict() == elsewhere.as_dict()
    assert options.as_dict() != IngestOptions("pixels", ratio="1/8", fps=2, method_options={"block": 8}).as_dict()
    assert json.loads(json.dumps(options.as_dict())) == options.as_dict()
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ratio": "1/4", "coverage": 0.9},
        {"ratio": "2"},
        {"ratio": "1/4", "fps": 0},
        {"ratio": "1/4", "method": "none"},
        {"ratio": "1/4", "encoder": "odd"},
    ],
)
def test_rejects_invalid_options(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"ratio|fps|method|encoder"):
        IngestOptions(**{"encoder": "pixels", **options})
