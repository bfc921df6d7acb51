"""Change the size of the frames that a processor makes, in tokens."""

from __future__ import annotations

import math

from floc._checks import check_count
from floc.families.processing import VideoPlan, VideoPreparer


def limit_frame_tokens(preparer: VideoPreparer, plan: VideoPlan, limit: int) -> VideoPlan:
    """Return a plan whose frames are as large as `limit` tokens allow, but not larger than the video.

    Where a model joins frames in pairs, the tokens are those of a pair.
    """
    check_count("frame_tokens", limit, "tokens")
    side = find_token_side(preparer)
    if side is None:
        ids = preparer.write_prompt(plan, "")["input_ids"]
        tokens = int((ids == ids.mode().values).sum()) // len(plan.indices)
        name = type(preparer.video_processor).__name__
        problem = f"frame_tokens={limit} cannot be set: {name} makes frames of one size, {tokens} tokens each"
        raise ValueError(f"{problem}; leave it out, or change the number of frames")
    return set_grid(preparer, plan, fit_grid(plan.facts.width / side, plan.facts.height / side, limit), side)


def fit_grid(width: float, height: float, limit: int) -> tuple[int, int]:
    """Return the rows and columns of the largest grid of about this shape with at most `limit` cells.

    >>> fit_grid(1920 / 28, 1080 / 28, 768), fit_grid(1920 / 28, 1080 / 28, 1), fit_grid(4, 3, 768)
    ((21, 36), (1, 1), (3, 4))
    """
    scale = min(1.0, math.sqrt(limit / (width * height)))
    rows = max(1, min(limit, round(height * scale)))
    columns = max(1, min(limit // rows, round(width * scale)))
    return rows, columns


def find_token_side(preparer: VideoPreparer) -> int | None:
    """Return the side of a token in pixels if a frame may have any number of them, else None."""
    processor = preparer.video_processor
    size = dict(preparer.settings.get("size") or getattr(processor, "size", None) or {})
    patch, merge = (getattr(processor, name, None) for name in ("patch_size", "merge_size"))
    is_counted = size.get("shortest_edge") and size.get("longest_edge")  # numbers of pixels
    return int(patch * merge) if patch and merge and is_counted else None


def set_grid(preparer: VideoPreparer, plan: VideoPlan, grid: tuple[int, int], side: int) -> VideoPlan:
    """Return a plan with frames of so many rows and columns of squares with a side in pixels."""
    from transformers.image_utils import SizeDict

    size = SizeDict(height=grid[0] * side, width=grid[1] * side)
    return preparer.plan_frames(plan.facts, plan.indices, size, plan.fps)
