"""Methods on a simulated device: no operation mixes devices, no features are fetched, and nothing waits for each token.

What a method waits for, such as the number of kept tokens, is fetched a few times in a call, whatever the number of
tokens. Loops over picks (divprune, cdpruner, mmtok, scope, k-means++), over iterations and swaps (kmeans, kmedoids),
over the trials of a search (scissor, sttm) and over segments (fastvid, flashvid, holitom) remain in Python.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import floc
from examples.synthetic import make_tokens
from floc.methods.registry import make
from floc.methods.shared import greedy
from floc.tokens import TokenGrid
from tests.methods.simulated_device import SimulatedDevice, SimulatedTensor

# floc has kernels of its own, tested with the selection; scikit-learn computes spectral clustering on the CPU
METHODS = sorted(set(floc.methods.list_methods()) - {"floc", "floc-paper", "spectral"})
MOST_WAITS = dict.fromkeys(METHODS, 30) | {"scissor": 800, "sttm": 200}  # a few for each trial of a search


def make_arrays(name: str, tokens: np.ndarray) -> dict[str, torch.Tensor]:
    """Make the optional arrays of a method."""
    rng = np.random.default_rng(0)
    t, h, w, d = tokens.shape
    cells = rng.random((t, h * w)).astype(np.float32)
    features = rng.standard_normal((t, h, w, 5)).astype(np.float32)
    arrays = {"attn": cells, "relevance": cells, "difference": cells, "metric": features, "vision_features": features}
    arrays["query"] = rng.standard_normal((3, d)).astype(np.float32)
    return {key: torch.from_numpy(arrays[key]) for key in arrays if key in floc.methods.list_options(name)}


def compress_on_device(
    name: str, frames: int, *, dim: int = 16, arrays: bool = False, ratio: int = 4
) -> tuple[SimulatedDevice, floc.Kept, floc.Kept]:
    """Compress on a simulated device and on the CPU."""
    tokens = make_tokens(frames, 4, 5, dim=dim, seed=1, scenes=2, shot_frames=8, dtype=np.float32)
    budget = tokens[..., 0].size // ratio
    options: dict[str, Any] = {"nearest": True} if "nearest" in floc.methods.list_options(name) else {}
    if "block" in floc.methods.list_options(name):
        options["block"] = None
    given: dict[str, torch.Tensor] = make_arrays(name, tokens) if arrays else {}
    with SimulatedDevice() as device:
        put = {key: device.put(array) for key, array in given.items()}
        kept = make(name, options | put)(TokenGrid(device.put(torch.from_numpy(tokens))), budget)
    backend = {"backend": "torch"} if "backend" in floc.methods.list_options(name) else {}
    return device, kept, make(name, options | given | backend)(TokenGrid(torch.from_numpy(tokens)), budget)


def fetch(array: Any) -> np.ndarray:
    return np.asarray(array.inner if isinstance(array, SimulatedTensor) else array)


@pytest.fixture(autouse=True)
def accept_simulated_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("floc.methods.shared.inputs.require_dense", lambda *_: None)  # they have no memory
    monkeypatch.setattr("floc._system.available_bytes", lambda _: None)


@pytest.mark.parametrize("arrays", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_result_is_that_of_a_cpu(name: str, arrays: bool) -> None:
    _, kept, expected = compress_on_device(name, 16, arrays=arrays)
    assert isinstance(kept.features, SimulatedTensor)
    np.testing.assert_array_equal(fetch(kept.indices), expected.indices)
    np.testing.assert_allclose(fetch(kept.features), expected.features, atol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_waits_do_not_grow_with_tokens(name: str) -> None:
    for frames in (8, 32):
        device, kept, _ = compress_on_device(name, frames)
        assert sum(device.waits.values()) <= MOST_WAITS[name] + len(kept) / greedy.GPU_STEPS, (frames, device.waits)


@pytest.mark.parametrize("name", METHODS)
def test_fetches_no_features(name: str) -> None:
    fetched = [compress_on_device(name, 16, dim=dim, arrays=True)[0].fetched_bytes for dim in (16, 1024)]
    assert fetched[1] <= 2 * fetched[0]  # the numbers of representatives differ


@pytest.mark.parametrize("name", ["cdpruner", "divprune", "mmtok", "scope"])
def test_greedy_selection_evaluates_all_candidates_if_a_few_do_not_suffice(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(greedy, "GPU_CANDIDATES", 1)
    _, kept, expected = compress_on_device(name, 24, ratio=2)
    np.testing.assert_array_equal(fetch(kept.indices), expected.indices)
    np.testing.assert_array_equal(fetch(kept.order), expected.order)


def test_simulated_device_refuses_what_a_gpu_refuses() -> None:
    with SimulatedDevice() as device:
        x = device.put(torch.arange(6.0).view(2, 3))
        with pytest.raises(RuntimeError, match="two devices"):
            x + torch.ones(2, 3)
        assert isinstance(x * torch.tensor(2.0), SimulatedTensor)
        assert isinstance(torch.ones(2, device=x.device), SimulatedTensor)
        with pytest.raises((TypeError, RuntimeError)):
            x.numpy()
        assert device.waits == {}
        assert x.cpu().numpy().sum() == 15
        assert float(x.sum()) == 15
        assert len(x[x > 2]) == 3
        assert device.waits == {"copy to the CPU": 1, "read one number": 1, "aten.index.Tensor": 1}
        assert device.fetched_bytes == 24
