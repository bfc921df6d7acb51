import math

import numpy as np
import pytest

from benchmarks.registry import get
from benchmarks.sources import Library, Source
from benchmarks.tables import spread


@pytest.mark.usefixtures("require_clustering_and_plots")
def test_scores_have_mean_0_and_deviation_1_over_the_six_methods(run_small, tmp_path):
    document = run_small("spread")
    for number in {record["video"] for record in document["spread"]}:
        for ratio in spread.RATIOS:
            six = [
                record
                for record in document["spread"]
                if (record["video"], record["keep"]) == (number, ratio) and record["method"] in spread.SIX
            ]
            assert len(six) == 6
            for name in spread.MEASURES:
                scores = [record[f"{name}_z"] for record in six]
                assert np.mean(scores) == pytest.approx(0, abs=1e-9)
                assert np.std(scores) == pytest.approx(1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["spread.json", "spread.png"]
    rows = get("spread").views["spread"](document).splitlines()
    assert rows[2].startswith("| floc-paper |")


def test_missing_package_is_an_error(monkeypatch):
    def fail(*arguments, **options):
        raise ImportError("pip install 'floc-video[cluster]'")

    monkeypatch.setattr(spread.floc, "compress", fail)
    with pytest.raises(ImportError, match="cluster"):
        spread.run(small=True, echo=lambda _: None)


def test_other_methods_use_the_scale_of_the_six():
    six = [{"method": name, "representativeness": v, "diversity": 1.0} for v, name in enumerate(spread.SIX)]
    scores = spread.add_scores([*six, {"method": "floc", "representativeness": 12.5, "diversity": 3.0}])
    deviation = math.sqrt(sum((v - 2.5) ** 2 for v in range(6)) / 6)
    assert scores[0]["representativeness_z"] == pytest.approx(-2.5 / deviation)
    assert scores[-1]["representativeness_z"] == pytest.approx(10 / deviation)
    assert scores[-1]["diversity_z"] == 0  # the six are equal


def test_videos_are_whole_stretches_at_their_own_rate():
    def make_source(name, frames):
        return Source(name, np.zeros(0), np.arange(frames)[:, None, None, None])

    library = Library([make_source("vtest.avi", 45), make_source("other", 25)], lambda pixels: pixels, "", False)
    videos = [(video.name, video.tokens.ravel().tolist()) for video in spread.cut_videos(library, 10)]
    assert videos == [
        ("vtest.avi", list(range(0, 20, 2))),
        ("vtest.avi", list(range(20, 40, 2))),
        ("other", list(range(10))),
        ("other", list(range(10, 20))),
    ]


def test_claims_are_compared_video_by_video():
    def make_record(video, method, value):
        return {"video": video, "keep": "1/8", "method": method, "diversity": value}

    values = [(0, "floc-paper", 2), (0, "kmeans", 1), (1, "floc-paper", 2), (1, "kmeans", 3), (2, "floc-paper", 0)]
    document = {"spread": [make_record(*value) for value in values]}
    assert spread.compare_videos(document, "kmeans", "1/8", "diversity") == [True, False]
