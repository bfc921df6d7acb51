"""Training batches: films with several questions packed behind each video, made by other processes.

A film is drawn and encoded once, and used for several batches, each time with other questions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from examples.tiny_video_model.auxiliary import label_things, label_visual_tokens
from examples.tiny_video_model.films import Film, label_tokens, make_film
from examples.tiny_video_model.model import CELL
from examples.tiny_video_model.packed import PackedText
from examples.tiny_video_model.questions import QuestionPicker
from examples.tiny_video_model.rendering import DrawingList, list_drawings

SEEDS_PER_PROCESS = 500_000
BANK = 4  # films at hand for one film in a batch


@dataclass(frozen=True)
class Batch:
    """B films of one length, with their questions."""

    drawings: DrawingList  # of F films to draw and encode before this batch
    new_places: torch.Tensor  # [F], their places in the bank of encoded films
    places: torch.Tensor  # [B], places of the batch's films there
    kept: torch.Tensor  # [B, V], places of the visual tokens to keep among all of the film
    visual_labels: torch.Tensor  # [B, V, 6], of the kept tokens, see `label_visual_tokens`
    thing_labels: torch.Tensor  # [B, things, 6], see `label_things`
    text: PackedText

    def to(self, device: torch.device) -> Batch:
        """Return the batch on another device."""
        return self._map(lambda part: part.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        """Return the batch in memory from which a GPU copies while it computes."""
        return self._map(lambda part: part.pin_memory())

    def _map(self, function: Callable[[Any], Any]) -> Batch:
        return Batch(**{name: function(part) for name, part in vars(self).items()})

    def get_part(self, part: slice) -> Batch:
        """Return some of the films."""
        names = ("places", "kept", "visual_labels", "thing_labels")
        arrays = {name: getattr(self, name)[part] for name in names}
        return replace(self, **arrays, text=self.text.get_part(part))


@dataclass(frozen=True)
class _Known:
    """A film with the labels of its tokens."""

    film: Film
    tokens: np.ndarray  # [V, 6]
    things: np.ndarray  # [things, 6]


@dataclass(frozen=True)
class BatchMaker(IterableDataset):
    """Make batches of films of one length, without end.

    Args:
        tokenizer: The model's tokenizer.
        slices: Length of the films.
        size: Films in a batch.
        seed: Of the first film; each process that makes batches takes SEEDS_PER_PROCESS more.
        rows, columns: Visual tokens of a slice.
        uses: Batches that use a film, about.
        questions: Questions of each kind; twice as many of the hardest, which is to count.
        drop: Leave out visual tokens at random: none of them in three batches of eight, up to 31 of 32 in the others.
    """

    tokenizer: Any
    slices: int
    size: int
    seed: int
    rows: int
    columns: int
    uses: int = 1
    questions: int = 2
    drop: bool = False

    @property
    def bank(self) -> int:
        """Films that one process has at hand."""
        return self.size * (BANK if self.uses > 1 else 1)

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        number = worker.id if worker else 0
        seed = self.seed + SEEDS_PER_PROCESS * number
        rng, picker = np.random.default_rng(seed), QuestionPicker(seed)
        films: list[_Known] = []
        oldest = 0
        while True:
            new = self.bank if not films else -(-self.size // self.uses)
            places = (oldest + np.arange(new)) % self.bank
            oldest = (oldest + new) % self.bank
            films += [None] * (self.bank - len(films))  # type: ignore[list-item]  # replaced at once
            for place in places:
                seed, films[place] = self._make_film(seed)
            chosen = rng.permutation(self.bank)[: self.size]
            yield self._join(films, places, chosen, number * self.bank, picker, rng)

    def _make_film(self, seed: int) -> tuple[int, _Known]:
        """Make a film that shows something; return the seed of the next one, too."""
        while not (film := make_film(seed, self.slices, training=True)).things:
            seed += 1
        labels = label_tokens(film, self.rows * CELL, self.columns * CELL, CELL)
        return seed + 1, _Known(film, label_visual_tokens(film, labels), label_things(film))

    def _join(
        self,
        films: list[_Known],
        new: np.ndarray,
        chosen: np.ndarray,
        first: int,
        picker: QuestionPicker,
        rng: np.random.Generator,
    ) -> Batch:
        known = np.stack([films[place].tokens for place in chosen])
        kept = self._choose_kept(known.shape[1], rng)
        return Batch(
            list_drawings([films[place].film for place in new], self.rows * CELL, self.columns * CELL),
            torch.from_numpy(first + new),
            torch.from_numpy(first + chosen),
            torch.from_numpy(kept),
            torch.from_numpy(np.take_along_axis(known, kept[..., None], 1)),
            torch.from_numpy(np.stack([films[place].things for place in chosen])),
            PackedText(
                self.tokenizer,
                [picker.pick(films[place].film, self.questions, count=2 * self.questions) for place in chosen],
            ),
        )

    def _choose_kept(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Return ascending places of the visual tokens to keep, [B, V]."""
        halvings = int(rng.integers(-2, 6)) if self.drop else 0
        keep = max(1, count >> max(0, halvings))
        places = np.tile(np.arange(count), (self.size, 1))
        return places if keep == count else np.sort(rng.permuted(places, axis=1)[:, :keep])


def load_batches(maker: BatchMaker, processes: int) -> Iterator[Batch]:
    """Yield batches that other processes make, or this one if `processes` is 0."""
    if not processes:
        return iter(maker)
    settings: dict[str, Any] = dict(
        num_workers=processes, multiprocessing_context="fork", pin_memory=torch.cuda.is_available()
    )
    return iter(DataLoader(maker, batch_size=None, **settings))
