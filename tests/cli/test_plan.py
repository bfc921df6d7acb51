"""`floc plan`."""

# no `from __future__ import annotations`: see tests/integrations/transformers/tiny_configs.py
import json
import re
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'floc-video[hf]'")

from tests.cli.helpers import invoke, run
from tests.integrations.transformers import checkpoints


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model without weights."""
    folder = checkpoints.save("qwen2_5_vl", tmp_path_factory.mktemp("model"))
    (folder / "model.safetensors").unlink()
    return folder


def test_plan_prints_counts_memory_and_time(film: Path, model: Path) -> None:
    done = invoke("plan", film, "--model", model, "--device", "cpu")
    assert done.exit_code == 0, done.stderr
    rows = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in done.stdout.splitlines())
    assert rows["video"] == "0:16, 256 x 144, 64 frames"
    assert rows["frames"] == "32, 2 per second"
    assert rows["tokens a frame"] == "16, 32 for each 2 frames"
    assert rows["tokens"] == "512"
    assert rows["kept"] == "64, 1/8"
    assert rows["prompt"].endswith("of 8,192 tokens, before the question")
    assert rows["memory of attach"].startswith("about ")
    assert "on cpu, of" in rows["memory of capture"]
    for stage in ("decode", "preprocess", "vision", "select", "prefill"):
        assert re.search(rf"{stage} [\d.]+ s", rows["time"])


def test_plan_as_json(film: Path, model: Path) -> None:
    arguments = ("--fps", 4, "--max-frames", 40, "--frame-tokens", 12, "--budget", 9, "--json", "--device", "cpu")
    done = invoke("plan", film, "--model", model, *arguments)
    assert done.exit_code == 0, done.stderr
    plan = json.loads(done.stdout)
    assert (plan["frames"], plan["tokens"], plan["kept"]) == (40, 20 * 12, 9)
    assert plan["seconds"].keys() == {"decode", "preprocess", "vision", "select", "prefill"}
    assert plan["warnings"] == []


def test_plan_more_frames(film: Path, model: Path) -> None:
    usual, more = (
        json.loads(invoke("plan", film, "--model", model, "--json", "--device", "cpu", *flags).stdout)
        for flags in ((), ("--more-frames",))
    )
    assert (usual["frames"], more["frames"]) == (32, 64)
    assert more["kept"] == usual["tokens"]
    assert more["tokens_per_frame"] == usual["tokens_per_frame"]


def test_plan_warns(film: Path, tmp_path: Path) -> None:
    folder = checkpoints.save("qwen2_5_vl", tmp_path, max_position_embeddings=600)
    done = invoke("plan", film, "--model", folder, "--ratio", 1, "--device", "cpu")
    assert done.exit_code == 0
    assert "but the model's context is 600" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("none.mp4",), "none.mp4: no such file"),
        (("FILM", "--model", "none/none/none"), "not a folder or hub id with a config"),
        (("FILM", "--ratio", "1/8", "--budget", 3), "--ratio or --budget, only one of them"),
        (("FILM", "--more-frames", "--fps", 3), "chooses the frames and the budget, but --fps"),
        (("FILM", "--frame-tokens", 0), "--frame-tokens must be a whole number of tokens, at least 1; got 0"),
        (("FILM", "--fps", "often"), "--fps must be a number of frames per second, or 'all'"),
        (("FILM", "--device", "toaster"), "device 'toaster' cannot be used here"),
    ],
)
def test_rejects_invalid_arguments(
    film: Path, model: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], arguments, message: str
) -> None:
    given = [film if argument == "FILM" else argument for argument in arguments]
    assert run(monkeypatch, "plan", *given, *([] if "--model" in given else ["--model", model])) == 2
    assert message in capfd.readouterr().err


def test_help_has_an_example() -> None:
    assert "floc plan talk.mp4 --model" in invoke("plan", "--help").stdout
