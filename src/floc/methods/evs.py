"""EVS, as in vLLM (NVIDIA, "Efficient Video Sampling", arXiv 2510.14624)."""

from dataclasses import dataclass, replace

from floc.kept import Kept
from floc.methods.registry import register
from floc.methods.shared.changes import check_first_frame, keep_most_changed
from floc.methods.shared.frames import compare_with_previous
from floc.tokens import TokenGrid


@register(
    "evs",
    "NVIDIA, Efficient Video Sampling, 2025",
    "select",
    floor="the first frame",
    searched=("pruning_rate",),
)
@dataclass(frozen=True)
class Evs:
    """Keep the first frame, and the tokens that differ most from the same cell of the frame before.

    The dissimilarity of a token is 1 - cosine. The most dissimilar tokens of the whole video are kept, so frames may
    be left without tokens. Tokens are compared with the frame before as it was, whether or not its tokens were kept: a
    slow change can go unnoticed. Ties keep the earlier token. The cosine with a zero token is 0.

    Without a budget, max(tokens of a frame, floor(n * (1 - pruning_rate))) tokens are kept. A budget below one frame is
    an error; `nearest` then keeps the first frame. With the same budget, `dtd` keeps the same tokens.

    The paper compares pixels and takes a percentile of the distances as threshold; vLLM compares the encoder's output.
    Difference from vLLM: half precision is compared in float32.
    """

    pruning_rate: float = 0.75  # the fraction of all tokens that is dropped
    nearest: bool = False

    def keep_by_options(self, grid: TokenGrid) -> Kept:
        if not 0 <= self.pruning_rate < 1:
            raise ValueError(f"pruning_rate must be in [0, 1), the fraction dropped; got {self.pruning_rate}")
        # in double precision, where 1 - 0.9 is slightly below 0.1: of 1440 tokens a rate of 0.9 leaves 143, not 144
        return keep_most_changed(grid, 1 - compare_with_previous(grid), int(grid.n * (1 - float(self.pruning_rate))))

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        check_first_frame("evs", grid, budget, nearest=self.nearest)
        kept = keep_most_changed(grid, 1 - compare_with_previous(grid), budget)
        # half a token below the boundary, so that rounding cannot cross it
        return replace(kept, settings={"pruning_rate": max(0.0, 1 - (len(kept) + 0.5) / grid.n)})
