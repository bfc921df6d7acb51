"""SCOPE (Deng et al., NeurIPS 2025): coverage weighted by salience."""

from dataclasses import dataclass, replace

from floc import blocks
from floc._arrays import Array
from floc.blocks import BlockSpec
from floc.kept import Kept
from floc.methods.registry import register
from floc.methods.shared.greedy import check_matrix, cover_greedily, keep_in_blocks, make_solution, normalize_precisely
from floc.methods.shared.inputs import check_least, read_salience
from floc.selection.engine import Solution
from floc.tokens import TokenGrid


# compared by identity: its options may be arrays
@register("scope", "Deng et al., SCOPE, NeurIPS 2025", "select", needs="attention of the vision encoder (attn=)")
@dataclass(frozen=True, eq=False)
class Scope:
    """Keep the tokens that cover all others best, weighted by their salience.

    Each pick is the token with the largest attn^alpha * sum over tokens of how much its cosine exceeds the best so
    far, which starts at 0; ties keep the earlier token. Without `attn`, all weights are 1, which is plain facility
    location.

    `per_frame` selects in every frame on its own, as the published program does with the crops of an image. Otherwise
    `block` sets the frames that are processed together; None is the whole video. The cosine with a zero token is 0; the
    program fails on zero tokens.
    """

    alpha: float = 1.0  # exponent of the salience
    per_frame: bool = False  # select in every frame on its own
    attn: Array | None = None  # [T, N] salience of each token
    block: BlockSpec = 32

    def __post_init__(self) -> None:
        blocks.check_block(self.block)
        check_least(self, 0, "", "alpha")

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        salience = read_salience(grid, self.attn)
        weights = None if salience is None else salience ** float(self.alpha)

        def select(span: slice, k: int) -> Solution:
            # precise, because two tokens that would only cover each other tie: rounding would choose
            x = normalize_precisely(grid.frames(span))
            check_matrix(len(x), len(x), x.device)
            block_weights = None if weights is None else weights[span].flatten()
            return make_solution(x, *cover_greedily(x @ x.T, k, block_weights))

        kept = keep_in_blocks(grid, 1 if self.per_frame else self.block, budget, select)
        return replace(kept, settings={} if salience is not None else {"fallback": "equal weights, without attn"})
