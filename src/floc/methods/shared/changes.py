"""The first frame and the tokens that changed most since the frame before."""

import torch

from floc.kept import Kept
from floc.methods.shared.budgets import check_floor
from floc.tokens import TokenGrid


def check_first_frame(method: str, grid: TokenGrid, budget: int, *, nearest: bool) -> None:
    """Raise ValueError if a budget is below the tokens of the first frame, unless `nearest`."""
    check_floor(method, budget, grid.cells, grid.n, "the first frame whole", nearest=nearest)


def keep_most_changed(grid: TokenGrid, change: torch.Tensor, count: int) -> Kept:
    """Keep the first frame, and the tokens with the largest [T - 1, N] change up to a total count."""
    by_change = change.flatten().sort(descending=True, stable=True).indices[: max(0, count - grid.cells)]
    first = torch.arange(grid.cells, device=by_change.device)
    return grid.keep(torch.cat([first, grid.cells + by_change]))
