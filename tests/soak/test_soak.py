"""The soak tests at a small scale, and what they would detect. `make soak` runs hours."""

from __future__ import annotations

import sys

import numpy as np
import pytest

pytest.importorskip("av", reason="PyAV is not installed: pip install 'floc-video[video]'")
if sys.platform != "linux":
    pytest.skip("memory and open files are read from /proc", allow_module_level=True)

from tests.soak.soak import LIMIT_BYTES, Samples, run_soak


def make_samples(growth: float = 0.0, handles: int = 0) -> Samples:
    """Return 400 samples of a process whose memory and open files grow over its run, after a noisy warm-up."""
    rng = np.random.default_rng(0)
    progress = np.linspace(0, 1, 400)
    warm_up = np.minimum(progress * 8, 1) * 100e6
    resident = 300e6 + warm_up + growth * progress + rng.normal(0, 2e6, 400)
    open_files = (4 + handles * progress).astype(int)
    return Samples(progress.tolist(), resident.astype(int).tolist(), [5] * 400, open_files.tolist())


def test_flat_memory_is_no_defect() -> None:
    facts = make_samples().summarize()
    assert facts["defects"] == []
    assert abs(facts["growth_bytes"]) < LIMIT_BYTES / 10
    assert facts["start_bytes"] == pytest.approx(400e6, rel=0.01)


def test_detects_growth() -> None:
    assert make_samples(growth=2.0 * LIMIT_BYTES).summarize()["defects"] == ["memory grows by 38 MB"]
    assert make_samples(handles=8).summarize()["defects"] == ["the number of open files grows"]


@pytest.mark.slow  # `make soak` runs the whole of it
def test_small_run() -> None:
    document = run_soak(small=True, echo=lambda line: None)
    assert document["defects"] == []
    assert [row["what"] for row in document["rows"]] == ["`floc.compress`", "`floc.Stream.push`", "`floc stream`"]
    assert all(row["samples"] > 10 for row in document["rows"])
