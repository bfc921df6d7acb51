"""Cells through time: how alike the tokens at one place of two frames are."""

from __future__ import annotations

import numpy as np
import torch

from floc.representatives import TILE_BYTES

CACHE_BYTES = 1 << 20  # of products at a time on a CPU: in its cache they take a tenth of the time


def same_cell(tokens: torch.Tensor, frames: np.ndarray, others: np.ndarray) -> torch.Tensor:
    """[P, N] float32, the cosine of every cell of a frame with the same cell of another; 0 for zero tokens.

    Args:
        tokens: [T, H, W, D].
        frames, others: [P] int64, the pairs of frames.
    """
    _, h, w, d = tokens.shape
    step = max(1, (CACHE_BYTES if tokens.device.type == "cpu" else TILE_BYTES) // (4 * h * w * d))
    cosines = torch.empty(len(frames), h * w, device=tokens.device)
    for start in range(0, len(frames), step):
        a, b = (
            tokens.detach().index_select(0, torch.from_numpy(each[start : start + step]).to(tokens.device)).float()
            for each in (frames, others)
        )
        dot, aa, bb = (each.sum(-1) for each in (a * b, a * a, b * b))
        # not dot / (|a| |b|): this way equal tokens have a cosine of 1 exactly, and so are equally alike in every cell
        cosine = dot / aa * (aa / bb).sqrt()
        cosines[start : start + step] = cosine.where((aa > 0) & (bb > 0), 0).flatten(1)
    return cosines
