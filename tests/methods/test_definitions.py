"""The methods of 2025 and 2026 compared with their definitions, over random shapes, inputs and parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import floc
from tests.methods import definitions


def make_video(rng: np.random.Generator, shape: tuple[int, int, int], dim: int) -> np.ndarray:
    """Make scenes that drift, with noise of another strength for every token: [T, H, W, D] float32."""
    t, h, w = shape
    scene = np.cumsum(rng.random(t) < 0.2)
    base = rng.standard_normal((t + 1, h, w, dim))[scene] + 2 * rng.standard_normal((t + 1, 1, 1, dim))[scene]
    drift = np.cumsum(0.1 * rng.standard_normal((t, h, w, dim)), axis=0)
    noise = rng.standard_normal((t, h, w, dim)) * 0.7 * rng.random((t, h, w, 1))
    return (base + drift + noise).astype(np.float32)


def draw_salience(rng: np.random.Generator, tokens: np.ndarray) -> np.ndarray | None:
    t, h, w, _ = tokens.shape
    salience = rng.random((t, h * w)).astype(np.float32) ** 2
    return None if rng.random() < 0.25 else salience / salience.sum(1, keepdims=True)


def draw_features(rng: np.random.Generator, tokens: np.ndarray) -> np.ndarray | None:
    t, h, w, _ = tokens.shape
    features = rng.standard_normal((t, h, w, int(rng.integers(2, 9)))).astype(np.float32)
    return [None, features, features.reshape(t, h * w, -1)][int(rng.integers(3))]


def assert_rows(kept: floc.Kept, expected: definitions.Rows) -> None:
    """Compare merged tokens; those at the same place in any order."""
    order = np.lexsort((kept.features[:, 0], kept.indices))
    assert kept.indices[order].tolist() == [index for index, _ in expected]
    rows = np.array([vector for _, vector in expected])
    np.testing.assert_allclose(kept.features[order], rows, rtol=0, atol=2e-6 * np.abs(rows).max())


def flat(tokens: np.ndarray) -> np.ndarray:
    return tokens.reshape(len(tokens), -1, tokens.shape[-1]).astype(np.float64)


def check_evs(rng: np.random.Generator, tokens: np.ndarray) -> None:
    rate = round(float(rng.random()), int(rng.integers(1, 4))) % 1
    kept = floc.compress(tokens, method="evs", pruning_rate=rate)
    assert kept.indices.tolist() == definitions.evs(flat(tokens), rate)


def check_dtd(rng: np.random.Generator, tokens: np.ndarray) -> None:
    t, h, w, _ = tokens.shape
    options: dict[str, Any] = {"threshold": float(rng.random()), "relative": bool(rng.random() < 0.5)}
    options["difference"] = rng.random((t, h * w)).astype(np.float32) if rng.random() < 0.5 else None
    kept = floc.compress(tokens, method="dtd", **options)
    assert kept.indices.tolist() == definitions.dtd(flat(tokens), **options)


def check_vidcom2(rng: np.random.Generator, tokens: np.ndarray) -> None:
    options: dict[str, Any] = {"base_scale": 1 - float(rng.random()), "variant": str(rng.choice(["official", "vllm"]))}
    kept = floc.compress(tokens, method="vidcom2", **options)
    assert kept.indices.tolist() == definitions.vidcom2(flat(tokens), **options)


def check_vcast(rng: np.random.Generator, tokens: np.ndarray) -> None:
    options: dict[str, Any] = {"retain_ratio": float(rng.random()), "min_k": int(rng.integers(0, 5))}
    options |= {"temperature": float(rng.choice([0.1, 0.7, 2.0])), "strict": bool(rng.random() < 0.5)}
    kept = floc.compress(tokens, method="vcast", **options)
    assert kept.indices.tolist() == definitions.vcast(flat(tokens), **options)


def check_flashvid(rng: np.random.Generator, tokens: np.ndarray) -> None:
    attn = draw_salience(rng, tokens)
    options: dict[str, Any] = {
        "retention_ratio": float(rng.uniform(0.02, 0.7)),
        "expansion": float(rng.choice([1.0, 1.25])),
        "alpha": float(rng.uniform(0.05, 1)),
        "token_selection_method": str(rng.choice(["attn_div_v2", "attn_div", "div", "attn"])),
        "temporal_threshold": float(rng.uniform(0.5, 0.99)),
        "segment_threshold": float(rng.uniform(0.8, 0.99)),
        "min_segment_num": int(rng.integers(1, 10)),
        "strict": bool(rng.random() < 0.5),
    }
    if rng.random() < 0.5:  # no weight is negative
        tokens = tokens + 3
    kept = floc.compress(tokens, method="flashvid", attn=attn, **options)
    assert_rows(kept, definitions.flashvid(flat(tokens), attn, **options))
    assert ("fallback" in kept.settings) == (attn is None)


def check_holitom(rng: np.random.Generator, tokens: np.ndarray) -> None:
    attn = draw_salience(rng, tokens)
    options: dict[str, Any] = {
        "retain_ratio": float(rng.uniform(0.05, 1)),
        "tau": float(rng.uniform(0.5, 0.98)),
        "beta": float(rng.random()),
        "k": int(rng.integers(1, 9)),
        "max_window_size": int(rng.choice([1, 2, 3, 5, 1024])),
        "contextual": float(rng.choice([0.0, 0.3, 0.5, 1.0])),
    }
    expected = definitions.holitom(flat(tokens), attn, **options)
    if not expected:
        with pytest.raises(ValueError, match="keeps no token"):
            floc.compress(tokens, method="holitom", attn=attn, **options)
        return
    kept = floc.compress(tokens, method="holitom", attn=attn, **options)
    assert_rows(kept, expected)
    assert ("fallback" in kept.settings) == (attn is None)


def check_mmtok(rng: np.random.Generator, tokens: np.ndarray) -> None:
    options: dict[str, Any] = {
        "alpha": float(rng.choice([0.1, 0.5, 2.0])),
        "text_temperature": float(rng.choice([0.01, 0.02, 0.15])),
        "vision_temperature": float(rng.choice([0.1, 0.2, 0.5])),
    }
    query = rng.standard_normal((int(rng.integers(0, 5)), tokens.shape[-1])).astype(np.float32)
    arrays = {"query": query, "vision_features": draw_features(rng, tokens)}
    k = int(rng.integers(1, tokens[..., 0].size + 1))
    kept = floc.compress(tokens, method="mmtok", budget=k, block=None, **arrays, **options)
    expected = definitions.mmtok(flat(tokens), query, arrays["vision_features"], k, **options)
    assert k == tokens[..., 0].size or kept.indices[kept.order].tolist() == expected


def check_cdpruner(rng: np.random.Generator, tokens: np.ndarray) -> None:
    t, h, w, _ = tokens.shape
    relevance = [None, rng.uniform(0.05, 1, (t, h, w)), rng.uniform(0.05, 1, (t, h * w))][int(rng.integers(3))]
    k = int(rng.integers(1, max(2, t * h * w)))
    kept = floc.compress(tokens, method="cdpruner", budget=k, relevance=relevance, block=None)
    assert kept.indices[kept.order].tolist() == definitions.cdpruner(flat(tokens), relevance, k)
    each = int(rng.integers(1, h * w + 1))
    kept = floc.compress(tokens, method="cdpruner", budget=t * each, relevance=relevance, per_frame=True)
    frames = relevance.reshape(t, -1) if relevance is not None else [None] * t
    picks = [definitions.cdpruner(flat(tokens)[i], frames[i], each) for i in range(t)]
    assert kept.indices.tolist() == sorted(i * h * w + p for i in range(t) for p in picks[i])


def check_scope(rng: np.random.Generator, tokens: np.ndarray) -> None:
    t, h, w, _ = tokens.shape
    attn, alpha = draw_salience(rng, tokens), float(rng.choice([0.0, 0.5, 1.0, 2.0]))
    k = int(rng.integers(1, max(2, t * h * w)))
    kept = floc.compress(tokens, method="scope", budget=k, attn=attn, alpha=alpha, block=None)
    assert kept.indices[kept.order].tolist() == definitions.scope(flat(tokens), attn, k, alpha)
    each = int(rng.integers(1, h * w + 1))
    kept = floc.compress(tokens, method="scope", budget=t * each, attn=attn, alpha=alpha, per_frame=True)
    frames = attn if attn is not None else [None] * t
    picks = [definitions.scope(flat(tokens)[i], frames[i], each, alpha) for i in range(t)]
    assert kept.indices.tolist() == sorted(i * h * w + p for i in range(t) for p in picks[i])


def check_visionzip(rng: np.random.Generator, tokens: np.ndarray) -> None:
    cells = tokens.shape[1] * tokens.shape[2]
    arrays = {"attn": draw_salience(rng, tokens), "metric": draw_features(rng, tokens)}
    dominant = int(rng.integers(0, cells + 1))
    options = {"dominant": dominant, "contextual": int(rng.integers(dominant == 0, cells - dominant + 1))}
    options["strict"] = bool(rng.random() < 0.5)
    kept = floc.compress(tokens, method="visionzip", **arrays, **options)
    assert_rows(kept, definitions.visionzip(flat(tokens), **arrays, **options))


def check_framefusion(rng: np.random.Generator, tokens: np.ndarray) -> None:
    options = {"cost": float(rng.uniform(1 / len(tokens), 1)), "similarity_lower_bound": float(rng.uniform(0.3, 0.99))}
    kept = floc.compress(tokens, method="framefusion", **options)
    assert_rows(kept, definitions.framefusion(flat(tokens), **options))


CHECKS: list[Callable[[np.random.Generator, np.ndarray], None]] = [
    value for name, value in sorted(globals().items()) if name.startswith("check_")
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@settings(derandomize=True, deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.tuples(st.integers(1, 9), st.integers(1, 4), st.integers(1, 5)),
    dim=st.integers(4, 24),
)
def test_matches_definition(check: Callable, seed: int, shape: tuple[int, int, int], dim: int) -> None:
    rng = np.random.default_rng(seed)
    check(rng, make_video(rng, shape, dim))


def test_every_method_of_the_description_is_checked() -> None:
    names = {"evs", "dtd", "vidcom2", "vcast", "flashvid", "holitom", "mmtok", "cdpruner", "scope", "visionzip"}
    assert {check.__name__.removeprefix("check_") for check in CHECKS} == names | {"framefusion"}
