from __future__ import annotations

import json
from pathlib import Path

import pytest

from floc.evaluation import Cell, Folder, Wish, grid, report


def outcome(score: float, **more) -> dict:
    told = dict(score=score, error=1.0, questions=100, parts={}, lmms_eval={"m": 0.5}, selection=None, seconds=90.0)
    return {**told, "date": "2026-01-01", **more}


def rows_of(page: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| ")
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def put(
    folder: Folder, score: float, method: str = "floc-paper", task: str = "videomme", ratio: str = "1/8", **more
) -> Cell:
    names = ("models", "limit", "block", "max_frames", "more", "lmms")
    wish = {name: more.pop(name) for name in names if name in more}
    (cell,) = grid(Wish(methods=[method], ratios=[ratio], tasks=[task], **wish))
    folder.finish(cell, outcome(score, **more))
    return cell


def test_each_number_stands_beside_the_papers(folder: Folder) -> None:
    put(folder, 62.0)
    put(folder, 68.0, task="mlvu_dev")
    put(folder, 66.0, method="full")
    head, everything, ours = rows_of(report.markdown(report.make(folder)))
    assert head == ["kept", "method", "Video-MME", "paper", "MLVU", "paper", "mean", "paper"]
    assert everything == ["all", "full", "66.00 ± 1.00", "66.33", "", "", "", ""]
    # the mean of the paper's two numbers, 63.33 and 68.81
    assert ours == ["1/8", "floc-paper, T = 32", "62.00 ± 1.00", "63.33", "68.00 ± 1.00", "68.81", "65.00", "66.07"]
    record = next(each for each in report.make(folder)["cells"] if each["method"] == "floc-paper")
    assert (record["paper"], record["table"], record["task"]) == (63.33, "table1", "videomme")
    assert record["difference"] == pytest.approx(-1.33)


def test_other_settings_have_tables_of_their_own_and_no_number_of_the_paper(folder: Folder) -> None:
    put(folder, 62.0)
    put(folder, 60.0, limit=100)
    put(folder, 61.0, max_frames=64)
    put(folder, 64.0, more="max_pixels=9")
    put(folder, 63.0, block="8")
    page = report.markdown(report.make(folder))
    assert "## qwen2.5-vl-7b, up to 768 frames\n" in page
    assert "## qwen2.5-vl-7b, up to 768 frames, the first 100 questions only\n" in page
    assert "## qwen2.5-vl-7b, up to 64 frames\n" in page
    assert "## qwen2.5-vl-7b, up to 768 frames, max_pixels=9\n" in page
    rows = [row for row in rows_of(page) if row[0] == "1/8"]
    assert {tuple(row[1:4]) for row in rows} == {
        ("floc-paper, T = 32", "62.00 ± 1.00", "63.33"),
        ("floc-paper, T = 32", "60.00 ± 1.00", ""),
        ("floc-paper, T = 32", "64.00 ± 1.00", "63.33"),
        ("floc-paper, T = 32", "61.00 ± 1.00", ""),
        ("floc-paper, T = 8", "63.00 ± 1.00", ""),
    }


def test_weights_and_arguments_for_lmms_eval_have_tables_of_their_own(folder: Folder) -> None:
    put(folder, 62.0)
    put(folder, 40.0, models=["qwen2.5-vl-7b=/data/tuned"])
    put(folder, 20.0, lmms="--seed 1")
    page = report.markdown(report.make(folder))
    assert "## qwen2.5-vl-7b, up to 768 frames\n" in page
    assert "## qwen2.5-vl-7b in /data/tuned, up to 768 frames\n" in page
    assert "## qwen2.5-vl-7b, up to 768 frames, lmms-eval --seed 1\n" in page
    rows = [row for row in rows_of(page) if row[0] == "1/8"]
    assert {(row[2], row[4]) for row in rows} == {
        ("62.00 ± 1.00", "62.00"),
        ("40.00 ± 1.00", "40.00"),
        ("20.00 ± 1.00", "20.00"),
    }


def test_rows_go_from_most_to_least(folder: Folder) -> None:
    for method, ratio in (("random", "1/32"), ("floc", "1/8"), ("full", "1"), ("random", "1/8")):
        put(folder, 50.0, method=method, ratio=ratio)
    rows = rows_of(report.markdown(report.make(folder)))[1:]
    assert [row[:2] for row in rows] == [
        ["all", "full"],
        ["1/8", "floc, T = 32"],
        ["1/8", "random"],
        ["1/32", "random"],
    ]


def test_parts_and_what_was_kept(folder: Folder) -> None:
    (cell,) = grid(Wish(models=["llava-video-7b"], methods=["floc-paper"], ratios=["1/32"], tasks=["mlvu_dev"]))
    parts = {"mlvu_dev/needle": dict(score=70.0, error=2.4, questions=355)}
    kept = dict(samples=2, tokens=25088.0, kept=784.0, coverage=0.91234, total_s=1.5)
    folder.finish(cell, outcome(61.0, parts=parts, selection=kept))
    rows = rows_of(report.markdown(report.make(folder)))
    part = ["MLVU, needle", "llava-video-7b", "floc-paper", "1/32", "70.00 ± 2.40", "71.27", "355"]
    assert part in rows
    assert ["llava-video-7b, floc-paper, 1/32", "MLVU", "25,088", "784", "0.9123", "", "1.50", "1.5"] in rows


def test_failures_are_in_it(folder: Folder) -> None:
    (cell,) = grid(Wish(methods=["random"], ratios=["1/8"], tasks=["videomme"]))
    folder.fail(cell, {"failure": "ValueError: a | b"})
    document = report.make(folder)
    assert [each["reason"] for each in document["failed"]] == ["ValueError: a | b"]
    page = report.markdown(document)
    assert "No cell is finished." in page
    assert "ValueError: a \\| b" in page
    assert str(folder.log(cell)) in page


def test_notes_are_on_what_is_shown(folder: Folder) -> None:
    assert len(report.make(folder)["notes"]) == len(report.NOTES)
    put(folder, 62.0)
    notes = report.make(folder)["notes"]
    assert any("qwen2.5-vl-7b: 64 tokens at most for two frames" in each for each in notes)
    assert "Table 1 of the paper: The frames read for InternVL3-8B are not told." in notes
    assert not any("Table 4" in each or "llava" in each for each in notes)


def test_it_is_written_whole(folder: Folder) -> None:
    put(folder, 62.0)
    page, data = report.write(folder)
    assert page.read_text() == report.markdown(json.loads(data.read_text()))
    assert {each.name for each in folder.path.iterdir()} == {"results", "report.md", "report.json"}


def test_budgets_and_other_tasks(folder: Folder) -> None:
    for task in ("videomme", "mvbench"):
        (cell,) = grid(Wish(methods=["floc"], budget=24576, tasks=[task]))
        folder.finish(cell, outcome(66.0, error=None))
    page = report.markdown(report.make(folder))
    assert "## qwen2.5-vl-7b, up to 7,200 frames, 1 a second\n" in page
    assert rows_of(page)[0][2:6] == ["Video-MME", "paper", "mvbench", "paper"]
    assert rows_of(page)[1] == ["24,576 tokens", "floc, T = 32", "66.00", "65.85", "66.00", "", "66.00", ""]
