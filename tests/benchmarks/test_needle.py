import math

import numpy as np
import pytest
import torch

import benchmarks
from benchmarks import metric, needle, spread, tables
from benchmarks.inserts import CLIP, KINDS, OBJECT, Film, Insert, Score
from benchmarks.sources import Library, Source
from floc import methods


def insert(kind):
    return Insert(kind, "other", 1, np.arange(2), np.arange(2, 4))


def a_score(kept, similarity=0.5):
    return Score(kept, float(kept), similarity, False, 0.0, 0.9)


FILMS = [Film(name, np.zeros((1, 2, 2, 1)), [insert(CLIP), insert(OBJECT)]) for name in ("a", "b")]


def test_records_are_means_over_inserts_of_a_kind_and_of_a_source():
    scores = {
        ("floc", "1/8"): [a_score(True), a_score(False), a_score(True), a_score(True)],
        ("poor", "1/8"): [a_score(False, 0.3), a_score(False), a_score(True), a_score(True)],
    }
    found = {(each["method"], each["source"], each["kind"]): each for each in needle.records(FILMS, scores, {})}
    kept = {case: each["kept"]["mean"] for case, each in found.items() if case[0] == "floc"}
    assert kept == {
        ("floc", None, CLIP): 1,
        ("floc", None, OBJECT): 0.5,
        ("floc", "a", CLIP): 1,
        ("floc", "a", OBJECT): 0,
        ("floc", "b", CLIP): 1,
        ("floc", "b", OBJECT): 1,
    }
    poor = found["poor", None, CLIP]
    assert poor["inserts"] == 2
    assert poor["similarity"]["mean"] == pytest.approx(0.4)
    assert poor["background_similarity"]["mean"] == pytest.approx(0.9)
    assert poor["similarity_above_floc"]["mean"] == pytest.approx(-0.1)
    assert found["floc", None, CLIP]["kept_above_floc"] == {"mean": 0, "low": 0, "high": 0}


def test_what_could_not_be_run_says_why():
    scores = {("floc", "1/8"): [a_score(True)] * 4, ("poor", "1/8"): [a_score(True)]}
    records = needle.records(FILMS, scores, {("poor", "1/8"): "too few"})
    assert [each for each in records if each["method"] == "poor"] == [
        {"method": "poor", "keep": "1/8", "failed": "too few"}
    ]


def test_a_ratio_below_the_floor_is_no_score():
    film = Film("a", np.random.default_rng(0).random((8, 2, 2, 4), np.float32), [insert(CLIP)])
    ways = {"floc": {"method": "floc"}, "prunevid": {"method": "prunevid"}}
    planted, scores, failed = needle.scored(iter([film]), ways, lambda _: None)
    assert planted == [film]
    assert set(failed) == {("prunevid", ratio) for ratio in needle.RATIOS}
    assert "at least" in failed["prunevid", "1/64"]
    assert all(len(scores["floc", ratio]) == 1 for ratio in needle.RATIOS)


@pytest.fixture(scope="module")
def clustering_and_plots():
    for package in ("sklearn", "kmedoids", "matplotlib"):
        pytest.importorskip(package, reason="all methods and plots need pip install 'floc-video[cluster,report]'")


@pytest.fixture(scope="module")
def small(tmp_path_factory, clustering_and_plots):
    folder = tmp_path_factory.mktemp("results")
    lines = []
    return benchmarks.run("needle", small=True, results=folder, echo=lines.append), folder, "\n".join(lines)


def test_needle_runs_small(small):
    document, folder, shown = small
    assert {each["method"] for each in document["scores"]} == set(methods.names())
    (source,) = document["films"]
    assert source["inserts"] == {CLIP: 4, OBJECT: 4}
    by_case = {(each["method"], each["keep"], each["kind"]): each for each in document["scores"] if "kept" in each}
    for kind in KINDS:
        ours = [by_case["floc", ratio, kind]["similarity"]["mean"] for ratio in needle.RATIOS]
        assert ours == sorted(ours, reverse=True)
        assert ours[0] > by_case["random", "1/8", kind]["similarity"]["mean"]
    assert by_case["floc", "1/8", OBJECT]["kept"]["mean"] == 1
    assert "| floc-paper |" in shown
    assert "dycoke, widen" in shown
    assert "A dash: prunevid keeps a token or more of every frame" in shown
    assert sorted(path.name for path in folder.iterdir()) == ["needle.json", "needle.png"]


def test_every_view_has_every_method(small):
    document, _, _ = small
    for name, view in needle.TABLE.views.items():
        if name == "needle-films":
            continue
        lines = [line for line in view(document).splitlines() if line.startswith("|")]
        assert len(lines) == 2 + len(methods.names())
        assert len({line.replace("\\|", "").count("|") for line in lines}) == 1


def test_the_papers_numbers_stand_beside_its_methods(small):
    document, _, _ = small
    (ours,) = [line for line in needle.TABLE.views["needle-clips"](document).splitlines() if "floc-paper" in line]
    assert ours.endswith("| 76.06 | 74.93 | 71.27 |")
    (theirs,) = [line for line in needle.TABLE.views["needle-objects"](document).splitlines() if "divprune" in line]
    assert theirs.endswith("| 60.80 | 58.24 | 54.55 |")


