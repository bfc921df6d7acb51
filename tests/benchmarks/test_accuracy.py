import json
import re

import pytest

from benchmarks import accuracy, tables
from floc.evaluation import paper


def cell(score, published, **more):
    told = {"score": score, "paper": published}
    return {
        **dict(model="qwen2.5-vl-7b", method="floc-paper", ratio="1/8", budget=None, task="videomme", parts={}),
        **told,
        **more,
    }


@pytest.fixture
def results(tmp_path):
    (tmp_path / "eval").mkdir()
    return tmp_path


def write(results, *cells):
    (results / "eval" / "report.json").write_text(json.dumps({"cells": cells}))


def row_of(text, *start):
    (line,) = [line for line in text.splitlines() if line.startswith("| " + " | ".join(start) + " |")]
    return [each.strip() for each in line.strip("|").split("|")]


@pytest.mark.parametrize("name", paper.ACCURACY)
def test_every_number_of_the_paper_is_there_and_none_of_ours(name, tmp_path):
    text = tables.markdown(f"paper-{name}", tmp_path)
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    printed = sorted(float(each) for line in lines for each in re.findall(r"\| (\d+\.\d\d) ", line))
    assert printed == sorted(score for row in paper.table(name).rows for score in row["scores"].values())
    assert "not measured yet" in text


def test_what_was_measured_stands_beside_it(results):
    write(results, cell(61.25, 63.33))
    text = tables.markdown("paper-table1", results)
    assert row_of(text, "qwen2.5-vl-7b", "floc-paper", "1/8")[3:6] == ["63.33", "61.25", "68.81"]
    assert "1 numbers" not in text
    assert "1 number measured" in text


def test_parts_of_a_task_are_found(results):
    parts = {"mlvu_dev/needle": {"score": 50.5, "paper": 76.06}}
    write(results, cell(60.0, 67.43, model="llava-video-7b", task="mlvu_dev", parts=parts))
    row = row_of(tables.markdown("paper-table6", results), "llava-video-7b", "floc-paper", "1/8")
    assert row[7:9] == ["76.06", "50.50"]
    assert row[-2:] == ["67.43", "60.00"]


def test_a_number_with_other_settings_is_not_shown(results):
    write(results, cell(99.0, None))
    assert "99.00" not in tables.markdown("paper-table1", results)


def test_two_numbers_for_one_place_are_told(results):
    write(results, cell(61.25, 63.33, more=""), cell(41.0, 63.33, more="max_pixels=9"))
    with pytest.raises(
        ValueError, match=r"two cells, 61\.25 and 41\.00, for qwen2\.5-vl-7b, floc-paper, 1/8, videomme:"
    ):
        tables.markdown("paper-table1", results)


@pytest.mark.parametrize("text", ["[]", "{}"])
def test_a_report_that_is_not_one_is_told(text, results):
    (results / "eval" / "report.json").write_text(text)
    with pytest.raises(ValueError, match=r"report\.json: not a report of `floc eval`"):
        accuracy.VIEWS["paper-table1"](results)
