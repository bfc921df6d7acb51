import math

import numpy as np
import pytest
import torch

from benchmarks.registry import get
from benchmarks.tables import metric


@pytest.mark.usefixtures("require_clustering_and_plots")
def test_runs_small(run_small, tmp_path):
    document = run_small("metric")
    cases = [(record["keep"], record["method"], record["metric"]) for record in document["metric"]]
    assert cases == metric.CASES
    for record in document["metric"]:
        assert 0 < record["gaussian_coverage"]["mean"] < 1
        if record["metric"] == "cosine":
            assert record["cosine_coverage_above_cosine"] == {"mean": 0, "low": 0, "high": 0}
    by_case = dict(zip(cases, document["metric"], strict=True))
    coverage = [by_case[ratio, "floc", "cosine"]["cosine_coverage"]["mean"] for ratio in metric.RATIOS]
    assert coverage == sorted(coverage, reverse=True)
    rows = get("metric").views["metric"](document).splitlines()
    assert rows[2].endswith("| 64.93 | 71.57 | 56.69 | 69.40 | 65.65 |")
    assert rows[4].endswith("|  |  |  |  |  |")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metric.json", "metric.png"]


def test_coverage_equals_plain_loops():
    rng = np.random.default_rng(0)
    tokens, kept = rng.standard_normal((9, 4)), rng.standard_normal((3, 4))
    cosine = [max(v @ u / np.linalg.norm(v) / np.linalg.norm(u) for u in kept) for v in tokens]
    gaussian = [max(math.exp(-(np.linalg.norm(v - u) ** 2) / (2 * 1.5**2)) for u in kept) for v in tokens]
    assert metric.measure_coverage(torch.tensor(tokens).float(), torch.tensor(kept).float(), sigma=1.5) == {
        "cosine": pytest.approx(np.mean(cosine), abs=1e-5),
        "gaussian": pytest.approx(np.mean(gaussian), abs=1e-5),
    }


def test_sample_is_evenly_spaced_and_has_all_of_a_few_tokens():
    few = np.arange(12, dtype=np.float16).reshape(3, 2, 2, 1)
    assert metric.draw_sample(few).ravel().tolist() == list(range(12))
    many = np.arange(5000, dtype=np.float32).reshape(50, 10, 10, 1)
    sample = metric.draw_sample(many).ravel()
    assert len(sample) == metric.SAMPLE
    assert (sample[0], sample[-1]) == (0, 4999)
    assert set(sample.diff().tolist()) <= {2, 3}