def test_a_cell_shows_the_best_and_what_differs():
    record = {
        "kept": {"mean": 0.5, "low": 0.4, "high": 0.6},
        "background_kept": {"mean": 0.25, "low": 0.2, "high": 0.3},
        "kept_above_floc": {"mean": -0.2, "low": -0.3, "high": -0.1},
    }
    assert needle._cell(record, "kept", needle.percent, highest=0.5) == "**50% (40-60)** ↓ \\| 25%"
    assert needle._cell(record, "kept", needle.percent, highest=0.9) == "50% (40-60) ↓ \\| 25%"


def test_spread_runs_small(tmp_path, clustering_and_plots):
    document = benchmarks.run("spread", small=True, results=tmp_path, echo=lambda _: None)
    for number in {each["video"] for each in document["spread"]}:
        for ratio in spread.RATIOS:
            six = [
                each
                for each in document["spread"]
                if (each["video"], each["keep"]) == (number, ratio) and each["method"] in spread.SIX
            ]
            assert len(six) == 6
            for name in spread.MEASURES:
                scores = [each[f"{name}_z"] for each in six]
                assert np.mean(scores) == pytest.approx(0, abs=1e-9)
                assert np.std(scores) == pytest.approx(1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["spread.json", "spread.png"]
    rows = tables.get("spread").views["spread"](document).splitlines()
    assert rows[2].startswith("| floc-paper |")


def test_a_scale_of_fewer_than_six_methods_is_an_error(monkeypatch):
    def not_installed(*arguments, **options):
        raise ImportError("pip install 'floc-video[cluster]'")

    monkeypatch.setattr(spread.floc, "compress", not_installed)
    with pytest.raises(ImportError, match="cluster"):
        spread.run(small=True, echo=lambda _: None)


def test_others_are_placed_on_the_scale_of_the_six():
    six = [{"method": name, "representativeness": v, "diversity": 1.0} for v, name in enumerate(spread.SIX)]
    found = spread.placed([*six, {"method": "floc", "representativeness": 12.5, "diversity": 3.0}])
    deviation = math.sqrt(sum((v - 2.5) ** 2 for v in range(6)) / 6)
    assert found[0]["representativeness_z"] == pytest.approx(-2.5 / deviation)
    assert found[-1]["representativeness_z"] == pytest.approx(10 / deviation)
    assert found[-1]["diversity_z"] == 0  # the six are all the same


def test_videos_are_whole_stretches_at_their_own_rate():
    def film(name, frames):
        return Source(name, np.zeros(0), np.arange(frames)[:, None, None, None])

    shelf = Library([film("vtest.avi", 45), film("other", 25)], lambda pixels: pixels, "", False)
    found = [(video.source, video.tokens.ravel().tolist()) for video in spread.videos(shelf, 10)]
    assert found == [
        ("vtest.avi", list(range(0, 20, 2))),
        ("vtest.avi", list(range(20, 40, 2))),
        ("other", list(range(10))),
        ("other", list(range(10, 20))),
    ]


def test_claims_count_videos():
    def record(video, method, value):
        return {"video": video, "keep": "1/8", "method": method, "diversity": value}

    values = [(0, "floc-paper", 2), (0, "kmeans", 1), (1, "floc-paper", 2), (1, "kmeans", 3), (2, "floc-paper", 0)]
    document = {"spread": [record(*each) for each in values]}
    assert spread._higher(document, "kmeans", "1/8", "diversity") == [True, False]


def test_metric_runs_small(tmp_path, clustering_and_plots):
    document = benchmarks.run("metric", small=True, results=tmp_path, echo=lambda _: None)
    assert [(each["keep"], each["method"], each["metric"]) for each in document["metric"]] == metric.CASES
    for each in document["metric"]:
        assert 0 < each["gaussian_coverage"]["mean"] < 1
        if each["metric"] == "cosine":
            assert each["cosine_coverage_above_cosine"] == {"mean": 0, "low": 0, "high": 0}
    by_case = {(each["keep"], each["method"], each["metric"]): each for each in document["metric"]}
    covered = [by_case[ratio, "floc", "cosine"]["cosine_coverage"]["mean"] for ratio in needle.RATIOS]
    assert covered == sorted(covered, reverse=True)
    rows = tables.get("metric").views["metric"](document).splitlines()
    assert rows[2].endswith("| 64.93 | 71.57 | 56.69 | 69.40 | 65.65 |")
    assert rows[4].endswith("|  |  |  |  |  |")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metric.json", "metric.png"]


def test_coverages_are_those_of_plain_loops():
    rng = np.random.default_rng(0)
    tokens, kept = rng.standard_normal((9, 4)), rng.standard_normal((3, 4))
    by_cosine = [max(v @ u / np.linalg.norm(v) / np.linalg.norm(u) for u in kept) for v in tokens]
    by_gaussian = [max(math.exp(-(np.linalg.norm(v - u) ** 2) / (2 * 1.5**2)) for u in kept) for v in tokens]
    found = metric.coverages(torch.tensor(tokens).float(), torch.tensor(kept).float(), sigma=1.5)
    assert found == {
        "cosine": pytest.approx(np.mean(by_cosine), abs=1e-5),
        "gaussian": pytest.approx(np.mean(by_gaussian), abs=1e-5),
    }


def test_a_sample_is_even_and_of_all_where_there_are_few():
    few = np.arange(12, dtype=np.float16).reshape(3, 2, 2, 1)
    assert metric.sampled(few).ravel().tolist() == list(range(12))
    many = np.arange(5000, dtype=np.float32).reshape(50, 10, 10, 1)
    sample = metric.sampled(many).ravel()
    assert len(sample) == metric.SAMPLE
    assert (sample[0], sample[-1]) == (0, 4999)
    assert set(sample.diff().tolist()) <= {2, 3}
