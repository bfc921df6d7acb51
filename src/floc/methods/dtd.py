"""DTD, differential token drop (Yao et al., "TimeChat-Online", arXiv 2504.17343)."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from floc._arrays import Array
from floc.kept import Kept
from floc.methods.registry import register
from floc.methods.shared.changes import check_first_frame, keep_most_changed
from floc.methods.shared.frames import compare_with_previous
from floc.methods.shared.inputs import read_array
from floc.tokens import TokenGrid


# compared by identity: its options may be arrays
@register(
    "dtd",
    "Yao et al., TimeChat-Online, 2025",
    "select",
    floor="the first frame",
    needs="the change of each token (difference=), for example of pixels",
    searched=("threshold",),
)
@dataclass(frozen=True, eq=False)
class Dtd:
    """Keep the first frame, and drop tokens that are similar to the same cell of the frame before.

    A token is dropped if its cosine is above `threshold`; with `relative`, the fraction `threshold` of every frame
    is dropped, the most similar tokens first. Tokens are compared with the frame before as it was, whether or not its
    tokens were kept. The cosine with a zero token is 0.

    `difference` holds the change of each token from elsewhere, for example the mean absolute difference of pixels in
    [0, 1]; its first row is not used. A token is then dropped if its change is below `threshold`; with `relative`, the
    tokens of a frame that changed least are dropped.

    A budget keeps the first frame and the tokens of the whole video that changed most, which is what `evs` keeps; ties
    keep the earlier token. A budget below one frame is an error; `nearest` then keeps the first frame.
    """

    threshold: float = 0.5
    relative: bool = False  # drop the same fraction of every frame
    difference: Array | None = None  # [T, N] change of each token
    nearest: bool = False

    def __post_init__(self) -> None:
        if self.relative and not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold must be in [0, 1] with relative=True, a fraction; got {self.threshold}")

    def keep_by_options(self, grid: TokenGrid) -> Kept:
        cells, difference = grid.cells, self._read_difference(grid)
        similarity = compare_with_previous(grid) if difference is None else -difference
        if self.relative:
            by_similarity = similarity.sort(descending=True, stable=True, dim=1).indices
            keep = torch.ones_like(similarity, dtype=torch.bool)
            keep.scatter_(1, by_similarity[:, : int(cells * float(self.threshold))], False)
        else:
            limit = float(self.threshold)
            keep = similarity <= (limit if difference is None else -limit)
        first = np.arange(cells)
        return grid.keep(np.concatenate([first, cells + keep.flatten().nonzero()[:, 0].cpu().numpy()]))

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        if self.relative:
            raise ValueError(
                "relative=True drops a fraction of every frame, but a budget was given; remove one of them"
            )
        difference = self._read_difference(grid)
        check_first_frame("dtd", grid, budget, nearest=self.nearest)
        change = 1 - compare_with_previous(grid) if difference is None else difference
        kept = keep_most_changed(grid, change, budget)
        ascending, count = change.flatten().sort().values, len(kept) - grid.cells
        threshold = None  # one that keeps the same tokens, unless some changed equally
        if 0 < count < len(ascending):
            threshold = float(ascending[-count - 1] + ascending[-count]) / 2
            threshold = threshold if difference is not None else 1 - threshold
        return replace(kept, settings={"threshold": threshold})

    def _read_difference(self, grid: TokenGrid) -> torch.Tensor | None:
        """Return the given change of all frames but the first: [T - 1, N]."""
        difference = read_array(grid, "difference", self.difference, (grid.shape[0], grid.cells))
        return None if difference is None else difference[1:]
