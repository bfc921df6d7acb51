"""Tests that the paper's numbers are consistent, except where the paper itself is not."""

from __future__ import annotations

from statistics import fmean

import pytest

import floc
from floc.evaluation import models, paper, tasks

ROUNDING = 0.0051  # of numbers with two digits
PARTS_ROUNDING = 0.0101  # parts and the whole are both rounded
# number of questions: LongVideoBench by length, MLVU by sub-task
LENGTHS = {"15": 189, "60": 172, "600": 412, "3600": 564}
SUBTASKS = dict(topic_reasoning=264, anomaly_reco=200, needle=355, ego=352, plotQA=539, order=259, count=206)
# inconsistent in the paper; the notes of the tables list them
AVERAGES_OFF = {("table2", "qwen2.5-vl-7b", "full", "1"), ("table4", "llava-video-7b", "frame_uniform", "1/8")}
PARTS_OFF = {
    ("table4", "llava-video-7b", "kmeans", "1/8", "longvideobench_val_v"),
    ("table5", "qwen2-vl-7b", "divprune", "1/16", "videomme"),
    ("table5", "qwen2-vl-7b", "ts_llava", "1/32", "videomme"),
    ("table5", "qwen2-vl-7b", "spectral", "1/32", "longvideobench_val_v"),
}
SUBTASKS_OFF = {("kmeans", "1/8"), ("kmeans", "1/32")}
ACCURACIES = [(name, row) for name in paper.ACCURACY for row in paper.get_table(name).rows]


def get_id(case) -> str:
    name, row = case
    return f"{name}-{row['model']}-{row['method']}-{row.get('ratio', row.get('budget'))}"


def test_tables_have_all_rows() -> None:
    # ratios x methods, and one row with all tokens; Table 1 has ten methods for one model and nine for the other
    rows = {name: len(table.rows) for name, table in paper.get_tables().items()}
    assert rows == dict(
        table1=(3 * 10 + 1) + (3 * 9 + 1),
        table2=2 * (7 + 1),
        table3=4,
        table4=3 * 9 + 1,
        table5=2 * (3 * 9 + 1),
        table6=3 * 9,
        table7=12,
        table8=3 * 2,
    )
    for table in paper.get_tables().values():
        assert table.label.startswith("tab:")
        assert table.caption


@pytest.mark.parametrize("case", ACCURACIES, ids=get_id)
def test_names_are_known(case) -> None:
    _, row = case
    models.get(row["model"])
    if row["method"] != "full":
        floc.methods.parse(row["method"])
    assert {task.partition("/")[0] for task in row["scores"]} <= set(tasks.TASKS)
    assert all(20 < score < 100 for score in row["scores"].values())
    assert (row.get("ratio") in ("1", "1/8", "1/16", "1/32")) != (row.get("budget") == 24576)


@pytest.mark.parametrize("case", [case for case in ACCURACIES if "average" in case[1]], ids=get_id)
def test_average_equals_mean_of_row(case) -> None:
    name, row = case
    mean = fmean(score for task, score in row["scores"].items() if "/" not in task)
    is_off = (name, row["model"], row["method"], row.get("ratio")) in AVERAGES_OFF
    assert (abs(mean - row["average"]) > ROUNDING) == is_off


@pytest.mark.parametrize("case", [case for case in ACCURACIES if case[0] in ("table4", "table5")], ids=get_id)
def test_score_equals_mean_of_parts(case) -> None:
    name, row = case
    scores = row["scores"]
    by_parts = {
        "videomme": fmean(scores[f"videomme/{length}"] for length in ("short", "medium", "long")),
        "longvideobench_val_v": sum(scores[f"longvideobench_val_v/{part}"] * n for part, n in LENGTHS.items())
        / sum(LENGTHS.values()),
    }
    for task, score in by_parts.items():
        is_off = (name, row["model"], row["method"], row["ratio"], task) in PARTS_OFF
        assert (abs(score - scores[task]) > PARTS_ROUNDING) == is_off, task


@pytest.mark.parametrize("row", paper.get_table("table6").rows, ids=lambda row: f"{row['method']}-{row['ratio']}")
def test_mlvu_counts_all_questions_equally(row) -> None:
    by_parts = []
    for topics in (263, 264):  # some rows have one question fewer
        counts = {**SUBTASKS, "topic_reasoning": topics}
        right = sum(row["scores"][f"mlvu_dev/{part}"] * n for part, n in counts.items())
        by_parts.append(right / sum(counts.values()))
    nearest = min(abs(score - row["scores"]["mlvu_dev"]) for score in by_parts)
    assert (nearest > PARTS_ROUNDING) == ((row["method"], row["ratio"]) in SUBTASKS_OFF)


