"""Plans of videos, their warnings, and errors about models that cannot be planned with."""

# no `from __future__ import annotations`: see tests/integrations/transformers/tiny_configs.py
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import floc
from floc.budget import Budget
from floc.families.processing import VideoPreparer
from floc.planning import Plan, check_plan, describe_plan, planner
from floc.planning.costs import ModelCosts
from floc.video.choice import VideoFacts
from tests.integrations.transformers import checkpoints
from tests.integrations.transformers.tiny_configs import create_model
from tests.planning import hub

FACTS = VideoFacts(96, 8.0, 128, 80)
GIB = 2**30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny model with its processor, without weights."""
    path = checkpoints.save("qwen2_5_vl", tmp_path_factory.mktemp("model"))
    (path / "model.safetensors").unlink()
    return str(path)


def test_plan_without_weights(folder: str) -> None:
    plan = floc.plan(FACTS, folder, device="cpu")
    work = plan.work
    assert (work.frames, work.slices, plan.fps) == (24, 12, 2.0)
    assert work.kept == round(work.tokens / 8)
    assert plan.tokens_per_frame == work.tokens / 24
    assert plan.seconds.keys() == {"vision", "select", "prefill"}  # facts alone cannot be decoded
    assert all(seconds > 0 for seconds in plan.seconds.values())
    assert plan.kv_bytes < plan.all_kv_bytes
    assert plan.weights_bytes < plan.capture_bytes < plan.free_bytes
    described = json.loads(json.dumps(plan.describe()))
    assert described["tokens"] == work.tokens
    assert described["warnings"] == []


def test_options_change_the_plan(folder: str) -> None:
    usual = floc.plan(FACTS, folder, device="cpu")
    assert floc.plan(FACTS, folder, budget=5, device="cpu").work.kept == 5
    assert floc.plan(FACTS, folder, ratio="1/3", device="cpu").work.kept == round(usual.work.tokens / 3)
    assert floc.plan(FACTS, folder, fps=4, device="cpu").work.frames == 48
    assert floc.plan(FACTS, folder, fps="all", max_frames="all", device="cpu").work.frames == 96
    assert floc.plan(FACTS, folder, max_frames=10, device="cpu").work.frames == 10
    assert floc.plan(FACTS, folder, frame_tokens=6, device="cpu").work.tokens == 12 * 6
    more = floc.plan(FACTS, folder, more_frames=True, device="cpu")
    assert more.work.frames == 96
    assert more.work.kept == usual.work.tokens
    with pytest.raises(ValueError, match=r"more_frames chooses .*, but ratio= and fps= is given, too; leave it out"):
        floc.plan(FACTS, folder, more_frames=True, ratio=0.5, fps=1)


def create_plan(**changes: object) -> Plan:
    """Return a plan that fits everywhere, with changes."""
    work = planner.Workload(100, 50, 0, 0, 4000, 1000, 125, 200)
    memory = dict(weights_bytes=GIB, attach_bytes=3 * GIB, attach_host_bytes=GIB, capture_bytes=2 * GIB)
    free = dict(free_bytes=4 * GIB, free_host_bytes=4 * GIB)
    plan = Plan(FACTS, work, 2.0, "cuda:0", 4096, 100, 800, **memory, **free, seconds={})
    return replace(plan, **changes)


def test_a_plan_that_fits_has_no_warnings() -> None:
    assert check_plan(create_plan(), attach=True) == []
    assert check_plan(create_plan(context=None, free_bytes=None, free_host_bytes=None), attach=True) == []


def test_warns_of_a_prompt_beyond_the_context() -> None:
    (warning,) = check_plan(create_plan(context=800))
    assert warning == (
        "the prompt has 325 tokens, 125 of them visual, but the model's context is 800, question and answer included; "
        "keep at most 88 tokens"
    )
    (warning,) = check_plan(create_plan(context=600))
    assert warning.endswith("take fewer frames: their times alone fill it")


def test_warns_of_too_little_memory() -> None:
    (warning,) = check_plan(create_plan(free_bytes=GIB))
    assert "capturing the video needs about 2.0 GiB on cuda:0, but only 1.0 GiB are free; use a smaller" in warning
    (warning,) = check_plan(create_plan(free_bytes=2 * GIB), attach=True)
    assert "floc.attach needs about 3.0 GiB on cuda:0, but only 2.0 GiB are free, since it encodes all" in warning
    (warning,) = check_plan(create_plan(free_host_bytes=GIB // 2), attach=True)
    assert "the model's processor needs about 1.0 GiB on cpu, but only 512.0 MiB are free" in warning


def test_a_loaded_model_needs_memory_for_the_video_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `floc.capture` checks before it starts."""
    model = create_model("qwen2_5_vl")
    preparer = VideoPreparer(checkpoints.create_processor("qwen2_5_vl"))
    costs, video = ModelCosts.from_model(model), preparer.plan(FACTS)
    budget, device = Budget.parse("1/8", None, None), torch.device("cpu")
    plan = describe_plan(preparer, video, costs, budget, device)
    assert plan.seconds == {}
    needed = plan.capture_bytes - plan.weights_bytes
    monkeypatch.setattr(planner, "available_bytes", lambda device: needed)
    assert check_plan(describe_plan(preparer, video, costs, budget, device)) == []
    monkeypatch.setattr(planner, "available_bytes", lambda device: needed - 1)
    assert len(check_plan(describe_plan(preparer, video, costs, budget, device))) == 1
    # a coverage may keep everything
    coverage = Budget.parse(None, None, 0.9)
    assert describe_plan(preparer, video, costs, coverage, device).work.kept == plan.work.tokens


def test_a_film_beyond_the_context_is_seen_before_the_weights_are_loaded(tmp_path: Path) -> None:
    folder = hub.save("internvl", tmp_path)  # 307,200 tokens for ten minutes, and a context of 32,768
    preparer, costs = planner.load_planner(str(folder))
    video = preparer.plan(VideoFacts(18_000, 30.0, 1920, 1080))
    plan = describe_plan(preparer, video, costs, Budget.parse("1/8", None, None), torch.device("cpu"))
    assert "but the model's context is 32,768, question and answer included; keep at most" in check_plan(plan)[0]


def test_errors_name_what_is_missing(folder: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing\.mp4: no such file"):
        floc.plan("nothing.mp4", folder)
    with pytest.raises(ValueError, match="not a folder or hub id with a config that transformers"):
        floc.plan(FACTS, str(tmp_path))
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text((Path(folder) / name).read_text())
    with pytest.raises(ValueError, match=r"has no video processor|with a processor that transformers"):
        floc.plan(FACTS, str(tmp_path))
    (tmp_path / "processor_config.json").write_text((Path(folder) / "processor_config.json").read_text())
    with pytest.raises(ValueError, match=f"{tmp_path}: the processor has no chat template"):
        floc.plan(FACTS, str(tmp_path))
    with pytest.raises(ValueError, match="max_frames must be a whole number"):
        floc.plan(FACTS, folder, max_frames=0)
    with pytest.raises(ValueError, match="fps must be a number above 0"):
        floc.plan(FACTS, folder, fps=-1)
