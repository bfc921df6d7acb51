import itertools

import numpy as np
import pytest

from benchmarks import run
from benchmarks.inserts import CLIP, KINDS, OBJECT, Insert, PlantedVideo
from benchmarks.scoring import Score, show_percent
from benchmarks.tables import needle
from floc import methods


def make_insert(kind):
    return Insert(kind, "other", 1, np.arange(2), np.arange(2, 4))


def make_score(kept, similarity=0.5):
    return Score(kept, float(kept), similarity, False, 0.0, 0.9)


VIDEOS = [PlantedVideo(name, np.zeros((1, 2, 2, 1)), [make_insert(CLIP), make_insert(OBJECT)]) for name in ("a", "b")]


def test_records_are_means_by_kind_and_source():
    scores = {
        ("floc", "1/8"): [make_score(True), make_score(False), make_score(True), make_score(True)],
        ("poor", "1/8"): [make_score(False, 0.3), make_score(False), make_score(True), make_score(True)],
    }
    records = needle.make_records(VIDEOS, scores, {})
    by_case = {(record["method"], record["source"], record["kind"]): record for record in records}
    kept = {case: record["kept"]["mean"] for case, record in by_case.items() if case[0] == "floc"}
    assert kept == {
        ("floc", None, CLIP): 1,
        ("floc", None, OBJECT): 0.5,
        ("floc", "a", CLIP): 1,
        ("floc", "a", OBJECT): 0,
        ("floc", "b", CLIP): 1,
        ("floc", "b", OBJECT): 1,
    }
    poor = by_case["poor", None, CLIP]
    assert poor["inserts"] == 2
    assert poor["similarity"]["mean"] == pytest.approx(0.4)
    assert poor["background_similarity"]["mean"] == pytest.approx(0.9)
    assert poor["similarity_above_floc"]["mean"] == pytest.approx(-0.1)
    assert by_case["floc", None, CLIP]["kept_above_floc"] == {"mean": 0, "low": 0, "high": 0}


def test_failed_method_has_a_reason():
    scores = {("floc", "1/8"): [make_score(True)] * 4, ("poor", "1/8"): [make_score(True)]}
    records = needle.make_records(VIDEOS, scores, {("poor", "1/8"): "too few"})
    assert [record for record in records if record["method"] == "poor"] == [
        {"method": "poor", "keep": "1/8", "failed": "too few"}
    ]


def test_ratio_below_the_minimum_has_no_score():
    tokens = np.random.default_rng(0).random((8, 2, 2, 4), np.float32)
    video = PlantedVideo("a", tokens, [make_insert(CLIP)])
    options = {"floc": {"method": "floc"}, "prunevid": {"method": "prunevid"}}
    videos, scores, failed = needle.score_methods([video], options, lambda _: None)
    assert videos == [video]
    assert set(failed) == {("prunevid", ratio) for ratio in needle.RATIOS}
    assert "at least" in failed["prunevid", "1/64"]
    assert all(len(scores["floc", ratio]) == 1 for ratio in needle.RATIOS)


@pytest.fixture(scope="module")
def small(tmp_path_factory, require_clustering_and_plots):
    folder = tmp_path_factory.mktemp("results")
    lines = []
    return run.run("needle", small=True, results=folder, echo=lines.append), folder, "\n".join(lines)


def test_runs_small(small):
    document, folder, shown = small
    assert {record["method"] for record in document["scores"]} == set(methods.list_methods())
    (source,) = document["films"]
    assert source["inserts"] == {CLIP: 4, OBJECT: 4}
    scored = [record for record in document["scores"] if "kept" in record]
    by_case = {(record["method"], record["keep"], record["kind"]): record for record in scored}
    for kind, name in itertools.product(KINDS, ("floc", "floc-paper")):
        ours = [by_case[name, ratio, kind]["similarity"]["mean"] for ratio in needle.RATIOS]
        assert ours == sorted(ours, reverse=True)
    paper, chance = (by_case[name, "1/8", OBJECT]["similarity"]["mean"] for name in ("floc-paper", "random"))
    assert paper > chance
    assert by_case["floc-paper", "1/8", OBJECT]["kept"]["mean"] == 1
    assert "| floc-paper |" in shown
    assert "dycoke, widen" in shown
    assert "A dash: prunevid keeps" in shown
    assert sorted(path.name for path in folder.iterdir()) == ["needle.json", "needle.png"]


def test_every_view_has_every_method(small):
    document, _, _ = small
    for name, view in needle.TABLE.views.items():
        if name == "needle-films":
            continue
        lines = [line for line in view(document).splitlines() if line.startswith("|")]
        assert len(lines) == 2 + len(methods.list_methods())
        assert len({line.replace("\\|", "").count("|") for line in lines}) == 1


def test_shows_the_papers_scores_beside_its_methods(small):
    document, _, _ = small
    (ours,) = [line for line in needle.TABLE.views["needle-clips"](document).splitlines() if "floc-paper" in line]
    assert ours.endswith("| 76.06, 74.93, 71.27 |")
    (theirs,) = [line for line in needle.TABLE.views["needle-objects"](document).splitlines() if "divprune" in line]
    assert theirs.endswith("| 60.80, 58.24, 54.55 |")


def test_cell_marks_the_best_and_differences():
    record = {
        "kept": {"mean": 0.5, "low": 0.4, "high": 0.6},
        "background_kept": {"mean": 0.25, "low": 0.2, "high": 0.3},
        "kept_above_floc": {"mean": -0.2, "low": -0.3, "high": -0.1},
    }
    assert needle._make_cell(record, "kept", show_percent, best=0.5) == "**50% (40-60)** ↓ \\| 25%"
    assert needle._make_cell(record, "kept", show_percent, best=0.9) == "50% (40-60) ↓ \\| 25%"
