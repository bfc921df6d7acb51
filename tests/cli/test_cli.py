"""The command, run as a stranger would."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import floc
from floc import cli, files


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["floc", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return int(stopped.value.code or 0)


@pytest.fixture
def npy(tmp_path: Path, tokens: np.ndarray) -> Path:
    np.save(tmp_path / "tokens.npy", tokens)
    return tmp_path / "tokens.npy"


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
    options = ["--block", "none", "--detail", "1", "--metric", "gaussian", "--backend", "torch"]
    assert run(monkeypatch, "compress", npy, "--coverage", "0.9", *options, "--json") == 0
    settings = json.loads(capsys.readouterr().out)["settings"]
    assert settings == dict(block=None, dedupe=2, detail=1, metric="gaussian", backend="torch")


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
        (["broken.safetensors", "--ratio", "1/8"], "broken.safetensors: not a readable safetensors file"),
        (["empty.npy", "--ratio", "1/8"], "empty.npy: not a readable .npy file"),
        (["two.safetensors", "--ratio", "1/8"], "no tensor called 'tokens'; choose one of: a, b"),
        (["two.safetensors", "--tensor", "c", "--ratio", "1/8"], "no tensor called 'c'; choose one of: a, b"),
        (["tokens.npy", "--tensor", "c", "--ratio", "1/8"], "a .npy file has one array"),
        (["pickled.npy", "--ratio", "1/8"], "pickled.npy: not a readable .npy file"),
        (["tokens.npy"], "give --ratio, --budget or --coverage"),
        (["tokens.npy", "--ratio", "2"], "ratio must be in (0, 1]"),
        (["tokens.npy", "--ratio", "1/8", "--budget", "3"], "only one of them; got --ratio 1/8 and --budget 3"),
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


def test_lists(monkeypatch, capsys) -> None:
    assert run(monkeypatch, "methods", "sttm") == 0
    manual = capsys.readouterr().out
    assert "Hyun et al." in manual
    assert "temporal_threshold=0.55" in manual
    assert run(monkeypatch, "methods", "--markdown") == 0
    assert capsys.readouterr().out == floc.methods.format_markdown()
    assert run(monkeypatch, "methods") == 0
    assert "floc-paper" in capsys.readouterr().out
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out.strip() == floc.__version__


def list_commands() -> list[tuple[str, ...]]:
    """List every command, and the commands of groups."""
    from typer.main import get_command

    root: Any = get_command(cli.app)
    groups = {name: getattr(command, "commands", None) for name, command in root.commands.items()}
    return [
        path for name, group in groups.items() for path in ([(name, child) for child in group] if group else [(name,)])
    ]


@pytest.mark.parametrize("command", list_commands(), ids=" ".join)
def test_every_help_has_an_example_and_no_bool(command: tuple[str, ...], monkeypatch, capsys) -> None:
    assert run(monkeypatch, *command, "--help") == 0
    text = capsys.readouterr().out
    assert re.search(f"Examples?: floc {' '.join(command)}", text)
    assert "<bool>" not in text
    assert "--quiet" in text
    assert "--verbose" in text


def test_help_does_not_import_torch() -> None:
    code = "import sys; sys.argv = ['floc', '--help']\nfrom floc.cli import main\n"
    code += "try:\n    main()\nexcept SystemExit:\n    pass\n"
    code += "print(sorted(name for name in ('torch', 'numpy', 'numba') if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_completion_lists_methods() -> None:
    environment = {
        **os.environ,
        "_FLOC_COMPLETE": "complete_bash",
        "COMP_WORDS": "floc compress --method flo",
        "COMP_CWORD": "3",
    }
    code = "import sys; sys.argv = ['floc']\nfrom floc.cli import main\nmain()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["floc", "floc-paper"]


def test_quiet_prints_results_only(npy: Path, monkeypatch, capsys) -> None:
    assert run(monkeypatch, "compress", npy, "--ratio", "1/8", "--json", "-q") == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert json.loads(printed.out)["stage_seconds"].keys() == {"read", "select"}
    assert run(monkeypatch, "compress", npy, "--ratio", "1/8", "-q", "-v") == 2


def test_verbose_prints_tracebacks(npy: Path, monkeypatch, capsys) -> None:
    assert run(monkeypatch, "compress", npy, "--ratio", "2", "-v") == 2
    assert "Traceback" in capsys.readouterr().err


def test_summary_has_the_time_of_each_stage(npy: Path, monkeypatch, capsys) -> None:
    out = npy.with_name("new") / "folder" / "kept.safetensors"
    assert run(monkeypatch, "compress", npy, "--ratio", "1/8", "-o", out) == 0
    assert re.search(r"read \d+\.\d\d s, select .* s, write .* s; .* s in all", capsys.readouterr().err)
    assert out.exists()


def test_progress_is_printed_as_lines_without_a_terminal(monkeypatch, capsys) -> None:
    from floc.cli import output

    monkeypatch.setattr(output, "LINE_EVERY_S", 0.0)
    with output.show_progress("reading talk.mp4") as update:
        update(0.25)
        update(0.5, "encoding talk.mp4")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("reading talk.mp4: 25%, about")
    assert lines[1].startswith("encoding talk.mp4: 50%")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("pass block=32, or fewer frames", "pass --block 32, or fewer frames"),
        ("pass backend='auto'", "pass --backend auto"),
        ("give ratio= or budget=", "give --ratio or --budget"),
        ("got n=3 and max_frames=7", "got n=3 and --max-frames 7"),
    ],
)
def test_errors_name_options(message: str, expected: str, monkeypatch) -> None:
    from floc.cli import application

    monkeypatch.setattr(application, "_option_names", {"block", "backend", "ratio", "budget", "max_frames"})
    assert application._name_options(message) == expected
