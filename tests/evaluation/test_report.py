"""Tests of the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from floc.evaluation import report
from floc.evaluation.plan import EvalRun, PlanOptions, plan_grid
from floc.evaluation.results import ResultFolder


def create_result(score: float, **more) -> dict:
    result = dict(score=score, error=1.0, questions=100, parts={}, lmms_eval={"m": 0.5}, selection=None, seconds=90.0)
    return {**result, "date": "2026-01-01", **more}


def parse_rows(page: str) -> list[list[str]]:
    return [[run.strip() for run in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| ")]


@pytest.fixture
def folder(tmp_path: Path) -> ResultFolder:
    return ResultFolder(tmp_path)


def save_run(
    folder: ResultFolder, score: float, method: str = "floc-paper", task: str = "videomme", ratio: str = "1/8", **more
) -> EvalRun:
    names = ("models", "limit", "block", "max_frames", "more", "lmms")
    options = {name: more.pop(name) for name in names if name in more}
    (run,) = plan_grid(PlanOptions(methods=[method], ratios=[ratio], tasks=[task], **options))
    folder.save_result(run, create_result(score, **more))
    return run


def test_shows_the_papers_score_next_to_each_score(folder: ResultFolder) -> None:
    save_run(folder, 62.0)
    save_run(folder, 68.0, task="mlvu_dev")
    save_run(folder, 66.0, method="full")
    head, everything, ours = parse_rows(report.format_report(report.build_report(folder)))
    assert head == ["kept", "method", "Video-MME", "paper", "MLVU", "paper", "mean", "paper"]
    assert everything == ["all", "full", "66.00 ± 1.00", "66.33", "", "", "", ""]
    # the last number is the mean of 63.33 and 68.81
    assert ours == ["1/8", "floc-paper, T = 32", "62.00 ± 1.00", "63.33", "68.00 ± 1.00", "68.81", "65.00", "66.07"]
    record = next(each for each in report.build_report(folder)["runs"] if each["method"] == "floc-paper")
    assert (record["paper"], record["table"], record["task"]) == (63.33, "table1", "videomme")
    assert record["difference"] == pytest.approx(-1.33)


def test_other_settings_have_their_own_table_and_no_paper_score(folder: ResultFolder) -> None:
    save_run(folder, 62.0)
    save_run(folder, 60.0, limit=100)
    save_run(folder, 61.0, max_frames=64)
    save_run(folder, 64.0, more="max_pixels=9")
    save_run(folder, 63.0, block="8")
    page = report.format_report(report.build_report(folder))
    assert "## qwen2.5-vl-7b, up to 768 frames\n" in page
    assert "## qwen2.5-vl-7b, up to 768 frames, the first 100 questions only\n" in page
    assert "## qwen2.5-vl-7b, up to 64 frames\n" in page
    assert "## qwen2.5-vl-7b, up to 768 frames, max_pixels=9\n" in page
    rows = [row for row in parse_rows(page) if row[0] == "1/8"]
    assert {tuple(row[1:4]) for row in rows} == {
        ("floc-paper, T = 32", "62.00 ± 1.00", "63.33"),
        ("floc-paper, T = 32", "60.00 ± 1.00", ""),
        ("floc-paper, T = 32", "64.00 ± 1.00", "63.33"),
        ("floc-paper, T = 32", "61.00 ± 1.00", ""),
        ("floc-paper, T = 8", "63.00 ± 1.00", ""),
    }


def test_weights_and_lmms_arguments_have_their_own_table(folder: ResultFolder) -> None:
    save_run(folder, 62.0)
    save_run(folder, 40.0, models=["qwen2.5-vl-7b=/data/tuned"])
    save_run(folder, 20.0, lmms="--seed 1")
    page = report.format_report(report.build_report(folder))
    assert "## qwen2.5-vl-7b, up to 768 frames\n" in page
    assert "## qwen2.5-vl-7b in /data/tuned, up to 768 frames\n" in page
    assert "## qwen2.5-vl-7b, up to 768 frames, lmms-eval --seed 1\n" in page
    rows = [row for row in parse_rows(page) if row[0] == "1/8"]
    assert {(row[2], row[4]) for row in rows} == {
        ("62.00 ± 1.00", "62.00"),
        ("40.00 ± 1.00", "40.00"),
        ("20.00 ± 1.00", "20.00"),
    }


def test_rows_are_sorted_by_kept_tokens(folder: ResultFolder) -> None:
    for method, ratio in (("random", "1/32"), ("floc", "1/8"), ("full", "1"), ("random", "1/8")):
        save_run(folder, 50.0, method=method, ratio=ratio)
    rows = parse_rows(report.format_report(report.build_report(folder)))[1:]
    assert [row[:2] for row in rows] == [
        ["all", "full"],
        ["1/8", "floc"],
        ["1/8", "random"],
        ["1/32", "random"],
    ]


def test_shows_parts_and_costs(folder: ResultFolder) -> None:
    (run,) = plan_grid(
        PlanOptions(models=["llava-video-7b"], methods=["floc-paper"], ratios=["1/32"], tasks=["mlvu_dev"])
    )
    parts = {"mlvu_dev/needle": dict(score=70.0, error=2.4, questions=355)}
    costs = dict(samples=2, tokens=25088.0, kept=784.0, coverage=0.91234, total_s=1.5)
    folder.save_result(run, create_result(61.0, parts=parts, selection=costs))
    rows = parse_rows(report.format_report(report.build_report(folder)))
    part = ["MLVU, needle", "llava-video-7b", "floc-paper", "1/32", "70.00 ± 2.40", "71.27", "355"]
    assert part in rows
    assert ["llava-video-7b, floc-paper, 1/32", "MLVU", "25,088", "784", "0.9123", "", "1.50", "1.5"] in rows


def test_lists_failures(folder: ResultFolder) -> None:
    (run,) = plan_grid(PlanOptions(methods=["random"], ratios=["1/8"], tasks=["videomme"]))
    folder.save_failure(run, {"failure": "ValueError: a | b"})
    document = report.build_report(folder)
    assert [each["reason"] for each in document["failed"]] == ["ValueError: a | b"]
    page = report.format_report(document)
    assert "No run is finished." in page
    assert "ValueError: a \\| b" in page
    assert str(folder.get_log(run)) in page


def test_notes_concern_the_shown_runs(folder: ResultFolder) -> None:
    assert len(report.build_report(folder)["notes"]) == len(report.NOTES)
    save_run(folder, 62.0)
    notes = report.build_report(folder)["notes"]
    assert any("qwen2.5-vl-7b: at most 64 tokens for two frames" in each for each in notes)
    assert "Table 1 of the paper: The paper does not say how many frames it reads for InternVL3-8B." in notes
    assert not any("Table 4" in each or "llava" in each for each in notes)


def test_writes_markdown_and_json(folder: ResultFolder) -> None:
    save_run(folder, 62.0)
    page, data = report.write_report(folder)
    assert page.read_text() == report.format_report(json.loads(data.read_text()))
    assert {each.name for each in folder.path.iterdir()} == {"results", "report.md", "report.json"}


def test_shows_budgets_and_other_tasks(folder: ResultFolder) -> None:
    for task in ("videomme", "mvbench"):
        (run,) = plan_grid(PlanOptions(methods=["floc"], budget=24576, tasks=[task]))
        folder.save_result(run, create_result(66.0, error=None))
    page = report.format_report(report.build_report(folder))
    assert "## qwen2.5-vl-7b, up to 7,200 frames, 1 per second\n" in page
    assert parse_rows(page)[0][2:6] == ["Video-MME", "paper", "mvbench", "paper"]
    assert parse_rows(page)[1] == ["24,576 tokens", "floc", "66.00", "65.85", "66.00", "", "66.00", ""]
