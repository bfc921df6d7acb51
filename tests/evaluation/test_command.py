"""`floc eval`, run as a stranger would."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from floc import evaluation
from floc.evaluation import Cell, Wish, estimate, grid, lmms, paper
from floc.integrations.lmms_eval.arguments import Arguments
from floc.synthetic import film
from tests.cli.test_cli import run
from tests.evaluation import stand_in

METHODS = sorted({row["method"] for name in paper.ACCURACY for row in paper.table(name).rows} - {"full"})


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder that passes for weights, and an empty cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/config.json").write_text("{}")
    return f"qwen2.5-vl-7b={tmp_path / 'tiny'}"


@pytest.fixture
def stood_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Cells run the stand-in; where it notes what it does."""
    data = tmp_path / "hub/datasets--lmms-eval--Video-MME/snapshots/abc"
    data.mkdir(parents=True)
    (data / "x.parquet").write_text("")
    monkeypatch.setattr(evaluation, "require_lmms_eval", lambda: None)
    notes = tmp_path / "notes"

    def one_fails(cell: Cell) -> str:
        return "crashes" if cell.method == "random" else "well"

    monkeypatch.setattr(evaluation, "lmms", stand_in.command(notes, one_fails))
    return notes


def test_a_dry_run_shows_the_plan_and_runs_nothing(weights: str, tmp_path: Path, monkeypatch, capsys) -> None:
    assert run(monkeypatch, "eval", "--paper", "table1", "--dry-run") == 0
    told = capsys.readouterr().out
    assert "24,576" in told
    assert "3,072 (1/8)" in told
    assert "hf download Qwen/Qwen2.5-VL-7B-Instruct   # missing" in told
    assert "internvl3-8b: 64 frames" in told
    assert not (tmp_path / "floc-eval").exists()
    assert all(len(line) <= 80 for line in told.splitlines()[:9])


def test_a_dry_run_as_json(weights: str, monkeypatch, capsys) -> None:
    assert run(monkeypatch, "eval", "--paper", "table2", "--methods", "floc-paper", "--dry-run", "--json") == 0
    plan = json.loads(capsys.readouterr().out)
    assert len(plan["cells"]) == 2 * 3
    first = plan["cells"][0]
    assert (first["tokens"], first["kept"], first["film_tokens"], first["film_kept"]) == (230400, 24576, 216000, 24576)
    assert (first["paper"], first["state"]) == (65.85, "to do")
    assert first["computing_s"] > 0
    assert plan["missing"][0]["repository"] == "Qwen/Qwen2.5-VL-7B-Instruct"
    assert "--model_args" in first["command"]


def test_without_weights_it_says_what_to_download(weights: str, tmp_path: Path, monkeypatch, capsys) -> None:
    assert run(monkeypatch, "eval", "--tasks", "videomme", "--out", "here") == 2
    said = capsys.readouterr()
    assert "hf download Qwen/Qwen2.5-VL-7B-Instruct " in said.err
    assert "hf download lmms-eval/Video-MME --repo-type dataset " in said.err
    assert "Traceback" not in said.err
    assert said.out == ""
    assert not (tmp_path / "here").exists()


def test_a_run_ends_in_a_report(weights: str, stood_in: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    asked = [
        "eval",
        "--models",
        weights,
        "--methods",
        "full,floc-paper,random",
        "--ratios",
        "1/8",
        "--tasks",
        "videomme",
    ]
    assert run(monkeypatch, *asked, "--out", "here") == 1
    said = capsys.readouterr()
    assert said.out == (tmp_path / "here/report.md").read_text()
    assert "| 1/8 | floc-paper, T = 32 | 75.00 ± 21.65 | 63.33 | 75.00 | 63.33 |" in said.out
    assert "RuntimeError: no such weights" in said.out
    assert "2 of 3 cells done" in said.err
    assert "1 failed" in said.err
    assert "--retry runs them again" in said.err
    before = stand_in.noted(stood_in)
    assert run(monkeypatch, *asked, "--out", "here", "--json") == 1
    document = json.loads(capsys.readouterr().out)
    assert stand_in.noted(stood_in) == before
    assert [each["method"] for each in document["cells"]] == ["full", "floc-paper"]
    assert run(monkeypatch, *asked, "--out", "here", "--retry") == 1
    name = next(each for each in before if "random" in each)
    assert len(stand_in.noted(stood_in)[name]) == 2


def test_lmms_eval_must_be_there(weights: str, stood_in: Path, monkeypatch, capsys) -> None:
    monkeypatch.undo()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'floc-video\[eval\]'"):
        evaluation.require_lmms_eval()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--models", "qwen"], "unknown model 'qwen'"),
        (["--paper", "table9"], "unknown --paper 'table9'"),
        (["--ratios", "1/8", "--budget", "5"], "ratios or a budget, not both"),
        (["--block", "some"], "--block must be a number of frames"),
        (["--methods", ","], "methods: none is named"),
        (["--models", "qwen2.5-vl-7b=nowhere"], "nowhere: no config.json there"),
        (["--out", "tiny/config.json"], "that is a file; name a folder"),
        (["--models", "qwen2.5-vl-7b=tiny", "--gpus", "0,0", "--tasks", "x"], "--gpus must name each GPU once"),
    ],
)
def test_bad_input_is_one_line(weights: str, stood_in: Path, arguments, says: str, monkeypatch, capsys) -> None:
    assert run(monkeypatch, "eval", *arguments) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert "Traceback" not in said.err
    assert said.out == ""


