"""Record on a KV cache which tokens of the prompt it holds.

A cache has two lengths. Outside the decoder, everything counts the prompt as it was written: ids, masks, positions, and
which part of the prompt is new. Inside, masks must fit the tokens that are held. On a shortened cache, `get_seq_length`
returns the first length, and while the decoder runs the second. `get_query_offset`, from which models build masks,
always returns the second, unless a static cache makes masks as long as the prompt.
"""

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad

from floc.integrations.transformers.cut import DecoderCut

HOOKS = "floc_hooks"  # attribute of a multimodal model that FLoC is attached to


@dataclass(frozen=True)
class CacheLayout:
    """The tokens of a prompt that a cache holds."""

    columns: torch.Tensor  # [B, P] int64, position in the prompt
    is_real: torch.Tensor  # [B, P] bool, False for filling
    length: int  # of the prompt; later tokens are all held
    dropped: torch.Tensor  # [B] int64, number of video tokens that are not held

    @classmethod
    def extend(cls, earlier: "CacheLayout | None", cut: DecoderCut, start: int) -> "CacheLayout":
        """Return the layout after a call, for a prompt with `start` tokens before it."""
        rows, length = cut.dropped.shape
        columns, is_real, dropped = cut.columns + start, cut.is_real, cut.dropped.sum(1)
        if start:
            first = 0 if earlier is None else earlier.length
            plain = torch.arange(first, start, device=columns.device).expand(rows, -1)
            columns, is_real = torch.cat([plain, columns], 1), torch.cat([plain >= 0, is_real], 1)
        if earlier is not None:
            columns, is_real = torch.cat([earlier.columns, columns], 1), torch.cat([earlier.is_real, is_real], 1)
            dropped = dropped + earlier.dropped
        return cls(columns, is_real, start + length, dropped)

    def truncate(self, held: int) -> "CacheLayout":
        """Return the layout of a cache that was cropped to `held` tokens."""
        if held >= self.columns.shape[1]:
            return self
        columns = self.columns[:, :held]
        return CacheLayout(columns, self.is_real[:, :held], int(columns.max()) + 1, self.dropped)

    def cut_mask(self, mask: torch.Tensor | None, rows: int, length: int) -> torch.Tensor:
        """Cut a mask [B, length] of the prompt, None for all ones, to the tokens that are held."""
        if mask is None:
            mask = self.is_real.new_ones(rows, length, dtype=torch.long)
        held = mask[:, : self.length].gather(1, self.columns) * self.is_real
        return torch.cat([held.to(mask.dtype), mask[:, self.length :]], 1)

    def cut_attention(self, mask: Any, cut: DecoderCut | None, cache: Any) -> Any:
        """Cut an attention mask [B, 1, Q, length] on both axes; a static cache keeps its width."""
        if mask is None:
            return None
        if not isinstance(mask, torch.Tensor):
            kind = type(mask).__name__
            raise TypeError(f"floc cannot cut a mask of type {kind}; use attn_implementation='sdpa' or 'eager'")
        if cut is not None:
            index = cut.columns[:, None, :, None].expand(-1, mask.shape[1], -1, mask.shape[-1])
            mask = mask.expand(len(index), -1, -1, -1).gather(2, index)
        closed: Any = False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
        index = self.columns[:, None, None].expand(-1, mask.shape[1], mask.shape[2], -1)
        held = mask[..., : self.length].gather(-1, index).masked_fill(~self.is_real[:, None, None], closed)
        held = torch.cat([held, mask[..., self.length :]], -1)
        missing = mask.shape[-1] - held.shape[-1] if getattr(cache, "is_compileable", False) else 0
        return pad(held, (0, missing), value=closed)


class PromptLength:
    """Replaces `get_seq_length` of one cache: returns the length of the prompt, not of what is held of it."""

    def __init__(self, cache: Any, layout: CacheLayout, base: Any) -> None:
        self.cache = cache
        self.layout = layout
        self.base = weakref.ref(base)  # caches are copied to ask several questions about one prompt, but no models

    @torch.compiler.disable
    def __call__(self, layer_idx: int = 0) -> Any:
        held = self.count_held(layer_idx)
        if not int(held):
            return held  # the cache was reset
        base = self.base()
        if base is None or not is_attached(base):
            raise RuntimeError("this cache holds a prompt that floc shortened; attach floc again, or use a new cache")
        layout = self.layout.truncate(int(held))
        return held + (layout.length - layout.columns.shape[1])

    def count_held(self, layer_idx: int = 0) -> Any:
        """Return what the cache itself would return."""
        return type(self.cache).get_seq_length(self.cache, layer_idx)


def is_attached(base: Any) -> bool:
    """Return whether FLoC is attached to a multimodal model."""
    return HOOKS in vars(base)


def put_layout(cache: Any, layout: CacheLayout, base: Any) -> None:
    """Record on a cache the tokens that it holds."""
    cache.get_seq_length = length = PromptLength(cache, layout, base)
    if not getattr(cache, "is_compileable", False):
        cache.get_query_offset = length.count_held


def pop_layout(cache: Any) -> CacheLayout | None:
    """Remove the layout from a cache, so that it returns the tokens it holds; None if it holds the whole prompt."""
    length = getattr(cache, "__dict__", {}).get("get_seq_length")
    if not isinstance(length, PromptLength):
        return None
    del cache.get_seq_length
    vars(cache).pop("get_query_offset", None)
    held = int(length.count_held())
    return length.layout.truncate(held) if held else None  # a cache that was reset holds nothing
