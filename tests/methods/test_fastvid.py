"""FastVID compared with outputs of the published programs and with its definition."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch

import floc
from examples.synthetic import make_tokens
from floc.methods import fastvid
from floc.methods.shared import frames

VARIANTS = {"onevision": "", "llava-video": "lv_"}
both_variants = pytest.mark.parametrize("variant", VARIANTS)


class Expected(NamedTuple):
    features: dict[int, np.ndarray]  # by flat index
    represents: dict[int, int]  # flat index of an absorbed token to that of its most similar anchor
    salient: list[int]  # tokens of each frame
    anchors: list[int]


def rank_peaks(x: np.ndarray) -> list[int]:
    """Rank points by density times distance to a denser point, descending."""
    d = np.sqrt(((x[:, None] - x[None]) ** 2).mean(-1))
    rho = np.exp(-np.sort(d**2, 1)[:, :4].mean(1))
    m = len(x)
    score = [
        rho[i] * min((d[i, j] for j in range(m) if (-rho[j], j) < (-rho[i], i)), default=d.max()) for i in range(m)
    ]
    return sorted(range(m), key=lambda i: (-score[i], i))


def merge_by_definition(
    tokens: np.ndarray,
    variant: str,
    quota: int,
    attn: np.ndarray | None = None,
    frame_global: np.ndarray | None = None,
    dyseg_c: int = 8,
    dyseg_tau: float = 0.9,
    stprune_d: float = 0.4,
    dtm_p: int = 4,
    dtm_beta: float = 0.6,
    shared: bool | None = None,
    extra: int = 0,
) -> Expected:
    """Merge step by step as defined; `shared` selects the quotas of "llava-video"."""
    t, n = tokens.shape[0], tokens.shape[1] * tokens.shape[2]
    x = tokens.reshape(t, n, -1).astype(np.float64)
    shared = variant == "llava-video" if shared is None else shared
    if attn is None:
        logits = np.einsum("tnd,td->tn", x, x.mean(1)) / math.sqrt(x.shape[-1])
        attn = np.exp(logits - logits.max(1, keepdims=True))
    g = x.mean(1) if frame_global is None else frame_global.astype(np.float64)
    s = [g[i] @ g[i + 1] / max(np.linalg.norm(g[i]) * np.linalg.norm(g[i + 1]), 1e-12) for i in range(t - 1)]
    cuts = set(sorted(range(t - 1), key=lambda i: (s[i], i))[: dyseg_c - 1]) | {
        i for i in range(t - 1) if s[i] < dyseg_tau
    }
    ends = [*sorted(cuts), t - 1]
    context = int(quota * stprune_d)
    features, represents, all_salient, all_anchors = {}, {}, [], []
    start = 0
    for end in ends:
        frames = list(range(start, end + 1))
        length = len(frames)
        anchor_frames = sorted(range(end, start - 1, -dtm_p))
        f = len(anchor_frames)
        if shared:
            total = int(quota * length * stprune_d)
            salient = [(quota * length - total) // length] * length
            for i in range((quota * length - total) % length):
                salient[i] += 1
            wanted = [total // f + (i >= f - total % f) for i in range(f)]
        else:
            salient = [quota - context] * length
            wanted = [context * length // f] * f
        salient = [count + (frame < extra) for frame, count in zip(frames, salient, strict=True)]
        got = [min(count, n - salient[frame - start]) for frame, count in zip(anchor_frames, wanted, strict=True)]
        excess = sum(wanted) - sum(got)
        while excess:
            for i, frame in enumerate(frames):
                full = salient[i] + (got[anchor_frames.index(frame)] if frame in anchor_frames else 0) == n
                if excess and not full:
                    salient[i] += 1
                    excess -= 1
        tops = {
            frame: sorted(range(n), key=lambda p, a=attn[frame]: (-a[p], p))[:k]
            for frame, k in zip(frames, salient, strict=True)
        }
        rest = {frame: [p for p in range(n) if p not in tops[frame]] for frame in frames}
        for frame in frames:
            features |= {frame * n + p: x[frame, p] for p in tops[frame]}
        closest: dict[int, float] = {}
        for frame, k, asked in zip(anchor_frames, got, wanted, strict=True):
            if not k:
                continue
            anchors = sorted(rest[frame][i] for i in rank_peaks(x[frame, rest[frame]])[:k])
            own = variant == "onevision" and (asked == context or f == length)
            pool = [(u, p) for u in ([frame] if own else frames) for p in rest[u]]
            if variant == "llava-video":
                pool = [(u, p) for u, p in pool if u != frame or p not in anchors]
            absorbed: dict[int, list[np.ndarray]] = {p: [] for p in anchors}
            for u, p in pool:
                cosine = [
                    x[u, p] @ x[frame, a] / max(np.linalg.norm(x[u, p]) * np.linalg.norm(x[frame, a]), 1e-12)
                    for a in anchors
                ]
                best = int(np.argmax(cosine))
                absorbed[anchors[best]].append(x[u, p])
                if cosine[best] > closest.get(u * n + p, -np.inf):
                    closest[u * n + p] = cosine[best]
                    represents[u * n + p] = frame * n + anchors[best]
            for a in anchors:
                v, q = x[frame, a], len(absorbed[a])
                w = max(dtm_beta, 1 / (q + 1))
                features[frame * n + a] = w * v + (1 - w) * np.mean(absorbed[a], 0) if q else v
        all_salient += salient
        all_anchors += [got[anchor_frames.index(u)] if u in anchor_frames else 0 for u in frames]
        start = end + 1
    return Expected(features, represents, all_salient, all_anchors)


def assert_matches(kept: floc.Kept, expected: Expected) -> None:
    indices = sorted(expected.features)
    assert kept.indices.tolist() == indices
    np.testing.assert_allclose(kept.features, [expected.features[i] for i in indices], atol=1e-5)
    assert (kept.represents[kept.indices] == np.arange(len(kept))).all()
    for token, anchor in expected.represents.items():
        if token not in expected.features:
            assert indices[kept.represents[token]] == anchor


@both_variants
@pytest.mark.parametrize("case", "abc")
def test_matches_published_program(read_golden, case: str, variant: str) -> None:
    golden = read_golden(f"fastvid_{case}")
    options = {name: golden[name].item() for name in ("dyseg_c", "dyseg_tau", "stprune_d", "dtm_p", "dtm_beta")}
    options |= {name: golden[name] for name in ("attn", "frame_global")}
    ratio = golden["retention_ratio"].item()
    kept = floc.compress(golden["tokens"], method="fastvid", variant=variant, retention_ratio=ratio, **options)
    np.testing.assert_array_equal(kept.indices, golden[VARIANTS[variant] + "position_index"])
    np.testing.assert_allclose(kept.features, golden[VARIANTS[variant] + "merged"], atol=1e-5)
    assert kept.settings["attn"] == f"array {golden['attn'].shape}"
    expected = merge_by_definition(golden["tokens"], variant, int(golden["attn"].shape[1] * ratio), **options)
    assert_matches(kept, expected)
    if variant == "onevision":
        assert expected.anchors == golden["context_per_frame"].tolist()
        assert set(golden["salient_index"]) <= set(kept.indices)


@both_variants
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((1, 1, 2), {"retention_ratio": 0.5}),
        ((1, 5, 7), {"retention_ratio": 0.3}),
        ((3, 4, 5), {"retention_ratio": 0.25}),  # fewer frames than segments
        ((23, 3, 5), {"retention_ratio": 0.2, "dyseg_c": 2, "dyseg_tau": 0.5}),
        ((23, 3, 5), {"retention_ratio": 0.34, "dyseg_c": 1, "dyseg_tau": -1, "dtm_p": 1}),
        ((23, 3, 5), {"retention_ratio": 0.2, "dyseg_c": 5, "dyseg_tau": -1, "dtm_p": 2}),  # one anchor per frame
        ((11, 2, 6), {"retention_ratio": 0.1, "dyseg_c": 2}),  # no anchors
        ((14, 5, 4), {"retention_ratio": 0.4, "stprune_d": 1.0, "dyseg_c": 3, "dtm_beta": 0.2}),
        ((14, 5, 4), {"retention_ratio": 0.4, "stprune_d": 0.0, "dyseg_c": 3}),
        ((17, 4, 4), {"retention_ratio": 0.7, "dyseg_c": 2, "dyseg_tau": -1}),  # more anchors than fit
        ((17, 4, 4), {"retention_ratio": 0.9, "dyseg_c": 1, "dyseg_tau": -1, "stprune_d": 0.7, "dtm_p": 3}),
    ],
)
@pytest.mark.parametrize("cache", [1 << 23, 3000])
def test_matches_definition(
    shape: tuple[int, int, int], options: dict, cache: int, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "CPU_BYTES", cache)  # one tile or many
    tokens = make_tokens(*shape, dim=24, seed=sum(shape), scenes=2, shot_frames=6, dtype=np.float32)
    kept = floc.compress(tokens, method="fastvid", variant=variant, **options)
    quota = int(shape[1] * shape[2] * options["retention_ratio"])
    others = {name: value for name, value in options.items() if name != "retention_ratio"}
    assert_matches(kept, merge_by_definition(tokens, variant, quota, **others))


@both_variants
@pytest.mark.parametrize("options", [{"dyseg_c": 4}, {"dyseg_c": 2, "dyseg_tau": -1, "dtm_p": 1}])
@pytest.mark.parametrize("budget", [1, 5, 19, 20, 41, 100, 133, 240, 299, 300])
def test_meets_any_budget_exactly(budget: int, options: dict, variant: str) -> None:
    tokens = make_tokens(20, 3, 5, dim=24, seed=8, scenes=2, shot_frames=6, dtype=np.float32)
    kept = floc.compress(tokens, budget=budget, method="fastvid", variant=variant, **options)
    assert len(kept) == budget
    if budget == 300:
        np.testing.assert_array_equal(kept.features, tokens.reshape(300, -1))
        return
    quota, extra = divmod(budget, 20)
    assert_matches(kept, merge_by_definition(tokens, variant, quota, **options, shared=True, extra=extra))
    assert kept.settings["extra_salient"] == extra
    ratio = kept.settings["retention_ratio"]
    assert int(15 * ratio) == quota
    if variant == "llava-video" and quota and not extra:
        native = floc.compress(tokens, method="fastvid", variant=variant, retention_ratio=ratio, **options)
        np.testing.assert_array_equal(native.indices, kept.indices)
        np.testing.assert_array_equal(native.features, kept.features)


@pytest.mark.parametrize("cells", [1, 7, 22, 49])
def test_reported_ratio_reproduces_the_quota(cells: int) -> None:
    tokens = np.ones((1, 1, cells, 2))
    for budget in range(1, cells):
        kept = floc.compress(tokens, budget=budget, method="fastvid", stprune_d=0.0)
        assert int(cells * kept.settings["retention_ratio"]) == budget


def test_unabsorbed_tokens_are_represented_by_most_similar_kept_token() -> None:
    tokens = make_tokens(20, 3, 5, dim=24, seed=8, scenes=2, shot_frames=6, dtype=np.float32)
    kept = floc.compress(tokens, budget=47, method="fastvid")  # short segments have no anchors
    expected = merge_by_definition(tokens, "onevision", 2, shared=True, extra=7)
    unabsorbed = [i for i in range(300) if i not in expected.represents and i not in expected.features]
    assert unabsorbed
    assert expected.represents
    rows, kept_rows = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (tokens.reshape(300, -1), kept.features))
    np.testing.assert_array_equal(kept.represents[unabsorbed], (rows[unabsorbed] @ kept_rows.T).argmax(1))


def test_accepts_attention_and_frame_vectors_as_any_array() -> None:
    tokens = make_tokens(12, 3, 4, dim=24, seed=2, dtype=np.float32)
    rng = np.random.default_rng(0)
    attn, vectors = rng.random((12, 12)), rng.standard_normal((12, 7))
    expected = merge_by_definition(tokens, "onevision", 6, attn=attn, frame_global=vectors)
    for kind in (np.asarray, torch.from_numpy, lambda array: torch.from_numpy(array).float().T.contiguous().T):
        kept = floc.compress(tokens, method="fastvid", retention_ratio=0.5, attn=kind(attn), frame_global=kind(vectors))
        assert_matches(kept, expected)
    without = floc.compress(tokens, method="fastvid", retention_ratio=0.5)
    assert without.indices.tolist() != kept.indices.tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attn": np.ones((4, 5))}, r"attn must be \[4, 6\].*got \(4, 5\)"),
        ({"attn": np.ones((4, 2, 3))}, r"attn must be \[4, 6\]"),
        ({"attn": [[1.0] * 6] * 4}, "attn must be a torch tensor or a numpy array, got list"),
        ({"attn": np.full((4, 6), np.nan)}, "attn must be finite"),
        ({"frame_global": np.ones((3, 9))}, r"frame_global must be \[4, C\].*got \(3, 9\)"),
        ({"frame_global": torch.ones(4)}, r"frame_global must be \[4, C\]"),
        ({"frame_global": np.full((4, 2), np.inf)}, "frame_global must be finite"),
        ({"variant": "qwen"}, "unknown variant 'qwen'"),
        ({"stprune_d": 1.5}, "stprune_d must be in"),
        ({"dtm_p": 0}, "dtm_p must be at least 1"),
        ({"retention_ratio": 0.1}, "less than one of the 6 tokens"),
    ],
)
def test_rejects_invalid_options(options: dict, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        floc.compress(np.ones((4, 2, 3, 5)), method="fastvid", **{"retention_ratio": 0.5, **options})


def test_rejects_budget_together_with_retention_ratio() -> None:
    with pytest.raises(ValueError, match="retention_ratio"):
        floc.compress(np.ones((4, 2, 2, 3)), method="fastvid", budget=8, retention_ratio=0.5)


@both_variants
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_and_strides(dtype: torch.dtype, variant: str) -> None:
    tokens = torch.from_numpy(make_tokens(14, 4, 6, dim=16, seed=5, dtype=np.float32)).to(dtype)
    kept = floc.compress(tokens, budget=90, method="fastvid", variant=variant)
    assert kept.features.dtype == dtype
    exact = floc.compress(tokens.float(), budget=90, method="fastvid", variant=variant)
    assert kept.indices.tolist() == exact.indices.tolist()
    tolerance = 1e-5 if dtype == torch.float64 else 2e-2
    torch.testing.assert_close(kept.features, exact.features.to(dtype), atol=tolerance, rtol=0)
    strided = tokens.permute(3, 0, 2, 1).contiguous().permute(1, 3, 2, 0)
    again = floc.compress(strided, budget=90, method="fastvid", variant=variant)
    torch.testing.assert_close(again.features, kept.features)


@both_variants
def test_first_of_equal_anchors_absorbs(variant: str) -> None:
    which = np.random.default_rng(3).integers(0, 5, (10, 3, 4))
    tokens = np.eye(8, dtype=np.float32)[which]  # all products are exact
    attn = np.random.default_rng(4).random((10, 12))
    kept = floc.compress(tokens, method="fastvid", variant=variant, retention_ratio=0.6, attn=attn, dyseg_c=3)
    assert_matches(kept, merge_by_definition(tokens, variant, 7, attn=attn, dyseg_c=3))


@both_variants
@pytest.mark.parametrize("value", [0.0, 1.5])
@pytest.mark.parametrize("shape", [(1, 1, 1), (8, 1, 1), (9, 4, 5)])
def test_equal_and_zero_tokens(value: float, shape: tuple[int, int, int], variant: str) -> None:
    tokens = np.full((*shape, 8), value, np.float32)
    for budget in {1, np.prod(shape) // 2 or 1, np.prod(shape)}:
        kept = floc.compress(tokens, budget=int(budget), method="fastvid", variant=variant)
        assert len(kept) == budget
        np.testing.assert_allclose(kept.features, value)


def test_quota_of_whole_frames_keeps_everything() -> None:
    tokens = make_tokens(9, 2, 3, dim=8, dtype=np.float32)
    kept = floc.compress(tokens, method="fastvid", retention_ratio=1.0)
    np.testing.assert_array_equal(kept.features, tokens.reshape(54, 8))


def test_tiling_of_segments_does_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = make_tokens(40, 2, 4, dim=16, seed=4, scenes=3, shot_frames=5, dtype=np.float32)
    expected = floc.compress(tokens, budget=100, method="fastvid")
    for tile_frames in (1, 3, 40):
        monkeypatch.setattr(fastvid, "TILE_FRAMES", tile_frames)
        kept = floc.compress(tokens, budget=100, method="fastvid")
        np.testing.assert_array_equal(kept.represents, expected.represents)
        np.testing.assert_allclose(kept.features, expected.features, atol=1e-6)
