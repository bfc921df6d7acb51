"""V-CAST (Lin et al., arXiv 2603.27650): a budget for each frame by the curvature of the video."""

from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F

from floc.blocks import raise_in_rounds
from floc.kept import Kept
from floc.methods.registry import register
from floc.methods.shared.frames import average_frames, read_frames, tile_frames
from floc.methods.shared.inputs import check_least, check_shares
from floc.tokens import TokenGrid

SHORTEST = 1e-6  # lengths are at least this, as published


@register("vcast", "Lin et al., V-CAST, 2026", "select", searched=("retain_ratio",))
@dataclass(frozen=True)
class VCast:
    """Keep more tokens where the video changes direction, in each frame those unlike its mean and with long vectors.

    The curvature of a frame is 1 - cosine of the steps from the previous and to the next mean token. Every frame gets
    `min_k` tokens; the rest is shared by a softmax of the curvatures. In a frame, the score of a token is 1 - cosine
    with the mean token, plus its length relative to the shortest and longest of the frame.

    A budget sets the number of tokens and is met exactly; below `min_k` for each frame there is no minimum.

    Differences from the published program (`strict` reproduces it):
    - What rounding leaves over goes one each to the frames with the largest remainders. The program gives all of it to
      the frame with the largest remainder until that is full, then to the next.
    - A video of one frame is compressed. The program keeps all of it.
    """

    retain_ratio: float = 0.25  # kept / all tokens
    min_k: int = 1  # the fewest tokens of a frame
    temperature: float = 0.7  # of the softmax over frames
    strict: bool = False

    def __post_init__(self) -> None:
        check_shares(self, "retain_ratio")
        check_least(self, 0, "tokens", "min_k")
        if not self.temperature > 0:
            raise ValueError(f"temperature must be above 0, got {self.temperature}")

    def keep_by_options(self, grid: TokenGrid) -> Kept:
        frames, cells = grid.shape[0], grid.cells
        least = min(self.min_k, cells)
        count = max(min(max(1, round(grid.n * float(self.retain_ratio))), grid.n), frames * least)
        if self.strict and frames == 1:
            count = grid.n
        return grid.run_scaled(lambda scaled: self._keep(scaled, count, least))

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        least = min(self.min_k, grid.cells)
        least = least if budget >= grid.shape[0] * least else 0
        kept = grid.run_scaled(lambda scaled: self._keep(scaled, budget, least))
        return replace(kept, settings={"retain_ratio": budget / grid.n, "min_k": least})

    def _keep(self, grid: TokenGrid, count: int, least: int) -> Kept:
        """Keep `count` tokens, at least `least` of each frame."""
        cells = grid.cells
        means = _normalize(average_frames(grid))
        weights = (compute_curvature(means) / float(self.temperature)).softmax(0)
        raw = weights * (count - grid.shape[0] * least)
        counts = least + _share(raw.cpu().numpy(), cells - least, count - grid.shape[0] * least, self.strict)
        scores = _score_tokens(grid, means)
        score, order = scores.sort(descending=True, stable=True, dim=1)
        taken = torch.from_numpy(np.arange(cells) < counts[:, None]).to(order.device)
        picks = (order + torch.arange(0, grid.n, cells, device=order.device)[:, None])[taken]
        return grid.keep(picks[score[taken].argsort(descending=True, stable=True)])


def _normalize(x: torch.Tensor) -> torch.Tensor:
    return F.normalize(x, dim=-1, eps=SHORTEST)


def compute_curvature(means: torch.Tensor) -> torch.Tensor:
    """Return the curvature of the path of [T, D] unit vectors, 1 at both ends: [T]."""
    steps = _normalize(means[1:] - means[:-1])
    curvature = means.new_ones(len(means))
    curvature[1:-1] = 1 - (steps[:-1] * steps[1:]).sum(-1)
    return curvature


def _share(raw: np.ndarray, room: int, count: int, strict: bool) -> np.ndarray:
    """Round [T] shares to integers of at most `room` that sum to `count`."""
    shares = np.minimum(np.floor(raw).astype(np.int64), room)
    by_fraction = np.argsort(-(raw - np.floor(raw)), kind="stable")
    missing = count - int(shares.sum())
    if strict:  # the first frames in this order are filled up
        free = (room - shares)[by_fraction]
        shares[by_fraction] += np.clip(missing - (free.cumsum() - free), 0, free)
        return shares
    return raise_in_rounds(shares, np.full_like(shares, room), missing, by_fraction)


def _score_tokens(grid: TokenGrid, means: torch.Tensor) -> torch.Tensor:
    """Return [T, N], how unlike the [T, D] unit mean of its frame and how long each token is."""
    scores = []
    for tile in tile_frames(grid):
        x = read_frames(grid, tile)
        cosine = (F.normalize(x, dim=-1) @ means[tile, :, None])[..., 0]
        length = x.norm(dim=-1)
        low, high = length.amin(1, keepdim=True), length.amax(1, keepdim=True)
        scores.append(1 - cosine + (length - low) / (high - low + SHORTEST))
    return torch.cat(scores)
