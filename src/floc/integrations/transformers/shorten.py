"""The mechanism: hooks that hand a model's decoder fewer visual tokens than the prompt has.

Every video model of transformers builds `inputs_embeds` for the whole prompt and calls its decoder with keyword
arguments. A hook before the multimodal model remembers what it was called with; a hook before the decoder, in a call
that brings videos, lets a `choose` function pick, and gathers every per-token argument down to what stays; a hook after
the decoder notes on the cache which tokens of the prompt it holds.

So a cache has two lengths. Outside of the decoder everything counts the prompt as it was written: ids, masks,
positions, the part of the prompt that is new. Inside, masks must fit what is held. `get_seq_length` of a cache with a
note tells the first, and while the decoder runs the second.
"""

from __future__ import annotations

import copy
import inspect
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch.nn.functional import pad

from floc._checks import check_choice
from floc.captured.recipe import merge_values
from floc.integrations.transformers.families import Arguments, Clip, Family, Shape, family_of
from floc.kept import Kept

if TYPE_CHECKING:
    from typing_extensions import Self

Positions = Literal["keep", "compact"]
POSITIONS = ("keep", "compact")


@dataclass(frozen=True)
class Choice:
    """What of one video goes into the decoder."""

    indices: torch.Tensor  # [K] int64 ascending, into the video's grid
    features: torch.Tensor | None = None  # [K, D] to put there; None: what the model put there itself
    merged: Kept | None = None  # how they were made of several tokens each, where they were
    deep: Sequence[torch.Tensor] = ()  # [K, D] for each of the first layers, where no vision tower runs that makes them


# the videos of a prompt and its [B, L, D] embeddings -> a choice for each video, None where it stays as it is
Choose = Callable[[list[Clip], torch.Tensor], list[Choice | None]]


class Part(NamedTuple):
    """The tokens of one call that go into the decoder."""

    columns: torch.Tensor  # [B, P] int64, the place in this call's sequence of each
    is_real: torch.Tensor  # [B, P] bool, False for what only fills a row up
    slots: torch.Tensor  # [B, L] int64, for every token that stays its place among the P
    stays: torch.Tensor  # [B, L] bool
    dropped: torch.Tensor  # [B, L] bool, tokens of videos that do not stay; what else goes is padding


@dataclass(frozen=True)
class Layout:
    """Which tokens of a prompt a decoder holds."""

    columns: torch.Tensor  # [B, P] int64, the place in the prompt of each token that is held
    is_real: torch.Tensor  # [B, P] bool
    length: int  # of that prompt; what comes after it is held token by token
    dropped: torch.Tensor  # [B] int64, how many tokens of videos are not held

    @classmethod
    def of(cls, part: Part, earlier: Layout | None, start: int) -> Layout:
        """What is held after a call, of `start` tokens before it and its own."""
        rows, length = part.dropped.shape
        columns, is_real, dropped = part.columns + start, part.is_real, part.dropped.sum(1)
        if start:
            since = 0 if earlier is None else earlier.length
            plain = torch.arange(since, start, device=columns.device).expand(rows, -1)
            columns, is_real = torch.cat([plain, columns], 1), torch.cat([plain >= 0, is_real], 1)
        if earlier is not None:
            columns, is_real = torch.cat([earlier.columns, columns], 1), torch.cat([earlier.is_real, is_real], 1)
            dropped = dropped + earlier.dropped
        return cls(columns, is_real, start + length, dropped)

    def cut(self, held: int) -> Layout:
        """What is left where a cache was cut off after `held` of them."""
        if held >= self.columns.shape[1]:
            return self
        columns = self.columns[:, :held]
        return Layout(columns, self.is_real[:, :held], int(columns.max()) + 1, self.dropped)

    def mask(self, mask: torch.Tensor | None, rows: int, length: int) -> torch.Tensor:
        """[B, length] of the prompt so far, None for all of it -> the same for what is held."""
        if mask is None:
            mask = self.is_real.new_ones(rows, length, dtype=torch.long)
        held = mask[:, : self.length].gather(1, self.columns) * self.is_real
        return torch.cat([held.to(mask.dtype), mask[:, self.length :]], 1)

    def mask_of_queries(self, mask: torch.Tensor, is_static: bool) -> torch.Tensor:
        """[B, 1, Q, columns] ready-made -> the same for what is held; a static cache keeps its width."""
        closed: Any = False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
        index = self.columns[:, None, None].expand(-1, mask.shape[1], mask.shape[2], -1)
        held = mask[..., : self.length].gather(-1, index).masked_fill(~self.is_real[:, None, None], closed)
        held = torch.cat([held, mask[..., self.length :]], -1)
        return pad(held, (0, mask.shape[-1] - held.shape[-1]), value=closed) if is_static else held


