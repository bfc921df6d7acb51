"""One line on a model: `with floc.attach(model, ratio=1/8): model.generate(**inputs)`."""

from __future__ import annotations

from typing import Any

import torch

from floc.captured.recipe import Recipe
from floc.integrations.transformers.families import Clip
from floc.integrations.transformers.shorten import Choice, Hooked, Positions, Shortener
from floc.kept import Kept


class Attached(Hooked):
    """FLoC on a model, until it is detached."""

    def __init__(self, model: Any, recipe: Recipe, positions: Positions) -> None:
        self.recipe = recipe
        self.last: list[Kept] = []  # of the last prompt, a Kept for each different video; `seconds` says what it took
        super().__init__(Shortener(model, self._choose, positions))

    def _choose(self, clips: list[Clip], embeds: torch.Tensor) -> list[Choice | None]:
        self.last = []
        choices: list[Choice | None] = []
        seen: list[torch.Tensor] = []
        for clip in clips:
            tokens = embeds.detach()[clip.row, clip.places].view(*clip.shape, -1)
            # beams and samples repeat a row, and questions on one video its video
            same = (i for i, each in enumerate(seen) if clips[i].row < clip.row and torch.equal(each, tokens))
            again = next(same, None)
            if again is None:
                kept = self.recipe(tokens)
                self.last.append(kept.without_tokens())  # a prompt of 50,000 tokens is a third of a gigabyte
                choices.append(_choice(kept))
            else:
                choices.append(choices[again])
            seen.append(tokens)
        return choices


def _choice(kept: Kept) -> Choice | None:
    if len(kept) == kept.n:
        return None
    indices = torch.as_tensor(kept.indices)
    if not kept.merged:
        return Choice(indices)
    return Choice(indices, torch.as_tensor(kept.features), kept)


def attach(
    model: Any,
    *,
    ratio: float | str | None = None,
    budget: int | None = None,
    coverage: float | None = None,
    method: str = "floc",
    positions: Positions = "keep",
    **options: object,
) -> Attached:
    """Let a transformers video model read only the visual tokens that best stand in for all of a video's.

    Use it as a context manager, or call `detach` of what it returns. The model's classes and weights are not touched:
    it works by hooks, which are gone afterwards, also after an exception.

        with floc.attach(model, ratio=1/8) as handle:
            answer = model.generate(**inputs)
        print(handle.last)  # what was kept of each video

    Args:
        model: of a family in `floc.integrations.transformers.FAMILIES`, with or without its language head.
        ratio, budget, coverage, method: as in `floc.compress`, for every video by itself.
        positions: "keep" gives every token kept the position it had. "compact", for models that number their tokens,
            numbers them as if the others had never been there: long videos then fit a short context.
        **options: the method's own, such as `block`.
    """
    return Attached(model, Recipe(ratio, budget, coverage, method, options), positions)
