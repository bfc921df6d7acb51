"""Tests of `floc eval` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from floc.evaluation import command
from floc.evaluation.plan import EvalRun
from tests.cli.helpers import run
from tests.evaluation import stand_in


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model with weights in a folder, and an empty cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/config.json").write_text("{}")
    return f"qwen2.5-vl-7b={tmp_path / 'tiny'}"


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Execute runs with the stand-in, which fails for the method random. Returns the folder of its notes."""
    data = tmp_path / "hub/datasets--lmms-eval--Video-MME/snapshots/abc"
    data.mkdir(parents=True)
    (data / "x.parquet").write_text("")
    monkeypatch.setattr(command, "check_lmms_eval", lambda: None)

    def get_behaviour(run: EvalRun) -> str:
        return "crashes" if run.method == "random" else "succeeds"

    monkeypatch.setattr(command, "build_command", stand_in.create_builder(tmp_path / "notes", get_behaviour))
    return tmp_path / "notes"


def test_dry_run_shows_the_plan(weights: str, tmp_path: Path, monkeypatch, capsys) -> None:
    assert run(monkeypatch, "eval", "--paper", "table1", "--dry-run") == 0
    output = capsys.readouterr().out
    assert "24,576" in output
    assert "3,072 (1/8)" in output
    assert "hf download Qwen/Qwen2.5-VL-7B-Instruct   # missing" in output
    assert "internvl3-8b: 64 frames" in output
    assert "hours: measured with Qwen2.5-VL-7B" in output
    assert not (tmp_path / "floc-eval").exists()
    assert all(len(line) <= 80 for line in output.splitlines()[:9])


def test_dry_run_as_json(weights: str, monkeypatch, capsys) -> None:
    assert run(monkeypatch, "eval", "--paper", "table2", "--methods", "floc-paper", "--dry-run", "--json") == 0
    plan = json.loads(capsys.readouterr().out)
    assert len(plan["runs"]) == 2 * 3
    first = plan["runs"][0]
    assert (first["tokens"], first["kept"], first["video_tokens"], first["video_kept"]) == (
        230400,
        24576,
        216000,
        24576,
    )
    assert (first["paper"], first["state"]) == (65.85, "to do")
    assert first["computing_s"] > 0
    assert plan["missing"][0]["repository"] == "Qwen/Qwen2.5-VL-7B-Instruct"
    assert "--model_args" in first["command"]


def test_dry_run_of_unknown_task_has_no_hours(weights: str, monkeypatch, capsys) -> None:
    assert run(monkeypatch, "eval", "--tasks", "mine", "--methods", "full", "--dry-run") == 0
    assert capsys.readouterr().out.splitlines()[1].split()[-2:] == ["-", "-"]


def test_missing_weights_are_an_error(weights: str, tmp_path: Path, monkeypatch, capsys) -> None:
    assert run(monkeypatch, "eval", "--tasks", "videomme", "--output", "here") == 2
    output = capsys.readouterr()
    assert "hf download Qwen/Qwen2.5-VL-7B-Instruct " in output.err
    assert "hf download lmms-eval/Video-MME --repo-type dataset " in output.err
    assert "Traceback" not in output.err
    assert output.out == ""
    assert not (tmp_path / "here").exists()


def test_run_ends_with_a_report(weights: str, notes: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    command = ["eval", "--models", weights, "--methods", "full,floc-paper,random", "--ratio", "1/8"]
    command += ["--tasks", "videomme", "--output", "here"]
    assert run(monkeypatch, *command) == 1
    output = capsys.readouterr()
    assert output.out == (tmp_path / "here/report.md").read_text()
    assert "| 1/8 | floc-paper, T = 32 | 75.00 ± 21.65 | 63.33 | 75.00 | 63.33 |" in output.out
    assert "RuntimeError: no such weights" in output.out
    assert "2 of 3 runs done" in output.err
    assert "1 failed" in output.err
    assert "--retry repeats them" in output.err
    before = stand_in.read_notes(notes)
    assert run(monkeypatch, *command, "--json") == 1
    document = json.loads(capsys.readouterr().out)
    assert stand_in.read_notes(notes) == before
    assert [run["method"] for run in document["runs"]] == ["full", "floc-paper"]
    assert run(monkeypatch, *command, "--retry") == 1
    name = next(name for name in before if "random" in name)
    assert len(stand_in.read_notes(notes)[name]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--models", "qwen"], "unknown model 'qwen'"),
        (["--paper", "table9"], "unknown --paper 'table9'"),
        (["--ratio", "1/8", "--budget", "5"], "ratios or a budget, not both"),
        (["--block", "some"], "--block must be a number of frames"),
        (["--methods", ","], "methods is an empty list"),
        (["--models", "qwen2.5-vl-7b=nowhere"], "nowhere has no config.json"),
        (["--output", "tiny/config.json"], "tiny/config.json"),
        (["--models", "qwen2.5-vl-7b=tiny", "--gpus", "0,0", "--tasks", "x"], "--gpus must name each GPU once"),
    ],
)
def test_bad_input_is_a_one_line_error(weights: str, notes: Path, arguments, message: str, monkeypatch, capsys) -> None:
    assert run(monkeypatch, "eval", *arguments) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert "Traceback" not in output.err
    assert output.out == ""
