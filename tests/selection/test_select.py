"""`floc.select` on every backend against the reference, and bad input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import floc
from floc.selection import reference
from floc.selection.objective import SCALE
from tests.selection.matrices import KINDS, cosine_matrix, make_matrix, snap, value

greedy = pytest.importorskip(
    "floc.selection.cpu.greedy", reason="backend 'cpu' needs numba: pip install 'floc-video[cpu]'"
)

BACKENDS = ["reference", "cpu", "torch"]
FAST = ["cpu", "torch"]


def assert_same(got: floc.Selection, want: tuple[np.ndarray, np.ndarray]) -> None:
    np.testing.assert_array_equal(np.asarray(got.picks), want[0])
    np.testing.assert_array_equal(np.asarray(got.gains), want[1])


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 3, 17, 63, 64, 65, 257])
def test_backends_equal_reference(backend: str, kind: str, n: int) -> None:
    similarity = make_matrix(kind, n, seed=n)
    for k in sorted({1, max(1, n // 8), n // 2 or 1, n}):
        assert_same(floc.select(similarity, k, backend=backend), reference.greedy(similarity, k))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_backends_equal_reference_on_random_matrices(data: st.DataObject) -> None:
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
def test_gains_never_rise_and_prefixes_nest(seed: int, kind: str, n: int) -> None:
    similarity = make_matrix(kind, n, seed % 1000)
    picks, gains, _ = greedy.lazy_greedy(similarity, n)
    assert (gains[1:] >= 0).all()
    assert (np.diff(gains[1:]) <= 0).all()  # the first gain does not bound the second
    assert sorted(picks) == list(range(n))
    for k in range(1, n):
        np.testing.assert_array_equal(greedy.lazy_greedy(similarity, k)[0], picks[:k])
        assert gains[:k].sum() == value(similarity, picks[:k])


def test_later_gain_may_exceed_first_bound() -> None:
    """Two opposite clusters: the second has a lower row sum than its gain after the first pick."""
    tokens = np.array([[1, 0], [1, 0.1], [1, -0.1], [-1, 0.05], [-1, -0.05], [0, 1]], float)
    similarity = cosine_matrix(tokens)
    first_bounds = similarity.sum(1).astype(int)
    picks, gains = reference.greedy(similarity, 2)
    assert gains[1] > first_bounds[picks[1]]  # a lazy greedy that trusts the first bound would fail
    for backend in FAST:
        assert_same(floc.select(similarity, 2, backend=backend), (picks, gains))


@pytest.mark.parametrize("backend", BACKENDS)
def test_centred_tokens_equal_reference(backend: str) -> None:
    similarity = make_matrix("centred", 120, seed=5)
    assert (similarity < 0).mean() > 0.4
    got = floc.select(similarity, 15, backend=backend)
    assert_same(got, reference.greedy(similarity, 15))


@pytest.mark.parametrize("backend", BACKENDS)
def test_weight_equals_repeated_token(backend: str) -> None:
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
def test_floats_are_rounded_to_fixed_point(backend: str) -> None:
    rng = np.random.default_rng(0)
    similarity = rng.uniform(-1, 1, (20, 30))
    assert_same(floc.select(similarity.astype(np.float32), 6, backend=backend), reference.greedy(snap(similarity), 6))


def test_output_has_type_of_input() -> None:
    similarity = torch.rand(5, 4)
    got = floc.select(similarity, 2)
    assert isinstance(got.picks, torch.Tensor)
    assert got.picks.dtype == torch.int64
    assert isinstance(floc.select(similarity.numpy(), 2).gains, np.ndarray)
    transposed = floc.select(similarity.T.contiguous().T, 2)  # column-major
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
def test_accepts_any_dtype_and_memory_layout(change, backend: str) -> None:
    similarity = change(np.random.default_rng(0).uniform(-1, 1, (9, 7)))
    plain = np.ascontiguousarray(similarity, np.float64 if similarity.dtype.kind == "f" else np.int64)
    similarity.setflags(write=False)
    got = floc.select(similarity, 4, np.arange(7)[::-1], backend=backend)
    assert_same(got, floc.select(plain, 4, np.arange(7)[::-1].copy(), backend="reference"))


def test_accepts_a_lazily_negated_tensor() -> None:
    negated = torch.complex(torch.zeros(3, 3), torch.eye(3)).conj().imag
    assert negated.is_neg()
    assert_same(floc.select(negated, 2), reference.greedy(snap(-np.eye(3)), 2))


def test_lazy_greedy_evaluates_fewer_gains() -> None:
    similarity = make_matrix("plain", 400, seed=0)
    *_, evaluations = greedy.lazy_greedy(similarity, 50)
    assert 2 * 400 <= evaluations < 400 * 50 / 3


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
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
        (dict(similarity=np.eye(3), k=1, weights=np.full(3, 2**63, np.uint64)), ValueError, "whole numbers"),
        (dict(similarity=np.eye(3), k=1, weights=["a", "b", "c"]), ValueError, "whole numbers"),
        (dict(similarity=np.eye(3), k=1, weights=torch.ones(3, device="meta")), ValueError, "weights must hold values"),
        (dict(similarity=torch.eye(3, device="meta"), k=1), ValueError, "similarity must hold values"),
        (dict(similarity=torch.eye(3).to_sparse(), k=1), TypeError, "similarity must be a dense tensor"),
        (dict(similarity=np.eye(3), k=1, backend="cuda"), ValueError, "auto, reference, cpu, torch, gpu"),
        (dict(similarity=np.eye(3), k=1, backend="torhc"), ValueError, "did you mean 'torch'"),
    ],
)
def test_rejects_bad_input(arguments: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        floc.select(**arguments)


def test_weights_may_be_a_negated_view() -> None:
    values = torch.view_as_complex(-torch.tensor([[0.0, 3.0], [0.0, 1.0], [0.0, 2.0]])).conj().imag
    assert values.is_neg()
    chosen = floc.select(np.eye(3, dtype=np.float32), 2, weights=values)
    assert chosen.picks.tolist() == [0, 2]
