"""Every backend against the plain greedy, and the plain greedy against brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import floc
from floc.selection import reference
from floc.selection.cpu import greedy
from floc.selection.objective import SCALE, snap, value

BACKENDS = ["reference", "cpu", "torch"]
FAST = ["cpu", "torch"]


def cosines(tokens: np.ndarray) -> np.ndarray:
    unit = tokens / np.maximum(np.linalg.norm(tokens, axis=1, keepdims=True), 1e-12)
    return snap(unit @ unit.T)


def case(kind: str, n: int, seed: int) -> np.ndarray:
    """[n, n] similarities of the kinds that break selections."""
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
    return cosines(tokens)


KINDS = ["plain", "centred", "duplicates", "all equal", "ties", "opposite", "zeros"]


def assert_same(got: floc.Selection, want: tuple[np.ndarray, np.ndarray]) -> None:
    np.testing.assert_array_equal(np.asarray(got.picks), want[0])
    np.testing.assert_array_equal(np.asarray(got.gains), want[1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_plain_greedy_takes_the_best_next_candidate(kind: str, seed: int) -> None:
    similarity = case(kind, 9, seed)
    picks, gains = reference.greedy(similarity, 9)
    for i in range(9):
        values = {u: value(similarity, np.append(picks[:i], u)) for u in range(9) if u not in picks[:i]}
        best = max(values.values())
        assert picks[i] == min(u for u, v in values.items() if v == best)
        assert gains[i] == best - value(similarity, picks[:i])


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_greedy_is_within_its_guarantee_of_the_best_set(k: int) -> None:
    for seed in range(20):
        similarity = np.abs(case("plain", 9, seed))  # the guarantee is for similarities that are not negative
        best = max(value(similarity, np.array(s)) for s in itertools.combinations(range(9), k))
        picks, gains = reference.greedy(similarity, k)
        assert gains.sum() == value(similarity, picks)
        assert gains.sum() >= (1 - 1 / np.e) * best


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 3, 17, 63, 64, 65, 257])
def test_backends_equal_the_reference(backend: str, kind: str, n: int) -> None:
    similarity = case(kind, n, seed=n)
    for k in sorted({1, max(1, n // 8), n // 2 or 1, n}):
        assert_same(floc.select(similarity, k, backend=backend), reference.greedy(similarity, k))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_backends_equal_the_reference_on_anything(data: st.DataObject) -> None:
    m, n = data.draw(st.integers(1, 24)), data.draw(st.integers(1, 24))
    seed = data.draw(st.integers(0, 2**32 - 1))
    spread = data.draw(st.sampled_from([1, 3, SCALE]))
    weighted = data.draw(st.booleans())
    k = data.draw(st.integers(1, m))
    rng = np.random.default_rng(seed)
    similarity = rng.integers(-spread, spread + 1, (m, n)).astype(np.int16)
    weights = rng.integers(0, 9, n) if weighted else None
    want = reference.greedy(similarity, k, weights)
    for backend in FAST:
        assert_same(floc.select(similarity, k, weights, backend=backend), want)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(KINDS), n=st.integers(2, 30))
def test_value_never_falls_gains_never_rise_prefixes_nest(seed: int, kind: str, n: int) -> None:
    similarity = case(kind, n, seed % 1000)
    picks, gains = greedy.lazily(similarity, n)
    assert (gains[1:] >= 0).all()
    assert (np.diff(gains[1:]) <= 0).all()  # the first is taken from nothing, where nothing bounds the second
    assert sorted(picks) == list(range(n))
    for k in range(1, n):
        np.testing.assert_array_equal(greedy.lazily(similarity, k)[0], picks[:k])
        assert gains[:k].sum() == value(similarity, picks[:k])


def test_the_first_gain_does_not_bound_the_later_ones() -> None:
    """Two clusters that are opposites: seen from nothing the second is worth less than it is after the first pick."""
    tokens = np.array([[1, 0], [1, 0.1], [1, -0.1], [-1, 0.05], [-1, -0.05], [0, 1]], float)
    similarity = cosines(tokens)
    first_bounds = similarity.sum(1).astype(int)
    picks, gains = reference.greedy(similarity, 2)
    assert gains[1] > first_bounds[picks[1]]  # the trap is there
    for backend in FAST:
        assert_same(floc.select(similarity, 2, backend=backend), (picks, gains))


@pytest.mark.parametrize("backend", BACKENDS)
def test_centred_tokens_reach_greedy_value(backend: str) -> None:
    similarity = case("centred", 120, seed=5)
    assert (similarity < 0).mean() > 0.4
    got = floc.select(similarity, 15, backend=backend)
    assert_same(got, reference.greedy(similarity, 15))


@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_count_a_token_several_times(backend: str) -> None:
    rng = np.random.default_rng(3)
    similarity = rng.integers(-SCALE, SCALE, (12, 7)).astype(np.int16)
    weights = rng.integers(0, 4, 7)
    repeated = np.repeat(similarity, weights, axis=1)
    assert_same(floc.select(similarity, 5, weights, backend=backend), reference.greedy(repeated, 5))


@pytest.mark.parametrize("backend", BACKENDS)
def test_wide_rows_do_not_overflow(backend: str) -> None:
    n = 70_000  # more than 2**31 / 2**15 tokens at the extremes
    similarity = np.stack([np.full(n, SCALE), np.full(n, -SCALE), np.full(n, 32767), np.full(n, -32768)]).astype(
        np.int16
    )
    got = floc.select(similarity, 2, backend=backend)
    assert got.picks.tolist() == [2, 0]
    assert got.gains.tolist() == [n * 32767, 0]
    assert floc.select(similarity[3:], 1, backend=backend).gains.tolist() == [-n * 32768]


@pytest.mark.parametrize("backend", BACKENDS)
def test_floats_are_snapped_once(backend: str) -> None:
    rng = np.random.default_rng(0)
    similarity = rng.uniform(-1, 1, (20, 30))
    assert_same(floc.select(similarity.astype(np.float32), 6, backend=backend), reference.greedy(snap(similarity), 6))


def test_torch_in_torch_out() -> None:
    similarity = torch.rand(5, 4)
    got = floc.select(similarity, 2)
    assert isinstance(got.picks, torch.Tensor)
    assert got.picks.dtype == torch.int64
    assert isinstance(floc.select(similarity.numpy(), 2).gains, np.ndarray)
    transposed = floc.select(similarity.T.contiguous().T, 2)  # not laid out in rows
    assert torch.equal(transposed.picks, got.picks)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[::-1],
        lambda x: x.astype(">f4"),
        lambda x: x.astype(np.longdouble),
        lambda x: np.asfortranarray(x),
        lambda x: (np.abs(x) * 9).astype(np.uint16),
        lambda x: (x * 9).astype(np.int8),
        lambda x: np.broadcast_to(x[:1], x.shape),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_any_kind_of_array_will_do(change, backend: str) -> None:
    similarity = change(np.random.default_rng(0).uniform(-1, 1, (9, 7)))
    plain = np.ascontiguousarray(similarity, np.float64 if similarity.dtype.kind == "f" else np.int64)
    similarity.setflags(write=False)
    got = floc.select(similarity, 4, np.arange(7)[::-1], backend=backend)
    assert_same(got, floc.select(plain, 4, np.arange(7)[::-1].copy(), backend="reference"))


def test_lazy_greedy_evaluates_far_fewer() -> None:
    similarity = case("plain", 400, seed=0)
    *_, evaluations = greedy.counted(similarity, 50)
    assert 2 * 400 <= evaluations < 400 * 50 / 3


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (dict(similarity=[[1.0]], k=1), TypeError, "torch tensor or a numpy array, got list"),
        (dict(similarity=np.zeros((2, 2, 2)), k=1), ValueError, r"\[2, 2, 2\]"),
        (dict(similarity=np.zeros((0, 3)), k=1), ValueError, r"\[0, 3\]"),
        (dict(similarity=np.array([[1.0, np.nan]]), k=1), ValueError, "finite"),
        (dict(similarity=np.array([[0.0, 3.0]]), k=1), ValueError, "0 to 3; scale it"),
        (dict(similarity=np.array([[40_000]]), k=1), ValueError, "fit int16"),
        (dict(similarity=np.array([[True]]), k=1), TypeError, "float or integer"),
        (dict(similarity=np.eye(3), k=0), ValueError, "1..3.*got 0"),
        (dict(similarity=np.eye(3), k=4), ValueError, "1..3.*got 4"),
        (dict(similarity=np.eye(3), k=1.5), ValueError, "whole number"),
        (dict(similarity=np.eye(3), k=1, weights=np.ones(2)), ValueError, r"\[3\].*got \[2\]"),
        (dict(similarity=np.eye(3), k=1, weights=np.array([1, 0.5, 1])), ValueError, "whole numbers"),
        (dict(similarity=np.eye(3), k=1, weights=np.array([1, -1, 1])), ValueError, ">= 0"),
        (dict(similarity=np.eye(3), k=1, weights=np.full(3, 2**50)), ValueError, "scale them down"),
        (dict(similarity=np.eye(3), k=1, backend="cuda"), ValueError, "auto, reference, cpu, torch, gpu"),
        (dict(similarity=np.eye(3), k=1, backend="torhc"), ValueError, "did you mean 'torch'"),
    ],
)
def test_bad_input_is_named(arguments: dict, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        floc.select(**arguments)
