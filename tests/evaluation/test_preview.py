"""Tests of token counts, time estimates and downloads."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from statistics import median

import pytest

from floc.evaluation import paper, preview
from floc.evaluation.command import build_command
from floc.evaluation.plan import EvalRun, PlanOptions, plan_grid
from floc.evaluation.preview import check_downloads, estimate_time, find_downloads, get_hub_cache, preview_plan
from floc.evaluation.results import ResultFolder

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
CELLS = plan_grid(PlanOptions(methods=["full", "floc"], tasks=["longvideobench_val_v"]))
MODEL, DATA = "models--Qwen--Qwen2.5-VL-7B-Instruct", "datasets--longvideobench--LongVideoBench"
WIDE_TOKENS = 384 * 60  # of 768 frames of 1280 x 720 pixels, with Qwen2.5-VL


def create_run(method: str = "floc", **more) -> EvalRun:
    return plan_grid(PlanOptions(methods=[method], ratios=["1/8"], tasks=["videomme"], **more))[0]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def create_snapshot(hub: Path, repository: str) -> Path:
    folder = hub / repository / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def test_token_counts_of_a_run(tmp_path: Path) -> None:
    (long,) = plan_grid(PlanOptions(methods=["floc"], budget=24576, tasks=["videomme"]))
    runs = [create_run(), create_run("full"), long]
    plan = preview_plan(runs, ResultFolder(tmp_path), build_command)
    counts = [tuple(run[name] for name in ("tokens", "kept", "video_tokens")) for run in plan["runs"]]
    assert counts == [(24576, 3072, WIDE_TOKENS), (24576, 24576, WIDE_TOKENS), (3600 * 64, 24576, 3600 * 60)]


def test_time_is_the_sum_of_the_stages() -> None:
    def compute(kept: int, selection_s: float) -> float:
        decoder_s = kept * preview.PREFILL_S + kept**2 * preview.PREFILL_SQUARED_S + 2 * preview.STEP_S
        return 2700 * (WIDE_TOKENS * (preview.VISION_S + selection_s / 47_040) + decoder_s)

    estimate = estimate_time(create_run("kmeans"))
    assert estimate.computing_s == pytest.approx(compute(WIDE_TOKENS // 8, preview.SELECTION_S["kmeans"]))
    assert estimate.reading_s == pytest.approx(2700 * 1018 * preview.READING_S)
    assert estimate_time(create_run("full")).computing_s == pytest.approx(compute(WIDE_TOKENS, 0))
    assert estimate_time(create_run("kmeans", limit=27)).computing_s == pytest.approx(estimate.computing_s / 100)
    assert estimate_time(create_run("kmeans", limit=10**6)) == estimate


def test_fps_limits_the_frames_of_a_short_video(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preview, "STEP_S", 0.0)
    monkeypatch.setattr(preview, "PREFILL_SQUARED_S", 0.0)
    few = estimate_time(create_run(fps=0.1))  # 102 frames of 1,018 s
    assert few.computing_s == pytest.approx(estimate_time(create_run()).computing_s * 51 / 384, rel=1e-4)


def test_decoder_time_scales_with_model_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preview, "VISION_S", 0.0)
    monkeypatch.setattr(preview, "SELECTION_S", {})
    small, large = (estimate_time(create_run(models=[name])) for name in ("qwen2.5-vl-7b", "qwen2.5-vl-32b"))
    assert large.computing_s / small.computing_s == pytest.approx(33.5 / 8.3)


def test_unknown_task_has_no_estimate() -> None:
    (run,) = plan_grid(PlanOptions(methods=["full"], tasks=["mine"]))
    assert estimate_time(run) is None


def test_constants_follow_the_benchmark_results() -> None:
    """A new measurement may differ by a third before the constants have to be updated."""
    answer, profile, gpu, video = (
        json.loads((RESULTS / f"{name}.json").read_text()) for name in ("answer", "profile", "gpu", "video")
    )
    full, short = answer["questions"][:2]
    (n, a), (m, b) = ((each["held"], each["prefill_s"]) for each in (full, short))
    squared = (a / n - b / m) / (n - m)  # the parabola through both prefills
    measured = {
        "VISION_S": full["vision_s"] / answer["tokens"],
        "PREFILL_S": a / n - squared * n,
        "PREFILL_SQUARED_S": squared,
        "STEP_S": median(answer["steps"]["shortened_s"]),
        "READING_S": max(each["read_s"] / each["duration_s"] for each in video["speed"]),
    }
    assert {name: getattr(preview, name) for name in measured} == pytest.approx(measured, rel=1 / 3)
    assert profile["ran_on"] == gpu["gpu"] == answer["gpu"] == "NVIDIA H200"
    assert profile["frames"] * 60 == preview.SELECTION_TOKENS
    selection = {each["method"]: each["seconds"] for each in profile["methods"] if "seconds" in each}
    selection["kmedoids"] = paper.get_row("table7", "kmedoids")["compression_s"]
    cases = {each["case"]: each["ms"] / 1e3 for each in gpu["cases"]}
    selection["floc-paper"] = cases["floc-paper, 1/8"]
    selection["floc"] = cases["floc, 1/8"]
    slow = {name: seconds for name, seconds in selection.items() if seconds > 0.01 * full["vision_s"]}
    assert slow == pytest.approx(preview.SELECTION_S, rel=1 / 3)


def test_lists_missing_downloads_once(hub: Path) -> None:
    model, data = find_downloads(CELLS)
    assert str(model) == "hf download Qwen/Qwen2.5-VL-7B-Instruct   # missing: weights, about 17 GB"
    assert str(data).startswith("hf download longvideobench/LongVideoBench --repo-type dataset   # missing: ")
    assert "accept its terms" in str(data)
    with pytest.raises(ValueError, match="missing in") as error:
        check_downloads(CELLS)
    assert str(hub) in str(error.value)
    assert str(model) in str(error.value)


def test_accepts_cached_repositories(hub: Path) -> None:
    (create_snapshot(hub, MODEL) / "model.safetensors").write_text("")
    create_snapshot(hub, DATA)
    assert find_downloads(CELLS) == []
    check_downloads(CELLS)


def test_detects_incomplete_downloads(hub: Path) -> None:
    folder = create_snapshot(hub, MODEL)
    create_snapshot(hub, DATA)
    (hub / DATA / "blobs").mkdir()
    (hub / DATA / "blobs" / "x.incomplete").write_text("")
    assert [each.state for each in find_downloads(CELLS)] == ["incomplete", "incomplete"]
    (hub / DATA / "blobs" / "x.incomplete").unlink()
    index = {"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "1.safetensors").write_text("")
    assert [(each.kind, each.state) for each in find_downloads(CELLS)] == [("model", "incomplete")]
    (folder / "2.safetensors").write_text("")
    assert find_downloads(CELLS) == []


def test_checks_weights_in_a_folder(hub: Path, tmp_path: Path) -> None:
    create_snapshot(hub, DATA)
    models = [f"qwen2.5-vl-7b={tmp_path / 'w'}"]
    runs = plan_grid(PlanOptions(models=models, methods=["full"], tasks=["longvideobench_val_v"]))
    with pytest.raises(FileNotFoundError, match=r"w has no config\.json"):
        find_downloads(runs)
    (tmp_path / "w").mkdir()
    (tmp_path / "w/config.json").write_text("{}")
    assert find_downloads(runs) == []


def test_rejects_weights_that_need_conversion(hub: Path, tmp_path: Path) -> None:
    create_snapshot(hub, DATA)
    options = PlanOptions(models=["llava-video-7b"], methods=["full"], tasks=["longvideobench_val_v"])
    for state in ("missing", "not converted"):
        (download,) = find_downloads(plan_grid(options))
        assert download.state == state
        assert "--models llava-video-7b=FOLDER" in str(download)
        if state == "missing":
            (create_snapshot(hub, "models--lmms-lab--LLaVA-Video-7B-Qwen2") / "model.safetensors").write_text("")
    (tmp_path / "config.json").write_text("{}")
    assert find_downloads(plan_grid(dataclasses.replace(options, models=[f"llava-video-7b={tmp_path}"]))) == []


def test_ignores_datasets_of_other_tasks(hub: Path) -> None:
    runs = plan_grid(PlanOptions(methods=["full"], tasks=["mine"]))
    assert [each.kind for each in find_downloads(runs)] == ["model"]


def test_hub_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert get_hub_cache() == Path.home() / ".cache/huggingface/hub"
    monkeypatch.setenv("HF_HOME", "/a")
    assert get_hub_cache() == Path("/a/hub")
    monkeypatch.setenv("HF_HUB_CACHE", "/b")
    assert get_hub_cache() == Path("/b")
