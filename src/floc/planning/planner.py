"""`floc.plan`: the frames, tokens, memory and time of a video in a model, and warnings, without loading weights."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from floc._system import available_bytes
from floc._text import format_bytes
from floc.budget import Budget
from floc.encoders.base import choose_device
from floc.families.frame_size import limit_frame_tokens
from floc.families.pretrained import hide_progress
from floc.families.processing import Limit, Rate, VideoPlan, VideoPreparer, load_processor
from floc.planning import speed
from floc.planning.costs import ModelCosts, Workload, build_without_weights, count_selection_flops
from floc.planning.frames import QUESTION, describe_workload, plan_more_frames
from floc.video.choice import VideoFacts
from floc.video.read import check_sampling, read_facts

DEFAULT_RATIO = "1/8"


@dataclass(frozen=True)
class Plan:
    """The frames, tokens, memory and time of a video in a model. Bytes and seconds are estimates."""

    facts: VideoFacts
    work: Workload
    fps: float  # sampled frames per second
    device: str
    context: int | None  # of the model, in tokens
    kv_bytes: int  # of the KV cache after compression
    all_kv_bytes: int  # with all tokens
    weights_bytes: int
    attach_bytes: int  # peak with `floc.attach`, on the device
    attach_host_bytes: int  # peak of the processor, which holds all frames, on the host of a GPU
    capture_bytes: int  # peak of `floc.capture` and a question, on the device
    free_bytes: int | None  # on the device, with the weights if they are loaded
    free_host_bytes: int | None
    seconds: dict[str, float]  # by stage, of a capture and a question; empty if nothing was measured

    @property
    def tokens_per_frame(self) -> float:
        return self.work.tokens / self.work.frames

    def describe(self) -> dict[str, Any]:
        """Return the plan with its warnings; JSON-serialisable."""
        counts = {"tokens_per_frame": self.tokens_per_frame, **asdict(self.work)}
        rest = {name: value for name, value in vars(self).items() if name not in ("facts", "work")}
        return {"video": asdict(self.facts), **counts, **rest, "warnings": check_plan(self, attach=True)}


def plan(
    video: str | Path | VideoFacts,
    model: str,
    *,
    ratio: float | str | None = None,
    budget: int | None = None,
    fps: Rate = None,
    max_frames: Limit = None,
    frame_tokens: int | None = None,
    more_frames: bool = False,
    device: str | None = None,
) -> Plan:
    """Plan to read a video with a model, without its weights.

    Args:
        video: a file; or its facts, then the time to decode it is left out.
        model: folder or hub id of a video model of transformers.
        ratio, budget: as in `floc.compress`. Default: a ratio of 1/8.
        fps, max_frames: frames per second and their limit, or "all". Default: those of the model's processor.
        frame_tokens: largest number of tokens of a frame, where the model can change it.
        more_frames: take as many frames as fit, and keep as many tokens as the model reads without options.
        device: where the model would run. Default: the first GPU, else the CPU.
    """
    check_sampling(None if fps == "all" else fps, None if max_frames == "all" else max_frames)
    target = choose_device(device)
    facts = video if isinstance(video, VideoFacts) else read_facts(video)
    preparer, costs = load_planner(model)
    if more_frames:
        given = {"ratio": ratio, "budget": budget, "fps": fps, "max_frames": max_frames, "frame_tokens": frame_tokens}
        if names := " and ".join(f"{name}=" for name, value in given.items() if value is not None):
            raise ValueError(f"more_frames chooses the frames and the budget, but {names} is given, too; leave it out")
        more = plan_more_frames(preparer, facts, costs, available_bytes(target))
        video_plan, budget = more.plan, more.budget
    else:
        video_plan = preparer.plan(facts, fps=fps, max_frames=max_frames)
    if frame_tokens is not None:
        video_plan = limit_frame_tokens(preparer, video_plan, frame_tokens)
    if ratio is None and budget is None:
        ratio = DEFAULT_RATIO
    result = describe_plan(preparer, video_plan, costs, Budget.parse(ratio, budget, None), target)
    seconds = {} if isinstance(video, VideoFacts) else speed.measure_reading(Path(video), preparer, video_plan)
    return replace(result, seconds={**seconds, **estimate_seconds(result.work, costs, target)})


def describe_plan(
    preparer: VideoPreparer, video_plan: VideoPlan, costs: ModelCosts, budget: Budget, device: torch.device
) -> Plan:
    """Describe what a planned video becomes and needs, without measuring how long it takes."""
    work = describe_workload(preparer, video_plan, costs)
    if budget.coverage is None:  # else all tokens may be needed
        work = replace(work, kept=budget.count(work.tokens))
    facts, free_bytes, is_host = video_plan.facts, available_bytes(device), device.type == "cpu"
    return Plan(
        facts=facts,
        work=work,
        fps=work.frames * facts.fps / facts.frames,
        device=str(device),
        context=costs.context,
        kv_bytes=costs.count_kv_bytes(work.prompt),
        all_kv_bytes=costs.count_kv_bytes(work.tokens + work.text),
        weights_bytes=costs.weights_bytes,
        attach_bytes=costs.count_attach_bytes(work, with_processor=is_host),
        attach_host_bytes=0 if is_host else costs.count_processor_bytes(work),
        capture_bytes=costs.count_capture_bytes(work),
        free_bytes=None if free_bytes is None else free_bytes + costs.loaded_bytes,
        free_host_bytes=available_bytes(torch.device("cpu")),
        seconds={},
    )


class ContextWarning(UserWarning):
    """A prompt is longer than the model's context."""