class Lengths:
    """Takes the place of `get_seq_length` of one cache: the length of the prompt, not of what is held of it."""

    def __init__(self, cache: Any, layout: Layout, base: Any) -> None:
        self.cache = cache
        self.layout = layout
        self.base = weakref.ref(base)

    def __call__(self, layer_idx: int = 0) -> Any:
        held = self.held(layer_idx)
        if not int(held):
            return held  # it was reset
        base = self.base()
        if base is None or not is_attached(base):
            raise RuntimeError(
                "this cache holds a shortened prompt, made while floc was attached to its model; "
                "attach floc again to go on with it, or start with a new cache"
            )
        layout = self.layout.cut(int(held))
        return held + (layout.length - layout.columns.shape[1])

    def held(self, layer_idx: int = 0) -> Any:
        """What the cache itself says."""
        return type(self.cache).get_seq_length(self.cache, layer_idx)

    def __deepcopy__(self, memo: dict[int, Any]) -> Lengths:
        # a cache is copied to ask several questions of one prompt; its model is not
        base = self.base()
        assert base is not None, "a cache outlived its model"
        return Lengths(copy.deepcopy(self.cache, memo), self.layout, base)


class _Call(threading.local):
    """What is known of the call that runs in this thread."""

    arguments: Arguments | None = None  # of the multimodal model, where they bring videos
    layout: Layout | None = None  # of what the decoder will hold
    tower: tuple[torch.Tensor, torch.Tensor | None] | None = None  # the grids and merge sizes the vision tower got last


