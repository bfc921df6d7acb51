"""Run tables with small sizes, and check what they measure before they time it."""

import importlib.util
from dataclasses import replace

import numpy as np
import pytest

import floc
from benchmarks import peers
from benchmarks.synthetic import Shape
from benchmarks.tables import answer, blocks, horizon, scenes, second_pass, select
from floc.representatives import KnownRepresentation


@pytest.fixture
def greedy():
    """The compiled kernels of backend "cpu"."""
    return pytest.importorskip("floc.selection.cpu.greedy", reason="needs numba: pip install 'floc-video[cpu]'")


@pytest.fixture
def no_peers(monkeypatch):
    """Make all peers look as if they were not installed."""
    monkeypatch.setattr(select, "PEERS", [replace(peer, package="no_such_package") for peer in peers.PEERS])


@pytest.mark.usefixtures("no_peers")
def test_select_reports_missing_peers(run_small, tmp_path):
    lines = []
    document = run_small("select", lines.append)
    ours, *others = document["select"]
    assert (ours["contender"], ours["ratio"], ours["k"]) == ("floc.select", 1, 20)
    assert ours["objective"] == pytest.approx(1, abs=1e-4)
    assert len(others) == len(peers.PEERS)
    assert {record["skipped"] for record in others} == {"not installed: pip install 'floc-video[bench]'"}
    assert all(any(peer.name in line and "not installed" in line for line in lines) for peer in peers.PEERS)
    timed = [record for record in document["end_to_end"] if "method" in record]
    assert {record["baseline"] for record in timed} <= {
        "product alone, all threads on a block",
        "product alone, one thread per block",
    }
    assert all(record["objective"] > 0.999 for record in timed)
    assert len(document["memory"]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["select.json"]


@pytest.mark.usefixtures("no_peers")
def test_select_does_not_time_wrong_picks(greedy, monkeypatch):
    correct = greedy.lazy_greedy

    def reverse(matrix, k, weights=None):
        picks, gains, evaluations = correct(matrix, k, weights)
        return picks[::-1], gains, evaluations

    monkeypatch.setattr(greedy, "lazy_greedy", reverse)
    with pytest.raises(AssertionError, match="differs from plain greedy"):
        select.measure_block(Shape(4, 4, 4, 16), (8,), 1, lambda _: None)


def test_second_pass_runs_small(run_small):
    document = run_small("second-pass")
    assert {record["contender"] for record in document["time"]} == set(second_pass.TIMED)
    coverage = {record["contender"]: record["coverage"] for record in document["time"] if record["keep"] == "1/32"}
    assert coverage["floc-paper"] < coverage["dedupe=2, detail=1"] < 1


def test_horizon_runs_small(run_small):
    document = run_small("horizon")
    assert {record["contender"] for record in document["time"]} == {horizon.PRODUCT, horizon.SECOND_PASS, *horizon.OURS}
    assert all(check["objective"] > 0.9999 for check in document["checks"])
    assert [record["frames"] for record in document["memory"]] == [40, 400]
    assert (
        horizon.TABLE.views["horizon"](
            document
            | {"device": {"cpu": "a CPU", "cores": 2, "gpu": None}, "versions": {}, "date": "2026-01-01", "commit": "0"}
        ).count("\n")
        > 8
    )


def test_horizon_does_not_time_wrong_picks(greedy, monkeypatch):
    correct = greedy.band_greedy

    def reverse(*arguments):
        picks, gains = correct(*arguments)
        return picks[::-1].copy(), gains[::-1].copy()

    monkeypatch.setattr(greedy, "band_greedy", reverse)
    with pytest.raises(AssertionError, match="its time means nothing"):
        horizon.check_case(Shape(12, 2, 5, 16), "1/8", {"horizon": "auto"})


def test_second_pass_checks_coverage_against_the_tokens():
    tokens = Shape(40, 2, 3, 16).make_tokens()
    kept = floc.compress(tokens, ratio=1 / 8)
    second_pass._check_kept(tokens, kept, len(kept))
    wrong = KnownRepresentation(kept.represents, kept.coverage + 0.01)
    with pytest.raises(AssertionError, match="is reported"):
        second_pass._check_kept(tokens, replace(kept, representation=wrong), len(kept))


def test_answer_runs_small(run_small):
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'floc-video[hf]'")
    models = run_small("answer")["models"]
    assert len(models) == 2
    for model in models:
        (bare, fast), short = model["questions"][:2], model["questions"][2:]
        short = [record for record in short if "frames" not in record["what"]]  # a prompt of its own
        assert bare["held"] == fast["held"] > model["tokens"]
        text = bare["held"] - model["tokens"]
        assert {record["held"] for record in short} == {model["tokens"] // 8 + text}
        assert short[-1]["vision_s"] == 0  # a captured video does not pass the vision tower again
        assert all(record["prefill_s"] > 0 for record in model["questions"])


def test_answer_keeps_what_was_measured_if_a_part_fails(run_small, monkeypatch):
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'floc-video[hf]'")

    def fail(*_):
        raise RuntimeError("out of memory")

    for part in ("_measure_captured", "_measure_steps"):
        monkeypatch.setattr(answer, part, fail)
    document = run_small("answer")
    whats = [{record["what"] for record in model["questions"]} for model in document["models"]]
    assert all({"all tokens", "attach, floc"} <= names for names in whats)
    failed = [reason for reason in document["failed"] if "out of memory" in reason]
    assert len(failed) == 4
    assert "Not measured: tiny Qwen2.5-VL, capture: RuntimeError: out of memory" in answer._show(document)


def test_capture_runs_small(run_small):
    for package in ("av", "PIL", "transformers"):
        pytest.importorskip(package, reason="capturing a video needs pip install 'floc-video[video,hf]'")
    short, long = run_small("capture")["films"]
    assert short["frames"] < long["frames"]
    assert short["kept"] == long["kept"] == 40


def test_stages_runs_small(run_small):
    for package in ("av", "PIL", "transformers"):
        pytest.importorskip(package, reason="needs pip install 'floc-video[video,hf]'; run with -m slow")
    small, large = run_small("stages")["captures"]
    assert small["tokens"] == large["tokens"]
    for row in (small, large):
        assert sum(value for stage, value in row["stages"].items() if stage != "total") == pytest.approx(
            row["stages"]["total"], rel=0.01
        )


@pytest.mark.parametrize(
    ("table", "packages"), [("video", ["av", "PIL"]), ("towers", []), ("gpu", ["triton"]), ("ingest", ["av", "lance"])]
)
def test_runs_small_in_processes_of_its_own(table, packages, run_small):
    for package in packages:
        pytest.importorskip(package, reason="needs pip install 'floc-video[video,store]'; run with -m slow")
    assert run_small(table)["table"] == table


def test_scenes_runs_small(run_small):
    lines = []
    document = run_small("scenes", lines.append)
    (counts,) = document["cuts"]
    assert 0 < counts["right"] <= counts["long_right"] + counts["cuts"] - counts["long"]
    assert counts["right"] <= min(counts["cuts"], counts["found"])
    assert any("recall, long scenes" in line for line in lines)


def test_montage_knows_its_cuts():
    def load(name, encoder, fps):
        place = np.eye(4, dtype=np.float32)[:2] if name == "first" else np.eye(4, dtype=np.float32)[2:]
        tokens = np.repeat(place[None, :, None], 60, 0)
        tokens[50:] = 1 - tokens[50:]
        return scenes.CutVideo(name, encoder, fps, tokens, [50])

    video = scenes._make_montage(load, ["first", "second"], "none", 1, seed=0, pieces=12)
    changes = np.flatnonzero((np.diff(video.tokens, axis=0) != 0).any((1, 2, 3))) + 1
    assert video.cuts == changes.tolist()
    assert len(video.cuts) > 11
    counts = scenes._count_cuts([video], lambda _: None)
    assert counts["long_right"] == counts["long"] < counts["cuts"] == len(video.cuts)
    assert counts["found"] == counts["right"]


def test_blocks_runs_small(run_small, tmp_path):
    document = run_small("blocks")
    assert len(document["figure"]) == len(blocks.RATIOS) * len({*blocks.WAYS, *blocks.FLOORS})
    by_way = {record["contender"]: record for record in document["figure"] if record["keep"] == "1/8"}
    assert by_way["1"]["true"] < by_way["8"]["true"] < by_way["32"]["true"] < by_way["whole video"]["true"] < 1
    assert by_way["32, dedupe=2"]["redundancy"] < by_way["32"]["redundancy"] < by_way["1"]["redundancy"]
    assert all(record["worst"] < record["true"] for record in document["figure"])
    pytest.importorskip("matplotlib", reason="plots need pip install 'floc-video[report]'")
    assert (tmp_path / "blocks.png").exists()
    (panel,) = blocks.TABLE.plots["blocks"](document).axes
    drawn = {line.get_label(): line for line in panel.lines}
    assert drawn["1/8"].get_xdata().tolist() == list(blocks.LENGTHS)
    assert drawn["1/8"].get_ydata().tolist() == [by_way[str(length)]["true"] for length in blocks.LENGTHS]
    assert drawn["whole video"].get_ydata()[0] == by_way["whole video"]["true"]


def test_stream_runs_small(run_small):
    document = run_small("stream")
    for record in document["hours"]:
        assert len(record["hours"]) == 10
        assert all(hour["push_s"] > 0 and hour["plain_s"] > 0 for hour in record["hours"])
    assert all(record["stream"] > 0.97 for record in document["values"])


def test_vllm_streams_runs_small(run_small):
    document = run_small("vllm-streams")
    assert [row["level"] for row in document["levels"]] == [1, 4]
    assert all(row["decode_ms"] > 0 and row["slowdown"] > 1 for row in document["levels"])


def test_vllm_says_what_it_needs(run_small, tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "vllm" else find(name, *rest))
    with pytest.raises(ImportError, match=r"pip install 'floc-video\[vllm\]'"):
        run_small("vllm")
    assert not [*tmp_path.iterdir()]
