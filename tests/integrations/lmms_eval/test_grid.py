"""`floc eval` from end to end: lmms-eval, its models with floc around them, tiny weights, films made here, offline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("lmms_eval", reason="lmms-eval is not installed: make test-lmms runs this where it is")
pytest.importorskip("floc.integrations.lmms_eval", reason="the models for lmms-eval are not there")
pytestmark = [pytest.mark.lmms, pytest.mark.filterwarnings("ignore")]  # other packages' warnings

from tests.integrations.lmms_eval import films, tiny  # noqa: E402
from tests.integrations.lmms_eval.process import run  # noqa: E402

# of each family one: the name here, and the kind of its tiny model
MODELS = {"qwen2.5-vl-7b": "qwen2_5_vl", "qwen2-vl-7b": "qwen2_vl", "llava-video-7b": "llava_onevision"}


@pytest.mark.parametrize(
    "name", ["qwen2.5-vl-7b", *(pytest.param(name, marks=pytest.mark.slow) for name in list(MODELS)[1:])]
)
def test_a_grid_is_run_and_goes_on(name: str, tmp_path: Path) -> None:
    weights, task = tmp_path / "weights", tmp_path / "task"
    for folder in (weights, task):
        folder.mkdir()
    tiny.write(MODELS[name], weights)
    films.make(task)
    asked = ["-m", "floc", "eval", "--models", f"{name}={weights}", "--tasks", "keys", "--ratios", "1/8", "--json"]
    asked += ["--max-frames", "8", "--out", str(tmp_path / "out"), "--lmms", f"--include_path {task}"]
    said = run(*asked, "--methods", "full,floc", kind=MODELS[name], home=tmp_path / "hub")
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert report["failed"] == [], said
    cells = {each["method"]: each for each in report["cells"]}
    assert set(cells) == {"full", "floc"}
    for method, cell in cells.items():
        assert cell["questions"] == 4
        assert 0 <= cell["score"] <= 100
        noted = cell["selection"]
        assert noted["samples"] == 4
        assert noted["kept"] == pytest.approx(noted["tokens"] / (1 if method == "full" else 8), abs=1)
        assert 0 < noted["coverage"] <= 1.001
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out/results").iterdir()}
    # longvu keeps the first of these few frames whole, which is more than it is asked for
    run(*asked, "--methods", "full,floc,longvu", kind=MODELS[name], home=tmp_path / "hub")
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "out/results").iterdir()}
    assert len(after) == 3
    assert before.items() <= after.items()
