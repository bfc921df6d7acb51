"""Which frames a model reads, how many tokens they become, and how to take more or larger ones."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from floc.encoders.chunks import count_patches
from floc.families import find_family
from floc.families.frame_size import find_token_side, set_grid
from floc.families.processing import VideoPlan, VideoPreparer
from floc.planning.costs import ModelCosts, Workload
from floc.video.choice import VideoFacts

MOST_COMPRESSED = 32  # times as many frames as usual at most: 1/32 is the smallest ratio of the paper
COUNTED_FRAMES = 128  # a longer prompt is not written to count its tokens: a million take seconds and gigabytes
QUESTION = 512  # tokens left for a question and its answer


@dataclass(frozen=True)
class MoreFrames:
    """More frames than usual, compressed to the usual number of tokens."""

    plan: VideoPlan
    budget: int  # tokens to keep: what the processor makes of the video without options


def describe_workload(preparer: VideoPreparer, plan: VideoPlan, costs: ModelCosts) -> Workload:
    """Count the frames and tokens of a video, as the model's processor prepares it; all tokens are kept."""
    facts, frames = plan.facts, len(plan.indices)
    tokens, text = count_tokens(preparer, plan, costs.config)
    return Workload(
        frames=frames,
        slices=math.ceil(frames / preparer.frames_per_slice),
        decoded_bytes=3 * facts.width * facts.height * frames,
        pixels=math.prod(plan.pixels[1]),
        patches=count_patches(costs.config, plan.pixels[1]),
        tokens=tokens,
        kept=tokens,
        text=text,
    )


def count_tokens(preparer: VideoPreparer, plan: VideoPlan, config: Any) -> tuple[int, int]:
    """Return the number of visual tokens of a video, and of all other tokens in a prompt without a question."""
    frames, step, family = len(plan.indices), preparer.frames_per_slice, find_family(config)
    if frames >= COUNTED_FRAMES + step:  # count in two parts, with frames of all times: the rest is linear
        counts = []
        for few in (COUNTED_FRAMES // 2, COUNTED_FRAMES):
            part = np.linspace(0, frames - 1, few + frames % step).round().astype(int)
            shorter = preparer.plan_frames(plan.facts, plan.indices[part], plan.size, plan.fps)
            counts.append(np.array(count_tokens(preparer, shorter, config)))
        steps = (frames - len(part)) / (COUNTED_FRAMES / 2)
        tokens, text = (counts[1] + (counts[1] - counts[0]) * steps).round().astype(int).tolist()
        return tokens, text
    ids = preparer.write_prompt(plan, "")["input_ids"]
    tokens = int(family.mask_tokens(config, ids, has_images=False).sum()) - int(family.newline is not None)
    return tokens, ids.shape[1] - tokens


def plan_more_frames(
    preparer: VideoPreparer, facts: VideoFacts, costs: ModelCosts, free_bytes: int | None
) -> MoreFrames:
    """Plan as many frames as fit, of the usual size, compressed to the number of tokens that the model usually reads.

    The limits are the video's frames, a ratio of 1/32, the model's context (prompts name the time of every frame)
    and, if given, `free_bytes` of memory for a capture.
    """
    usual_plan = preparer.plan(facts)
    usual = describe_workload(preparer, usual_plan, costs)
    frames = min(facts.frames, usual.frames * MOST_COMPRESSED)
    if costs.context is not None:
        room = costs.context - usual.tokens - QUESTION
        frames = min(frames, int(usual.frames * room / max(1, usual.text)))
    while frames > usual.frames and free_bytes is not None:
        scaled = {name: int(getattr(usual, name) * frames / usual.frames) for name in _GROWING}
        if costs.count_capture_bytes(replace(usual, **scaled)) <= free_bytes + costs.loaded_bytes:
            break
        frames = frames * 3 // 4
    if frames <= usual.frames:
        return MoreFrames(usual_plan, usual.tokens)
    plan = preparer.plan(facts, fps=frames / facts.duration_s, max_frames=frames)
    side = find_token_side(preparer)
    if side is not None:  # frames stay as large as usual, however many there are
        _, rows, columns = usual_plan.outputs["video_grid_thw"][0].tolist()
        patch = preparer.video_processor.patch_size
        plan = set_grid(preparer, plan, (rows, columns), patch)
    return MoreFrames(plan, usual.tokens)


_GROWING = ("frames", "slices", "pixels", "patches", "tokens", "text")  # with the frames of a video
