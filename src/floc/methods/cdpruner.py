"""CDPruner (Zhang et al., NeurIPS 2025, arXiv 2506.10967): a determinantal point process conditioned on relevance."""

from dataclasses import dataclass, replace

import torch

from floc import blocks
from floc._arrays import Array
from floc._system import check_memory
from floc.blocks import BlockSpec
from floc.kept import Kept
from floc.methods.registry import register
from floc.methods.shared.greedy import keep_in_blocks, make_solution, normalize_precisely
from floc.methods.shared.inputs import read_array
from floc.selection.engine import Solution
from floc.tokens import TokenGrid

NO_VOLUME = 1e-6  # of the largest squared relevance: below it only rounding is left, and a new round starts


# compared by identity: its options may be arrays
@register(
    "cdpruner",
    "Zhang et al., CDPruner, NeurIPS 2025",
    "select",
    needs="the relevance of each token to the question (relevance=)",
)
@dataclass(frozen=True, eq=False)
class CDPruner:
    """Keep tokens that are relevant and unlike each other: those that span the largest volume.

    The kernel of two tokens is the product of their relevances and their cosine. Each pick is the token that adds
    most to the determinant of the kernel of the picks; ties keep the earlier token. `relevance` is taken as it is,
    normalised and larger for tokens that are more wanted; without it all tokens are equally relevant. The published
    program computes it from the *negative* cosine with the question in CLIP's joint space, q = (r - min r + 1e-6) /
    (max r - min r) over the whole input.

    At most as many tokens as there are features can be unlike each other. When the volume is used up, a new round
    starts among the tokens not yet picked; `rounds` in the settings of the result is the largest number of rounds in a
    block. The published program then repeats tokens.

    `per_frame` selects in every frame on its own, as the program does with images. Otherwise `block` sets the frames
    that are processed together; None is the whole video. The cosine with a zero token is 0; the program fails on zero
    tokens.
    """

    per_frame: bool = False  # select in every frame on its own
    relevance: Array | None = None  # [T, H, W] or [T, N]
    block: BlockSpec = 32

    def __post_init__(self) -> None:
        blocks.check_block(self.block)

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        layout = grid.shape[0], grid.cells
        given = read_array(grid, "relevance", self.relevance, grid.shape, layout, nonnegative=True)
        relevance = None if given is None else given.reshape(layout)
        rounds = []

        def select(span: slice, k: int) -> Solution:
            x = normalize_precisely(grid.frames(span))
            check_memory(len(x), 8 * len(x) * (k + grid.dim), x.device, "block=8, or fewer frames")
            quality = x.new_ones(len(x)) if relevance is None else relevance[span].flatten()
            picks, gains, count = _select_volume(x, quality, k)
            rounds.append(count)
            return make_solution(x, picks, gains)

        kept = keep_in_blocks(grid, 1 if self.per_frame else self.block, budget, select)
        fallback = {"fallback": "equal relevance, without relevance"} if relevance is None else {}
        return replace(kept, settings={"rounds": max(rounds), **fallback})


def _select_volume(x: torch.Tensor, quality: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Select k of [n, D] unit tokens with [n] relevances.

    Returns:
        [k] picks; [k] the squared volume that each added; the number of rounds.
    """
    precise = torch.float32 if x.device.type == "mps" else torch.float64
    rows = x.to(precise) * quality.to(precise)[:, None]
    squares = quality.to(precise).square()  # exact, also where the length of a token is rounded
    picks = torch.empty(k, dtype=torch.int64, device=x.device)
    gains = torch.empty(k, dtype=precise, device=x.device)
    factor = torch.empty(k, len(x), dtype=precise, device=x.device)
    steps = torch.arange(k, device=x.device)
    left, volume, most = squares.clone(), squares.clone(), squares.max()
    start, rounds = steps[:1].clone(), steps[:1] + 1
    for i in range(k):  # nothing here is read, so that a GPU does not wait
        is_over = volume.max() < NO_VOLUME * most  # a new round
        volume = torch.where(is_over, left, volume)
        gain, pick = volume.max(0, keepdim=True)
        most = torch.where(is_over, gain[0], most)
        start, rounds = torch.where(is_over, i, start), rounds + is_over
        row = rows @ rows.index_select(0, pick)[0]
        shares = factor[:i].index_select(1, pick)[:, 0] * (steps[:i] >= start)  # of earlier picks in this round
        row -= shares @ factor[:i]
        factor[i] = torch.where(gain > 0, row / gain.sqrt(), 0)
        volume -= factor[i].square()
        for values in (volume, left):
            values.index_fill_(0, pick, -torch.inf)
        picks[i], gains[i] = pick[0], gain[0]
    return picks, gains, int(rounds)
