"""Answer many questions in one call; the results equal one call for each question.

The vision encoder computes all slices in one call, and the decoder a film once for all questions about it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from examples.tiny_video_model.model import CELL, PATCH, PREFIX
from examples.tiny_video_model.questions import Question

SUFFIX = "<|vision_end|>"
NO_TARGET = -100
WINDOWS = "flash_equal_windows"  # transformers passes the bounds of windows to functions with "flash" in their name
PACKED = "packed_questions"
PART = 196  # rows of attention computed at a time on a CPU


def _attend_windows(
    module: Any, query: Any, key: Any, value: Any, *, cu_seq_lens_q: Any, scaling: float, **_: Any
) -> tuple[torch.Tensor, None]:
    """Attend within windows of equal length, all in one call: [1, heads, P, D] -> [1, P, heads, D]."""
    windows = len(cu_seq_lens_q) - 1
    _, heads, count, width = query.shape

    def split(states: torch.Tensor) -> torch.Tensor:
        return states[0].reshape(heads, windows, count // windows, width).transpose(0, 1)

    output = functional.scaled_dot_product_attention(split(query), split(key), split(value), scale=scaling)
    return output.transpose(1, 2).reshape(1, count, heads, width), None


@torch.compiler.disable  # the kernels of torch need no compilation, and lengths change
def _attend_packed(
    module: Any, query: Any, key: Any, value: Any, mask: torch.Tensor, *, scaling: float, **_: Any
) -> tuple[torch.Tensor, None]:
    """Attend causally in the video, and as `mask` [B, 1, L, video + L] says in the questions behind it."""
    video = query.shape[2] - mask.shape[2]
    if torch.is_autocast_enabled("cpu") and query.device.type == "cpu":
        states = ((query * scaling).bfloat16(), key.bfloat16(), value.bfloat16())
        return _attend_in_parts(*states, mask.bfloat16()).transpose(1, 2), None
    attend = functional.scaled_dot_product_attention
    first = attend(query[:, :, :video], key[:, :, :video], value[:, :, :video], is_causal=True, scale=scaling)
    rest = attend(query[:, :, video:], key, value, attn_mask=mask.to(query.dtype), scale=scaling)
    return torch.cat([first, rest], 2).transpose(1, 2), None


def _attend_in_parts(query: Any, key: Any, value: Any, mask: torch.Tensor) -> torch.Tensor:
    """Compute `_attend_packed` by matrix products, which are twice as fast as the kernel for CPUs in bfloat16."""
    video = query.shape[2] - mask.shape[2]
    keys = key.transpose(2, 3)
    outputs = []
    for start in range(0, video, PART):
        end = min(video, start + PART)
        scores = query[:, :, start:end] @ keys[..., :end]
        ahead = torch.full((end - start, end), -1e9, dtype=query.dtype).triu_(start + 1)
        outputs.append((scores + ahead).softmax(-1) @ value[:, :, :end])
    scores = query[:, :, video:] @ keys + mask
    return torch.cat([*outputs, scores.softmax(-1) @ value], 2)


@contextmanager
def _use_attention(config: Any, name: str, function: Any) -> Iterator[None]:
    """Use another attention function for a part of the model."""
    before = config._attn_implementation
    ALL_ATTENTION_FUNCTIONS.register(name, function)
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before


def batch_windows(model: Any) -> Any:
    """Let the vision encoder compute all windows at once; a window is a slice here."""
    return _use_attention(model.model.visual.config, WINDOWS, _attend_windows)


def pack_questions(model: Any) -> Any:
    """Let the decoder compute a film and its questions without a mask for the film."""
    return _use_attention(model.model.language_model.config, PACKED, _attend_packed)


def make_patches(frames: torch.Tensor) -> torch.Tensor:
    """Cut frames [F, Y, X, 3] uint8 into patches [P, 3 * 2 * 14 * 14], in the order of the processor of Qwen2.5-VL."""
    count, height, width, _ = frames.shape
    values = frames.to(torch.float32) / 127.5 - 1
    cut = values.reshape(count // 2, 2, height // CELL, 2, PATCH, width // CELL, 2, PATCH, 3)
    return cut.permute(0, 2, 5, 3, 6, 8, 1, 4, 7).reshape(-1, 3 * 2 * PATCH * PATCH)


def compute_tokens(model: Any, frames: torch.Tensor) -> torch.Tensor:
    """Return the visual tokens of frames [F, height, width, 3] uint8, as [F / 2, rows, columns, D]."""
    count, height, width, _ = frames.shape
    grid = torch.tensor([[count // 2, 2 * height // CELL, 2 * width // CELL]], device=frames.device)
    with batch_windows(model):
        tokens = model.model.visual(make_patches(frames), grid_thw=grid).pooler_output
    return tokens.reshape(count // 2, height // CELL, width // CELL, -1)


def encode_frames(model: Any, frames: np.ndarray) -> torch.Tensor:
    """Return the visual tokens of frames as `compute_tokens`, without gradients."""
    with torch.no_grad():
        return compute_tokens(model, torch.from_numpy(frames).to(model.device))


@cache
def _encode(tokenizer: Any, text: str) -> list[int]:
    return tokenizer.encode(text)


class PackedText:
    """Questions about B films with their answers, [B, L] each.

    Args:
        tokenizer: The model's tokenizer.
        asked: The questions about each film.
    """

    def __init__(self, tokenizer: Any, asked: Sequence[Sequence[Question]]):
        texts = []
        for questions in asked:
            text: tuple[list[int], ...] = ([], [], [], [])
            for number, question in enumerate(questions):
                prompt = _encode(tokenizer, f" {question.text}<|im_end|>\n<|im_start|>assistant\n")
                answer = _encode(tokenizer, f" {question.answer}<|im_end|>")
                length = len(prompt) + len(answer)
                text[0].extend(prompt + answer)
                text[1].extend([NO_TARGET] * (len(prompt) - 1) + answer + [NO_TARGET])
                text[2].extend([number] * length)
                text[3].extend(range(length))
            texts.append(text)
        length = max(len(text[0]) for text in texts)
        fill = (0, NO_TARGET, -1, 0)
        self.ids, self.targets, self.numbers, self.offsets = (
            torch.tensor([text[part] + [fill[part]] * (length - len(text[part])) for text in texts])
            for part in range(4)
        )

    def get_part(self, part: slice) -> PackedText:
        """Return the text of some of the films."""
        return self._map(lambda values: values[part])

    def to(self, device: torch.device, non_blocking: bool = False) -> PackedText:
        """Return the text on another device."""
        return self._map(lambda values: values.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> PackedText:
        """Return the text in memory from which a GPU copies while it computes."""
        return self._map(lambda values: values.pin_memory())

    def _map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> PackedText:
        result = copy.copy(self)
        result.__dict__.update({name: function(values) for name, values in vars(self).items()})
        return result


class PackedDecoder:
    """Compute the decoder for films with packed questions, at the positions that the model computes.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        rows, columns: Visual tokens of a slice.
    """

    def __init__(self, model: Any, tokenizer: Any, rows: int, columns: int):
        self._model, self._grid = model, (rows, columns)
        self._prefix = torch.tensor([tokenizer.encode(PREFIX)], device=model.device)
        self._suffix = torch.tensor([tokenizer.encode(SUFFIX)], device=model.device)
        self.start = self._prefix.shape[1]  # place of the first visual token
        self._positions: dict[int, torch.Tensor] = {}

    def compute(self, slices: int, visual: torch.Tensor, kept: torch.Tensor, text: PackedText) -> torch.Tensor:
        """Return the last hidden states of the questions, [B, L, D].

        Args:
            slices: Length of the films.
            visual: The kept visual tokens, [B, V, D].
            kept: Their places among all tokens of the film, [B, V].
            text: Questions and answers. A question sees the video and itself.
        """
        model, size = self._model, len(text.ids)
        embed = model.get_input_embeddings()
        around = [embed(ids).expand(size, -1, -1) for ids in (self._prefix, self._suffix)]
        with pack_questions(model):
            output = model.model.language_model(
                inputs_embeds=torch.cat([around[0], visual, around[1], embed(text.ids)], 1),
                position_ids=self.find_positions(slices, kept, text),
                attention_mask=self._make_mask(kept.shape[1], text),
                use_cache=False,
            )
        return output.last_hidden_state[:, -text.ids.shape[1] :]

    def find_positions(self, slices: int, kept: torch.Tensor, text: PackedText) -> torch.Tensor:
        """Return positions [3, B, all] as the model computes them for a video and one question."""
        if slices not in self._positions:
            rows, columns = self._grid
            video = torch.full((1, slices * rows * columns), self._model.config.video_token_id)
            ids = torch.cat([self._prefix.cpu(), video, self._suffix.cpu(), self._suffix.cpu()], 1)
            types = 2 * (ids == self._model.config.video_token_id).int()
            grid, seconds = torch.tensor([[slices, 2 * rows, 2 * columns]]), torch.ones(1)
            found, _ = self._model.model.get_rope_index(ids, types, video_grid_thw=grid, second_per_grid_ts=seconds)
            self._positions[slices] = found[:, 0].to(text.ids.device)  # [3, prefix, video, suffix, first of question]
        before, video, after = self._positions[slices].tensor_split([self.start, -1 - self._suffix.shape[1]], 1)
        size = len(text.ids)
        parts = [part[:, None].expand(-1, size, -1) for part in (before, after[:, :-1])]
        return torch.cat([parts[0], video[:, kept], parts[1], after[:, -1, None, None] + text.offsets], 2)

    def _make_mask(self, count: int, text: PackedText) -> torch.Tensor:
        """Return an additive mask [B, 1, L, video + L]: causal; a question sees the video and itself."""
        size, length = text.ids.shape
        device = text.ids.device
        same = text.numbers[:, :, None] == text.numbers[:, None, :]
        hidden = ~(same & torch.ones(length, length, dtype=torch.bool, device=device).tril())
        video = torch.zeros(size, length, self.start + count + self._suffix.shape[1], device=device)
        return torch.cat([video, torch.zeros(hidden.shape, device=device).masked_fill_(hidden, -1e9)], 2)[:, None]

    def check_answers(self, slices: int, features: torch.Tensor, kept: torch.Tensor, text: PackedText) -> np.ndarray:
        """Return which questions about a film would be answered right by greedy generation, [Q] bool.

        Args:
            slices: Length of the film.
            features: The visual tokens that the model sees, [K, D].
            kept: Their places among all tokens of the film, [K], ascending.
            text: The questions about the film.
        """
        with torch.no_grad():
            states = self.compute(slices, features[None], kept[None], text)
            asked = text.targets >= 0
            right = self._model.lm_head(states[asked]).argmax(-1) == text.targets[asked]
        # greedy generation gives an answer if and only if it gives each of its tokens after the ones before
        result = np.ones(int(text.numbers.max()) + 1, bool)
        np.logical_and.at(result, text.numbers[asked].cpu().numpy(), right.cpu().numpy())
        return result
