"""Work on a few frames at a time: mean tokens, segments, salience, and the similarity of two frames cell by cell."""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from floc._arrays import TILE_BYTES, iterate_tiles
from floc.representatives import divide_by_peak, have_squares
from floc.tokens import TokenGrid

CPU_BYTES = 1 << 23  # larger tiles spend as much time on fresh memory as on arithmetic
GPU_BYTES = 1 << 28  # smaller tiles do not keep a GPU busy
PRODUCT_BYTES = 1 << 20  # of products per tile on a CPU: in its cache they take a tenth of the time


def split_tiles(count: int, item_bytes: int, device: torch.device) -> list[slice]:
    """Split `count` items of `item_bytes` each into tiles that suit the device's memory."""
    return list(iterate_tiles(count, item_bytes, CPU_BYTES if device.type == "cpu" else GPU_BYTES))


def to_float(x: torch.Tensor) -> torch.Tensor:
    """Convert half precision to float32; float64 stays."""
    return x if x.dtype == torch.float64 else x.float()


def tile_frames(grid: TokenGrid) -> list[slice]:
    """Split the frames of a grid into tiles that suit the device's memory in float32."""
    return split_tiles(grid.shape[0], 4 * grid.cells * grid.dim, grid.tokens.device)


def read_frames(grid: TokenGrid, frames: slice) -> torch.Tensor:
    """Return the tokens of some frames, [t, N, D] float32 or float64."""
    return to_float(grid.tokens[frames].detach()).reshape(-1, grid.cells, grid.dim)


def average_frames(grid: TokenGrid) -> torch.Tensor:
    """Return the mean token of every frame: [T, D], float32 or float64."""
    mean = to_float(grid.tokens[:0]).new_full((1, grid.cells), 1 / grid.cells)
    return torch.cat([(mean @ read_frames(grid, tile))[:, 0] for tile in tile_frames(grid)])


def compare_cells(tokens: torch.Tensor, frames: np.ndarray, others: np.ndarray) -> torch.Tensor:
    """Return the cosine of every cell of a frame with the same cell of another frame; 0 for zero tokens.

    Args:
        tokens: [T, H, W, D].
        frames, others: [P] int64, the pairs of frames.

    Returns:
        [P, H * W] float32.
    """
    _, h, w, d = tokens.shape
    tile_bytes = PRODUCT_BYTES if tokens.device.type == "cpu" else TILE_BYTES
    cosines = torch.empty(len(frames), h * w, device=tokens.device)
    for tile in iterate_tiles(len(frames), 4 * h * w * d, tile_bytes):
        pair = (torch.from_numpy(numbers[tile]).to(tokens.device) for numbers in (frames, others))
        a, b = (tokens.detach().index_select(0, index).float() for index in pair)
        dot, aa, bb = (product.sum(-1) for product in (a * b, a * a, b * b))
        if not (have_squares(aa.sqrt()) and have_squares(bb.sqrt())):
            a, b = divide_by_peak(a), divide_by_peak(b)
            dot, aa, bb = (product.sum(-1) for product in (a * b, a * a, b * b))
        # not dot / (|a| |b|): in this form equal tokens have a cosine of exactly 1, so ties are exact
        cosine = dot / aa * (aa / bb).sqrt()
        cosines[tile] = cosine.where((aa > 0) & (bb > 0), 0).flatten(1)
    return cosines


def compare_with_previous(grid: TokenGrid) -> torch.Tensor:
    """Return the cosine of every token but the first frame's with the same cell of the frame before: [T - 1, N]."""
    later = np.arange(1, grid.shape[0])
    return compare_cells(grid.tokens, later, later - 1)


class Segments(NamedTuple):
    """Contiguous runs of frames."""

    starts: np.ndarray  # [S] int64, the first frame of each
    lengths: np.ndarray  # [S]
    segment: np.ndarray  # [T] the segment of each frame


def find_segments(vectors: torch.Tensor, threshold: float, least: int) -> Segments:
    """Cut a video where the cosine of consecutive frames is below a threshold, and at the lowest ones.

    Args:
        vectors: [T, D], one for each frame.
        threshold: Frames with a lower cosine are in different segments.
        least: The least number of segments; every frame is one if there are fewer frames.
    """
    precise = torch.float32 if vectors.device.type == "mps" else torch.float64
    vectors = F.normalize(vectors.to(precise), dim=-1)
    cosine = (vectors[:-1] * vectors[1:]).sum(-1).cpu().double().numpy()  # [T - 1]
    is_cut = cosine < threshold
    is_cut[np.argsort(cosine, kind="stable")[: least - 1]] = True
    starts = np.concatenate([[0], 1 + np.flatnonzero(is_cut)])
    lengths = np.diff(starts, append=len(vectors))
    return Segments(starts, lengths, np.repeat(np.arange(len(starts)), lengths))


def estimate_salience(grid: TokenGrid) -> torch.Tensor:
    """Return the product of each token with the mean token of its frame: [T, N].

    Where a vision encoder gives no attention, the softmax of these products is the salience. It has the same order in
    a frame, until it underflows.
    """
    means = average_frames(grid)
    return torch.cat([means[tile, None] @ read_frames(grid, tile).mT for tile in tile_frames(grid)])[:, 0]
