"""`--reuse` and `--encode` of `floc ask`, `floc ingest` and `floc stream`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torchvision", reason="processors need torchvision: pip install 'floc-video[hf]'")
pytest.importorskip("av", reason="PyAV is not installed: pip install 'floc-video[video]'")

import av

import floc
from floc import files
from tests.cli.helpers import run
from tests.integrations.transformers.checkpoints import save


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("qwen2_5_vl", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 16 seconds without losses, whose picture changes once."""
    path = tmp_path_factory.mktemp("films") / "still.mkv"
    rng = np.random.default_rng(0)
    with av.open(path, "w") as output:
        stream = output.add_stream("ffv1", rate=2)
        stream.width, stream.height, stream.pix_fmt = 64, 40, "bgr0"
        for _ in range(2):
            picture = rng.integers(0, 256, (40, 64, 3), np.uint8)
            for _ in range(16):
                output.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
        output.mux(stream.encode())
    return path


def test_ask_with_reuse_gives_the_same_answer_and_records_the_option(
    still: Path, model: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    command = ("ask", still, "What?", "--model", model, "--max-new-tokens", 4, "--device", "cpu", "--json")
    assert run(monkeypatch, *command, "--ratio", 1) == 0
    (expected,) = json.loads(capsys.readouterr().out)
    assert run(monkeypatch, *command, "--ratio", 1, "--reuse", 0, "-o", tmp_path / "a.floc") == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert (answer["answer"], answer["tokens"]) == (expected["answer"], expected["tokens"])
    assert "compare" in answer["seconds"]
    assert floc.load(tmp_path / "a.floc").made["reuse"] == 0.0
    assert run(monkeypatch, *command, "--reuse", 8, "--compare") == 0
    kept, everything = json.loads(capsys.readouterr().out)
    assert everything["answer"] == expected["answer"]
    assert "compare" in kept["seconds"]
    assert "compare" not in everything["seconds"]  # all tokens means every slice


def test_stream_writes_equal_tokens_and_does_not_mix_settings(
    still: Path, model: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    command = ("stream", still, "--encoder", f"hf:{model}", "--fps", 2, "--ratio", "1/4", "--device", "cpu")
    assert run(monkeypatch, *command, "-o", tmp_path / "plain") == 0
    state = ("--state", tmp_path / "state")
    assert run(monkeypatch, *command, "-o", tmp_path / "reused", "--reuse", 0, *state, "--seconds", 9) == 0
    capsys.readouterr()
    for other, problem in ((), "no --reuse"), (("--reuse", 8), "--reuse 8.0"):
        assert run(monkeypatch, *command, "-o", tmp_path / "reused", *state, *other) == 2
        assert f"saved with --reuse 0.0, and cannot resume with {problem}" in capsys.readouterr().err
    assert run(monkeypatch, *command, "-o", tmp_path / "reused", "--reuse", 0, *state) == 0
    plain, reused = (files.read_kept(tmp_path / name / "latest.safetensors") for name in ("plain", "reused"))
    np.testing.assert_array_equal(reused.indices, plain.indices)
    np.testing.assert_allclose(np.asarray(reused.features), np.asarray(plain.features), atol=2e-3)


def test_ask_encodes_a_share_and_records_it(still: Path, model: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    command = ("ask", still, "What?", "--model", model, "--max-new-tokens", 4, "--device", "cpu", "--json")
    assert run(monkeypatch, *command, "--ratio", 1) == 0
    (expected,) = json.loads(capsys.readouterr().out)
    assert run(monkeypatch, *command, "--ratio", 1, "--encode", "1/2", "-o", tmp_path / "a.floc", "--compare") == 0
    answer, everything = json.loads(capsys.readouterr().out)
    assert (answer["answer"], answer["tokens"]) == (expected["answer"], expected["tokens"])
    assert "compare" in answer["seconds"]
    assert "compare" not in everything["seconds"]  # all tokens means every slice
    assert floc.load(tmp_path / "a.floc").made["encode"] == "1/2"


def test_stream_encodes_a_share_of_every_group(still: Path, model: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    """Also of a group that the end of a run cuts short. Two slices of the film are all that there are."""
    command = ("stream", still, "--encoder", f"hf:{model}", "--fps", 2, "--ratio", "1/4", "--device", "cpu")
    assert run(monkeypatch, *command, "-o", tmp_path / "plain") == 0
    state = ("--state", tmp_path / "state")
    assert run(monkeypatch, *command, "-o", tmp_path / "some", "--encode", "1/2", *state, "--seconds", 10.6) == 0
    first = files.read_kept(tmp_path / "some" / "latest.safetensors")
    assert first.shape[0] == 11  # whole slices of 22 frames
    capsys.readouterr()
    for other, problem in ((), "no --encode"), (("--encode", "1/4"), "--encode 1/4"):
        assert run(monkeypatch, *command, "-o", tmp_path / "some", *state, *other) == 2
        assert f"saved with --encode 1/2, and cannot resume with {problem}" in capsys.readouterr().err
    assert run(monkeypatch, *command, "-o", tmp_path / "some", "--encode", 0.5, *state) == 0
    plain, some = (files.read_kept(tmp_path / name / "latest.safetensors") for name in ("plain", "some"))
    assert some.shape == plain.shape
    np.testing.assert_array_equal(some.indices, plain.indices)
    np.testing.assert_allclose(np.asarray(some.features), np.asarray(plain.features), atol=2e-3)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("ask", "FILM", "What?", "--model", "none", "--encode", "0"), "--encode must be in (0, 1], encoded / all"),
        (("ask", "FILM", "What?", "--model", "none", "--encode", "nan"), "--encode must be a number such as 0.125"),
        (("ask", "FILM", "What?", "--model", "none", "--encode", "2"), "--encode must be in (0, 1], encoded / all"),
        (("ask", "FILM", "What?", "--model", "none", "--encode", ".5", "--reuse", "8"), "leave out one of them"),
        (("ask", "a.floc", "What?", "--model", "none", "--encode", "1/2"), "--encode is for videos; this one is"),
        (("stream", "FILM", "--ratio", "1/8", "--encoder", "pixels", "--encode", "1/2"), "not 'pixels'; leave it out"),
        (("stream", "FILM", "--ratio", "1/8", "--encoder", "hf:none", "--encode", "-1"), "--encode must be"),
        (("ingest", "FILM", "--store", "STORE", "--encoder", "pixels", "--encode", "1/2"), "not 'pixels'; leave it"),
        (("ingest", "FILM", "--store", "STORE", "--encoder", "hf:none", "--encode", "x"), "--encode must be a number"),
        (("ask", "FILM", "What?", "--model", "none", "--reuse", "-1"), "--reuse must be a number of levels of a pixel"),
        (("ask", "FILM", "What?", "--model", "none", "--reuse", "nan"), "0 to 255; got"),
        (("ask", "a.floc", "What?", "--model", "none", "--reuse", "0"), "--reuse is for videos; this one is already"),
        (("stream", "FILM", "--ratio", "1/8", "--encoder", "pixels", "--reuse", "8"), "not 'pixels'; leave it out"),
        (("stream", "FILM", "--ratio", "1/8", "--encoder", "hf:none", "--reuse", "300"), "0 to 255"),
        (("ingest", "FILM", "--store", "STORE", "--encoder", "pixels", "--reuse", "8"), "not 'pixels'; leave it out"),
    ],
)
def test_bad_values_are_one_line(still: Path, command, message: str, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"FILM": still, "STORE": tmp_path / "store"}
    assert run(monkeypatch, *(names.get(word, word) for word in command)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not list(tmp_path.iterdir())
