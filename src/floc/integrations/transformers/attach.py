"""Attach FLoC to a model: `with floc.attach(model, ratio=1/8): model.generate(**inputs)`."""

from collections.abc import Callable
from typing import Any

import torch

from floc.captured.recipe import Recipe
from floc.families.locate import PromptVideo
from floc.families.parts import unwrap_model
from floc.integrations.transformers.cut import VideoSelection
from floc.integrations.transformers.hooks import DecoderHooks, Positions
from floc.integrations.transformers.reuse import remember_patches, reuse_slices
from floc.kept import Kept


class AttachHandle(DecoderHooks):
    """FLoC on a model, until it is detached."""

    def __init__(self, model: Any, recipe: Recipe, positions: Positions, reuse: float | None = None) -> None:
        self.recipe, self.reuse = recipe, reuse
        if reuse is not None:
            remember_patches(unwrap_model(model).config, reuse)  # raises if the model cannot
        self.last: list[Kept] = []  # one for each distinct video of the last prompt
        super().__init__(model, positions)

    def _remember(self, encode: Callable[..., Any]) -> Callable[..., Any]:
        return super()._remember(encode if self.reuse is None else reuse_slices(encode, self.config, self.reuse))

    def select(self, videos: list[PromptVideo], embeds: torch.Tensor) -> list[VideoSelection | None]:
        self.last = []
        selections: list[VideoSelection | None] = []
        grids: list[torch.Tensor] = []
        for video in videos:
            tokens = embeds.detach()[video.row, video.columns].view(*video.shape, -1)
            # beams and samples repeat rows, and several rows may ask about one video
            equal = (i for i, grid in enumerate(grids) if videos[i].row < video.row and torch.equal(grid, tokens))
            first = next(equal, None)
            if first is None:
                kept = self.recipe(tokens)
                self.last.append(kept.without_tokens())  # 50,000 tokens take a third of a gigabyte
                merged = (torch.as_tensor(kept.features), kept) if kept.merged else ()
                is_cut = len(kept) < kept.n
                selections.append(VideoSelection(torch.as_tensor(kept.indices), *merged) if is_cut else None)
            else:
                selections.append(selections[first])
            grids.append(tokens)
        return selections


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
        reuse: as in `floc.capture`, for models that take `video_grid_thw`; never between two videos.
        **options: of the method, such as `block`.
    """
    return AttachHandle(model, recipe or Recipe(ratio, budget, coverage, method, options), positions, reuse)
