"""Films as visual tokens: encoded once, and shown to the decoder in many variations.

A vision encoder sees one slice at a time, so that any slices of a film in any order are a film, too: parts of it,
backwards, or with its end first. That saves the encoder for most of the training.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import torch

from examples.tiny_video_model.films import Film, label_tokens, make_film, rearrange_film, render_film
from examples.tiny_video_model.model import CELL, PATCH

LENGTH = 32  # slices of an encoded film
Rendered = tuple[Film, np.ndarray, np.ndarray]  # the film, its frames, and what its tokens show


def make_patches(frames: torch.Tensor) -> torch.Tensor:
    """Cut frames [F, Y, X, 3] uint8 into patches [P, 3 * 2 * 14 * 14], in the order of the processor of Qwen2.5-VL."""
    count, height, width, _ = frames.shape
    values = frames.to(torch.float32) / 127.5 - 1
    cut = values.reshape(count // 2, 2, height // CELL, 2, PATCH, width // CELL, 2, PATCH, 3)
    return cut.permute(0, 2, 5, 3, 6, 8, 1, 4, 7).reshape(-1, 3 * 2 * PATCH * PATCH)


def _render(seed: int, slices: int, height: int, width: int) -> Rendered:
    film = make_film(seed, slices, training=True)
    return film, render_film(film, height, width), label_tokens(film, height, width, CELL)


def render_films(seed: int, slices: int, height: int, width: int) -> Generator[Rendered]:
    """Render films for training in other processes, without end."""
    ahead = max(16, 2 * (os.cpu_count() or 1))
    with ProcessPoolExecutor(max(1, (os.cpu_count() or 1) - 1)) as pool:
        waiting = [pool.submit(_render, seed + number, slices, height, width) for number in range(ahead)]
        seed += ahead
        try:
            while True:
                yield waiting.pop(0).result()
                waiting.append(pool.submit(_render, seed, slices, height, width))
                seed += 1
        finally:
            pool.shutdown(cancel_futures=True)


class EncodedFilms:
    """Films of LENGTH slices with their visual tokens.

    Args:
        encode: Turn frames [F, height, width, 3] uint8 into visual tokens [F / 2, rows, columns, D].
        count: Number of films.
        seed: Seed of the first film.
        height, width: Size of a frame in pixels.
        report: Called with the number of films encoded so far.
    """

    def __init__(
        self,
        encode: Callable[[np.ndarray], torch.Tensor],
        count: int,
        seed: int,
        height: int,
        width: int,
        report: Callable[[int], None] = lambda _: None,
    ):
        self._films: list[Film] = []
        self._labels: list[np.ndarray] = []
        tokens = []
        for film, frames, labels in render_films(seed, LENGTH, height, width):
            self._films.append(film)
            self._labels.append(labels)
            tokens.append(encode(frames).to(torch.float16).cpu())
            report(len(tokens))
            if len(tokens) == count:
                break
        self._tokens = torch.stack(tokens)  # [films, LENGTH, rows, columns, D]

    def draw(self, slices: int, rng: np.random.Generator) -> tuple[Film, torch.Tensor, np.ndarray]:
        """Return a variation of a film, its visual tokens [V, D] float32 and labels [slices, H, W]."""
        while True:
            number = int(rng.integers(len(self._films)))
            order = (np.arange(slices) + int(rng.integers(LENGTH))) % LENGTH
            if rng.random() < 0.5:
                order = order[::-1]
            film = rearrange_film(self._films[number], order, int(rng.integers(2**32)))
            if film is not None:
                tokens = self._tokens[number, torch.from_numpy(order.copy())]
                return film, tokens.flatten(0, 2).float(), self._labels[number][order]
