import json
import re

import pytest

from benchmarks import paper_accuracy
from benchmarks.pages import show_view
from floc.evaluation import paper


def make_run(score, published, **changes):
    run = dict(model="qwen2.5-vl-7b", method="floc-paper", ratio="1/8", budget=None, task="videomme", parts={})
    return {**run, "score": score, "paper": published, **changes}


@pytest.fixture
def results(tmp_path):
    (tmp_path / "eval").mkdir()
    return tmp_path


def write_report(results, *runs):
    (results / "eval" / "report.json").write_text(json.dumps({"runs": runs}))


def find_row(text, *start):
    (line,) = [line for line in text.splitlines() if line.startswith("| " + " | ".join(start) + " |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize("name", paper.ACCURACY)
def test_shows_every_score_of_the_paper_and_no_empty_column(name, tmp_path):
    text = show_view(f"paper-{name}", tmp_path)
    head, _, *lines = [line for line in text.splitlines() if line.startswith("|")]
    printed = sorted(float(score) for line in lines for score in re.findall(r"\| (\d+\.\d\d) ", line))
    assert printed == sorted(score for row in paper.get_table(name).rows for score in row["scores"].values())
    assert "not measured yet" in text
    assert "ours" not in head


def test_shows_measured_score_beside_the_papers(results):
    write_report(results, make_run(61.25, 63.33))
    text = show_view("paper-table1", results)
    assert find_row(text, "qwen2.5-vl-7b", "floc-paper", "1/8")[3:6] == ["63.33", "61.25", "68.81"]
    assert "1 numbers" not in text
    assert "1 number measured" in text


def test_shows_parts_of_a_task(results):
    parts = {"mlvu_dev/needle": {"score": 50.5, "paper": 76.06}}
    write_report(results, make_run(60.0, 67.43, model="llava-video-7b", task="mlvu_dev", parts=parts))
    row = find_row(show_view("paper-table6", results), "llava-video-7b", "floc-paper", "1/8")
    assert row[5:7] == ["76.06", "50.50"]
    assert row[-2:] == ["67.43", "60.00"]


def test_ignores_score_with_other_settings(results):
    write_report(results, make_run(99.0, None))
    assert "99.00" not in show_view("paper-table1", results)


def test_rejects_two_scores_for_one_run(results):
    write_report(results, make_run(61.25, 63.33, more=""), make_run(41.0, 63.33, more="max_pixels=9"))
    with pytest.raises(
        ValueError, match=r"two runs, 61\.25 and 41\.00, for qwen2\.5-vl-7b, floc-paper, 1/8, videomme:"
    ):
        show_view("paper-table1", results)


@pytest.mark.parametrize("text", ["[]", "{}"])
def test_rejects_file_that_is_no_report(text, results):
    (results / "eval" / "report.json").write_text(text)
    with pytest.raises(ValueError, match=r"report\.json: not a report of `floc eval`"):
        paper_accuracy.VIEWS["paper-table1"](results)
