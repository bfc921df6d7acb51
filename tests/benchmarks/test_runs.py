import importlib.util
from dataclasses import replace

import numpy as np
import pytest

import benchmarks
from benchmarks import blocklength, blocks, peers, rounds, scenes, second_pass, select
from benchmarks.blocks import Shape
from floc.selection.cpu import greedy


@pytest.fixture
def no_peers(monkeypatch):
    """Whatever is installed here: peers are named, and skipped."""
    monkeypatch.setattr(select, "PEERS", [replace(peer, package="no_such_package") for peer in peers.PEERS])


def test_select_runs_small_without_peers_and_says_so(no_peers, tmp_path):
    lines = []
    document = benchmarks.run("select", small=True, results=tmp_path, echo=lines.append)
    ours, *others = document["select"]
    assert (ours["contender"], ours["ratio"], ours["k"]) == ("floc", 1, 20)
    assert ours["objective"] == pytest.approx(1, abs=1e-4)
    assert len(others) == len(peers.PEERS)
    assert {each["skipped"] for each in others} == {"not installed: pip install 'floc-video[bench]'"}
    assert all(any(peer.name in line and "not installed" in line for line in lines) for peer in peers.PEERS)
    timed = [each for each in document["end_to_end"] if "method" in each]
    assert {each["baseline"] for each in timed} <= {
        "product alone, all threads on a block",
        "product alone, a thread a block",
    }
    assert all(each["objective"] > 0.999 for each in timed)
    assert len(document["memory"]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["select.json"]


def test_small_numbers_never_replace_real_ones(no_peers, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    benchmarks.run("select", small=True, echo=lambda _: None)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.json")] == ["benchmarks/small/select.json"]


def test_second_pass_runs_small(tmp_path):
    document = benchmarks.run("second-pass", small=True, results=tmp_path, echo=lambda _: None)
    assert {each["contender"] for each in document["time"]} == set(second_pass.TIMED)
    by_choice = {each["choice"]: each for each in document["quality"] if each["keep"] == "1/32"}
    assert by_choice["random"]["true"] < by_choice["blocks"]["true"] < by_choice["whole video"]["true"] < 1
    assert all(each["worst"] < each["true"] for each in document["quality"])


def test_answer_runs_small(tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'floc-video[hf]'")
    document = benchmarks.run("answer", small=True, results=tmp_path, echo=lambda _: None)
    bare, *others = document["questions"]
    assert bare["held"] == document["tokens"] + 42
    assert [each["held"] for each in others] == [document["tokens"] // 8 + 42] * 3
    assert others[-1]["vision_s"] == 0  # what was captured is not looked at again
    assert all(each["prefill_s"] > 0 for each in document["questions"])


def test_capture_runs_small(tmp_path):
    for package in ("av", "PIL", "transformers"):
        pytest.importorskip(package, reason="capturing a film needs pip install 'floc-video[video,hf]'")
    document = benchmarks.run("capture", small=True, results=tmp_path, echo=lambda _: None)
    short, long = document["films"]
    assert short["frames"] < long["frames"]
    assert short["kept"] == long["kept"] == 40


def test_scenes_runs_small(tmp_path):
    lines = []
    document = benchmarks.run("scenes", small=True, results=tmp_path, echo=lines.append)
    (judged,) = document["cuts"]
    assert 0 < judged["right"] <= judged["long_right"] + judged["cuts"] - judged["long"]
    assert judged["right"] <= min(judged["cuts"], judged["found"])
    by_block = {
        each["block"]: each["true"]
        for each in document["coverage"]
        if each["keep"] == "1/8" and each["method"] != "floc-paper"
    }
    assert set(by_block) == {*scenes.BLOCKS, *scenes.FLOORS}
    assert by_block["random"] < by_block["8"] < by_block["whole video"] < 1
    assert any("recall, long scenes" in line for line in lines)


def test_blocks_runs_small(tmp_path):
    lines = []
    document = benchmarks.run("blocks", small=True, results=tmp_path, echo=lines.append)
    assert len(document["figure"]) == len(blocklength.RATIOS) * len({*blocklength.WAYS, *blocklength.FLOORS})
    by_way = {each["contender"]: each for each in document["figure"] if each["keep"] == "1/8"}
    assert by_way["1"]["true"] < by_way["8"]["true"] < by_way["32"]["true"] < by_way["whole video"]["true"] < 1
    assert by_way["32, dedupe=2"]["redundancy"] < by_way["32"]["redundancy"] < by_way["1"]["redundancy"]
    assert all(each["worst"] < each["true"] for each in document["figure"])
    pytest.importorskip("matplotlib", reason="plots need pip install 'floc-video[report]'")
    assert (tmp_path / "blocks.png").exists()
    (panel,) = blocklength.TABLE.plots["blocks"](document).axes
    drawn = {line.get_label(): line for line in panel.lines}
    assert drawn["1/8"].get_xdata().tolist() == list(blocklength.LENGTHS)
    assert drawn["1/8"].get_ydata().tolist() == [by_way[str(length)]["true"] for length in blocklength.LENGTHS]
    assert drawn["whole video"].get_ydata()[0] == by_way["whole video"]["true"]


def test_rounds_runs_small(tmp_path):
    lines = []
    document = benchmarks.run("rounds", small=True, results=tmp_path, echo=lines.append)
    plain, *_, whole = document["rounds"]
    assert (plain["way"], whole["way"], plain["ratio"]) == ("plain blocks", "whole video as one set", 1)
    by = {(each["way"], each["block"], each["survivors"]): each for each in document["rounds"]}
    choices = [by[f"stream, room for {room}", 8, 1.5]["choices"] for room in rounds.ROOMS]
    assert by["second pass, once", 8, 1.5]["choices"] == 1 < choices[0] < choices[1] < choices[2] == 80 // 8
    assert by["plain blocks", 8, None]["true"] < by["stream, room for 1", 8, 2]["true"] < whole["true"] < 1
    assert any("stream, room for 2" in line for line in lines)


def test_redundancy_is_between_spans():
    unit = np.eye(4, dtype=np.float32)[[0, 0, 1, 1]]
    picks = np.arange(4)
    assert blocklength.redundancy(unit, picks, np.array([0, 0, 1, 1])) == 0  # twins are of one span
    assert blocklength.redundancy(unit, picks, np.array([0, 1, 0, 1])) == 1
    assert blocklength.redundancy(unit, picks, np.zeros(4, int)) is None


def test_a_montage_knows_its_cuts():
    def load(name, encoder, fps):
        place = np.eye(4, dtype=np.float32)[:2] if name == "here" else np.eye(4, dtype=np.float32)[2:]
        tokens = np.repeat(place[None, :, None], 60, 0)
        tokens[50:] = 1 - tokens[50:]
        return scenes.Film(name, encoder, fps, tokens, [50])

    film = scenes._montage(load, ["here", "there"], "none", 1, seed=0, pieces=12)
    changes = np.flatnonzero((np.diff(film.tokens, axis=0) != 0).any((1, 2, 3))) + 1
    assert film.cuts == changes.tolist()
    assert len(film.cuts) > 11
    judged = scenes._judged([film], lambda _: None)
    assert judged["long_right"] == judged["long"] < judged["cuts"] == len(film.cuts)
    assert judged["found"] == judged["right"]


def test_stream_runs_small(tmp_path):
    document = benchmarks.run("stream", small=True, results=tmp_path, echo=lambda _: None)
    for each in document["hours"]:
        assert len(each["hours"]) == 10
        assert all(now["push_s"] > 0 and now["plain_s"] > 0 for now in each["hours"])
    assert all(each["stream"] > 0.97 for each in document["values"])


def test_wrong_picks_are_not_timed(no_peers, monkeypatch):
    right = greedy.lazy_greedy

    def wrong(matrix, k, weights=None):
        picks, gains, evaluations = right(matrix, k, weights)
        return picks[::-1], gains, evaluations

    monkeypatch.setattr(greedy, "lazy_greedy", wrong)
    with pytest.raises(AssertionError, match="differs from plain greedy"):
        select.measure(Shape(4, 4, 4, 16), (8,), 1, lambda _: None)


def test_second_pass_checks_coverage_against_the_tokens():
    import floc
    from floc.representatives import KnownRepresentation

    tokens = Shape(40, 2, 3, 16).tokens()
    kept = floc.compress(tokens, ratio=1 / 8)
    second_pass._check(tokens, kept, len(kept))
    wrong = KnownRepresentation(kept.represents, kept.coverage + 0.01)
    with pytest.raises(AssertionError, match="is reported"):
        second_pass._check(tokens, replace(kept, representation=wrong), len(kept))


def test_uniform_in_time_is_on_budget_and_spread():
    shape = Shape(10, 2, 3, 4)
    picks = second_pass._uniform_in_time(shape, 15)
    assert len(set(picks.tolist())) == 15
    assert sorted(set((picks // 6).tolist())) == [0, 4, 9]


@pytest.mark.parametrize("peer", peers.PEERS, ids=lambda peer: peer.name)
@pytest.mark.filterwarnings("ignore")
def test_peers_choose_about_as_well_as_greedy(peer):
    if why := peer.why_not(0):
        pytest.skip(why)
    block = blocks.BlockTokens(Shape(8, 3, 4, 32).tokens().reshape(-1, 32))
    picks = np.asarray(peer.prepare(block, 12)())
    best = blocks.value(block.cosine, blocks.float64_greedy(block.cosine, 12))
    assert blocks.value(block.cosine, picks) / best == pytest.approx(1, abs=0.03)


def test_vllm_says_what_it_needs(tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "vllm" else find(name, *rest))
    with pytest.raises(ImportError, match=r"pip install 'floc-video\[vllm\]'"):
        benchmarks.run("vllm", small=True, results=tmp_path, echo=lambda _: None)
    assert not [*tmp_path.iterdir()]
