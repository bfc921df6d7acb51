"""Estimate FLOPs, memory and KV cache of a model on a video, from its config and the shapes of its parameters.

The model may be on the meta device: no weights are read. Memory is that of weights, pixels, tokens, activations and
caches, without Python and its libraries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from floc.captured.pieces import PIECE_TOKENS
from floc.encoders.chunks import STEP
from floc.methods.floc import choose_horizon
from floc.streaming.cutting import HorizonCutter
from floc.streaming.horizon import STORED

PIXEL_BYTES = 4  # of a value that a processor returns
EMBEDDED = 3  # copies of all visual tokens in memory with FLoC attached: features, embeddings and their copy
HISTORY_BYTES = 40  # of a stream for each token of the video: which kept tokens represented it
# Tensors of one layer that are in memory at a time, in multiples of its width and of the width of its MLP
WIDTHS, MLP_WIDTHS = 8, 2
FULL_LAYERS = "fullatt_block_indexes"  # of Qwen2.5-VL: all other layers attend to a small window


@dataclass(frozen=True)
class Stack:
    """The layers of a vision encoder or a language model."""

    parameters: float  # that one row passes through, embeddings left out
    layers: float  # that attend to all rows of their span
    width: int
    mlp_width: int
    heads: int

    def count_flops(self, rows: int, span: int) -> tuple[float, float]:
        """Return the FLOPs of matrix products and of attention; each of `rows` rows attends to `span` rows."""
        return 2.0 * self.parameters * rows, 4.0 * self.layers * self.width * rows * span

    def count_activation_bytes(self, rows: int, itemsize: int) -> int:
        return rows * (WIDTHS * self.width + MLP_WIDTHS * self.mlp_width) * itemsize


@dataclass(frozen=True)
class Workload:
    """A video as a model reads it."""

    frames: int
    slices: int
    decoded_bytes: int  # of all its frames as the file has them
    pixels: int  # values that its processor returns
    patches: int  # rows of the vision encoder
    tokens: int  # visual tokens in all
    kept: int
    text: int  # other tokens of the prompt

    @property
    def prompt(self) -> int:
        """Tokens of the prompt after compression."""
        return self.kept + self.text

    @property
    def chunk(self) -> float:
        """The share of the video that a capture encodes at a time."""
        return min(1.0, STEP / self.frames)

    @property
    def horizon(self) -> int:
        """Slices between a token and its representative at most."""
        return choose_horizon(self.tokens, max(1, self.kept))

    @property
    def window(self) -> int:
        """Tokens that may represent a token."""
        return min(self.slices, 2 * self.horizon + 1) * self.tokens // self.slices


@dataclass(frozen=True)
class ModelCosts:
    """The sizes of a model that its FLOPs and memory depend on."""

    vision: Stack
    decoder: Stack
    weights_bytes: int
    loaded_bytes: int  # of weights that are in memory already
    dtype: torch.dtype
    dim: int  # of a visual token, with deep features
    context: int | None  # longest prompt and answer in tokens
    config: Any

    @classmethod
    def from_model(cls, model: Any) -> ModelCosts:
        """Read the costs of a model, on any device."""
        text, vision = model.config.get_text_config(), model.config.vision_config
        decoder = model.get_decoder()
        in_decoder = {id(weight) for weight in decoder.parameters()}
        rest = [
            weight
            for name, weight in model.named_parameters()
            if id(weight) not in in_decoder and "lm_head" not in name and "audio" not in name
        ]
        weights_bytes = sum(weight.nbytes for weight in model.parameters())
        deep = getattr(vision, "deepstack_visual_indexes", None) or ()
        vision_layers = _read(vision, "depth", "num_hidden_layers", default=1)
        windowed = len(getattr(vision, FULL_LAYERS, None) or ()) or vision_layers
        return cls(
            _create_stack(vision, float(sum(weight.numel() for weight in rest)), windowed),
            _create_stack(_get_layer(text, 0), _count_active(decoder, text), _list_windows(text).count(0)),
            weights_bytes,
            0 if model.device.type == "meta" else weights_bytes,
            model.dtype,
            text.hidden_size * (1 + len(deep)),
            getattr(text, "max_position_embeddings", None),
            model.config,
        )

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    def count_kv_bytes(self, tokens: int) -> int:
        """Return the size of the KV cache; layers with linear attention have none, a sliding window limits it."""
        text = self.config.get_text_config()
        total = 0
        for layer, window in enumerate(_list_windows(text)):
            if window is not None:
                total += min(tokens, window - 1 if window else tokens) * _count_kv_values(text, layer)
        return total * self.itemsize

    def count_attach_bytes(self, work: Workload, *, with_processor: bool) -> int:
        """Return the peak of a model with FLoC attached, which encodes all frames at once.

        Args:
            with_processor: whether the processor's memory, which holds all decoded frames, counts, too.
        """
        processing = self.count_processor_bytes(work) if with_processor else 0
        tokens = work.tokens * self.dim * self.itemsize
        encoding = (
            self.itemsize * work.pixels + self.vision.count_activation_bytes(work.patches, self.itemsize) + tokens
        )
        selecting = EMBEDDED * tokens + count_selection_bytes(work, work.tokens, self.decoder.width)
        reading = EMBEDDED * tokens + self._count_prefill_bytes(work)
        return self.weights_bytes + max(processing, PIXEL_BYTES * work.pixels + max(encoding, selecting, reading))

    def count_processor_bytes(self, work: Workload) -> int:
        """Return the peak of the model's processor, which holds all frames, decoded and prepared."""
        return work.decoded_bytes + 2 * PIXEL_BYTES * work.pixels

    def count_capture_bytes(self, work: Workload) -> int:
        """Return the peak of a capture, which encodes a few frames at a time, and of a question."""
        slices, past = work.slices, 0
        if work.tokens > PIECE_TOKENS:  # a stream selects, which stores the last slices and all of its picks twice
            slices = min(slices, HorizonCutter(work.horizon).capacity)
            past = (2 * STORED + 1) * work.kept * self.dim * self.itemsize + HISTORY_BYTES * work.tokens
        waiting = slices * work.tokens // work.slices * self.dim * self.itemsize
        pixels = int(work.pixels * work.chunk) * (2 * PIXEL_BYTES + self.itemsize)
        patches = int(work.patches * work.chunk)
        encoding = waiting + pixels + self.vision.count_activation_bytes(patches, self.itemsize)
        selecting = waiting + count_selection_bytes(work, slices * work.tokens // work.slices, self.decoder.width)
        return self.weights_bytes + max(past + max(encoding, selecting), self._count_prefill_bytes(work))

    def _count_prefill_bytes(self, work: Workload) -> int:
        activations = self.decoder.count_activation_bytes(work.prompt, self.itemsize)
        return work.kept * self.dim * self.itemsize + activations + self.count_kv_bytes(work.prompt)


def count_selection_bytes(work: Workload, tokens: int, dim: int) -> int:
    """Return the memory that a selection from `tokens` needs: their similarities, and a copy of a window."""
    return work.window * (2 * tokens + 4 * dim)


def count_selection_flops(work: Workload, dim: int) -> float:
    """Return the FLOPs of the similarities, each computed once for two tokens."""
    return float(dim) * work.tokens * work.window


def build_without_weights(config: Any) -> Any:
    """Build a model on the meta device, in the dtype of its checkpoint."""
    from transformers import AutoModelForMultimodalLM

    with torch.device("meta"):
        return AutoModelForMultimodalLM.from_config(config, dtype=config.dtype or torch.float32)


def _create_stack(config: Any, parameters: float, layers: float) -> Stack:
    # Qwen2-VL's vision config calls the width of its output `hidden_size`
    width = _read(config, "embed_dim", "hidden_size", default=1024)
    heads = _read(config, "num_attention_heads", "num_heads", default=16)
    return Stack(parameters, layers, width, _read(config, "intermediate_size", default=4 * width), heads)


def _count_active(decoder: Any, text: Any) -> float:
    """Return the parameters that a token passes through: without embeddings, and its share of the experts."""
    chosen = _read(text, "num_experts_per_tok", "moe_k", "top_k_experts", default=1)
    total = 0.0
    for name, weight in decoder.named_parameters():
        if "embed" not in name:
            is_expert = ".experts." in name and weight.ndim == 3
            total += weight.numel() * (min(1.0, chosen / len(weight)) if is_expert else 1.0)
    return total


def _list_windows(text: Any) -> list[int | None]:
    """Return the sliding window of each layer that has a cache; 0 for all tokens, None for linear attention."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    layers = DynamicCache(config=text).layers
    return [
        (getattr(layer, "sliding_window", None) or 0) if isinstance(layer, DynamicLayer) else None for layer in layers
    ]


def _count_kv_values(text: Any, layer: int) -> int:
    """Return the values that a layer caches for a token."""
    text = _get_layer(text, layer)
    if getattr(text, "kv_lora_rank", None):  # keys and values are cached in a compressed form
        return int(text.kv_lora_rank + text.qk_rope_head_dim)
    heads = _read(text, "num_key_value_heads", "num_attention_heads", default=1)
    return 2 * heads * _read(text, "head_dim", default=text.hidden_size // text.num_attention_heads)


def _get_layer(text: Any, layer: int) -> Any:
    """Return the config of one layer of a language model: layers of Gemma 4 differ."""
    layers = getattr(text, "per_layer_config", None)
    return layers[layer] if layers else text


def _read(config: Any, *names: str, default: int) -> int:
    """Return the first of several attributes that a config has; of a list its first value."""
    value = next((getattr(config, name) for name in names if getattr(config, name, None)), default)
    return int(value[0] if isinstance(value, list | tuple) else value)