def test_tables_agree() -> None:
    scores: dict[tuple, float] = {}
    differ = set()
    for _, row in ACCURACIES:
        for task, score in row["scores"].items():
            key = (row["model"], row["method"], row.get("ratio"), row.get("budget"), task)
            if scores.setdefault(key, score) != score:
                differ.add(key)
    assert differ == {("llava-video-7b", "frame_uniform", "1/8", None, "mlvu_dev")}


@pytest.mark.parametrize("name", ["table4", "table5"])
def test_tokens_match_the_ratio(name: str) -> None:
    all_tokens = {row["model"]: row["tokens"] for row in paper.get_table(name).rows if row["method"] == "full"}
    for row in paper.get_table(name).rows:
        over = 1 if row["ratio"] == "1" else int(row["ratio"].removeprefix("1/"))
        assert row["tokens"] * over == all_tokens[row["model"]]


def test_profile_totals() -> None:
    inconsistent = [
        row["method"]
        for row in paper.get_table("table7").rows
        if abs(row["inference_s"] + (row["compression_s"] or 0) - row["total_s"]) > 1e-6
    ]
    assert inconsistent == ["full", "floc-paper"]


def test_times_rise_with_block_length() -> None:
    for row in paper.get_table("table3").rows:
        for seconds in row["seconds"].values():
            assert seconds["2"] < seconds["8"] < seconds["32"]


def test_table_8_repeats_table_1() -> None:
    rows = [row for row in paper.get_table("table8").rows if row["method"] == "floc-paper"]
    main = {row["ratio"]: row for row in paper.get_table("table1").rows if _is_floc_on_internvl(row)}
    assert len(rows) == 3
    assert all(row["scores"] == main[row["ratio"]]["scores"] for row in rows)


def _is_floc_on_internvl(row) -> bool:
    return (row["model"], row["method"]) == ("internvl3-8b", "floc-paper")


@pytest.mark.parametrize(
    ("key", "value", "table"),
    [  # copied from the paper by hand
        (("qwen2.5-vl-7b", "floc-paper", "longvideobench_val_v", "1/8", None), 58.12, "table1"),
        (("qwen2.5-vl-7b", "floc", "longvideobench_val_v", "1/8", None), 58.12, "table1"),
        (("internvl3-8b", "dycoke", "egoschema_subset", "1/16", None), 67.40, "table1"),
        (("qwen2.5-vl-32b", "full", "mlvu_dev", "1", None), 71.57, "table2"),
        (("qwen2.5-vl-32b", "floc-paper", "longvideobench_val_v", None, 24576), 66.49, "table2"),
        (("llava-video-7b", "spectral", "videomme/medium", "1/8", None), 61.78, "table4"),
        (("llava-video-7b", "frame_uniform", "mlvu_dev", "1/8", None), 60.83, "table6"),
        (("llava-video-7b", "floc-paper", "mlvu_dev/needle", "1/32", None), 71.27, "table6"),
        (("qwen2-vl-2b", "longvu", "longvideobench_val_v", "1/32", None), 48.02, "table5"),
        (("qwen2-vl-7b", "kmedoids", "longvideobench_val_v/3600", "1/16", None), 45.92, "table5"),
        (("internvl3-8b", "floc-paper:metric=gaussian", "mlvu_dev", "1/8", None), 72.26, "table8"),
    ],
)
def test_accuracy(key, value: float, table: str) -> None:
    model, method, task, ratio, budget = key
    assert paper.get_accuracy(model, method, task, ratio=ratio, budget=budget) == (value, table)


def test_accuracy_that_the_paper_does_not_have() -> None:
    assert paper.get_accuracy("internvl3-8b", "fastvid", "videomme", ratio="1/8") is None
    assert paper.get_accuracy("qwen2.5-vl-7b", "floc", "videomme", ratio="1/64") is None
    assert paper.get_accuracy("qwen2.5-vl-7b", "floc", "egoschema_subset", budget=24576) is None
    with pytest.raises(ValueError, match="unknown table of the paper 'table9'"):
        paper.get_table("table9")
