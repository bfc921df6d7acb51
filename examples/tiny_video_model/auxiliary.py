"""A second loss for the first part of the training: what single tokens should know.

A visual token should know where it is and what it shows. The word for a thing in a question should know whether,
where, when and how often the film shows the thing. Small linear heads read both from hidden states; they are no part
of the model. Without this loss, a model of this size takes many times as long to learn to look things up.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from examples.tiny_video_model.films import COLUMNS, PLACES, ROWS, ZONES, Film
from examples.tiny_video_model.questions import NUMBERS, THIRDS
from examples.tiny_video_model.things import THINGS

LONGEST = 64  # slices of a film
MOST_SLICES = 12  # a thing is shown for at most so many slices
IGNORED = -100
THING_WEIGHT = 20.0
# classes of each label
VISUAL_CLASSES = (len(ROWS), len(COLUMNS), len(PLACES) + len(THINGS), LONGEST, len(NUMBERS), MOST_SLICES + 1)
THING_CLASSES = (2, len(NUMBERS) + 1, len(ZONES) + 1, LONGEST + 1, MOST_SLICES + 1, len(THIRDS) + 2)


def label_visual_tokens(film: Film, labels: np.ndarray) -> np.ndarray:
    """Return what each visual token should know, [V, 6] int64.

    Row and column of its zone, what it shows, its slice; for a thing, how often and in how many slices it was shown so
    far.

    Args:
        film: The film.
        labels: What each token shows, [slices, rows, columns], from `label_tokens`.
    """
    slices, rows, columns = labels.shape
    known = np.full((slices, rows, columns, 6), IGNORED)
    known[..., 0] = (len(ROWS) * np.arange(rows) // rows)[:, None]
    known[..., 1] = len(COLUMNS) * np.arange(columns) // columns
    known[..., 2] = labels
    known[..., 3] = np.arange(slices)[:, None, None]
    for thing in film.things:
        starts, shown = _mark_slices(film, thing)
        at = labels == len(PLACES) + THINGS.index(thing)
        so_far = np.stack([np.cumsum(starts) - 1, np.minimum(np.cumsum(shown), MOST_SLICES)], -1)
        known[at, 4:] = np.broadcast_to(so_far[:, None, None], (slices, rows, columns, 2))[at]
    return known.reshape(-1, 6)


def label_things(film: Film) -> np.ndarray:
    """Return what the word for each thing should know, [things, 6] int64.

    Whether it is shown, how often, its zone, its first slice, in how many slices, and in which third of the film.
    """
    known = np.zeros((len(THINGS), 6), np.int64)
    for thing in film.things:
        appearances = film.get_appearances(thing)
        _, shown = _mark_slices(film, thing)
        thirds = {len(THIRDS) * slice_ // film.slices for slice_ in np.flatnonzero(shown)}
        third = min(thirds) + 1 if len(thirds) == 1 else len(THIRDS) + 1
        first, total = appearances[0].start + 1, min(MOST_SLICES, int(shown.sum()))
        known[THINGS.index(thing)] = 1, len(appearances), appearances[0].zone + 1, first, total, third
    return known


def _mark_slices(film: Film, thing: str) -> tuple[np.ndarray, np.ndarray]:
    """Return in which slices a thing appears anew, and in which it is shown."""
    starts, shown = np.zeros(film.slices, int), np.zeros(film.slices, int)
    for appearance in film.get_appearances(thing):
        starts[appearance.start] = 1
        shown[appearance.start : appearance.end] = 1
    return starts, shown


class AuxiliaryHeads(nn.Module):
    """Read labels from hidden states.

    Args:
        model: The model; hooks on two of its layers see the hidden states until `close`.
        thing_ids: Token of each thing's word.
    """

    def __init__(self, model: Any, thing_ids: torch.Tensor):
        super().__init__()
        width = model.config.text_config.hidden_size
        self._visual = nn.ModuleList([nn.Linear(width, classes) for classes in VISUAL_CLASSES])
        self._things = nn.ModuleList([nn.Linear(width, classes) for classes in THING_CLASSES])
        numbers = torch.full((model.config.text_config.vocab_size,), -1)
        numbers[thing_ids.cpu()] = torch.arange(len(thing_ids))
        self._numbers = nn.Buffer(numbers)
        self._seen: dict[str, torch.Tensor] = {}
        layers = model.model.language_model.layers
        self._hooks = [
            layers[2].register_forward_hook(lambda *call: self._seen.update(visual=call[-1])),
            layers[3].register_forward_hook(lambda *call: self._seen.update(text=call[-1])),
        ]
        self.to(model.device)

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def compute(self, batch: Any, start: int) -> torch.Tensor:
        """Return the loss after a call of the model.

        `start` is the place of the first visual token; one token separates them from the questions.
        """
        count = batch.kept.shape[1]
        visual = _normalise(self._seen["visual"][:, start : start + count])
        losses = []
        # tokens of things are rare, and questions ask for them
        weights = torch.where(batch.visual_labels[..., 2] >= len(PLACES), THING_WEIGHT, 1.0).flatten()
        for part, head in enumerate(self._visual):
            labels = batch.visual_labels[..., part].flatten()
            each = functional.cross_entropy(head(visual).flatten(0, 1), labels, ignore_index=IGNORED, reduction="none")
            # a batch may keep no token of any thing, and the mean over nothing is not a number
            losses.append((each * weights).sum() / (weights * (labels != IGNORED)).sum().clamp(min=1))
        numbers = self._numbers[batch.text.ids]
        row, place = (numbers >= 0).nonzero(as_tuple=True)
        words = _normalise(self._seen["text"][row, start + count + 1 + place])
        known = batch.thing_labels[row, numbers[row, place]]
        losses += [functional.cross_entropy(head(words), known[:, part]) for part, head in enumerate(self._things)]
        return torch.stack(losses).sum()


def _normalise(states: torch.Tensor) -> torch.Tensor:
    states = states.float()
    return states * torch.rsqrt(states.square().mean(-1, keepdim=True) + 1e-6)