def arguments_of(command: list[str]) -> dict[str, str]:
    """As lmms-eval splits them."""
    return dict(each.split("=", 1) for each in command[command.index("--model_args") + 1].split(","))


def test_the_command_of_a_cell(tmp_path: Path) -> None:
    (cell,) = grid(Wish(methods=["kmeans"], ratios=["1/16"], tasks=["mlvu_dev"], limit=8, lmms="--verbosity 'DEBUG'"))
    command = lmms(cell, tmp_path, ["0"])
    assert command[1:5] == ["-m", "lmms_eval", "--model", "floc_qwen2_5_vl"]
    assert command[-4:] == ["--limit", "8", "--verbosity", "DEBUG"]
    assert command[command.index("--output_path") + 1] == str(tmp_path)
    assert arguments_of(command) == dict(
        pretrained="Qwen/Qwen2.5-VL-7B-Instruct",
        ratio="1/16",
        method="kmeans",
        block="8",
        max_frames="768",
        min_pixels=str(4 * 28 * 28),
        max_pixels=str(64 * 28 * 28),
    )


@pytest.mark.parametrize("frames", [2, 40], ids=["a short film", "a long film"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_of_the_paper_runs_at_its_ratios(method: str, frames: int) -> None:
    if method in ("kmeans", "kmedoids", "spectral"):
        pytest.importorskip("sklearn", reason="clusterings need pip install 'floc-video[cluster]'")
        pytest.importorskip("kmedoids", reason="clusterings need pip install 'floc-video[cluster]'")
    tokens = torch.from_numpy(film(frames, 8, 8, 16, seed=0))
    for ratio in ("1/8", "1/16", "1/32"):
        (cell,) = grid(Wish(methods=[method], ratios=[ratio], tasks=["mlvu_dev"]))
        told = arguments_of(lmms(cell, Path("out"), ("0",)))
        given = {name: int(value) if value.isdigit() else value for name, value in told.items()}  # as lmms-eval does
        kept = Arguments.of(given, accepted=("pretrained", "min_pixels", "max_pixels")).recipe(tokens)
        if frames > 2 and method != "prunevid":  # as asked, or a little less
            assert 0.75 * cell.kept(kept.n) <= len(kept) <= cell.kept(kept.n)


def test_what_a_method_was_told_is_not_overruled(tmp_path: Path) -> None:
    for method in ("dycoke:widen=false:nearest=false", "dycoke:strict=true:nearest=false"):
        (cell,) = grid(Wish(methods=[method], ratios=["1/8"], tasks=["mlvu_dev"]))
        assert not {"widen", "nearest"} & set(arguments_of(lmms(cell, tmp_path, ("0",))))


def test_the_command_without_a_method_with_a_budget_and_on_two_gpus(tmp_path: Path) -> None:
    (full,) = grid(Wish(models=["internvl3-8b"], methods=["full"], tasks=["mlvu_dev"]))
    told = arguments_of(lmms(full, tmp_path, ("0",)))
    assert told == dict(pretrained="OpenGVLab/InternVL3-8B-hf", ratio="1", max_frames="64")
    (long,) = grid(Wish(methods=["floc:block=none"], budget=24576, tasks=["mlvu_dev"]))
    told = arguments_of(lmms(long, tmp_path, ("0", "1")))
    wanted = dict(budget="24576", fps="1", max_frames="7200", method="floc:block=none", device_map="auto")
    assert {name: told.get(name) for name in wanted} == wanted
    assert "ratio" not in told
    assert "block" not in told


def test_further_arguments_overrule_the_models_own(tmp_path: Path) -> None:
    wish = Wish(methods=["floc"], ratios=["1/8"], tasks=["videomme"], more="max_pixels=105840,positions=compact")
    (cell,) = grid(wish)
    told = arguments_of(lmms(cell, tmp_path, ("0",)))
    assert (told["max_pixels"], told["min_pixels"], told["positions"]) == ("105840", "3136", "compact")
    assert cell.told.most_tokens(768) == 384 * 135
    assert estimate.tokens(cell) == (384 * 135, 384 * 135 // 8)
    assert cell.name != grid(Wish(methods=["floc"], ratios=["1/8"], tasks=["videomme"]))[0].name


def test_the_command_without_a_gpu(tmp_path: Path) -> None:
    (cell,) = grid(Wish(methods=["full"], tasks=["mlvu_dev"]))
    command = lmms(cell, tmp_path, ())
    assert command[-2:] == ["--device", "cpu"]
    assert arguments_of(command)["device_map"] == "cpu"


def test_long_films_keep_the_size_of_their_frames(tmp_path: Path) -> None:
    (long,) = grid(Wish(methods=["floc"], budget=24576, tasks=["mlvu_dev"]))
    command = lmms(long, tmp_path, ("0",))
    assert command[0] == "env"
    bound = int(command[1].removeprefix("MODEL_SEQ_LEN="))
    # the rule of qwen_vl_utils: pixels of a frame, which has half a slice
    assert bound * 28**2 * 0.9 / long.max_frames * 2 >= int(arguments_of(command)["max_pixels"])


def test_a_comma_would_be_read_as_two_arguments(tmp_path: Path) -> None:
    (cell,) = grid(Wish(models=["qwen2.5-vl-7b=/a,b"], methods=["full"], tasks=["mlvu_dev"]))
    with pytest.raises(ValueError, match="takes no comma"):
        lmms(cell, tmp_path, ())