def check_context(plan: Plan) -> list[str]:
    """Return a warning if the prompt is beyond the model's context."""
    work = plan.work
    if plan.context is None or work.prompt + QUESTION <= plan.context:
        return []
    room = plan.context - work.text - QUESTION
    remedy = f"keep at most {room:,} tokens" if room > 0 else "take fewer frames: their times alone fill it"
    prompt = f"the prompt has {work.prompt:,} tokens, {work.kept:,} of them visual"
    return [f"{prompt}, but the model's context is {plan.context:,}, question and answer included; {remedy}"]


def check_plan(plan: Plan, *, attach: bool = False) -> list[str]:
    """Return warnings: a prompt beyond the model's context, or memory beyond that of the machine.

    Args:
        attach: also warn if `floc.attach` needs more memory than there is.
    """
    warnings = check_context(plan)
    if plan.free_bytes is not None and plan.capture_bytes > plan.free_bytes:
        remedy = "use a smaller model, fewer tokens a frame or another device"
        warnings.append(
            f"{_describe_lack('capturing the video', plan.capture_bytes, plan.free_bytes, plan.device)}; {remedy}"
        )
    if attach and plan.free_bytes is not None and plan.attach_bytes > plan.free_bytes:
        lack = _describe_lack("floc.attach", plan.attach_bytes, plan.free_bytes, plan.device)
        warnings.append(f"{lack}, since it encodes all frames at once; capture the video, or take fewer frames")
    if attach and plan.free_host_bytes is not None and plan.attach_host_bytes > plan.free_host_bytes:
        lack = _describe_lack("the model's processor", plan.attach_host_bytes, plan.free_host_bytes, "cpu")
        warnings.append(f"{lack}, since it holds all frames; capture the video, or take fewer frames")
    return warnings


def estimate_seconds(work: Workload, costs: ModelCosts, device: torch.device) -> dict[str, float]:
    """Estimate the seconds of vision, selection and prefill from FLOPs, and from the speed of the device."""
    dtype = costs.dtype
    patches, span = int(work.patches * work.chunk), max(1, work.patches // work.slices)
    vision = speed.measure_stack(costs.vision, patches, span, work.patches, dtype, device)
    # a token attends to those before it: half of them on average
    prefill = speed.measure_stack(costs.decoder, work.prompt, work.prompt // 2 + 1, work.prompt, dtype, device)
    rate = speed.measure_products(costs.decoder, work.window, torch.float32, device)
    return {"vision": vision, "select": count_selection_flops(work, costs.decoder.width) / rate, "prefill": prefill}


def load_planner(model: str) -> tuple[VideoPreparer, ModelCosts]:
    """Load the processor of a model and read its costs, without its weights."""
    config, processor = load_processor(model, "planning")
    with hide_progress(hide_warnings=True):
        return VideoPreparer(processor), ModelCosts.from_model(build_without_weights(config))


def _describe_lack(what: str, needed: int, free: int, device: str) -> str:
    return f"{what} needs about {format_bytes(needed)} on {device}, but only {format_bytes(free)} are free"
