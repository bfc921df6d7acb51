"""VisionZip compared with outputs of the published program and with its definition."""

from __future__ import annotations

import numpy as np
import pytest

import floc


@pytest.mark.parametrize("case", "abc")
def test_matches_published_program(read_golden, case: str) -> None:
    golden = read_golden(f"visionzip_{case}")
    options = {name: int(golden[name]) for name in ("dominant", "contextual")}
    options |= {"attn": golden["attn"], "metric": golden["metric"]}
    kept = floc.compress(golden["tokens"], method="visionzip", strict=True, **options)
    order = np.argsort(golden["position_index"], kind="stable")
    np.testing.assert_array_equal(kept.indices, golden["position_index"][order])
    scale = np.abs(golden["merged"]).max()
    np.testing.assert_allclose(kept.features, golden["merged"][order], atol=1e-5 * scale, rtol=0)
    assert "fallback" not in kept.settings


def merge_by_definition(x: np.ndarray, attn: np.ndarray, metric: np.ndarray, a: int, c: int) -> dict[int, np.ndarray]:
    """Merge one frame, [N, D], step by step."""
    dominant = sorted(np.argsort(-attn, kind="stable")[:a].tolist())
    rest = [i for i in range(len(x)) if i not in dominant]
    result = {i: x[i] for i in dominant}
    if not c:
        return result
    targets = rest[:: max(1, len(rest) // c)][:c]
    unit = metric / np.linalg.norm(metric, axis=1, keepdims=True)
    members: dict[int, list[int]] = {i: [] for i in targets}
    for i in rest:
        if i not in members:
            members[targets[int((unit[targets] @ unit[i]).argmax())]].append(i)
    return result | {i: (x[i] + x[m].mean(0)) / 2 if m else x[i] for i, m in members.items()}


@pytest.mark.parametrize(
    ("budget", "dominant", "contextual", "extra"),
    [(3, 0, 0, 3), (7, 0, 1, 2), (53, 8, 2, 3), (70, 12, 2, 0), (99, 16, 3, 4)],
)
def test_budget_matches_definition(budget: int, dominant: int, contextual: int, extra: int) -> None:
    rng = np.random.default_rng(budget)
    tokens, attn = rng.standard_normal((5, 4, 5, 6)).astype(np.float32), rng.random((5, 20))
    metric = rng.standard_normal((5, 20, 3))
    kept = floc.compress(tokens, method="visionzip", budget=budget, attn=attn, metric=metric)
    expected: dict[int, np.ndarray] = {}
    for t, x in enumerate(tokens.reshape(5, 20, 6)):
        frame = merge_by_definition(x, attn[t], metric[t], dominant + (t < extra), contextual)
        expected |= {20 * t + i: row for i, row in frame.items()}
    assert kept.indices.tolist() == sorted(expected)
    np.testing.assert_allclose(kept.features, [expected[i] for i in kept.indices.tolist()], atol=1e-5)
    assert [kept.settings[name] for name in ("dominant", "contextual", "extra_dominant")] == [
        dominant,
        contextual,
        extra,
    ]


def test_without_encoder_uses_the_tokens() -> None:
    tokens = np.random.default_rng(0).standard_normal((3, 4, 5, 6)).astype(np.float32)
    kept = floc.compress(tokens, method="visionzip", dominant=3, contextual=2)
    assert kept.settings["fallback"] == "products with the mean token as attn; the tokens as metric"
    x = tokens.reshape(3, 20, 6)
    attn = np.einsum("td,tpd->tp", x.mean(1), x)
    same = floc.compress(tokens, method="visionzip", dominant=3, contextual=2, attn=attn - attn.min(), metric=tokens)
    np.testing.assert_array_equal(same.indices, kept.indices)
    np.testing.assert_allclose(same.features, kept.features, atol=1e-6)


def test_small_frames_are_kept_whole() -> None:
    tokens = np.random.default_rng(0).standard_normal((3, 4, 5, 6)).astype(np.float32)
    np.testing.assert_array_equal(floc.compress(tokens, method="visionzip").features, tokens.reshape(60, 6))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attn": np.ones((4, 5))}, r"attn must be \[4, 6\]"),
        ({"metric": np.ones((4, 5, 2))}, r"metric must be \[4, 2, 3, C\] or \[4, 6, C\]"),
        ({"dominant": -1}, "dominant must be at least 0"),
        ({"dominant": 0, "contextual": 0}, "keeps no token"),
    ],
)
def test_rejects_invalid_options(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        floc.compress(np.ones((4, 2, 3, 5)), method="visionzip", **options)
