"""Similarity matrices and tokens that tests of selection share."""

from __future__ import annotations

import numpy as np

from examples.synthetic import make_tokens
from floc.selection.objective import SCALE

KINDS = ["plain", "centred", "duplicates", "all equal", "ties", "opposite", "zeros"]


def snap(similarity: np.ndarray) -> np.ndarray:
    """Convert similarities in [-1, 1] to int16 fixed point, rounding to nearest and halves to even."""
    return np.rint(np.clip(similarity, -1, 1) * SCALE).astype(np.int16)


def value(similarity: np.ndarray, picks: np.ndarray) -> int:
    """Compute f(picks) in fixed point, directly from the definition."""
    return int(similarity[picks].max(0).astype(np.int64).sum()) if len(picks) else 0


def normalize(tokens: np.ndarray) -> np.ndarray:
    """[n, D] float64 rows of length 1; a zero row stays zero."""
    tokens = tokens.astype(np.float64)
    return tokens / np.maximum(np.linalg.norm(tokens, axis=1, keepdims=True), 1e-300)


def cosine_matrix(tokens: np.ndarray) -> np.ndarray:
    """[n, n] int16 cosines of [n, D] tokens."""
    unit = tokens / np.maximum(np.linalg.norm(tokens, axis=1, keepdims=True), 1e-12)
    return snap(unit @ unit.T)


def make_matrix(kind: str, n: int, seed: int) -> np.ndarray:
    """[n, n] int16 similarities of a kind that is hard for greedy; all but "ties" are symmetric."""
    rng = np.random.default_rng(seed)
    tokens = rng.standard_normal((n, 6)) + 1
    if kind == "centred":
        tokens -= tokens.mean(0)
    elif kind == "duplicates":
        tokens = tokens[rng.integers(0, max(1, n // 4), n)]
    elif kind == "all equal":
        tokens[:] = tokens[0]
    elif kind == "ties":
        return rng.integers(-2, 3, (n, n)).astype(np.int16)
    elif kind == "opposite":
        tokens = np.concatenate([tokens, -tokens])[:n]
    elif kind == "zeros":
        tokens[rng.integers(0, n, n // 2)] = 0
    return cosine_matrix(tokens)


def make_random_matrix(rng: np.random.Generator, kind: int, m: int, n: int) -> np.ndarray:
    """[m, n] int16 of kind 0 to 7: ties, extremes, centred, duplicates, all equal, zeros, near-duplicates, plain."""
    if kind == 0:
        return rng.integers(-2, 3, (m, n)).astype(np.int16)
    if kind == 1:
        return rng.choice(np.array([-32768, -16384, 0, 16384, 32767], np.int16), (m, n))
    d = int(rng.integers(1, 12))
    tokens = rng.standard_normal((m + n, d))
    if kind == 2:
        tokens -= tokens.mean(0)
    elif kind == 3:
        tokens = tokens[rng.integers(0, 1 + (m + n) // 5, m + n)]
    elif kind == 4:
        tokens[:] = tokens[0]
    elif kind == 5:
        tokens[rng.uniform(size=m + n) < 0.4] = 0
    elif kind == 6:
        tokens = 5 + 0.01 * tokens
    unit = tokens / np.maximum(np.linalg.norm(tokens, axis=1, keepdims=True), 1e-12)
    return np.rint(16384 * (unit[:m] @ unit[m:].T)).astype(np.int16)


def make_video_tokens(n: int, dim: int = 40, seed: int = 0) -> np.ndarray:
    """[n, dim] float32 tokens of a synthetic video, one token per frame."""
    return make_tokens(n, 1, 1, dim=dim, seed=seed, shot_frames=9, dtype=np.float32).reshape(n, dim)


def sharpen(s: np.ndarray, detail: float) -> np.ndarray:
    """Apply `detail` to similarities: an eighth of them stays as it is."""
    gap = 1 - np.clip(s, 0, 1)
    return s if detail == 1 else 1 - gap / 8 - gap**detail * 7 / 8
