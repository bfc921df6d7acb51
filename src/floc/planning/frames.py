"""Which frames a model reads, how many tokens they become, and how to take more or larger ones."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

from floc._checks import check_count
from floc.families import find_family
from floc.families.processing import VideoFacts, VideoPlan, VideoPreparer
from floc.planning.costs import ModelCosts, Workload

MOST_COMPRESSED = 32  # times as many frames as usual at most: 1/32 is the smallest ratio of the paper
COUNTED_FRAMES = 4096  # longer prompts are not written to count their tokens
ROUNDING = (1.3, 1.2, 1.1, 1.05, 1.0)  # pixels before rounding, relative to those after it
QUESTION = 512  # tokens left for a question and its answer


@dataclass(frozen=True)
class MoreFrames:
    """More frames than usual, compressed to the usual number of tokens."""

    fps: float
    max_frames: int
    budget: int  # tokens to keep: what the processor makes of the video without options
    frame_tokens: int | None  # keeps frames at their usual size; None if the model has only one


def describe_workload(preparer: VideoPreparer, plan: VideoPlan, costs: ModelCosts, ratio: float = 1.0) -> Workload:
    """Count the frames and tokens of a video, as the model's processor prepares it; `ratio` of the tokens are kept."""
    facts, frames = plan.facts, len(plan.indices)
    tokens, text = count_tokens(preparer, plan, costs.config)
    return Workload(
        frames=frames,
        slices=math.ceil(frames / preparer.frames_per_slice),
        decoded_bytes=3 * facts.width * facts.height * frames,
        pixels=math.prod(plan.pixels[1]),
        patches=costs.count_patches(plan.pixels[1]),
        tokens=tokens,
        kept=max(1, round(ratio * tokens)),
        text=text,
    )


def count_tokens(preparer: VideoPreparer, plan: VideoPlan, config: Any) -> tuple[int, int]:
    """Return the number of visual tokens of a video, and of all other tokens in a prompt without a question."""
    frames, family = len(plan.indices), find_family(config)
    if frames > COUNTED_FRAMES and plan.size is None:  # all frames are alike, however many there are
        part = preparer.plan(plan.facts, fps=frames / plan.facts.frames * plan.facts.fps, max_frames=COUNTED_FRAMES)
        scale = frames / len(part.indices)
        tokens, text = count_tokens(preparer, part, config)
        return round(tokens * scale), round(text * scale)
    ids = preparer.write_prompt(plan, "")["input_ids"]
    tokens = int(family.mask_tokens(config, ids, has_images=False).sum()) - int(family.newline is not None)
    return tokens, ids.shape[1] - tokens


def limit_frame_tokens(
    preparer: VideoPreparer, facts: VideoFacts, limit: int, *, fps: float | None = None, max_frames: int | None = None
) -> VideoPreparer:
    """Return a preparer whose frames have at most `limit` tokens, and more than usual if the limit is larger.

    Where a model joins frames in pairs, the tokens are those of a pair.
    """
    check_count("frame_tokens", limit, "tokens")
    processor, settings = copy.copy(preparer.processor), preparer.settings
    plan = preparer.plan(facts, fps=fps, max_frames=max_frames)
    video_processor = processor.video_processor = copy.copy(preparer.video_processor)
    if "max_soft_tokens" in video_processor.valid_kwargs.__annotations__:
        return VideoPreparer(processor, **{**settings, "max_soft_tokens": limit})
    cell = count_token_pixels(preparer)
    if cell is None or "video_grid_thw" not in plan.outputs:
        tokens = preparer.write_prompt(plan, "")["input_ids"].shape[1] // len(plan.indices)
        problem = f"frame_tokens={limit} cannot be set for {type(video_processor).__name__}, whose frames have one size"
        raise ValueError(f"{problem}, about {tokens} tokens each; leave it out, or change max_frames")
    if hasattr(video_processor, "max_video_tokens"):  # a limit of the release on top of the sizes
        video_processor.max_video_tokens = max(video_processor.max_video_tokens, 2 * limit * len(plan.indices))
    shortest = _read_size(preparer)["shortest_edge"]
    size = {"shortest_edge": min(shortest, max(1, limit // 2) * cell)}
    # the size limits the pixels of the whole video, or else those of a frame; sides are rounded down to whole tokens
    for count, scale in itertools.product((len(plan.indices), 1), ROUNDING):
        size["longest_edge"] = int(limit * cell * count * scale)
        changed = VideoPreparer(processor, **{**settings, "size": size})
        grid = changed.plan(facts, fps=fps, max_frames=max_frames).outputs["video_grid_thw"][0]
        if int(grid[1:].prod()) <= limit * video_processor.merge_size**2:
            return changed
    raise ValueError(f"frame_tokens={limit} is less than the smallest frame of this model has; give a larger number")


def count_token_pixels(preparer: VideoPreparer) -> int | None:
    """Return the pixels of a token if the size of a frame is set by a number of pixels, else None."""
    size = _read_size(preparer)
    patch, merge = (getattr(preparer.video_processor, name, None) for name in ("patch_size", "merge_size"))
    if not (size.get("shortest_edge") and size.get("longest_edge") and patch and merge):
        return None
    return int((patch * merge) ** 2)


def plan_more_frames(
    preparer: VideoPreparer, facts: VideoFacts, costs: ModelCosts, free_bytes: int | None
) -> MoreFrames:
    """Plan as many frames as fit, compressed to the number of tokens that the model usually reads.

    The limits are the video's frames, a ratio of 1/32, the model's context (prompts name the time of every frame)
    and, if given, `free_bytes` of memory for a capture.
    """
    usual = describe_workload(preparer, preparer.plan(facts), costs)
    frames = min(facts.frames, usual.frames * MOST_COMPRESSED)
    if costs.context is not None:
        room = costs.context - usual.tokens - QUESTION
        frames = min(frames, max(usual.frames, int(usual.frames * room / max(1, usual.text))))
    while frames > usual.frames and free_bytes is not None:
        scale = frames / usual.frames
        more = {
            name: int(getattr(usual, name) * scale)
            for name in ("frames", "slices", "pixels", "patches", "tokens", "text")
        }
        if costs.count_capture_bytes(replace(usual, **more)) <= free_bytes:
            break
        frames = max(usual.frames, frames * 3 // 4)
    cells = usual.tokens // usual.slices
    is_sized = count_token_pixels(preparer) is not None
    return MoreFrames(frames / facts.frames * facts.fps, frames, usual.tokens, cells if is_sized else None)


def _read_size(preparer: VideoPreparer) -> dict[str, Any]:
    return dict(preparer.settings.get("size") or getattr(preparer.video_processor, "size", None) or {})
