"""Hooks that pass fewer visual tokens to a model's decoder than the prompt has.

Every video model of transformers builds `inputs_embeds` for the whole prompt and calls its decoder with keyword
arguments. A hook before the multimodal model remembers its arguments. A hook before the decoder, in a call with videos,
selects tokens and cuts every per-token argument. A hook after the decoder records on the cache which tokens it holds.
Generation may encode videos before it calls the model, so the arguments of `get_video_features` are remembered, too.
"""

import functools
import inspect
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, Literal, Self, get_args

import torch
from torch.nn.functional import pad

from floc._checks import check_choice
from floc.families import find_family
from floc.families.locate import Arguments, PromptVideo, Shape
from floc.families.parts import find_decoder, unwrap_model
from floc.integrations.transformers.cache import HOOKS, CacheLayout, is_attached, pop_layout, put_layout
from floc.integrations.transformers.cut import DecoderCut, VideoSelection, cut_inputs, gather_tokens, plan_cut
from floc.integrations.transformers.setups import (
    HAS_VIDEO,
    check_direct_call,
    check_visible,
    discard_compiled_code,
    join_sequence,
    may_be_guess,
)

Positions = Literal["keep", "compact"]


class CallState(threading.local):
    """State of the call that runs in this thread."""

    is_inside = False  # the multimodal model runs
    has_videos = False  # the decoder's next call has videos
    arguments: Arguments = MappingProxyType({})  # of the multimodal model
    encoded: Arguments = MappingProxyType({})  # of the last `get_video_features`, without pixels
    reads_video = False  # the decoder's call has videos
    layout: CacheLayout | None = None  # of what the decoder will hold


