"""Training batches: films of one length as pixels, with several questions packed behind each video."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from examples.tiny_video_model.films import Film, label_tokens, make_film, render_film
from examples.tiny_video_model.model import CELL, HEIGHT, PATCH, WIDTH
from examples.tiny_video_model.questions import Question, QuestionPicker


def make_patches(frames: torch.Tensor) -> torch.Tensor:
    """Cut frames [F, Y, X, 3] uint8 into patches [P, 3 * 2 * 14 * 14], in the order of the processor of Qwen2.5-VL."""
    count, height, width, _ = frames.shape
    values = frames.to(torch.float32) / 127.5 - 1
    cut = values.reshape(count // 2, 2, height // CELL, 2, PATCH, width // CELL, 2, PATCH, 3)
    return cut.permute(0, 2, 5, 3, 6, 8, 1, 4, 7).reshape(-1, 3 * 2 * PATCH * PATCH)


@dataclass(frozen=True)
class Batch:
    """B films of one length, with their questions.

    The text of a film is `prefix`, the video, and then its questions with answers. No question sees another one.
    """

    patches: torch.Tensor  # [B * slices * H * W * 4, D]
    grid: torch.Tensor  # [B, 3]
    labels: torch.Tensor  # [B, slices * H * W], what each token shows
    ids: torch.Tensor  # [B, L]
    targets: torch.Tensor  # [B, L], the next token if it belongs to an answer, else -100
    segments: torch.Tensor  # [B, L], 0 for prefix and video, k for question k, -1 for padding
    offsets: torch.Tensor  # [B, L], place in the segment


class BatchMaker:
    """Make batches for one length of films."""

    def __init__(self, tokenizer: Any, slices: int, size: int, seed: int):
        self._tokenizer, self.slices, self._size, self._seed = tokenizer, slices, size, seed
        self._picker = QuestionPicker(seed)
        self._count = 0
        self._video = tokenizer.convert_tokens_to_ids("<|video_pad|>")

    def make(self) -> Batch:
        """Return the next batch; its films are shown once."""
        films: list[Film] = []
        while len(films) < self._size:
            film = make_film(self._seed + self._count, self.slices, training=True)
            self._count += 1
            if film.things:
                films.append(film)
        return self._pack(films, [self._picker.pick(film, 2) for film in films])

    def _pack(self, films: list[Film], questions: list[list[Question]]) -> Batch:
        pixels = torch.from_numpy(np.concatenate([render_film(film, HEIGHT, WIDTH) for film in films]))
        rows, columns = HEIGHT // CELL, WIDTH // CELL
        labels = torch.from_numpy(np.stack([label_tokens(film, HEIGHT, WIDTH, CELL).ravel() for film in films]))
        texts = [self._write(film, asked) for film, asked in zip(films, questions, strict=True)]
        length = -(-max(len(ids) for ids, *_ in texts) // 32) * 32
        fill = (self._tokenizer.pad_token_id, -100, -1, 0)
        columns_of = [
            torch.tensor([text[part] + [fill[part]] * (length - len(text[part])) for text in texts])
            for part in range(4)
        ]
        grid = torch.tensor([[self.slices, 2 * rows, 2 * columns]] * len(films))
        return Batch(make_patches(pixels), grid, labels, *columns_of)

    def _write(self, film: Film, questions: list[Question]) -> tuple[list[int], list[int], list[int], list[int]]:
        """Return ids, targets, segments and offsets of a film's text."""
        encode = self._tokenizer.encode
        tokens = self.slices * (HEIGHT // CELL) * (WIDTH // CELL)
        ids = encode("<|im_start|>user\n<|vision_start|>") + [self._video] * tokens + encode("<|vision_end|>")
        targets, segments, offsets = [-100] * len(ids), [0] * len(ids), list(range(len(ids)))
        for number, question in enumerate(questions, 1):
            prompt = encode(f" {question.text}<|im_end|>\n<|im_start|>assistant\n")
            answer = encode(f" {question.answer}<|im_end|>")
            ids += prompt + answer
            targets += [-100] * (len(prompt) - 1) + answer + [-100]
            segments += [number] * (len(prompt) + len(answer))
            offsets += range(len(prompt) + len(answer))
        return ids, targets, segments, offsets
