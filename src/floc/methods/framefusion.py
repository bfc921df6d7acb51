"""FrameFusion (Fu et al., ICCV 2025), one merging step."""

from dataclasses import dataclass, replace

import torch

from floc.kept import Kept
from floc.methods.registry import register
from floc.methods.shared.changes import check_first_frame
from floc.methods.shared.components import sum_groups
from floc.methods.shared.frames import compare_with_previous, to_float
from floc.methods.shared.inputs import check_shares
from floc.tokens import TokenGrid

LAYERS = 28  # of the published language model, which divides the cost among them


@register(
    "framefusion",
    "Fu et al., FrameFusion, ICCV 2025",
    "merge",
    floor="the first frame",
    searched=("cost", "similarity_lower_bound"),
)
@dataclass(frozen=True)
class FrameFusion:
    """Merge tokens into the same cell of the frame before if the two are similar.

    A run of merged tokens joins the token before it, and becomes the mean of all of them at its place. If fewer than
    the fraction 1 - cost of all tokens have a cosine of at least `similarity_lower_bound` with the frame before, these
    are merged; otherwise floor((1 - cost) * n) tokens, the most similar first. Only neighbours are compared, so that
    the ends of a run may be unlike.

    A budget merges the most similar tokens without a lower bound and is met exactly. The places kept are those of
    `evs`, but with means. A budget below one frame is an error; `nearest` then merges everything into the first frame.

    The published program merges at several layers of the language model, then prunes by attention; this is one step of
    merging, before the model. Differences from it: the cosine with a zero token is 0, and the first frame is never
    merged, which the program does if `cost` is below one frame.
    """

    cost: float = 0.3  # the fraction of tokens that is left
    similarity_lower_bound: float = 0.6  # tokens with a lower cosine are not merged
    nearest: bool = False

    def __post_init__(self) -> None:
        check_shares(self, "cost")

    def keep_by_options(self, grid: TokenGrid) -> Kept:
        limit = 1 - (LAYERS * float(self.cost)) / LAYERS
        cosine = compare_with_previous(grid)
        is_similar = cosine >= float(self.similarity_lower_bound)
        if int(is_similar.sum()) / grid.n < limit:
            return _merge_runs(grid, is_similar)
        return _merge_runs(grid, _find_most_similar(cosine, int(limit * grid.n)))

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        check_first_frame("framefusion", grid, budget, nearest=self.nearest)
        if budget == grid.n:
            return replace(grid.keep_all(), settings={"cost": 1.0, "similarity_lower_bound": None})
        merged = _find_most_similar(compare_with_previous(grid), grid.n - budget)
        settings = {"cost": budget / grid.n, "similarity_lower_bound": None}
        return replace(_merge_runs(grid, merged), settings=settings)


def _find_most_similar(cosine: torch.Tensor, count: int) -> torch.Tensor:
    """Return a mask of the `count` largest of [T - 1, N] cosines, at most all."""
    mask = torch.zeros_like(cosine, dtype=torch.bool)
    mask.view(-1)[cosine.flatten().sort(descending=True, stable=True).indices[:count]] = True
    return mask


def _merge_runs(grid: TokenGrid, is_merged: torch.Tensor) -> Kept:
    """Merge each run of [T - 1, N] marked tokens with the token before it in the same cell."""
    places = torch.arange(grid.n, device=is_merged.device).view(-1, grid.cells)
    head = places.clone()
    head[1:].masked_fill_(is_merged, -1)
    head = head.cummax(0).values.flatten()  # the first token of each run
    is_head = head == places.flatten()
    group = (is_head.cumsum(0) - 1)[head]
    sizes = torch.bincount(group)
    rows = to_float(grid.tokens.detach()).reshape(-1, grid.dim)
    means = sum_groups(rows, group.argsort(stable=True), sizes) / sizes[:, None]
    return grid.merge(is_head.nonzero()[:, 0].cpu().numpy(), means, group.cpu().numpy())
