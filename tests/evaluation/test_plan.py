from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from floc.evaluation import models, paper
from floc.evaluation.plan import PAPER, Wish, from_paper, grid


def test_a_grid_has_every_combination_once() -> None:
    wish = Wish(methods=["full", "floc", "random"], ratios=["1/8", "0.0625"], tasks=["videomme", "mlvu_dev"])
    cells = grid(wish)
    told = {(cell.task, cell.method, cell.ratio) for cell in cells}
    expected = {
        (task, method, ratio)
        for task in ("videomme", "mlvu_dev")
        for method in ("floc", "random")
        for ratio in ("1/8", "1/16")
    }
    assert told == expected | {("videomme", "full", "1"), ("mlvu_dev", "full", "1")}
    assert len(cells) == len(told)
    assert {cell.max_frames for cell in cells} == {768}


def test_to_keep_everything_is_no_compression() -> None:
    cells = grid(Wish(methods=["floc", "random"], ratios=["1", "1/8"], tasks=["videomme"]))
    assert [(cell.method, cell.ratio) for cell in cells] == [("full", "1"), ("floc", "1/8"), ("random", "1/8")]


@pytest.mark.parametrize("name", PAPER)
def test_a_table_of_the_paper_is_planned_number_by_number(name: str) -> None:
    rows = [row for each in PAPER[name] for row in paper.table(each).rows]
    planned = {
        (cell.model, cell.method, cell.ratio, cell.budget, cell.task): cell.published().value
        for cell in from_paper(name, Wish())
    }
    printed = {
        (row["model"], row["method"], row.get("ratio"), row.get("budget"), task): score
        for row in rows
        for task, score in row["scores"].items()
        if "/" not in task
    }
    # one score of MLVU in Table 4 is another row's; Table 6 has the right one
    wrong = ("llava-video-7b", "frame_uniform", "1/8", None, "mlvu_dev")
    if "table4" in PAPER[name]:
        assert printed[wrong] == 53.66
        printed[wrong] = 60.83
    assert planned == printed


def test_the_settings_of_the_paper() -> None:
    blocks = {cell.method: cell.block for cell in from_paper("supp", Wish())}
    assert blocks["floc-paper"] == blocks["divprune"] == "32"
    assert blocks["kmeans"] == blocks["kmedoids"] == blocks["spectral"] == "8"
    assert blocks["full"] is blocks["longvu"] is None
    assert {(cell.model, cell.max_frames) for cell in from_paper("table1", Wish())} == {
        ("qwen2.5-vl-7b", 768),
        ("internvl3-8b", 64),
    }
    assert {cell.max_frames for cell in from_paper("supp", Wish())} == {128, 256}
    for cell in from_paper("table2", Wish()):
        long = cell.method != "full"
        assert (cell.max_frames, cell.fps, cell.budget) == ((7200, 1, 24576) if long else (768, None, None))


def test_a_table_can_be_narrowed_and_widened() -> None:
    cells = from_paper("table1", Wish(models=["internvl3-8b"], methods=["floc", "fastvid"], ratios=["1/8", "1/64"]))
    assert {(cell.method, cell.ratio) for cell in cells} == {
        (method, ratio) for method in ("floc", "fastvid") for ratio in ("1/8", "1/64")
    }
    assert {cell.model for cell in cells} == {"internvl3-8b"}
    known = {cell.method: cell.published() for cell in cells if cell.ratio == "1/8" and cell.task == "videomme"}
    assert known == {"floc": (64.93, "table1"), "fastvid": None}
    assert all(cell.published() is None for cell in cells if cell.ratio == "1/64")


@pytest.mark.parametrize(
    "other",
    [dict(max_frames=32), dict(fps=2.0), dict(limit=10), dict(block="8")],
    ids=lambda given: next(iter(given)),
)
def test_the_papers_number_is_for_the_papers_settings(other) -> None:
    wish = Wish(methods=["floc-paper"], ratios=["1/8"], tasks=["videomme"])
    (plain,), (changed,) = grid(wish), grid(dataclasses.replace(wish, **other))
    assert plain.published() == (63.33, "table1")
    assert changed.published() is None
    assert plain.name != changed.name


def test_arguments_for_lmms_eval_make_another_cell() -> None:
    wish = Wish(methods=["full"], tasks=["videomme"])
    cells = [
        grid(dataclasses.replace(wish, lmms=each))[0] for each in ("", "--seed 1", "--seed 2", "--include_path 'a b'")
    ]
    assert len({cell.name for cell in cells}) == len(cells)
    assert {cell.lmms for cell in from_paper("table1", dataclasses.replace(wish, lmms="--seed 1"))} == {"--seed 1"}


def test_methods_carry_their_options() -> None:
    wish = Wish(methods=["floc:detail=1", "floc:block=none", "longvu"], ratios=["1/8"], tasks=["videomme"], block="16")
    assert [(cell.method, cell.block) for cell in grid(wish)] == [
        ("floc:detail=1", "16"),
        ("floc:block=none", "none"),
        ("longvu", None),
    ]


