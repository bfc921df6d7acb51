"""Tests of `floc eval` from end to end: lmms-eval with tiny models on rendered films, offline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("lmms_eval", reason="needs lmms-eval: run make test-lmms")
pytestmark = [pytest.mark.lmms, pytest.mark.filterwarnings("ignore")]  # other packages' warnings

from tests.integrations.lmms_eval import films, tiny  # noqa: E402
from tests.integrations.lmms_eval.process import run  # noqa: E402

# one model per family -> the type of its tiny model
MODELS = {"qwen2.5-vl-7b": "qwen2_5_vl", "qwen2-vl-7b": "qwen2_vl", "llava-video-7b": "llava_onevision"}


@pytest.mark.parametrize(
    "name", ["qwen2.5-vl-7b", *(pytest.param(name, marks=pytest.mark.slow) for name in list(MODELS)[1:])]
)
def test_grid_runs_and_resumes(name: str, tmp_path: Path) -> None:
    weights, task = tmp_path / "weights", tmp_path / "task"
    for folder in (weights, task):
        folder.mkdir()
    tiny.write(MODELS[name], weights)
    films.write_task(task)
    command = ["-m", "floc", "eval", "--models", f"{name}={weights}", "--tasks", "keys", "--ratio", "1/8", "--json"]
    command += ["--max-frames", "8", "--output", str(tmp_path / "out"), "--lmms", f"--include_path {task}"]
    output = run(*command, "--methods", "full,floc", kind=MODELS[name], home=tmp_path / "hub")
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert report["failed"] == [], output
    runs = {each["method"]: each for each in report["runs"]}
    assert set(runs) == {"full", "floc"}
    for method, result in runs.items():
        assert result["questions"] == 4
        assert 0 <= result["score"] <= 100
        selection = result["selection"]
        assert selection["samples"] == 4
        assert selection["kept"] == pytest.approx(selection["tokens"] / (1 if method == "full" else 8), abs=1)
        assert 0 < selection["coverage"] <= 1.001
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out/results").iterdir()}
    # longvu keeps a whole frame, which is more than 1/8 of these few
    run(*command, "--methods", "full,floc,longvu", kind=MODELS[name], home=tmp_path / "hub")
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "out/results").iterdir()}
    assert len(after) == 3
    assert before.items() <= after.items()
