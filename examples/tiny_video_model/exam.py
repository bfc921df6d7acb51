"""Films that the model was not trained on, questions about them, and the score of its answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import floc
from examples.tiny_video_model.films import Film, make_film
from examples.tiny_video_model.model import CELL, HEIGHT, WIDTH
from examples.tiny_video_model.packed import PackedDecoder, PackedText, encode_frames
from examples.tiny_video_model.questions import GROUPS, KINDS, Question, QuestionPicker
from examples.tiny_video_model.rendering import render_film

TEST_SEED = 9 * 10**8  # films for training have smaller seeds: see `train.MAX_SEED`
RESAMPLES = 2000


@dataclass(frozen=True)
class Exam:
    """A film, its visual tokens, and questions about it."""

    film: Film
    tokens: torch.Tensor  # [T, rows, columns, D] float32
    questions: list[Question]


def make_exams(
    model: Any,
    count: int,
    *,
    slices: int = 32,
    height: int = HEIGHT,
    width: int = WIDTH,
    questions: int = 2,
    seed: int = TEST_SEED,
) -> Iterator[Exam]:
    """Yield films as visual tokens, with up to `questions` of each kind; answers are balanced over the films."""
    picker = QuestionPicker(seed)
    number = 0
    while number < count:
        film = make_film(seed, slices)
        seed += 1
        if not film.things:
            continue
        number += 1
        yield Exam(film, encode_frames(model, render_film(film, height, width)), picker.pick(film, questions))


class Examiner:
    """Ask the questions of exams, given a part of a film's tokens."""

    def __init__(self, model: Any, tokenizer: Any, height: int = HEIGHT, width: int = WIDTH):
        self._tokenizer, self.decoder = tokenizer, PackedDecoder(model, tokenizer, height // CELL, width // CELL)

    def check(self, exam: Exam, kept: floc.Kept | None) -> np.ndarray:
        """Return which answers are right with the kept tokens, or with all tokens, [questions] bool."""
        device = exam.tokens.device
        text = PackedText(self._tokenizer, [exam.questions]).to(device)
        if kept is None:
            features, indices = exam.tokens.flatten(0, 2), torch.arange(exam.tokens[..., 0].numel(), device=device)
        else:
            features, indices = (torch.as_tensor(array, device=device) for array in (kept.features, kept.indices))
        return self.decoder.check_answers(len(exam.tokens), features, indices, text)

    def grade(self, exam: Exam, kept: floc.Kept | None) -> np.ndarray:
        """Return the numbers of right answers and of questions, by kind, [kinds, 2] int64."""
        return count_right(exam.questions, self.check(exam, kept))


def count_right(questions: Sequence[Question], right: np.ndarray) -> np.ndarray:
    """Return the numbers of right answers and of questions, by kind, [kinds, 2] int64."""
    counts = np.zeros((len(KINDS), 2), np.int64)
    for question, is_right in zip(questions, right, strict=True):
        counts[KINDS.index(question.kind)] += int(is_right), 1
    return counts


def compute_accuracy(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return accuracy by kind [..., kinds], by group [..., groups], and the mean of the groups [...].

    Args:
        counts: Right answers and questions of each kind, [..., kinds, 2].
    """
    with np.errstate(invalid="ignore"):
        kinds = counts[..., 0] / counts[..., 1]
    groups = np.stack(
        [np.nanmean(kinds[..., [KINDS.index(kind) for kind in names]], axis=-1) for names in GROUPS.values()], -1
    )
    return kinds, groups, groups.mean(-1)


def estimate_interval(counts: np.ndarray, others: np.ndarray | None = None, seed: int = 0) -> tuple[float, float]:
    """Return a 95% interval of the mean accuracy, or of its difference to that of `others`, over films.

    Args:
        counts: [films, kinds, 2].
        others: [films, kinds, 2] of the same films and questions.
        seed: Seed of the bootstrap.
    """
    films = np.random.default_rng(seed).integers(len(counts), size=(RESAMPLES, len(counts)))
    means = compute_accuracy(counts[films].sum(1))[2]
    if others is not None:
        means = means - compute_accuracy(others[films].sum(1))[2]
    low, high = np.nanpercentile(means, [2.5, 97.5])
    return float(low), float(high)
