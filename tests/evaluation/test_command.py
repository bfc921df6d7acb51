"""Tests of the lmms-eval command of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from examples.synthetic import make_tokens
from floc.evaluation import paper
from floc.evaluation.command import build_command, check_lmms_eval, parse_gpus
from floc.evaluation.plan import PlanOptions, plan_grid
from floc.integrations.lmms_eval.arguments import ModelArguments

METHODS = sorted({row["method"] for name in paper.ACCURACY for row in paper.get_table(name).rows} - {"full"})


def split_arguments(command: list[str]) -> dict[str, str]:
    """Split --model_args as lmms-eval does."""
    return dict(each.split("=", 1) for each in command[command.index("--model_args") + 1].split(","))


def test_command_of_a_run(tmp_path: Path) -> None:
    options = PlanOptions(methods=["kmeans"], ratios=["1/16"], tasks=["mlvu_dev"], limit=8, lmms="--verbosity 'DEBUG'")
    (run,) = plan_grid(options)
    command = build_command(run, tmp_path, ["0"])
    assert command[1:5] == ["-m", "lmms_eval", "--model", "floc_qwen2_5_vl"]
    assert command[-4:] == ["--limit", "8", "--verbosity", "DEBUG"]
    assert command[command.index("--output_path") + 1] == str(tmp_path)
    assert split_arguments(command) == dict(
        pretrained="Qwen/Qwen2.5-VL-7B-Instruct",
        ratio="1/16",
        method="kmeans",
        block="8",
        max_frames="768",
        min_pixels=str(4 * 28 * 28),
        max_pixels=str(64 * 28 * 28),
    )


@pytest.mark.parametrize("frames", [2, 40], ids=["short", "long"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_of_the_paper_runs_at_its_ratios(method: str, frames: int) -> None:
    if method in ("kmeans", "kmedoids", "spectral"):
        pytest.importorskip("sklearn", reason="clusterings need pip install 'floc-video[cluster]'")
        pytest.importorskip("kmedoids", reason="clusterings need pip install 'floc-video[cluster]'")
    tokens = torch.from_numpy(make_tokens(frames, 8, 8, 16, seed=0))
    for ratio in ("1/8", "1/16", "1/32"):
        (run,) = plan_grid(PlanOptions(methods=[method], ratios=[ratio], tasks=["mlvu_dev"]))
        texts = split_arguments(build_command(run, Path("out"), ("0",)))
        given = {name: int(value) if value.isdigit() else value for name, value in texts.items()}  # as lmms-eval does
        kept = ModelArguments.parse(given, accepted=("pretrained", "min_pixels", "max_pixels")).recipe(tokens)
        if frames > 2 and method != "prunevid":  # as requested, or slightly fewer
            assert 0.75 * run.count_kept(kept.n) <= len(kept) <= run.count_kept(kept.n)


def test_options_of_the_method_take_precedence(tmp_path: Path) -> None:
    for method in ("dycoke:widen=false:nearest=false", "dycoke:strict=true:nearest=false"):
        (run,) = plan_grid(PlanOptions(methods=[method], ratios=["1/8"], tasks=["mlvu_dev"]))
        assert not {"widen", "nearest"} & set(split_arguments(build_command(run, tmp_path, ("0",))))


def test_command_without_compression(tmp_path: Path) -> None:
    (run,) = plan_grid(PlanOptions(models=["internvl3-8b"], methods=["full"], tasks=["mlvu_dev"]))
    arguments = split_arguments(build_command(run, tmp_path, ("0",)))
    assert arguments == dict(pretrained="OpenGVLab/InternVL3-8B-hf", ratio="1", max_frames="64")


def test_command_with_budget_on_two_gpus(tmp_path: Path) -> None:
    (run,) = plan_grid(PlanOptions(methods=["floc:block=none"], budget=24576, tasks=["mlvu_dev"]))
    arguments = split_arguments(build_command(run, tmp_path, ("0", "1")))
    expected = dict(budget="24576", fps="1", max_frames="7200", method="floc:block=none", device_map="auto")
    assert {name: arguments.get(name) for name in expected} == expected
    assert "ratio" not in arguments
    assert "block" not in arguments


def test_command_without_gpu(tmp_path: Path) -> None:
    (run,) = plan_grid(PlanOptions(methods=["full"], tasks=["mlvu_dev"]))
    command = build_command(run, tmp_path, ())
    assert command[-2:] == ["--device", "cpu"]
    assert split_arguments(command)["device_map"] == "cpu"


def test_model_arguments_override_the_defaults(tmp_path: Path) -> None:
    options = PlanOptions(methods=["floc"], ratios=["1/8"], tasks=["videomme"])
    (plain,) = plan_grid(options)
    (run,) = plan_grid(
        PlanOptions(methods=["floc"], ratios=["1/8"], tasks=["videomme"], more="max_pixels=105840,positions=compact")
    )
    arguments = split_arguments(build_command(run, tmp_path, ("0",)))
    assert (arguments["max_pixels"], arguments["min_pixels"], arguments["positions"]) == ("105840", "3136", "compact")
    assert run.video_model.count_tokens(768) == 384 * 135
    assert run.name != plain.name


def test_long_videos_keep_their_frame_size(tmp_path: Path) -> None:
    (run,) = plan_grid(PlanOptions(methods=["floc"], budget=24576, tasks=["mlvu_dev"]))
    command = build_command(run, tmp_path, ("0",))
    assert command[0] == "env"
    limit = int(command[1].removeprefix("MODEL_SEQ_LEN="))
    # qwen_vl_utils limits the pixels of a frame, which has half of the tokens of a slice, to this
    assert limit * 28**2 * 0.9 / run.max_frames * 2 >= int(split_arguments(command)["max_pixels"])


def test_rejects_commas_in_arguments(tmp_path: Path) -> None:
    (run,) = plan_grid(PlanOptions(models=["qwen2.5-vl-7b=/a,b"], methods=["full"], tasks=["mlvu_dev"]))
    with pytest.raises(ValueError, match="does not support commas"):
        build_command(run, tmp_path, ())


def test_needs_lmms_eval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'floc-video\[eval\]'"):
        check_lmms_eval()


def test_parse_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_gpus("0, 3+4") == ["0", "3+4"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert parse_gpus(None) == ["5", "7"]
    for none in ("", "-1", "-1,0"):  # CUDA stops at the first invalid device
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", none)
        assert parse_gpus(None) == [""]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8932f937, 1,-1")
    assert parse_gpus(None) == ["GPU-8932f937", "1"]
    for bad in ("", "0,0", "0+1,1", "0+"):
        with pytest.raises(ValueError, match="--gpus must name each GPU once"):
            parse_gpus(bad)
