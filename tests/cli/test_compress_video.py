"""`floc compress` on video files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

pytest.importorskip("av", reason="video needs PyAV: pip install 'floc-video[video]'")
pytest.importorskip("PIL", reason="pictures need Pillow: pip install 'floc-video[report]'")

import floc
from examples.demo.film import render
from floc import cli, encoders
from floc.encoders.load import load_tokens


@pytest.fixture(scope="module")
def make_tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return render(tmp_path_factory.mktemp("film") / "my film.mp4", seconds=16, fps=4, width=256, height=144).path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["floc", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return int(stopped.value.code or 0)


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
