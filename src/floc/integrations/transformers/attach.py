"""Attach FLoC to a model: `with floc.attach(model, ratio=1/8): model.generate(**inputs)`."""

from typing import Any

import torch

from floc.captured.recipe import Recipe
from floc.encoders.fast_attention import FastVision
from floc.families.locate import PromptVideo
from floc.integrations.transformers.cut import VideoSelection
from floc.integrations.transformers.hooks import DecoderHooks, Positions
from floc.kept import Kept


class AttachHandle(DecoderHooks):
    """FLoC on a model, until it is detached."""

    def __init__(self, model: Any, recipe: Recipe, positions: Positions, *, fast_vision: bool = True) -> None:
        self.recipe = recipe
        self.last: list[Kept] = []  # one for each distinct video of the last prompt
        super().__init__(model, positions)
        self.vision = FastVision(self.base) if fast_vision else None
        if self.vision is not None:
            self.vision.hook()

    def detach(self) -> None:
        if self.vision is not None:
            self.vision.unhook()
        super().detach()

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
        fast_vision: compute the attention of vision encoders with windows faster, with the same results.
        **options: of the method, such as `block`.
    """
    recipe = recipe or Recipe(ratio, budget, coverage, method, options)
    return AttachHandle(model, recipe, positions, fast_vision=fast_vision)
