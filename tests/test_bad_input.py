"""Bad input is rejected before any work, with an error that says what was given and what to do."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode

import floc
from floc import _system

GOOD = np.random.default_rng(0).standard_normal((40, 2, 3, 8)).astype(np.float32)


def with_value(t: int, y: int, x: int, bad: float, dtype: type = np.float32) -> np.ndarray:
    tokens = GOOD.astype(dtype)
    tokens[t, y, x, 5] = bad
    tokens[39, 1, 2, 0] = np.nan  # the error names the first one
    return tokens


@pytest.mark.parametrize(
    ("tokens", "error", "says"),
    [
        ([[1.0]], TypeError, "torch tensor or a numpy array, got list"),
        (GOOD[0], None, ""),  # [2, 3, 8] is two frames of three tokens
        (GOOD[0, 0], ValueError, r"\[T, H, W, D\] or \[T, N, D\].*\(3, 8\)"),
        (GOOD[None], ValueError, r"\(1, 40, 2, 3, 8\)"),
        (GOOD[:0], ValueError, r"not be empty.*\(0, 2, 3, 8\)"),
        (GOOD[:, :0], ValueError, "not be empty"),
        (GOOD[..., :0], ValueError, "not be empty"),
        (GOOD.astype(np.int32), TypeError, "floating point.*int32"),
        (torch.ones(2, 2, 2, dtype=torch.int64), TypeError, r"torch.int64.*tokens.float\(\)"),
        (GOOD.astype(np.complex64), TypeError, "complex64"),
        (GOOD.astype(bool), TypeError, "bool"),
        (with_value(7, 1, 2, np.nan), ValueError, "nan in frame 7, row 1, column 2"),
        (with_value(0, 0, 0, np.inf, np.float16), ValueError, "inf in frame 0, row 0, column 0"),
        (torch.from_numpy(with_value(39, 0, 1, -np.inf)).bfloat16(), ValueError, "-inf in frame 39, row 0, column 1"),
        (GOOD.astype(np.float64) * 1e-60, ValueError, "too small for float32: values of at most 1.304e-60 in frame 0"),
        (GOOD * np.where(np.arange(40) == 7, 1e-60, 1)[:, None, None, None], ValueError, "too small.*in frame 7"),
        (GOOD.astype(np.longdouble), TypeError, "float16, float32 or float64"),
        (with_value(3, 0, 0, 1e200, np.float64), ValueError, "finite in float32: 1e\\+200 in frame 3"),
        (np.float32(1), TypeError, "torch tensor or a numpy array, got float32"),
        (torch.tensor(1.0), ValueError, r"\[T, H, W, D\].*got \(\)"),
        (GOOD.astype(object), TypeError, "float64\\), got object"),
        (np.ma.masked_array(GOOD, GOOD > 0), TypeError, r"must not be masked.*tokens\.filled"),
        (torch.ones(2, 2, 2, device="meta"), ValueError, "must hold values.*'meta'"),
        (torch.ones(2, 2, 2).to_sparse(), TypeError, r"dense tensor, got layout torch\.sparse_coo.*tokens\.to_dense"),
        (torch.ones(2, 2, 2).to_mkldnn(), TypeError, "dense tensor"),
        (torch.ones(2, 2, 2, dtype=torch.complex64), TypeError, "complex64"),
        (torch.ones(1, 2, 2).expand(2**50, 2, 2), MemoryError, "needs .* TiB, but only .* are free; pass fewer frames"),
        (np.broadcast_to(GOOD[:1], (2**40, 2, 3, 8)), MemoryError, "pass fewer frames"),
        (torch.ones(1, 1, 1).half().expand(100, 10000, 1000), ValueError, r"a view that repeats values to 1\.9 GiB"),
        (np.broadcast_to(np.array(1, ">f4"), (99, 9999, 999)), ValueError, r"a view that repeats values to 3\.7 GiB"),
        (FakeTensorMode().from_tensor(torch.ones(2, 2, 2)), ValueError, "a fake tensor"),
    ],
)
def test_rejects_bad_tokens(tokens: object, error: type[Exception] | None, says: str) -> None:
    if error is None:
        assert len(floc.compress(tokens, budget=2)) == 2
        return
    with pytest.raises(error, match=says):
        floc.compress(tokens, budget=2)


@pytest.mark.filterwarnings("ignore")  # torch is about to change these types
def test_rejects_nested_and_quantized_tensors() -> None:
    with pytest.raises(TypeError, match="dense tensor, got a nested tensor"):
        floc.compress(torch.nested.nested_tensor([torch.ones(2, 2)] * 2), budget=2)
    with pytest.raises(TypeError, match=r"tokens\.dequantize\(\)"):
        floc.compress(torch.quantize_per_tensor(torch.ones(2, 2, 2), 0.1, 0, torch.qint8), budget=2)


@pytest.mark.parametrize(
    "view",
    [
        lambda tokens: tokens.permute(2, 1, 0, 3).contiguous().permute(2, 1, 0, 3),
        lambda tokens: tokens.clone().requires_grad_(),
        lambda tokens: torch.nn.Parameter(tokens) * 1,
        lambda tokens: torch._neg_view(-tokens),
        lambda tokens: np.asfortranarray(tokens.numpy()),
        lambda tokens: tokens.flip(0).numpy()[::-1],
        lambda tokens: tokens.numpy().astype(">f4"),
        lambda tokens: np.frombuffer(b"0" + tokens.numpy().tobytes(), np.uint8)[1:].view("f4").reshape(tokens.shape),
        lambda tokens: torch.nn.functional.pad(tokens, (0, 1000))[..., :8],
    ],
)
def test_layout_in_memory_does_not_matter(view: Callable[[torch.Tensor], object]) -> None:
    kept = floc.compress(view(torch.from_numpy(GOOD)), budget=9)
    assert kept.indices.tolist() == floc.compress(GOOD, budget=9).indices.tolist()
    assert not getattr(kept.features, "requires_grad", False)


@pytest.mark.parametrize(
    "options", [dict(block=np.int64(8)), dict(block=(0, np.int64(3))), dict(dedupe=np.float32(2)), dict(dedupe=1e308)]
)
def test_accepts_any_type_of_number(options: dict) -> None:
    assert len(floc.compress(GOOD, budget=np.int64(9), **options)) == 9


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (dict(method="flok"), "unknown method 'flok'; did you mean 'floc'.*floc, floc-paper"),
        (dict(metric="cosin"), "did you mean 'cosine'.*cosine, gaussian"),
        (dict(metric="dot"), "cosine, gaussian"),
        (dict(backend="numba"), "auto, reference, cpu, torch, gpu"),
        (dict(allocate="uniform"), "unknown option of method 'floc', 'allocate'"),
        (dict(block=0), "at least 1.*got 0"),
        (dict(block=-3), "at least 1"),
        (dict(block=2.5), "number of frames"),
        (dict(block="scenes"), "number of frames.*'scene'.*got 'scenes'"),
        (dict(block=[]), r"starting with 0: \[0, 57, 120\]; got a list of 0"),
        (dict(block=[1, 3]), r"first frame of each block, starting with 0.*got a list of 2"),
        (dict(block=[0, 2.5]), "first frame of each block"),
        (dict(block=[0, True]), "first frame of each block"),
        (dict(block=[0, 3, 3]), "must ascend, but 3 comes after 3"),
        (dict(block=(0, 3, -1)), "must ascend, but -1 comes after 3"),
        (dict(block=[0, 40]), "starts at frame 40, but the video has 40"),
        (dict(block=[0, 10**5000]), "starts at frame a number of thousands of digits"),
        *(({name: 10**5000}, "thousands of digits") for name in ("metric", "backend", "progress", "dedupe")),
        (dict(block=Fraction(10**5000)), "got a number of thousands of digits"),
        (dict(dedupe=0.5), "dedupe must be.*at least 1.*0.5"),
        (dict(dedupe=float("inf")), "dedupe"),
        (dict(detail=0), "detail must be"),
        (dict(detail="2"), "detail must be"),
        (dict(blocks=32), "unknown option of method 'floc', 'blocks'; did you mean 'block'"),
        (
            dict(spatial_threshold=0.5),
            "choose one of: horizon, detail, block, dedupe, metric, query, query_weight, backend, progress",
        ),
        *(
            (dict(horizon=value), "horizon must be a whole number of frames.*got")
            for value in (-1, 2.5, True, "x", [4])
        ),
        (dict(horizon=float("nan")), "horizon must be a whole number of frames.*got nan"),
        (dict(horizon=4, block=32), "horizon=4 excludes blocks; remove block=32"),
        (dict(horizon="auto", dedupe=2), "horizon='auto' excludes blocks; remove dedupe=2"),
        (dict(horizon=4, metric="gaussian"), "horizon=4 excludes blocks; remove metric='?gaussian"),
        (dict(horizon=4, method="floc-paper"), "unknown option of method 'floc-paper', 'horizon'"),
    ],
)
def test_rejects_bad_options(options: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        floc.compress(GOOD, ratio=1 / 8, **options)


def test_rejects_a_set_that_does_not_fit_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = np.broadcast_to(GOOD[:1], (20_000, 2, 3, 8))  # a view
    monkeypatch.setattr(_system, "available_bytes", lambda device: 2 << 30)
    with pytest.raises(MemoryError, match=r"needs 26\.\d GiB, but only 2\.0 GiB are free; pass block=32"):
        floc.compress(wide, ratio=1 / 8, horizon=None)
    assert len(floc.compress(wide[:4000], ratio=1)) == 24_000  # keeping all needs no matrix of all tokens
    monkeypatch.setattr(_system, "available_bytes", lambda device: 200 << 20)
    with pytest.raises(
        MemoryError, match=r"selecting from 12000 tokens.*200.0 MiB are free; pass dedupe=1, which has no"
    ):
        floc.compress(wide, ratio=1 / 4, block=32, dedupe=2)


def test_rejects_a_band_that_does_not_fit_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = np.broadcast_to(GOOD[:1], (20_000, 2, 3, 8))  # a view
    monkeypatch.setattr(_system, "available_bytes", lambda device: 1 << 30)
    says = (
        r"selecting from 120000 tokens.*needs 2\.\d GiB, but only 1\.0 GiB are free; pass a horizon below 900, or fewer"
    )
    with pytest.raises(MemoryError, match=says):
        floc.compress(wide, ratio=1 / 8, horizon=900)


def test_available_memory_is_known() -> None:
    available = _system.available_bytes(torch.device("cpu"))
    assert available is not None
    assert 2**20 < available < 2**45
    assert _system.available_bytes(torch.device("meta")) is None