class DecoderHooks(ABC):
    """The hooks on one model, as a context manager or until `detach`."""

    @abstractmethod
    def select(self, videos: list[PromptVideo], embeds: torch.Tensor, ids: torch.Tensor) -> list[VideoSelection | None]:
        """Select the tokens of each video of a prompt, [B, L, D] embeddings and [B, L] ids; None keeps all tokens."""

    def __init__(self, model: Any, positions: Positions, shapes: Sequence[Shape] | None = None) -> None:
        check_choice("positions", positions, get_args(Positions))
        talker = getattr(model, "talker", None)
        model = unwrap_model(model)
        self.config = getattr(model, "config", None)
        self.family = find_family(self.config)
        self.base, decoder = find_decoder(model)
        if positions == "compact" and hasattr(self.base, "get_rope_index"):
            reason = f"in {model.config.model_type} a position is a frame, row and column: use positions='keep'"
            raise ValueError(f"positions='compact' is for models with plain positions; {reason}")
        if is_attached(self.base):
            raise RuntimeError("floc is already attached to this model; detach it first, or leave its with block")
        self.positions = positions
        self.shapes = shapes  # grids of videos without pixels, in the order of the prompt; None if they have pixels
        self.model = model
        self.signature = inspect.signature(self.base.forward)
        self.call = CallState()
        self.hooks = [
            model.register_forward_pre_hook(_reject_unsupported, with_kwargs=True),
            self.base.register_forward_pre_hook(self.before_model, with_kwargs=True),
            self.base.register_forward_hook(self.after_model, always_call=True),
            decoder.register_forward_pre_hook(self.before_decoder, with_kwargs=True),
            decoder.register_forward_hook(self.after_decoder, with_kwargs=True, always_call=True),
        ]
        if talker is not None:
            self.hooks.append(talker.register_forward_pre_hook(_reject_speech))
        self.encode = getattr(self.base, "get_video_features", None)
        if self.encode is not None:
            self.base.get_video_features = self._remember(self.encode)
        setattr(self.base, HOOKS, self.hooks)
        discard_compiled_code()

    def detach(self) -> None:
        """Restore the model; may be called twice."""
        if not self.hooks:
            return
        if self.encode is not None:
            del self.base.get_video_features
        for hook in self.hooks:
            hook.remove()
        self.hooks = []
        delattr(self.base, HOOKS)
        discard_compiled_code()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def _remember(self, encode: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does the same and remembers its arguments."""
        signature = inspect.signature(encode)

        @torch.compiler.disable
        def remember(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.call.encoded = arguments = signature.bind_partial(*args, **kwargs).arguments
            pixels = arguments.get(self.family.pixels)
            if pixels is not None:  # their shape is enough
                arguments[self.family.pixels] = torch.empty_like(pixels, device="meta")

        @functools.wraps(encode)
        def encode_videos(*args: Any, **kwargs: Any) -> Any:
            remember(args, kwargs)
            return encode(*args, **kwargs)

        return encode_videos

    @torch.compiler.disable
    def before_model(self, base: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        call = self.call
        call.arguments = self.signature.bind_partial(*args, **kwargs).arguments if args else kwargs
        call.has_videos = self._has_videos(call.arguments)
        if not call.has_videos:
            check_visible(self.family, self.config, call.arguments)
        call.is_inside = True

    @torch.compiler.disable
    def after_model(self, base: Any, args: tuple[Any, ...], output: Any) -> None:
        call = self.call
        has_videos, call.has_videos, call.is_inside, call.arguments = call.has_videos, False, False, {}
        if has_videos and output is not None:  # None: the model raised an error
            problem = f"{type(base).__name__} did not call its language model, so floc could not shorten the video"
            raise RuntimeError(f"{problem}; its get_decoder() must return the module that forward() calls")

    @torch.compiler.disable
    def before_decoder(
        self, decoder: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Cut the inputs of a call with videos; in every call, fit masks and positions to the tokens held."""
        call = self.call
        arguments, has_videos, call.has_videos = call.arguments, call.has_videos, False
        call.reads_video = has_videos
        if not call.is_inside:
            check_direct_call(self.family, self.config, kwargs)
        cache = kwargs.get("past_key_values")
        call.layout = earlier = pop_layout(cache)
        if not has_videos and earlier is None:
            return None
        kwargs = dict(kwargs)
        rows, length = kwargs["inputs_embeds"].shape[:2]
        if earlier is not None and len(earlier.columns) != rows:
            held = len(earlier.columns)
            raise ValueError(f"a shortened cache cannot change its rows: it has {held} rows, but the call has {rows}")
        start = 0 if cache is None else int(cache.get_seq_length())  # of the prompt before this call
        if earlier is not None:
            start += earlier.length - earlier.columns.shape[1]
        prepared = kwargs.get("attention_mask")
        mask = self._find_padding(prepared, start + length)
        cut = self._cut(arguments, kwargs, mask) if has_videos else None
        if cut is not None:
            call.layout = CacheLayout.extend(earlier, cut, start)
        layout = call.layout
        if layout is None:
            return None
        kwargs["position_ids"] = self._cut_positions(kwargs, cut, layout, start, length)
        if _marks_padding(mask):
            # always pass a mask: without one, some releases read positions with gaps as several packed prompts
            kwargs["attention_mask"] = layout.cut_mask(mask, rows, start + length)
            if not _marks_padding(prepared):
                kwargs["attention_mask"] = self._rebuild_mask(kwargs, cut, prepared, layout, start)
        else:
            kwargs["attention_mask"] = layout.cut_attention(mask, cut, cache)
        if cut is not None:
            join_sequence(self.config, kwargs)
        return args, kwargs

    @torch.compiler.disable
    def after_decoder(self, decoder: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        layout, self.call.layout = self.call.layout, None
        cache = kwargs.get("past_key_values")
        if cache is None:
            cache = getattr(output, "past_key_values", None)
        if cache is not None and self.call.reads_video:
            setattr(cache, HAS_VIDEO, True)
        if cache is not None and layout is not None:
            put_layout(cache, layout, self.base)

    def _has_videos(self, arguments: Arguments) -> bool:
        has_pixels = self.family.carries_pixels(arguments)
        if self.shapes is None:
            return has_pixels
        if has_pixels and not self.family.takes_images:
            raise ValueError("a replayed video needs no pixels; remove pixel_values_videos from the inputs")
        count = self.family.count_tokens(self.config, arguments)
        is_part = count < sum(map(math.prod, self.shapes))
        return count > 0 and not (is_part and may_be_guess(count, arguments.get("past_key_values")))

    def _cut(self, arguments: Arguments, kwargs: dict[str, Any], mask: Any) -> DecoderCut | None:
        """Select tokens and cut the decoder's arguments in place; return None if all tokens stay."""
        embeds, ids = kwargs["inputs_embeds"], arguments.get("input_ids")
        if ids is not None and ids.shape[1] != embeds.shape[1]:
            counts = f"it makes {embeds.shape[1]} embeddings from {ids.shape[1]} ids"
            raise ValueError(f"the model drops tokens itself: {counts}; switch that off, such as video_pruning_rate")
        known = {**self.call.encoded, **{name: value for name, value in arguments.items() if value is not None}}
        videos = self.family.find_videos(self.config, known, self.shapes)
        pairs = zip(videos, self.select(videos, embeds, known["input_ids"]), strict=True)
        selected = [(video, selection) for video, selection in pairs if selection is not None]
        if not selected:
            return None
        cut = plan_cut(selected, embeds, mask)
        cut_inputs(kwargs, cut, selected)
        if self.shapes is not None and self.family.newline is not None:  # without pixels the model does not insert it
            embeds, newline = kwargs["inputs_embeds"], getattr(self.base, self.family.newline)
            for video, _ in selected:
                embeds[video.row, cut.slots[video.row, video.newline]] = newline.to(embeds.dtype)
        return cut

    def _cut_positions(
        self, kwargs: dict[str, Any], cut: DecoderCut | None, layout: CacheLayout, start: int, length: int
    ) -> torch.Tensor:
        """Return the positions [..., B, P] of this call's tokens that enter the decoder."""
        rows, device = len(kwargs["inputs_embeds"]), kwargs["inputs_embeds"].device
        positions = kwargs.get("position_ids")
        if positions is None:
            positions = torch.arange(start, start + length, device=device)[None]
        # some releases pass the positions of the whole prompt
        positions = positions[..., -length:].expand(*positions.shape[:-2], rows, length)
        if self.positions == "compact":
            gaps = layout.dropped[:, None]
            if cut is not None:
                gaps = gaps - cut.dropped.sum(1, keepdim=True) + cut.dropped.cumsum(1)
            positions = positions - gaps
        if cut is None:
            return positions
        return positions.take_along_dim(cut.columns.expand(*positions.shape[:-1], -1), -1)

    def _find_padding(self, prepared: Any, length: int) -> Any:
        """Return a mask [B, length] of the prompt, None for all ones, if a prepared mask was built from one."""
        given = self.call.arguments.get("attention_mask")
        makes_masks = hasattr(self.model, "create_masks_for_generate")
        if makes_masks and self.call.is_inside and _marks_padding(given):
            return given
        if not isinstance(prepared, dict):
            return prepared
        mask = prepared["full_attention"] if "full_attention" in prepared else next(iter(prepared.values()))
        if mask is None or mask.ndim == 2:  # it may have the new tokens only, if none is padding
            return mask if mask is None or mask.shape[1] == length else None
        last = mask[:, 0, -1, :length]  # the last token sees all but padding
        return (last if last.dtype == torch.bool else last >= 0).long()

    def _rebuild_mask(
        self, kwargs: dict[str, Any], cut: DecoderCut | None, prepared: Any, layout: CacheLayout, start: int
    ) -> Any:
        """Let the library build the masks of all kinds of layers for the tokens that are held."""
        from transformers.masking_utils import create_masks_for_generate

        names = ("inputs_embeds", "attention_mask", "past_key_values", "position_ids")
        given = {name: kwargs.get(name) for name in names}
        types = self.call.arguments.get("mm_token_type_ids")
        if types is not None and cut is not None:
            guessed = cut.stays.shape[1] - types.shape[1]  # tokens of text, for which generation gives no types
            types = gather_tokens(pad(types, (0, guessed)), cut.columns) * cut.is_real
        build: Any = getattr(self.model, "create_masks_for_generate", create_masks_for_generate)
        mask = build(config=self.config, **given, mm_token_type_ids=types, is_first_iteration=start == 0)
        if start == 0 and isinstance(prepared, dict) and "full_attention" in prepared:
            # some models build it otherwise than the library does for generation
            mask["full_attention"] = layout.cut_attention(prepared["full_attention"], cut, given["past_key_values"])
        return mask


def _marks_padding(mask: Any) -> bool:
    """Return whether a mask is one of two axes, or None."""
    return mask is None or (isinstance(mask, torch.Tensor) and mask.ndim == 2)


def _reject_unsupported(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if kwargs.get("labels") is not None:
        raise ValueError("labels are for training, which needs all tokens; detach floc, or omit labels")
    if isinstance(kwargs.get("logits_to_keep"), torch.Tensor):
        raise ValueError("logits_to_keep as a tensor of positions does not fit a shortened prompt; pass a number")


def _reject_speech(*_: Any) -> None:
    raise ValueError("speech is made from all tokens of a prompt, but floc shortens it; pass return_audio=False")
