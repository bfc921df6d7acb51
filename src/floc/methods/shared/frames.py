"""Work on a few frames at a time: mean tokens, segments, salience, and the similarity of two frames cell by cell."""

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


def average_frames(grid: TokenGrid) -> torch.Tensor:
    """Return the mean token of every frame: [T, D], float32 or float64."""
    t, h, w = grid.shape
    mean = to_float(grid.tokens[:0]).new_full((1, h * w), 1 / (h * w))
    tiles = split_tiles(t, 4 * h * w * grid.dim, grid.tokens.device)
    return torch.cat([(mean @ to_float(grid.tokens[tile]).reshape(-1, h * w, grid.dim))[:, 0] for tile in tiles])


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


def find_segments(vectors: torch.Tensor, threshold: float, least: int) -> np.ndarray:
    """Cut a video where the cosine of consecutive frames is below a threshold, and at the lowest ones.

    Args:
        vectors: [T, D], one for each frame.
        threshold: Frames with a lower cosine are in different segments.
        least: The least number of segments; every frame is one if there are fewer frames.

    Returns:
        [S] int64, the first frame of each segment.
    """
    precise = torch.float32 if vectors.device.type == "mps" else torch.float64
    vectors = F.normalize(vectors.to(precise), dim=-1)
    cosine = (vectors[:-1] * vectors[1:]).sum(-1).cpu().double().numpy()  # [T - 1]
    is_cut = cosine < threshold
    is_cut[np.argsort(cosine, kind="stable")[: least - 1]] = True
    return np.concatenate([[0], 1 + np.flatnonzero(is_cut)])


def estimate_salience(grid: TokenGrid) -> torch.Tensor:
    """Return the product of each token with the mean token of its frame: [T, N].

    Where a vision encoder gives no attention, the softmax of these products is the salience. It has the same order in
    a frame, until it underflows.
    """
    means, cells = average_frames(grid), grid.n // grid.shape[0]
    tiles = split_tiles(len(means), 4 * cells * grid.dim, grid.tokens.device)
    products = [means[tile, None] @ to_float(grid.tokens[tile]).reshape(-1, cells, grid.dim).mT for tile in tiles]
    return torch.cat(products)[:, 0]
