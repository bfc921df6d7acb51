"""VisionZip (Yang et al., CVPR 2025): dominant and contextual tokens of every frame."""

from dataclasses import dataclass, replace

import torch

from floc._arrays import Array
from floc.kept import Kept
from floc.methods.registry import register
from floc.methods.shared.frames import estimate_salience, read_frames, split_tiles
from floc.methods.shared.inputs import check_least, read_features, read_salience
from floc.methods.shared.merging import merge_rows
from floc.representatives import normalize
from floc.tokens import TokenGrid

CONTEXTUAL_SHARE = 10 / 64  # of a frame's tokens, as in the smallest published setting


# compared by identity: its options may be arrays
@register(
    "visionzip",
    "Yang et al., VisionZip, CVPR 2025",
    "merge",
    needs="attention (attn=) and keys (metric=) of the vision encoder",
    searched=("dominant", "contextual"),
)
@dataclass(frozen=True, eq=False)
class VisionZip:
    """Keep the most salient tokens of each frame, and merge the others into a few evenly spaced ones.

    In every frame the `dominant` tokens with the largest `attn` are kept unchanged. Of the others, `contextual` evenly
    spaced targets remain; each of the rest goes to the target with the highest cosine of `metric`. A merged token is
    the mean of the target and of the mean of what went into it. In frames with fewer tokens, all are kept.

    Without `attn`, the salience of a token is its product with the mean token of the frame; without `metric`, the
    tokens themselves are compared.

    A budget sets both numbers and is met exactly: 10 of 64 tokens of a frame are contextual, at least one, and what is
    left over becomes dominant tokens, one each from the first frame. With less than one token for each frame, the
    last frames have none.

    Differences from the published program: the [CLS] token is not included, and tokens are in video order; the program
    outputs contextual tokens after the dominant ones. `strict` adds the target and the mean, as the program does, so
    that merged tokens are about twice as long as others.
    """

    dominant: int = 54  # unchanged tokens of a frame
    contextual: int = 10  # merged tokens of a frame
    strict: bool = False
    attn: Array | None = None  # [T, N] salience of each token
    metric: Array | None = None  # [T, H, W, C] or [T, N, C], compared instead of the tokens

    def __post_init__(self) -> None:
        check_least(self, 0, "tokens", "dominant", "contextual")

    def keep_by_options(self, grid: TokenGrid) -> Kept:
        if not self.dominant + self.contextual:
            raise ValueError("dominant and contextual are both 0, which keeps no token; raise one of them")
        return self._merge(grid, self.dominant, self.contextual, 0)

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        quota, extra = divmod(budget, grid.shape[0])
        contextual = max(1, round(quota * CONTEXTUAL_SHARE)) if quota else 0
        kept = self._merge(grid, quota - contextual, contextual, extra)
        settings = {"dominant": quota - contextual, "contextual": contextual, "extra_dominant": extra}
        return replace(kept, settings={**kept.settings, **settings})

    def _merge(self, grid: TokenGrid, dominant: int, contextual: int, extra: int) -> Kept:
        """Keep these numbers of tokens of every frame, one more dominant token of the first `extra` frames."""
        frames, cells = grid.shape[0], grid.cells
        salience, metric = read_salience(grid, self.attn), read_features(grid, "metric", self.metric)
        missing = ["products with the mean token as attn"] * (salience is None)
        missing += ["the tokens as metric"] * (metric is None)
        settings = {"fallback": "; ".join(missing)} if missing else {}
        dominant = min(dominant, cells)
        contextual = min(contextual, cells - dominant)
        if dominant + contextual == cells:
            return replace(grid.keep_all(), settings=settings)
        order = (
            (estimate_salience(grid) if salience is None else salience)
            .sort(dim=1, descending=True, stable=True)
            .indices
        )
        parts = [(slice(0, extra), dominant + 1), (slice(extra, frames), dominant)]
        tile_bytes = 4 * cells * (2 * grid.dim + max(1, contextual))
        indices, features, represents, count = [], [], [], 0
        for part, number in parts:
            for tile in split_tiles(part.stop - part.start, tile_bytes, grid.tokens.device):
                span = slice(part.start + tile.start, part.start + tile.stop)
                x = read_frames(grid, span)
                compared = normalize(x if metric is None else metric[span])
                kept, rows, goes_to = _zip_frames(x, compared, order[span], number, contextual, self.strict)
                indices.append(
                    (kept + torch.arange(span.start, span.stop, device=kept.device)[:, None] * cells).flatten()
                )
                features.append(rows.flatten(0, 1))
                offset = count + torch.arange(len(x), device=kept.device)[:, None] * kept.shape[1]
                represents.append(torch.where(goes_to < 0, -1, goes_to + offset).flatten())
                count += kept.numel()
        return replace(
            merge_rows(grid, *(torch.cat(part) for part in (indices, features, represents))), settings=settings
        )


def _zip_frames(
    x: torch.Tensor, compared: torch.Tensor, order: torch.Tensor, dominant: int, contextual: int, strict: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compress [t, N, D] frames.

    Args:
        x: [t, N, D] float32 or float64.
        compared: [t, N, C] unit vectors.
        order: [t, N] cells by descending salience.
        dominant: Number of unchanged tokens of a frame.
        contextual: Number of merged tokens of a frame, at most all others.
        strict: Add the mean to the target.

    Returns:
        [t, K] cells that are kept; [t, K, D] their vectors; [t, N] the kept token that each went into, -1 for none.
    """
    t, cells, dim = x.shape
    unchanged, rest = order[:, :dominant].sort(1).values, order[:, dominant:].sort(1).values
    goes_to = torch.full((t, cells), -1, device=x.device)
    goes_to.scatter_(1, unchanged, torch.arange(dominant, device=x.device).expand(t, -1))
    features = x.gather(1, unchanged[..., None].expand(-1, -1, dim))
    if not contextual:
        return unchanged, features, goes_to
    step = max(1, rest.shape[1] // contextual)
    is_target = torch.zeros(rest.shape[1], dtype=torch.bool, device=x.device)
    is_target[: step * contextual : step] = True
    targets, others = rest[:, is_target], rest[:, ~is_target]

    def read(rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return rows.gather(1, places[..., None].expand(-1, -1, rows.shape[-1]))

    nearest = (read(compared, others) @ read(compared, targets).mT).max(2).indices  # [t, R - C]
    # a product with zeros and ones, since scattered sums have no fixed order on a GPU
    member = torch.zeros((*others.shape, contextual), dtype=x.dtype, device=x.device).scatter_(2, nearest[..., None], 1)
    number = member.sum(1)[..., None]  # [t, C, 1]
    mean = member.mT @ read(x, others) / number.clamp(min=1)
    merged = read(x, targets)
    merged = torch.where(number > 0, merged + mean if strict else (merged + mean) / 2, merged)
    goes_to.scatter_(1, targets, dominant + torch.arange(contextual, device=x.device).expand(t, -1))
    goes_to.scatter_(1, others, dominant + nearest)
    return torch.cat([unchanged, targets], 1), torch.cat([features, merged], 1), goes_to