class Shortener:
    """The hooks on one model, until they are removed."""

    def __init__(
        self, model: Any, choose: Choose, positions: Positions = "keep", shapes: Sequence[Shape] | None = None
    ) -> None:
        """Args:
        model: a video model of transformers, with or without its language head.
        choose: what to keep of the videos in a prompt.
        positions: "keep" the ones the tokens had, or make them "compact", as if the others had never been there.
        shapes: of videos that come without pixels, in the order of a prompt; None: videos come with pixels.
        """
        check_choice("positions", positions, POSITIONS)
        self.family: Family = family_of(getattr(model, "config", None))
        if positions == "compact" and self.family.has_grid_positions:
            raise ValueError(
                "positions='compact' is for models that number their tokens one by one; in "
                f"{self.family.kind} a position is a frame, row and column, and tokens keep theirs: leave it out"
            )
        windows = set(getattr(model.config.get_text_config(), "layer_types", None) or ()) - {"full_attention"}
        if windows:
            raise ValueError(
                f"this model has layers with {' and '.join(sorted(windows))}, in which a token sees a part of the "
                "prompt: with tokens dropped it would be another part; floc takes models with full attention"
            )
        self.config = model.config
        self.base, decoder = model.base_model, model.get_decoder()
        if is_attached(self.base):
            raise RuntimeError("floc is attached to this model already; detach it first, or leave its with block")
        self.choose = choose
        self.positions = positions
        self.shapes = shapes
        self.signature = inspect.signature(self.base.forward)
        self.call = _Call()
        self.hooks = [
            self.base.register_forward_pre_hook(self.before_model, with_kwargs=True),
            self.base.register_forward_hook(self.after_model, always_call=True),
            decoder.register_forward_pre_hook(self.before_decoder, with_kwargs=True),
            decoder.register_forward_hook(self.after_decoder, with_kwargs=True, always_call=True),
        ]
        if model is not self.base:
            self.hooks.append(model.register_forward_pre_hook(_refuse, with_kwargs=True))
        for tower in self.base.children():
            if "grid_thw" in inspect.signature(tower.forward).parameters:
                self.hooks.append(tower.register_forward_pre_hook(self.before_tower, with_kwargs=True))

    def remove(self) -> None:
        """Leave the model as it was."""
        for hook in self.hooks:
            hook.remove()
        self.hooks = []

    def before_model(self, base: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Remember what a call brings."""
        arguments = self.signature.bind_partial(*args, **kwargs).arguments if args else kwargs
        self.call.arguments = {**arguments, "tower": self.call.tower} if self._brings_videos(arguments) else None

    def after_model(self, *_: Any) -> None:
        """Forget it, also where the call failed."""
        self.call.arguments = None

    def before_tower(self, tower: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Remember the grids of what is encoded: pictures first, then videos."""
        self.call.tower = (kwargs["grid_thw"], kwargs.get("merge_sizes")) if "grid_thw" in kwargs else None

    def before_decoder(
        self, decoder: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Shorten a call that brings videos; in every call, fit masks and positions to what is held."""
        call = self.call
        arguments, call.arguments = call.arguments, None
        cache = kwargs.get("past_key_values")
        call.layout = earlier = _take_note(cache)
        if arguments is None and earlier is None:
            return None
        kwargs = dict(kwargs)
        rows, length = kwargs["inputs_embeds"].shape[:2]
        if earlier is not None and len(earlier.columns) != rows:
            raise ValueError(
                f"this cache holds a shortened prompt of {len(earlier.columns)} rows, and the call has {rows}; rows of "
                "such a cache cannot be repeated or left out"
            )
        start = _length(cache, earlier)
        part = None if arguments is None else self._shorten(arguments, kwargs)
        if part is not None:
            call.layout = Layout.of(part, earlier, start)
        layout = call.layout
        if layout is None:
            return None
        kwargs["position_ids"] = self._positions(kwargs, part, layout, start, length)
        mask = kwargs.get("attention_mask")
        if mask is None or (isinstance(mask, torch.Tensor) and mask.ndim == 2):
            # always one: without it, some releases read positions with gaps as several packed prompts
            kwargs["attention_mask"] = layout.mask(mask, rows, start + length)
        else:
            kwargs["attention_mask"] = _mask_of_queries(mask, part, layout, cache)
        return args, kwargs

    def after_decoder(self, decoder: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Note on the cache what it holds."""
        layout, self.call.layout = self.call.layout, None
        if layout is None:
            return
        cache = kwargs.get("past_key_values")
        if cache is None:
            cache = getattr(output, "past_key_values", None)
        if cache is not None:
            cache.get_seq_length = Lengths(cache, layout, self.base)

    def _brings_videos(self, arguments: Arguments) -> bool:
        has_pixels = self.family.carries_pixels(arguments)
        if self.shapes is None:
            return has_pixels
        if has_pixels and self.family.carrier == "pixel_values_videos":
            raise ValueError("a video that is replayed needs no pixels; leave pixel_values_videos out of the inputs")
        ids = arguments.get("input_ids")
        if ids is None or ids.shape[1] == 1:  # an answer may have such tokens in it
            return False
        return bool(self.family.marked(self.config, ids, only_videos=True).any())

    def _shorten(self, arguments: Arguments, kwargs: dict[str, Any]) -> Part | None:
        """Gather all that this call says of its tokens; None where they stay as they are."""
        embeds = kwargs["inputs_embeds"]
        clips = self.family.clips(self.config, arguments, self.shapes)
        choices = self.choose(clips, embeds)
        changed = [(clip, choice) for clip, choice in zip(clips, choices, strict=True) if choice is not None]
        if not changed:
            return None
        rows, length = embeds.shape[:2]
        dropped = torch.zeros(rows, length, dtype=torch.bool, device=embeds.device)
        for clip, choice in changed:
            dropped[clip.row, clip.places] = True
            dropped[clip.row, clip.places[choice.indices]] = False
        part = _part(dropped, kwargs.get("attention_mask"))
        new = _gathered(embeds, part.columns)
        for clip, choice in changed:
            if choice.features is not None:
                slots = part.slots[clip.row, clip.places[choice.indices]]
                new[clip.row, slots] = choice.features.to(new.device, new.dtype)
            if self.shapes is not None and self.family.closing is not None:  # no pixels, so the model did not do it
                new[clip.row, part.slots[clip.row, clip.closing]] = getattr(self.base, self.family.closing).to(
                    new.dtype
                )
        _deepen(kwargs, part, changed)
        for name, value in kwargs.items():
            is_per_token = isinstance(value, torch.Tensor) and value.shape[:2] == (rows, length)
            if is_per_token and name not in _HANDLED:
                kwargs[name] = _gathered(value, part.columns)
        kwargs["inputs_embeds"] = new
        return part

    def _positions(
        self, kwargs: dict[str, Any], part: Part | None, layout: Layout, start: int, length: int
    ) -> torch.Tensor:
        """[..., B, P] of the tokens of this call that go into the decoder."""
        rows, device = len(kwargs["inputs_embeds"]), kwargs["inputs_embeds"].device
        positions = kwargs.get("position_ids")
        if positions is None:
            positions = torch.arange(start, start + length, device=device)[None]
        positions = positions[..., -length:].expand(*positions.shape[:-2], rows, length)  # some give all so far
        if self.positions == "compact":
            before = layout.dropped[:, None]
            if part is not None:
                before = before - part.dropped.sum(1, keepdim=True) + part.dropped.cumsum(1)
            positions = positions - before
        if part is None:
            return positions
        return positions.take_along_dim(part.columns.expand(*positions.shape[:-1], -1), -1)


class Hooked:
    """A model with hooks on it, as a context manager or until it is detached."""

    def __init__(self, shortener: Shortener) -> None:
        self._shortener = shortener

    def detach(self) -> None:
        """Leave the model as it was; doing it twice does no harm."""
        self._shortener.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()


# arguments that are not gathered like others of one value a token
_HANDLED = ("inputs_embeds", "position_ids", "attention_mask", "visual_pos_masks", "deepstack_visual_embeds")


def is_attached(base: Any) -> bool:
    """Whether a model has these hooks."""
    return any(True for _ in _shorteners(base))


def _shorteners(base: Any) -> Iterator[Shortener]:
    for hook in base._forward_pre_hooks.values():
        owner = getattr(hook, "__self__", None)
        if isinstance(owner, Shortener):
            yield owner


def _refuse(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Complain of what cannot work on a shortened prompt."""
    if kwargs.get("labels") is not None:
        raise ValueError("labels are for training, on all tokens; detach floc, or leave labels out")
    if isinstance(kwargs.get("logits_to_keep"), torch.Tensor):
        raise ValueError("logits_to_keep as a list of places does not fit a shortened prompt; pass a number")


def _take_note(cache: Any) -> Layout | None:
    """What a cache holds of its prompt, None where that is all of it; until the note is back it tells what it holds."""
    lengths = getattr(cache, "__dict__", {}).get("get_seq_length")
    if not isinstance(lengths, Lengths):
        return None
    del cache.get_seq_length
    held = int(lengths.held())
    return lengths.layout.cut(held) if held else None  # a cache that was reset holds nothing


def _length(cache: Any, layout: Layout | None) -> int:
    """Of the prompt before this call."""
    held = 0 if cache is None else int(cache.get_seq_length())
    return held if layout is None else held + layout.length - layout.columns.shape[1]


def _part(dropped: torch.Tensor, mask: Any) -> Part:
    """Lay the tokens that stay side by side, rows filled up on the side where the prompt is padded."""
    length = dropped.shape[1]
    stays = ~dropped
    fills_left = True
    if isinstance(mask, torch.Tensor) and mask.ndim == 2:
        mine = mask[:, -length:].bool()
        stays &= mine  # padding can go too: rows need as much as the longest of what is left
        fills_left = bool(mine[:, -1].all())
    counts = stays.sum(1)
    held = int(counts.max())
    slots = stays.cumsum(1) - 1
    if fills_left:
        slots = slots + (held - counts)[:, None]
    row, place = stays.nonzero(as_tuple=True)
    slot = slots[row, place]
    columns = torch.zeros(len(dropped), held, dtype=torch.long, device=dropped.device)
    is_real = torch.zeros_like(columns, dtype=torch.bool)
    columns[row, slot] = place
    is_real[row, slot] = True
    return Part(columns, is_real, slots, stays, dropped)


def _gathered(values: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """[B, L, ...] -> [B, P, ...]"""
    return values[torch.arange(len(columns), device=columns.device)[:, None], columns]


def _mask_of_queries(mask: Any, part: Part | None, layout: Layout, cache: Any) -> Any:
    """A mask that was made before the decoder: [B, 1, Q, columns], or several of them by kind of layer."""
    if isinstance(mask, dict):
        return {kind: _mask_of_queries(each, part, layout, cache) for kind, each in mask.items()}
    if mask is None:
        return None
    if not isinstance(mask, torch.Tensor):
        raise TypeError(f"floc cannot shorten an attention mask of type {type(mask).__name__}; use sdpa or eager")
    if part is not None:
        index = part.columns[:, None, :, None].expand(-1, mask.shape[1], -1, mask.shape[-1])
        mask = mask.expand(len(index), -1, -1, -1).gather(2, index)
    return layout.mask_of_queries(mask, bool(getattr(cache, "is_compileable", False)))


def _deepen(kwargs: dict[str, Any], part: Part, changed: Sequence[tuple[Clip, Choice]]) -> None:
    """Gather what is added to the visual tokens in the first layers: `deepstack_visual_embeds` of Qwen3-VL."""
    given = kwargs.get("deepstack_visual_embeds") or ()
    layers = max([len(given), *(len(choice.deep) for _, choice in changed)])
    if not layers:
        return
    embeds = kwargs["inputs_embeds"]
    shape = (*part.columns.shape, embeds.shape[-1])
    deep = [embeds.new_zeros(shape) for _ in range(layers)]  # of all tokens that stay, 0 for text
    is_visual = torch.zeros_like(part.is_real)
    if given:
        marked = kwargs["visual_pos_masks"]
        stays = part.stays[marked]  # [V] of the visual tokens
        row, place = (marked & part.stays).nonzero(as_tuple=True)
        is_visual[row, part.slots[row, place]] = True
        for layer, values in zip(deep, given, strict=True):
            layer[row, part.slots[row, place]] = values[stays].to(layer.dtype)
    for clip, choice in changed:
        slots = part.slots[clip.row, clip.places[choice.indices]]
        for layer, values in zip(deep, choice.deep, strict=False):
            is_visual[clip.row, slots] = True
            layer[clip.row, slots] = values.to(layer.device, layer.dtype)
        if given and choice.merged is not None:  # in these layers they are made of the same tokens
            nth = (marked.flatten().cumsum(0) - 1).view_as(marked)[clip.row, clip.places]
            for layer, values in zip(deep, given, strict=True):
                layer[clip.row, slots] = merge_values(values[nth], choice.merged).to(layer.dtype)
    kwargs["visual_pos_masks"] = is_visual
    kwargs["deepstack_visual_embeds"] = [layer[is_visual] for layer in deep]
