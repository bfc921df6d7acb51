"""VidCom2 (Liu et al., "Video Compression Commander", EMNLP 2025, arXiv 2505.14454), also as in vLLM."""

from dataclasses import dataclass, replace

import torch

from floc._checks import check_choice
from floc.kept import Kept
from floc.methods.registry import register
from floc.methods.shared.frames import split_tiles
from floc.representatives import normalize
from floc.tokens import TokenGrid

WIDTHS = (1 / 8, 1 / 4, 1 / 2, 1, 2)  # of the Gaussians that similarity adds up
TEMPERATURE = 0.01  # of the softmax over frames


@register("vidcom2", "Liu et al., VidCom2, EMNLP 2025", "select", searched=("base_scale",))
@dataclass(frozen=True)
class VidCom2:
    """Keep the tokens of each frame that are least similar to the frame's and the video's mean; more in unusual frames.

    Half of the channels are used, those with the lowest variance. The similarity of a token to a mean of unit tokens is
    a sum of Gaussians of their distance. A frame's ratio is `base_scale`, more if its tokens are unlike the video's
    mean; the temperature of the softmax gives nearly all of the surplus to one frame. In each frame the tokens with
    the lowest sum of both similarities are kept, at least one.

    `variant="vllm"` then brings the count to exactly floor(n * base_scale), where base_scale is 1 - vLLM's pruning
    rate, and at least one for each frame: the most similar kept tokens of the video are dropped, or the least similar
    others added. A budget always does so; below one token for each frame, frames may be left without any.

    Differences from the published program: newline tokens are not included, and half precision is processed in
    float32.
    """

    base_scale: float = 0.25  # kept / all tokens of a usual frame
    variant: str = "official"  # or "vllm"

    def __post_init__(self) -> None:
        check_choice("variant", self.variant, ("official", "vllm"))
        if not 0 < self.base_scale <= 1:
            raise ValueError(f"base_scale must be in (0, 1], kept / all tokens; got {self.base_scale}")

    def keep_by_options(self, grid: TokenGrid) -> Kept:
        scale, t = float(self.base_scale), grid.shape[0]
        count = max(t, min(int(grid.n * scale), grid.n)) if self.variant == "vllm" else None
        return _keep_least_similar(grid, scale, 1, count)

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        scale = budget / grid.n
        kept = _keep_least_similar(grid, scale, 1 if budget >= grid.shape[0] else 0, budget)
        return replace(kept, settings={"base_scale": scale})


def _keep_least_similar(grid: TokenGrid, scale: float, least: int, count: int | None) -> Kept:
    """Keep at least `least` tokens of each frame, and exactly `count` tokens if that is given."""
    cells = grid.cells
    to_video, to_frame = _compare_with_means(grid)  # [T, N] each
    rarity = -to_video.mean(1)
    share = ((rarity - rarity.max()) / TEMPERATURE).softmax(0)
    ratios = (scale * (1 + share - share.mean())).clamp(max=1)  # [T]
    counts = (ratios * cells).round().clamp(least, cells)
    similarity = to_video + to_frame
    order = similarity.argsort(stable=True, dim=1)
    is_kept = torch.zeros_like(similarity, dtype=torch.bool)
    is_kept.scatter_(1, order, torch.arange(cells, device=order.device) < counts[:, None])
    similarity, is_kept = similarity.flatten(), is_kept.flatten()
    surplus = 0 if count is None else int(is_kept.sum()) - count
    if surplus > 0:
        is_kept[similarity.masked_fill(~is_kept, -torch.inf).sort(descending=True, stable=True).indices[:surplus]] = (
            False
        )
    elif surplus < 0:
        is_kept[similarity.masked_fill(is_kept, torch.inf).argsort(stable=True)[:-surplus]] = True
    picks = is_kept.nonzero()[:, 0]
    return grid.keep(picks[similarity[picks].argsort(stable=True)])


def _compare_with_means(grid: TokenGrid) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the similarity of each token to the mean of the video and to that of its frame: [T, N] each."""
    channels = _find_steady_channels(grid)
    tiles = split_tiles(grid.shape[0], 8 * grid.cells * grid.dim, grid.tokens.device)

    def read(tile: slice) -> torch.Tensor:
        return normalize(grid.tokens[tile].reshape(-1, grid.cells, grid.dim)[..., channels])

    means = torch.cat([read(tile).mean(1) for tile in tiles])  # [T, C]
    video = means.mean(0)
    to_video, to_frame = [], []
    for tile in tiles:
        unit = read(tile)
        to_video.append(_add_gaussians((unit - video).square().sum(-1)))
        to_frame.append(_add_gaussians((unit - means[tile, None]).square().sum(-1)))
    return torch.cat(to_video), torch.cat(to_frame)


def _find_steady_channels(grid: TokenGrid) -> torch.Tensor:
    """Return the half of the channels with the lowest variance over all tokens, ascending."""
    has_double = grid.tokens.device.type != "mps"
    tiles = split_tiles(grid.shape[0], 8 * grid.cells * grid.dim, grid.tokens.device)

    def read(tile: slice) -> torch.Tensor:
        rows = grid.tokens[tile].detach().reshape(-1, grid.dim)
        return rows.double() if has_double else rows.float()

    mean = torch.stack([read(tile).sum(0) for tile in tiles]).sum(0) / grid.n
    variance = torch.stack([(read(tile) - mean).square_().sum(0) for tile in tiles]).sum(0)
    return variance.argsort(stable=True)[: max(1, grid.dim // 2)].sort().values


def _add_gaussians(squared: torch.Tensor) -> torch.Tensor:
    return sum((torch.exp(-squared / (2 * width)) for width in WIDTHS), torch.zeros_like(squared))
