"""`floc compress` on token files and videos."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import floc
from floc import encoders, files
from floc.encoders.load import load_tokens
from tests.cli.helpers import run


def test_npy_to_safetensors(npy: Path, tokens: np.ndarray, monkeypatch, capsys) -> None:
    out = npy.with_name("kept.safetensors")
    assert run(monkeypatch, "compress", npy, "--ratio", "1/8", "-o", out, "--json") == 0
    said = capsys.readouterr()
    result = json.loads(said.out)
    kept = floc.compress(tokens, ratio=1 / 8)
    assert result["kept"] == 105
    assert result["coverage"] == kept.coverage
    assert result["output"] == str(out)
    assert "105 of 840" in said.err
    with safe_open(out, framework="np") as file:
        for name in files.ARRAYS:
            np.testing.assert_array_equal(file.get_tensor(name), getattr(kept, name))
        about = json.loads(file.metadata()["floc"])
    assert about["settings"] == {**kept.settings}
    assert about["shape"] == [70, 3, 4]
    assert about["source"] == "tokens.npy"
    again = files.read_kept(out)
    assert torch.equal(again.indices, torch.from_numpy(kept.indices))
    assert (again.coverage, again.bound, again.shape) == (kept.coverage, kept.bound, kept.shape)
    with pytest.raises(ValueError, match="does not keep a nested order"):
        again.at(budget=3)


def test_safetensors_keeps_bf16(tmp_path: Path, tokens: np.ndarray, monkeypatch) -> None:
    given = torch.from_numpy(tokens).bfloat16()
    save_file({"tokens": given, "other": torch.zeros(1)}, tmp_path / "in.safetensors")
    out = tmp_path / "out.safetensors"
    assert run(monkeypatch, "compress", tmp_path / "in.safetensors", "--budget", 50, "-o", out) == 0
    kept = files.read_kept(out)
    assert kept.features.dtype == torch.bfloat16
    assert torch.equal(kept.features, given.reshape(840, -1)[kept.indices])


def test_options_reach_the_method(npy: Path, tokens: np.ndarray, monkeypatch, capsys) -> None:
    options = ["--block", "scene", "--dedupe", "2", "--detail", "1", "--metric", "gaussian", "--backend", "torch"]
    assert run(monkeypatch, "compress", npy, "--coverage", "0.9", *options, "--json") == 0
    settings = json.loads(capsys.readouterr().out)["settings"]
    expected = dict(horizon=None, detail=1, block="scene", dedupe=2, metric="gaussian", backend="torch")
    assert settings == {**expected, "query": None, "query_weight": 0}


@pytest.mark.parametrize("options", [["--block", "scene"], ["--method", "floc:block=scene"]])
def test_blocks_can_follow_scenes(npy: Path, tokens: np.ndarray, monkeypatch, capsys, options: list[str]) -> None:
    assert run(monkeypatch, "compress", npy, "--ratio", "1/8", *options, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["settings"]["block"] == "scene"
    assert told["coverage"] == floc.compress(tokens, ratio=1 / 8, block="scene").coverage


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["missing.npy", "--ratio", "1/8"], "missing.npy: no such file"),
        (["tokens.txt", "--ratio", "1/8"], "tokens.txt: not a video that ffmpeg can read"),
        (["broken.npy", "--ratio", "1/8"], "broken.npy: not a readable .npy file"),
        (["broken.safetensors", "--ratio", "1/8"], "broken.safetensors: not a safetensors file, or damaged"),
        (["empty.npy", "--ratio", "1/8"], "empty.npy: not a readable .npy file"),
        (["two.safetensors", "--ratio", "1/8"], "no tensor called 'tokens'; choose one of: a, b"),
        (["two.safetensors", "--tensor", "c", "--ratio", "1/8"], "no tensor called 'c'; choose one of: a, b"),
        (["tokens.npy", "--tensor", "c", "--ratio", "1/8"], "a .npy file has one array"),
        (["pickled.npy", "--ratio", "1/8"], "pickled.npy: not a readable .npy file"),
        (["tokens.npy"], "give --ratio, --budget or --coverage"),
        (["tokens.npy", "--ratio", "2"], "ratio must be in (0, 1]"),
        (["tokens.npy", "--ratio", "1/8", "--budget", "3"], "only one of them; got --ratio '1/8' and --budget 3"),
        (["tokens.npy", "--ratio", "1/8", "--block", "some"], "--block must be a number of frames"),
        (["tokens.npy", "--ratio", "1/8", "--block", "²"], "--block must be a number of frames"),
        (["tokens.npy", "--ratio", "1/8", "--method", "flcc"], "did you mean 'floc'"),
        (["tokens.npy", "--ratio", "1/8", "-o", "kept.npy"], "name it kept.safetensors"),
        (["tokens.npy", "--ratio", "1/8", "-o", "tokens.npy/kept.safetensors"], "tokens.npy is a file; name a folder"),
        (["two.safetensors", "--tensor", "a", "--ratio", "1/8", "-o", "two.safetensors"], "would overwrite the input"),
        (["nan.npy", "--ratio", "1/8"], "nan in frame 1, row 0, column 1"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, tokens: np.ndarray, arguments, says: str, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("tokens.npy", tokens)
    Path("tokens.txt").write_text("1 2 3")
    Path("broken.npy").write_bytes(Path("tokens.npy").read_bytes()[:3000])
    Path("broken.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{not json")
    Path("empty.npy").write_bytes(b"")
    np.save("pickled.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    save_file({"a": torch.ones(4, 2, 3), "b": torch.ones(2)}, "two.safetensors")
    wrong = tokens.copy()
    wrong[1, 0, 1, 3] = np.nan
    np.save("nan.npy", wrong)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert run(monkeypatch, "compress", *arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert says in said.err
    assert "Traceback" not in said.err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_names_are_shown_as_they_are(tmp_path: Path, tokens: np.ndarray, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a[bold].npy", "b[x].npy"):
        np.save(name, tokens)
        assert run(monkeypatch, "compress", name, "--budget", 5) == 0
        assert name in capsys.readouterr().err


def test_interrupting_leaves_no_file(npy: Path, monkeypatch, capsys) -> None:
    compress = floc.compress

    def interrupted(*arguments: object, **options: object) -> floc.Kept:
        def stop(_: float) -> None:
            raise KeyboardInterrupt

        return compress(*arguments, **{**options, "progress": stop})

    monkeypatch.setattr(floc, "compress", interrupted)
    assert run(monkeypatch, "compress", npy, "--ratio", "1/8", "-o", npy.with_name("kept.safetensors")) == 130
    assert "floc: stopped" in capsys.readouterr().err
    assert [path.name for path in npy.parent.iterdir()] == ["tokens.npy"]


def test_a_method_with_its_own_parameters_needs_no_budget(npy: Path, tokens: np.ndarray, monkeypatch, capsys) -> None:
    assert run(monkeypatch, "compress", npy, "--method", "longvu:threshold=0.9:window=4", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    kept = floc.compress(tokens, method="longvu", threshold=0.9, window=4)
    assert said["kept"] == len(kept)
    assert said["settings"]["threshold"] == 0.9
    assert run(monkeypatch, "compress", npy, "--method", "longvu:threshold=0.9", "--ratio", "1/2") == 2
    assert "give one or the other" in capsys.readouterr().err


def test_summary_has_the_time_of_each_stage(npy: Path, monkeypatch, capsys) -> None:
    out = npy.with_name("new") / "folder" / "kept.safetensors"
    assert run(monkeypatch, "compress", npy, "--ratio", "1/8", "-o", out) == 0
    assert re.search(r"read \d+\.\d\d s, select .* s, write .* s; .* s in all", capsys.readouterr().err)
    assert out.exists()


def test_writes_tokens_times_and_metadata(film: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    out = tmp_path / "kept.safetensors"
    command = ("compress", film, "--ratio", "1/8", "--fps", 2, "--encoder", "pixels", "-o", out, "--json")
    assert run(monkeypatch, *command) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["encoder"] == "pixels"
    assert summary["video"]["frames"] == 32
    kept = floc.compress(load_tokens(film, fps=2, encoder="pixels").tokens, ratio="1/8")
    with safe_open(out, framework="np") as file:
        np.testing.assert_array_equal(file.get_tensor("features"), kept.features)
        np.testing.assert_array_equal(file.get_tensor("order"), kept.order)
        np.testing.assert_array_equal(file.get_tensor("frame_times_s"), np.arange(32) / 2)
        np.testing.assert_array_equal(file.get_tensor("times_s"), kept.positions[:, 0] / 2)
        metadata = json.loads(file.metadata()["floc"])
    assert metadata["encoder"] == "pixels"
    assert metadata["video"]["name"] == "my film.mp4"
    assert metadata["video"]["fps"] == 2
    assert metadata["method"] == "floc"


def test_default_output_never_overwrites_a_file(film: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    command = ("compress", film, "--budget", 50, "--max-frames", 4, "--encoder", "pixels")
    assert run(monkeypatch, *command) == 0
    written = tmp_path / "my film.kept.safetensors"
    before = written.read_bytes()
    assert run(monkeypatch, *command) == 2
    assert "exists already; name the file to write with -o" in capsys.readouterr().err
    assert written.read_bytes() == before


def test_prints_the_encoder_that_auto_selects(film: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    command = ("compress", film, "--budget", 50, "--max-frames", 3, "-o", tmp_path / "k.safetensors")
    assert run(monkeypatch, *command) == 0
    assert f"encoder: {encoders.get('auto').name}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ratio", "2"], "ratio must be in (0, 1]"),
        (["--ratio", "1/8", "--fps", "fast"], "--fps must be a number of frames per second, or 'all'; got 'fast'"),
        (["--ratio", "1/8", "--fps", "0"], "fps"),
        (["--ratio", "1/8", "--encoder", "pixel"], "unknown encoder 'pixel'; did you mean 'pixels'"),
        (["--ratio", "1/8", "--fps", "1e400"], "--fps must be a number of frames per second"),
        (["--ratio", "1/8", "--encoder", "mobilenet", "--device", "foo"], "device 'foo' cannot be used here"),
        (["--ratio", "1/8", "-o", "/proc/x.safetensors"], "/proc/x.safetensors: cannot write to /proc"),
        (["--ratio", "1/8", "--tensor", "x"], "--tensor is for .safetensors files"),
        (["--ratio", "1/8", "--method", "flok"], "unknown method 'flok'"),
        (["--ratio", "1/8", "-o", "x.npy"], "the output is a .safetensors file; name it x.safetensors"),
    ],
)
def test_bad_arguments_print_one_line_and_write_nothing(
    film: Path, tmp_path: Path, monkeypatch, capsys, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "compress", film, *arguments) == 2
    error = capsys.readouterr().err
    assert message in error.replace("\n", " ")
    assert len(error.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_creates_the_folder_of_the_output(film: Path, tmp_path: Path, monkeypatch) -> None:
    out = tmp_path / "no" / "such" / "folder.safetensors"
    assert run(monkeypatch, "compress", film, "--ratio", "1/8", "--encoder", "pixels", "-o", out) == 0
    assert out.exists()


def test_rejects_video_options_for_token_files(tmp_path: Path, tokens: np.ndarray, monkeypatch, capsys) -> None:
    np.save(tmp_path / "t.npy", tokens)
    assert run(monkeypatch, "compress", tmp_path / "t.npy", "--ratio", "1/8", "--fps", "1") == 2
    assert "--fps is for videos; this file holds tokens" in capsys.readouterr().err


def test_truncated_file_is_read_as_far_as_possible_with_a_warning(
    film: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    import av

    whole, half = tmp_path / "whole.mkv", tmp_path / "half.mkv"
    from benchmarks.videos import repeat_video

    repeat_video(film, whole, 16)
    with av.open(str(whole)) as container:
        assert container.streams.video
    half.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    out = tmp_path / "k.safetensors"
    assert run(monkeypatch, "compress", half, "--ratio", "1/8", "--encoder", "pixels", "-o", out, "--json") == 0
    printed = capsys.readouterr()
    assert 3 <= json.loads(printed.out)["video"]["frames"] <= 13
    assert "half.mkv" in printed.err
    assert "cut off" in printed.err


def test_methods_without_a_backend_show_none(npy: Path, monkeypatch, capsys) -> None:
    assert run(monkeypatch, "compress", npy, "--ratio", "1/8", "--method", "random") == 0
    assert ", backend" not in capsys.readouterr().err
    assert run(monkeypatch, "compress", npy, "--ratio", "1/8", "--backend", "torch") == 0
    assert "floc, backend torch" in capsys.readouterr().err


def test_one_frame_is_singular(tmp_path: Path, tokens: np.ndarray, monkeypatch, capsys) -> None:
    np.save(tmp_path / "one.npy", tokens[:1])
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "compress", "one.npy", "--budget", 2) == 0
    assert "1 frame of" in capsys.readouterr().err


def test_an_option_is_given_once(npy: Path, monkeypatch, capsys) -> None:
    arguments = ["--ratio", "1/8", "--method", "floc:horizon=2", "--horizon", "3"]
    assert run(monkeypatch, "compress", npy, *arguments) == 2
    assert (
        capsys.readouterr().err == "floc: --horizon was given twice: on its own and in --method; remove one of them\n"
    )


@pytest.mark.parametrize("name", ["tokens.npz", "tokens.pt"])
def test_other_files_of_tokens_are_not_taken_for_videos(name: str, tmp_path: Path, monkeypatch, capsys) -> None:
    (tmp_path / name).write_bytes(b"PK")
    assert run(monkeypatch, "compress", tmp_path / name, "--ratio", "1/8") == 2
    assert "tokens are read from .npy and .safetensors files" in capsys.readouterr().err


@pytest.mark.parametrize(("address", "command"), [("rtsp://camera/main", "stream"), ("s3://bucket/a.mp4", "ingest")])
def test_an_address_names_the_command_that_reads_it(address: str, command: str, monkeypatch, capsys) -> None:
    assert run(monkeypatch, "compress", address, "--ratio", "1/8") == 2
    assert f"no such file; floc {command} reads addresses" in capsys.readouterr().err


def test_a_budget_below_the_floor_says_how_to_write_the_option(npy: Path, monkeypatch, capsys) -> None:
    assert run(monkeypatch, "compress", npy, "--budget", 1, "--method", "evs") == 2
    assert "--method evs:nearest=true" in capsys.readouterr().err
    assert run(monkeypatch, "compress", npy, "--budget", 1, "--method", "evs:nearest=true") == 0
