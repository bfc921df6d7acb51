"""VidCom2 compared with outputs of the published program, of vLLM, and with its definition."""

from __future__ import annotations

import numpy as np
import pytest

import floc
from floc.methods import vidcom2
from floc.tokens import TokenGrid


@pytest.mark.parametrize("case", "abc")
@pytest.mark.parametrize("prefix", ["", "high_"])
def test_matches_published_program(read_golden, case: str, prefix: str) -> None:
    golden = read_golden(f"vidcom2_{case}")
    kept = floc.compress(golden["tokens"], method="vidcom2", base_scale=float(golden[f"{prefix}base_scale"]))
    np.testing.assert_array_equal(kept.indices, golden[f"{prefix}kept"])
    exact = golden[f"vllm_{prefix}kept"]
    scale = 1 - float(golden[f"vllm_{prefix}pruning_rate"])
    for options in ({"variant": "vllm", "base_scale": scale}, {"budget": len(exact)}):
        kept = floc.compress(golden["tokens"], method="vidcom2", **options)
        np.testing.assert_array_equal(kept.indices, exact)


@pytest.mark.parametrize("case", "abc")
def test_steps_match_published_program(read_golden, case: str) -> None:
    golden = read_golden(f"vidcom2_{case}")
    grid = TokenGrid.from_array(golden["tokens"])
    np.testing.assert_array_equal(vidcom2._find_steady_channels(grid), golden["low_variance_channels"])
    for scores, name in zip(vidcom2._compare_with_means(grid), ("video_score", "frame_score"), strict=True):
        np.testing.assert_allclose(scores, golden[name], rtol=1e-5)


def test_one_unusual_frame_gets_more() -> None:
    rng = np.random.default_rng(0)
    tokens = (rng.standard_normal(16) * 3 + rng.standard_normal((8, 4, 4, 16))).astype(np.float32)
    tokens[5] = rng.standard_normal((4, 4, 16)) * 3
    kept = floc.compress(tokens, method="vidcom2", base_scale=0.25)
    counts = np.bincount(kept.positions[:, 0], minlength=8)
    assert counts.argmax() == 5
    assert counts[5] == round(16 * 0.25 * (2 - 1 / 8))
    assert set(np.delete(counts, 5)) == {round(16 * 0.25 * (1 - 1 / 8))}


def test_small_budgets_leave_frames_empty(tokens: np.ndarray) -> None:
    kept = floc.compress(tokens, method="vidcom2", budget=30)
    assert len(kept) == 30
    least = floc.compress(tokens, method="vidcom2", variant="vllm", base_scale=0.001)
    assert np.bincount(least.positions[:, 0], minlength=70).tolist() == [1] * 70


@pytest.mark.parametrize(
    ("options", "message"), [({"variant": "qwen"}, "unknown variant"), ({"base_scale": 0}, "base_scale must be in")]
)
def test_rejects_invalid_options(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        floc.compress(np.ones((4, 2, 3, 5)), method="vidcom2", **options)
