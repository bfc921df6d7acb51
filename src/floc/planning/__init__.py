"""Plan to read a video with a model before its weights are loaded: frames, tokens, memory, time and warnings."""

from floc.planning.costs import ModelCosts
from floc.planning.frames import plan_more_frames
from floc.planning.planner import Plan, check_plan, describe_plan, plan

__all__ = ["ModelCosts", "Plan", "check_plan", "describe_plan", "plan", "plan_more_frames"]
