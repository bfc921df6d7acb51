"""MMTok (Dong et al., ICLR 2026, arXiv 2508.18264): coverage of text tokens and vision tokens."""

from dataclasses import dataclass, replace

import torch

from floc import blocks
from floc._arrays import Array
from floc.blocks import BlockSpec
from floc.kept import Kept
from floc.methods.registry import register
from floc.methods.shared.greedy import check_matrix, cover_greedily, keep_in_blocks, make_solution, normalize_precisely
from floc.methods.shared.inputs import check_least, read_array, read_features
from floc.selection.engine import Solution
from floc.tokens import TokenGrid


# compared by identity: its options may be arrays
@register(
    "mmtok",
    "Dong et al., MMTok, ICLR 2026",
    "select",
    needs="embeddings of the question (query=) and features of the vision encoder (vision_features=)",
)
@dataclass(frozen=True, eq=False)
class MMTok:
    """Keep the tokens that best cover the tokens of the question and all vision tokens.

    How well a vision token covers a text token is the softmax, over vision tokens, of their cosine by
    `text_temperature`; how well it covers a vision token is that of the cosine of `vision_features` by
    `vision_temperature`. Text tokens have a weight of 1 in total, vision tokens of `alpha`. Each pick is the token that
    adds most to the sum, over covered tokens, of the best coverage by a kept token; ties keep the earlier token.

    `query` holds the rows of the language model's embedding table for the tokens of the question. Without it, only
    vision tokens are covered. Without `vision_features`, the tokens themselves are compared. `alpha=0` covers only the
    question, which is soon covered by few tokens; the others are then nearly arbitrary.

    `block` sets the frames that are processed together, each block with its share of the budget and the whole question;
    `block=None` is the published setting. The published program is for images; its text_temperature is 0.02 for LLaVA
    and 0.01 for Qwen.
    """

    alpha: float = 0.5  # the weight of all vision tokens together
    text_temperature: float = 0.02
    vision_temperature: float = 0.2
    query: Array | None = None  # [m, D] embeddings of the question's tokens
    vision_features: Array | None = None  # [T, H, W, C] or [T, N, C] features before the projector
    block: BlockSpec = 32

    def __post_init__(self) -> None:
        blocks.check_block(self.block)
        check_least(self, 0, "", "alpha")
        for name in ("text_temperature", "vision_temperature"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        query = read_array(grid, "query", self.query, ("m", grid.dim))
        text = None if query is None or not len(query) else normalize_precisely(query)
        features = read_features(grid, "vision_features", self.vision_features)

        def select(span: slice, k: int) -> Solution:
            # precise, because late gains are small and close
            x = normalize_precisely(grid.frames(span))
            y = x if features is None else normalize_precisely(features[span].flatten(0, 1))
            return make_solution(x, *cover_greedily(self._compute_coverage(x, y, text), k))

        missing = ["vision tokens only, without query"] * (text is None)
        missing += ["the tokens as vision_features"] * (features is None)
        kept = keep_in_blocks(grid, self.block, budget, select)
        return replace(kept, settings={"fallback": "; ".join(missing)} if missing else {})

    def _compute_coverage(self, x: torch.Tensor, y: torch.Tensor, text: torch.Tensor | None) -> torch.Tensor:
        """Return how well each of n tokens covers each of m text tokens and n vision tokens: [n, m + n]."""
        rows = 0 if text is None else len(text)
        check_matrix(len(x), rows + len(x), x.device)
        coverage = x.new_empty(len(x), rows + len(x))
        if text is not None:
            coverage[:, :rows] = (x @ text.T / float(self.text_temperature)).softmax(0) / rows
        vision = torch.mm(y, y.T, out=coverage[:, rows:]).div_(float(self.vision_temperature))
        vision.sub_(vision.amax(0)).exp_()
        # without text, any weight gives the same picks
        weight = float(self.alpha) if rows else 1.0
        vision.mul_(weight / len(x) / vision.sum(0))
        return coverage
