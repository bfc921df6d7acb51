"""Cut the inputs of a decoder down to the tokens that stay."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from floc.captured.recipe import merge_values
from floc.families.locate import PromptVideo
from floc.kept import Kept

# arguments that are not simply gathered along the tokens
_OTHER_ARGUMENTS = ("inputs_embeds", "position_ids", "attention_mask", "visual_pos_masks", "deepstack_visual_embeds")


@dataclass(frozen=True)
class VideoSelection:
    """The tokens of one video that enter the decoder."""

    indices: torch.Tensor  # [K] int64 ascending, into the video's grid
    features: torch.Tensor | None = None  # [K, D] embeddings to use; None: those that the model computed
    merged: Kept | None = None  # how merged tokens were made
    deep: Sequence[torch.Tensor] = ()  # [K, D] for each of the first layers, if no vision encoder runs


class DecoderCut(NamedTuple):
    """The tokens of one call that enter the decoder: P of L per row, filled up to equal lengths."""

    columns: torch.Tensor  # [B, P] int64, position in this call's sequence
    is_real: torch.Tensor  # [B, P] bool, False for filling
    slots: torch.Tensor  # [B, L] int64, position among the P of every token that stays
    stays: torch.Tensor  # [B, L] bool
    dropped: torch.Tensor  # [B, L] bool, dropped video tokens; other tokens that do not stay are padding


def plan_cut(selected: Sequence[tuple[PromptVideo, VideoSelection]], embeds: torch.Tensor, mask: Any) -> DecoderCut:
    """Lay out the tokens of [B, L, D] embeddings that stay, filled up on the side where the prompt is padded.

    A mask of two axes marks padding, which is dropped too.
    """
    length = embeds.shape[1]
    dropped = torch.zeros(embeds.shape[:2], dtype=torch.bool, device=embeds.device)
    for video, selection in selected:
        dropped[video.row, video.columns] = True
        dropped[video.row, video.columns[selection.indices]] = False
    stays = ~dropped
    fills_left = True
    if isinstance(mask, torch.Tensor) and mask.ndim == 2:
        is_token = mask[:, -length:].bool()
        stays &= is_token  # rows need only as much padding as the longest of what stays
        fills_left = bool(is_token[:, -1].all())
    counts = stays.sum(1)
    width = int(counts.max())
    slots = stays.cumsum(1) - 1
    if fills_left:
        slots = slots + (width - counts)[:, None]
    row, column = stays.nonzero(as_tuple=True)
    slot = slots[row, column]
    columns = torch.zeros(len(dropped), width, dtype=torch.long, device=dropped.device)
    is_real = torch.zeros_like(columns, dtype=torch.bool)
    columns[row, slot] = column
    is_real[row, slot] = True
    return DecoderCut(columns, is_real, slots, stays, dropped)


def cut_inputs(kwargs: dict[str, Any], cut: DecoderCut, selected: Sequence[tuple[PromptVideo, VideoSelection]]) -> None:
    """Cut all arguments of the decoder that have a value per token, but for positions and masks, in place."""
    embeds = kwargs["inputs_embeds"]
    new = gather_tokens(embeds, cut.columns)
    for video, selection in selected:
        if selection.features is not None:
            slots = cut.slots[video.row, video.columns[selection.indices]]
            new[video.row, slots] = selection.features.to(new.device, new.dtype)
    cut_deepstack(kwargs, cut, selected)
    for name, value in kwargs.items():
        is_per_token = isinstance(value, torch.Tensor) and value.shape[:2] == embeds.shape[:2]
        if is_per_token and name not in _OTHER_ARGUMENTS:
            kwargs[name] = gather_tokens(value, cut.columns)
    kwargs["inputs_embeds"] = new


def gather_tokens(values: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Gather [B, L, ...] by columns [B, P] into [B, P, ...]."""
    return values[torch.arange(len(columns), device=columns.device)[:, None], columns]


def cut_deepstack(
    kwargs: dict[str, Any], cut: DecoderCut, selected: Sequence[tuple[PromptVideo, VideoSelection]]
) -> None:
    """Cut what is added to visual tokens in the first layers, in place: `deepstack_visual_embeds` of Qwen3-VL."""
    given = kwargs.get("deepstack_visual_embeds") or ()
    layers = max([len(given), *(len(selection.deep) for _, selection in selected)])
    if not layers:
        return
    embeds = kwargs["inputs_embeds"]
    deep = [embeds.new_zeros(*cut.columns.shape, embeds.shape[-1]) for _ in range(layers)]  # 0 for text
    is_visual = torch.zeros_like(cut.is_real)
    if given:
        mask = kwargs["visual_pos_masks"]
        stays = cut.stays[mask]  # [V] of the visual tokens
        row, column = (mask & cut.stays).nonzero(as_tuple=True)
        is_visual[row, cut.slots[row, column]] = True
        for layer, values in zip(deep, given, strict=True):
            layer[row, cut.slots[row, column]] = values[stays].to(layer.dtype)
    for video, selection in selected:
        slots = cut.slots[video.row, video.columns[selection.indices]]
        for layer, values in zip(deep, selection.deep, strict=False):
            is_visual[video.row, slots] = True
            layer[video.row, slots] = values.to(layer.device, layer.dtype)
        if given and selection.merged is not None:  # merge here too what the method merged
            rank = (mask.flatten().cumsum(0) - 1).view_as(mask)[video.row, video.columns]
            for layer, values in zip(deep, given, strict=True):
                layer[video.row, slots] = merge_values(values[rank], selection.merged).to(layer.dtype)
    kwargs["visual_pos_masks"] = is_visual
    kwargs["deepstack_visual_embeds"] = [layer[is_visual] for layer in deep]