def test_weights_may_lie_elsewhere() -> None:
    wish = Wish(models=["qwen2.5-vl-7b=/data/tiny"], methods=["full"], tasks=["videomme"])
    (cell,) = grid(wish)
    assert (cell.model, cell.weights) == ("qwen2.5-vl-7b", "/data/tiny")
    assert {cell.weights for cell in from_paper("table1", wish)} == {"/data/tiny"}
    (near,) = grid(Wish(models=["qwen2.5-vl-7b=tiny"], methods=["full"], tasks=["videomme"]))
    assert near.weights == str(Path.cwd() / "tiny")


def test_a_name_is_one_of_a_file() -> None:
    cells = from_paper("table1", Wish()) + from_paper("table8", Wish()) + from_paper("table2", Wish())
    names = {cell.name for cell in cells}
    assert len(names) == len(set(cells))
    assert not any(set(name) & set("/:= ") for name in names)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (dict(models=["qwen2.5-vl-8b"]), "unknown model 'qwen2.5-vl-8b': did you mean 'qwen2.5-vl-7b'"),
        (dict(methods=["flock"]), "unknown method 'flock': did you mean 'floc'"),
        (dict(methods=["floc:depth=1"]), "unknown option of method 'floc', 'depth'"),
        (dict(ratios=["2"]), "ratio must be in"),
        (dict(ratios=["1/8"], budget=100), "ratios or a budget, not both; got 1/8 and 100"),
        (dict(budget=0), "budget must be a whole number"),
        (dict(max_frames=0), "max_frames must be at least 1, got 0"),
        (dict(limit=-1), "limit must be at least 1, got -1"),
        (dict(fps=0.0), "fps must be a number of frames a second above 0, got 0"),
        (dict(fps=float("inf")), "fps must be a number of frames a second above 0, got inf"),
        (dict(block="0"), "block must be a number of frames, at least 1, .*; got 0"),
        (dict(models=["qwen2.5-vl-7b="]), "qwen2.5-vl-7b=: no folder is named; write NAME=FOLDER, or the name alone"),
        (dict(tasks=[]), "tasks: none is named"),
        (dict(more="ratio=1/2"), "ratio has an option of its own"),
        (dict(more="max_pixels"), "NAME=VALUE,NAME=VALUE; got 'max_pixels'"),
        (dict(more="max_pixels=many"), "max_pixels must be a whole number, got 'many'"),
        (dict(more="metric=gaussian"), "metric is an option of methods; write it there, as in floc:metric=gaussian"),
        (dict(lmms="--limit 5"), "--lmms: floc eval says --limit itself"),
        (dict(lmms="--verbosity DEBUG --tasks=mine"), "--lmms: floc eval says --tasks itself"),
        (dict(lmms="--lim 5"), "--lmms: floc eval says --limit itself"),
        (dict(lmms="--offset 5"), "--lmms: floc eval says --offset itself"),
        (dict(lmms="--include_path 'a"), '--lmms: No closing quotation; got "--include_path \'a"'),
    ],
)
def test_bad_wishes(given, says: str) -> None:
    for plan in (grid, lambda wish: from_paper("table1", wish)):
        with pytest.raises(ValueError, match=says):
            plan(Wish(**given))


def test_bad_tables() -> None:
    with pytest.raises(ValueError, match="unknown --paper 'table3'"):
        from_paper("table3", Wish())
    # one of those named is not there: it is not left out in silence
    with pytest.raises(ValueError, match=r"model of --paper table1, 'qwen2-vl-2b': .*qwen2\.5-vl-7b, internvl3-8b"):
        from_paper("table1", Wish(models=["internvl3-8b", "qwen2-vl-2b"]))
    with pytest.raises(ValueError, match="unknown task of --paper table2, 'egoschema_subset'"):
        from_paper("table2", Wish(tasks=["videomme", "egoschema_subset"]))
    assert {cell.model for cell in from_paper("supp", Wish(models=["qwen2-vl-2b"]))} == {"qwen2-vl-2b"}


@pytest.mark.parametrize(
    ("name", "frames", "tokens"),
    [  # told by the paper, but for InternVL3 (16 x 16 tokens a frame) and LLaVA-Video (14 x 14 in transformers)
        ("qwen2.5-vl-7b", 768, 24576),
        ("qwen2-vl-7b", 256, 34560),
        ("internvl3-8b", 64, 64 * 256),
        ("llava-video-7b", 128, 128 * 196),
        ("qwen2.5-vl-7b", 1, 64),  # half a slice is one
    ],
)
def test_tokens_of_a_video(name: str, frames: int, tokens: int) -> None:
    assert models.get(name).most_tokens(frames) == tokens


def test_tokens_of_a_film_are_whole_rows_and_columns() -> None:
    slices = models.get("qwen2.5-vl-7b").slices
    for size in ((1280, 720), (720, 1280), (640, 480), (1920, 800), (500, 500)):
        assert slices.of_film(*size) <= slices.most() == 64
    assert slices.of_film(1280, 720) == 60  # as in the paper's profile
    assert slices.of_film(500, 500) == 64
