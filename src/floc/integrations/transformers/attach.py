"""Attach FLoC to a model: `with floc.attach(model, ratio=1/8): model.generate(**inputs)`."""

from collections.abc import Callable
from typing import Any

import torch

from floc._checks import shorten
from floc.captured.recipe import Recipe
from floc.encoders.fast_attention import FastVision
from floc.encoders.slice_choice import ALL_SLICES, SliceOptions
from floc.families.locate import PromptVideo
from floc.families.parts import unwrap_model
from floc.integrations.transformers.cut import VideoSelection
from floc.integrations.transformers.hooks import DecoderHooks, Positions
from floc.integrations.transformers.slice_choice import create_patch_rule, leave_out_slices
from floc.kept import Kept


class AttachHandle(DecoderHooks):
    """FLoC on a model, until it is detached."""

    def __init__(
        self,
        model: Any,
        recipe: Recipe,
        positions: Positions,
        *,
        slices: SliceOptions = ALL_SLICES,
        fast_vision: bool = True,
    ) -> None:
        query = recipe.options.get("query")
        if isinstance(query, str) and query != "prompt":
            raise ValueError(f"query must be 'prompt', for the text of the prompt, or embeddings; got {shorten(query)}")
        self.recipe, self.slices = recipe, slices
        if slices:
            create_patch_rule(unwrap_model(model).config, slices)  # raises if the model cannot
        self.special_ids = _list_special_ids(unwrap_model(model)) if isinstance(query, str) else []
        self.last: list[Kept] = []  # one for each distinct video of the last prompt, and question if it steers
        super().__init__(model, positions)
        self.vision = FastVision(self.base) if fast_vision else None
        if self.vision is not None:
            self.vision.hook()

    def detach(self) -> None:
        if self.vision is not None:
            self.vision.unhook()
        super().detach()

    def _remember(self, encode: Callable[..., Any]) -> Callable[..., Any]:
        return super()._remember(leave_out_slices(encode, self.config, self.slices) if self.slices else encode)

    def select(self, videos: list[PromptVideo], embeds: torch.Tensor, ids: torch.Tensor) -> list[VideoSelection | None]:
        self.last = []
        selections: list[VideoSelection | None] = []
        inputs: list[list[torch.Tensor]] = []  # what each selection was made from
        reads_prompt = isinstance(self.recipe.options.get("query"), str)
        for video in videos:
            tokens = [embeds.detach()[video.row, video.columns].view(*video.shape, -1)]
            if reads_prompt:
                tokens.append(embeds.detach()[video.row, self._find_text(video.row, videos, ids)])
            # beams and samples repeat rows, and several rows may ask about one video
            earlier = (i for i in range(len(inputs)) if videos[i].row < video.row)
            first = next((i for i in earlier if all(map(torch.equal, inputs[i], tokens))), None)
            if first is None:
                kept = self.recipe(*tokens)
                self.last.append(kept.without_tokens())  # 50,000 tokens take a third of a gigabyte
                merged = (torch.as_tensor(kept.features), kept) if kept.merged else ()
                is_cut = len(kept) < kept.n
                selections.append(VideoSelection(torch.as_tensor(kept.indices), *merged) if is_cut else None)
            else:
                selections.append(selections[first])
            inputs.append(tokens)
        return selections

    def _find_text(self, row: int, videos: list[PromptVideo], ids: torch.Tensor) -> torch.Tensor:
        """Return [Q] int64, the columns of a row's text: no special tokens, and nothing from a video's first token on
        to its last, where times and numbers of frames are."""
        is_text = ~torch.isin(ids[row], torch.tensor(self.special_ids, device=ids.device))
        mask = self.call.arguments.get("attention_mask")
        if isinstance(mask, torch.Tensor) and mask.ndim == 2:
            is_text &= mask[row, -ids.shape[1] :].bool()
        for video in videos:
            if video.row == row:
                is_text[int(video.columns.min()) : int(video.columns.max()) + 1] = False
        columns = is_text.nonzero()[:, 0]
        if not len(columns):
            raise ValueError(f"query='prompt' needs text, but row {row} of the prompt has only special tokens")
        return columns


def _list_special_ids(model: Any) -> list[int]:
    """List the ids of special tokens that the configuration of a model names, as `eos_token_id` or alike."""
    config = model.config
    values: list[Any] = []
    for part in (config, config.get_text_config(), getattr(model, "generation_config", None)):
        named = {} if part is None else part.to_dict()
        values += [value for name, value in named.items() if name.endswith(("_token_id", "_token_ids", "_token_index"))]
    flat = (item for value in values for item in (value if isinstance(value, list) else [value]))
    return sorted({item for item in flat if isinstance(item, int) and item >= 0})


def attach(
    model: Any,
    *,
    ratio: float | str | None = None,
    budget: int | None = None,
    coverage: float | None = None,
    method: str = "floc",
    positions: Positions = "keep",
    recipe: Recipe | None = None,
    reuse: float | None = None,
    encode: float | str | None = None,
    fast_vision: bool = True,
    **options: object,
) -> AttachHandle:
    """Let a transformers video model read only the visual tokens that best represent each video.

    Use it as a context manager, or call `detach` on the returned handle. Both restore the model.

        with floc.attach(model, ratio=1/8) as handle:
            answer = model.generate(**inputs)
        print(handle.last)  # what was kept of each video

    Args:
        model: of a type in `floc.integrations.transformers.FAMILIES`, or another that takes `video_grid_thw`, with or
            without its language head.
        ratio, budget, coverage, method: as in `floc.compress`, for each video.
        positions: "keep" the position of every kept token, or, for models with plain positions, number the remaining
            tokens without gaps ("compact"), so that a long video fits a short context.
        recipe: `floc.captured.recipe.Recipe` to use instead of the arguments of `floc.compress`.
        reuse, encode: as in `floc.capture`, for models that take `video_grid_thw`; never between two videos.
        fast_vision: compute the attention of vision encoders with windows faster, with the same results.
        **options: of the method, such as `block`; and `merge` of `floc.compress`. `query="prompt"` takes the text of
            each prompt as the question of a method that has the option, such as "floc" with `query_weight=0.25`.
    """
    recipe = recipe or Recipe(ratio, budget, coverage, method, options)
    return AttachHandle(model, recipe, positions, slices=SliceOptions(reuse, encode), fast_vision=fast_vision)
