from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from floc.evaluation import Cell, Wish, estimate, grid, paper
from floc.evaluation.estimate import Basis

PLAIN = Basis("", vision_s=1e-4, prefill_s=(1e-5, 0.0), step_s=0.0, choosing_s={"floc": 1e-6}, reading_s=0.01)


def cell_of(method: str = "floc", **more) -> Cell:
    return grid(Wish(methods=[method], ratios=["1/8"], tasks=["videomme"], **more))[0]


def test_tokens_of_a_cell() -> None:
    assert estimate.tokens(cell_of()) == (24576, 3072)
    assert estimate.tokens(cell_of("full")) == (24576, 24576)
    assert estimate.film_tokens(cell_of()) == 384 * 60
    (long,) = grid(Wish(methods=["floc"], budget=24576, tasks=["videomme"]))
    assert estimate.tokens(long) == (3600 * 64, 24576)


def test_seconds_are_sums_of_what_was_measured() -> None:
    n = 384 * 60
    computing, reading = estimate.spent(cell_of(), PLAIN)
    assert computing == pytest.approx(2700 * (n * (1e-4 + 1e-6) + n / 8 * 1e-5))
    assert reading == pytest.approx(2700 * 1018 * 0.01)
    assert estimate.spent(cell_of("full"), PLAIN).computing_s == pytest.approx(2700 * n * 1.1e-4)
    assert estimate.spent(cell_of(limit=27), PLAIN).computing_s == pytest.approx(computing / 100)
    assert estimate.spent(cell_of(limit=10**6), PLAIN).computing_s == pytest.approx(computing)
    assert estimate.total([cell_of(), cell_of("full")], PLAIN).reading_s == pytest.approx(2 * reading)


def test_a_rate_reads_as_many_frames_as_a_video_has() -> None:
    slow = estimate.spent(cell_of(fps=0.1), PLAIN)  # 102 frames of 1,018 s
    assert slow.computing_s == pytest.approx(estimate.spent(cell_of(), PLAIN).computing_s * 51 / 384, rel=1e-4)


def test_larger_models_take_longer_in_the_decoder() -> None:
    decoder = dataclasses.replace(PLAIN, vision_s=0.0, choosing_s={})
    seven, big = (estimate.spent(cell_of(models=[name]), decoder) for name in ("qwen2.5-vl-7b", "qwen2.5-vl-32b"))
    assert big.computing_s / seven.computing_s == pytest.approx(33.5 / 8.3)


def test_the_measured_results_of_this_checkout_are_read() -> None:
    basis = estimate.basis()
    if basis is None:
        pytest.skip("no checkout")
    answer = json.loads((estimate.RESULTS / "answer.json").read_text())
    linear, square = basis.prefill_s
    for each in answer["questions"][:2]:  # the curve goes through both points
        assert linear * each["held"] + square * each["held"] ** 2 == pytest.approx(each["prefill_s"])
    assert {"floc", "floc-paper", "kmeans", "kmedoids"} <= set(basis.choosing_s)
    assert all(value > 0 for value in (basis.vision_s, linear, square, basis.step_s, basis.reading_s))


def test_times_of_a_cpu_are_not_taken_for_those_of_a_gpu(tmp_path: Path) -> None:
    if estimate.basis() is None:
        pytest.skip("no checkout")
    for name in ("answer", "gpu", "video"):
        (tmp_path / f"{name}.json").write_text((estimate.RESULTS / f"{name}.json").read_text())
    slow = {"method": "kmeans", "seconds": 1e6}
    document = {"ran_on": "CPU", "frames": 98, "methods": [slow]}
    (tmp_path / "profile.json").write_text(json.dumps(document))
    basis = estimate.basis(tmp_path)
    assert basis.choosing_s["kmeans"] == pytest.approx(paper.row("table7", "kmeans")["compression_s"] / (784 * 60))
    assert "of kmeans the paper gives it" in basis.said
    (tmp_path / "profile.json").write_text(json.dumps({**document, "ran_on": "some GPU"}))
    estimate.basis.cache_clear()
    assert estimate.basis(tmp_path).choosing_s["kmeans"] == pytest.approx(1e6 / (98 * 60))


def test_without_results_there_is_no_estimate(tmp_path: Path) -> None:
    assert estimate.basis(tmp_path) is None
    for name in ("answer", "profile", "gpu", "video"):
        (tmp_path / f"{name}.json").write_text("{}")
    estimate.basis.cache_clear()
    assert estimate.basis(tmp_path) is None


def test_a_task_that_is_not_known_has_none() -> None:
    (cell,) = grid(Wish(methods=["full"], tasks=["mine"]))
    assert estimate.spent(cell, PLAIN) is None
