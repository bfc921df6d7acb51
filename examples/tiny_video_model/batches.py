"""Training batches: encoded films with several questions packed behind each video."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from examples.tiny_video_model.auxiliary import label_things, label_visual_tokens
from examples.tiny_video_model.encoded_films import EncodedFilms
from examples.tiny_video_model.packed import PackedText
from examples.tiny_video_model.questions import QuestionPicker


@dataclass(frozen=True)
class Batch:
    """B films of one length, with their questions."""

    visual: torch.Tensor  # [B, V, D], the visual tokens that are kept
    kept: torch.Tensor  # [B, V], their places among all tokens of the film
    visual_labels: torch.Tensor  # [B, V, 6], see `label_visual_tokens`
    thing_labels: torch.Tensor  # [B, things, 6], see `label_things`
    text: PackedText

    def to(self, device: torch.device) -> Batch:
        """Return the batch on another device."""
        return Batch(*(getattr(self, name).to(device) for name in self.__dataclass_fields__))


class BatchMaker:
    """Make batches of films of one length.

    Args:
        tokenizer: The model's tokenizer.
        films: Encoded films.
        slices: Length of the films in a batch.
        size: Films in a batch.
        seed: Determines the batches.
        questions: Questions of each kind.
        drop: Leave out visual tokens at random: none of them in three batches of eight, up to 31 of 32 in the others.
    """

    def __init__(
        self,
        tokenizer: Any,
        films: EncodedFilms,
        slices: int,
        size: int,
        seed: int,
        *,
        questions: int = 2,
        drop: bool = False,
    ):
        self._tokenizer, self._films, self._slices, self._size = tokenizer, films, slices, size
        self._questions, self._drop = questions, drop
        self._rng = np.random.default_rng([seed, slices])
        self._picker = QuestionPicker(seed)

    def make(self) -> Batch:
        """Return the next batch."""
        drawn = [self._films.draw(self._slices, self._rng) for _ in range(self._size)]
        films = [film for film, *_ in drawn]
        tokens = torch.stack([tokens for _, tokens, _ in drawn])
        labels = np.stack([label_visual_tokens(film, labels) for film, _, labels in drawn])
        kept = torch.from_numpy(self._choose_kept(tokens.shape[1]))
        at = kept[..., None]
        return Batch(
            tokens.gather(1, at.expand(-1, -1, tokens.shape[2])),
            kept,
            torch.from_numpy(labels).gather(1, at.expand(-1, -1, labels.shape[2])),
            torch.from_numpy(np.stack([label_things(film) for film in films])),
            PackedText(self._tokenizer, [self._picker.pick(film, self._questions) for film in films]),
        )

    def _choose_kept(self, count: int) -> np.ndarray:
        """Return ascending places of the visual tokens to keep, [B, V]."""
        halvings = int(self._rng.integers(-2, 6)) if self._drop else 0
        keep = max(1, count >> max(0, halvings))
        return np.sort(self._rng.permuted(np.tile(np.arange(count), (self._size, 1)), axis=1)[:, :keep])
