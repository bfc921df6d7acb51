"""From a video file to kept tokens, a report and plots, by the command."""

from __future__ import annotations

import json
import os
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

DATA = Path(os.environ.get("FLOC_DATA", Path(__file__).parents[3] / "shared" / "data")) / "videos"


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return render(tmp_path_factory.mktemp("film") / "my film.mp4", seconds=16, fps=4, width=256, height=144).path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["floc", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return int(stopped.value.code or 0)


def test_compress_writes_tokens_times_and_how_they_were_made(film: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    out = tmp_path / "kept.safetensors"
    command = ("compress", film, "--ratio", "1/8", "--fps", 2, "--encoder", "pixels", "-o", out, "--json")
    assert run(monkeypatch, *command) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["encoder"] == "pixels"
    assert said["video"]["frames"] == 32
    expected = load_tokens(film, fps=2, encoder="pixels")
    kept = floc.compress(expected.footage.tokens, ratio="1/8")
    with safe_open(out, framework="np") as file:
        np.testing.assert_array_equal(file.get_tensor("features"), kept.features)
        np.testing.assert_array_equal(file.get_tensor("order"), kept.order)
        np.testing.assert_array_equal(file.get_tensor("frame_times_s"), np.arange(32) / 2)
        np.testing.assert_array_equal(file.get_tensor("times_s"), kept.positions[:, 0] / 2)
        about = json.loads(file.metadata()["floc"])
    assert about["encoder"] == "pixels"
    assert about["video"]["name"] == "my film.mp4"
    assert about["video"]["fps"] == 2
    assert about["method"] == "floc"


def test_without_a_name_the_file_goes_here_but_never_over_another(
    film: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ("compress", film, "--budget", 50, "--max-frames", 4, "--encoder", "pixels")
    assert run(monkeypatch, *command) == 0
    written = tmp_path / "my film.kept.safetensors"
    before = written.read_bytes()
    assert run(monkeypatch, *command) == 2
    assert "is there already; name the file to write with -o" in capsys.readouterr().err
    assert written.read_bytes() == before


def test_auto_says_which_encoder_it_took(film: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    command = ("compress", film, "--budget", 50, "--max-frames", 3, "-o", tmp_path / "k.safetensors")
    assert run(monkeypatch, *command) == 0
    assert f"encoder: {encoders.get('auto').name}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ratio", "2"], "ratio must be in (0, 1]"),
        (["--ratio", "1/8", "--fps", "fast"], "--fps must be a number of frames a second, or 'all'; got 'fast'"),
        (["--ratio", "1/8", "--fps", "0"], "fps"),
        (["--ratio", "1/8", "--encoder", "pixel"], "unknown encoder 'pixel': did you mean 'pixels'"),
        (["--ratio", "1/8", "--fps", "1e400"], "--fps must be a number of frames a second"),
        (["--ratio", "1/8", "--encoder", "mobilenet", "--device", "foo"], "device 'foo' cannot be used here"),
        (["--ratio", "1/8", "-o", "/proc/x.safetensors"], "/proc/x.safetensors: nothing can be written to /proc"),
        (["--ratio", "1/8", "--tensor", "x"], "--tensor is for .safetensors files"),
        (["--ratio", "1/8", "--method", "flok"], "unknown method 'flok'"),
        (["--ratio", "1/8", "-o", "no/such/folder.safetensors"], "does not exist; create it first"),
        (["--ratio", "1/8", "-o", "x.npy"], "the output is a .safetensors file; name it x.safetensors"),
    ],
)
def test_bad_arguments_are_one_line_and_write_nothing(
    film: Path, tmp_path: Path, monkeypatch, capsys, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "compress", film, *arguments) == 2
    said = capsys.readouterr().err
    assert message in said.replace("\n", " ")
    assert len(said.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_video_options_are_refused_for_tokens(tmp_path: Path, tokens: np.ndarray, monkeypatch, capsys) -> None:
    np.save(tmp_path / "t.npy", tokens)
    assert run(monkeypatch, "compress", tmp_path / "t.npy", "--ratio", "1/8", "--fps", "1") == 2
    assert "--fps is for videos; the tokens in this file are made already" in capsys.readouterr().err


def test_a_file_cut_in_half_gives_what_could_be_read_and_says_so(
    film: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    import av

    whole, half = tmp_path / "whole.mkv", tmp_path / "half.mkv"
    from benchmarks.videos import repeat_video as loop

    loop(film, whole, 16)
    with av.open(str(whole)) as container:
        assert container.streams.video
    half.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    out = tmp_path / "k.safetensors"
    assert run(monkeypatch, "compress", half, "--ratio", "1/8", "--encoder", "pixels", "-o", out, "--json") == 0
    said = capsys.readouterr()
    assert 3 <= json.loads(said.out)["video"]["frames"] <= 13
    assert "half.mkv" in said.err
    assert "cut off" in said.err


def test_compare_writes_a_report_and_plots(film: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    page, plots = tmp_path / "report.html", tmp_path / "plots"
    command = (
        "compare",
        film,
        "--fps",
        2,
        "--encoder",
        "pixels",
        "--methods",
        "floc,random,frame_uniform",
        "--ratios",
        "1/8,1/32",
    )
    assert run(monkeypatch, *command, "-o", page, "--plots", plots, "--json") == 0
    said = capsys.readouterr()
    rows = json.loads(said.out)
    assert [(row["method"], row["ratio"]) for row in rows] == [
        (method, ratio) for method in ("floc", "random", "frame_uniform") for ratio in ("1/8", "1/32")
    ]
    tokens = load_tokens(film, fps=2, encoder="pixels").footage.tokens
    assert rows[0]["tokens"] == len(floc.compress(tokens, ratio="1/8"))
    assert sorted(path.name for path in plots.iterdir()) == ["frames.png", "scatter.png", "timeline.png", "tsne.png"]
    text = page.read_text()
    assert "my film.mp4" in text
    assert "http://" not in text.replace("http://www.w3.org/", "")
    assert "https://" not in text
    assert page.stat().st_size < 15e6


def test_a_report_without_its_packages_fails_before_the_film_is_read(film: Path, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("floc.report.find_spec", lambda name: None)
    assert run(monkeypatch, "compare", film) == 2
    assert "a report needs scikit-learn: pip install 'floc-video[report]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_names_that_are_no_text(film: Path, tmp_path: Path, monkeypatch) -> None:
    odd = tmp_path / os.fsdecode(b"caf\xe9 <b>.mp4")
    odd.write_bytes(film.read_bytes())
    page = tmp_path / "r.html"
    command = ("compare", odd, "--encoder", "pixels", "--max-frames", 4, "--methods", "random", "-o", page)
    assert run(monkeypatch, *command) == 0
    assert "<b>" not in page.read_text().replace("<body>", "")


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no footage at {DATA}")
@pytest.mark.parametrize("name", ["vtest.avi", "bikes.mp4"])
def test_real_footage(name: str) -> None:
    film = load_tokens(DATA / name, encoder="pixels", with_strip=True)
    t = film.footage.tokens.shape[0]
    assert t == film.video.frames == len(film.strip)
    assert abs(t - film.video.duration_s) <= 1
    kept = floc.compress(film.footage.tokens, ratio="1/8")
    random = floc.compress(film.footage.tokens, ratio="1/8", method="random")
    assert kept.coverage > random.coverage
    assert dict(film.facts())["encoder"] == "pixels"
