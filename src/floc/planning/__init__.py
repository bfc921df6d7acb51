"""Plan to read a video with a model before its weights are loaded: frames, tokens, memory, time and warnings."""

from floc.families.frame_size import limit_frame_tokens
from floc.planning.costs import ModelCosts
from floc.planning.frames import MoreFrames, plan_more_frames
from floc.planning.planner import Plan, check_plan, describe_plan, plan

__all__ = [
    "ModelCosts",
    "MoreFrames",
    "Plan",
    "check_plan",
    "describe_plan",
    "limit_frame_tokens",
    "plan",
    "plan_more_frames",
]
