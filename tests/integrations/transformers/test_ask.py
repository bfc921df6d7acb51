"""`floc ask`, with tiny models that are saved like any other, on a film made here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import floc
from floc.cli import app
from floc.integrations.transformers import ask as asking
from tests.integrations.transformers.test_prompts import KINDS as SPECIAL
from tests.integrations.transformers.test_prompts import _tokenizer
from tests.integrations.transformers.zoo import FAMILIES, transformers

av = pytest.importorskip("av", reason="av is not installed: pip install 'floc-video[video]'")
KINDS = tuple(SPECIAL)
QUESTION = "What is on the table?"


def save(kind: str, folder: Path, **text: Any) -> Path:
    """A model, its tokenizer and its preprocessor file; `text` changes the config of its language model."""
    tokenizer = _tokenizer(kind)
    special = SPECIAL[kind][2]
    config = FAMILIES[kind][0](kind)
    config.get_text_config().update(text)
    config.get_text_config().vocab_size = len(tokenizer) + 7
    named = {
        "image_token_id": special.get("context_image_token") or special["image_token"],
        "video_token_id": special["video_token"],
        "video_start_token_id": "<|begin_of_video|>",
        "video_end_token_id": "<|end_of_video|>",
    }
    for name, token in named.items():
        if hasattr(config, name):
            setattr(config, name, tokenizer.convert_tokens_to_ids(token))
    torch.manual_seed(0)
    model = transformers.AutoModelForImageTextToText.from_config(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.copy_(torch.randn(weight.shape) * 0.25)
    model.generation_config.update(eos_token_id=None, bos_token_id=None, pad_token_id=0)
    model.generation_config.suppress_tokens = list(range(256, len(tokenizer) + 7))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    values = dict(image_mean=[0.5] * 3, image_std=[0.2] * 3, min_pixels=16 * 24, max_pixels=16 * 24)
    side = 20 if kind == "llava_onevision" else 24
    (folder / "preprocessor_config.json").write_text(json.dumps(dict(values, size=dict(height=side, width=side))))
    return folder


@pytest.fixture(scope="module")
def film(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("film") / "clip.mp4"
    rng = np.random.default_rng(0)
    with av.open(path, "w") as out:
        stream = out.add_stream("mpeg4", rate=4)
        stream.width, stream.height = 96, 64
        for i in range(80):
            picture = rng.integers(0, 256, (64, 96, 3), dtype=np.uint8) // 4 + i
            out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        out.mux(stream.encode())
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Any:
    class Lazy(dict):  # type: ignore[type-arg]
        def __missing__(self, kind: str) -> Path:
            self[kind] = save(kind, tmp_path_factory.mktemp(kind))
            return self[kind]

    return Lazy()


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["ask", *map(str, arguments)])


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_is_that_of_the_model_with_a_fraction_of_the_tokens(kind: str, film: Path, models) -> None:
    folder = models[kind]
    done = run(film, QUESTION, "--model", folder, "--max-new-tokens", 6, "--json", "--fps", 2)
    assert done.exit_code == 0, done.stderr
    (told,) = json.loads(done.stdout)
    assert told["kept"] == max(1, round(told["tokens"] / 8))
    assert told["prompt_tokens"] - told["read_tokens"] == told["tokens"] - told["kept"]
    assert told["answer_tokens"] == 6
    assert {"decode", "vision", "select", "prefill", "answer"} == told["seconds"].keys()
    assert told["peak_bytes"] > 1e8

    # by hand: capture, write the prompt, replay
    session = asking.Session(str(folder), "cpu")
    video = floc.capture(session.model, film, ratio=1 / 8, fps=2, source=str(folder))
    with floc.replay(session.model, video):
        inputs = video.inputs(session.model, session.tokenizer, QUESTION)
        ids = session.model.generate(**inputs, max_new_tokens=6, do_sample=False)
    answer = session.tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert told["answer"] == answer
    assert QUESTION in session.tokenizer.decode(inputs["input_ids"][0])


def test_streams_saves_and_asks_the_file_again(film: Path, models, tmp_path: Path) -> None:
    folder = models["qwen2_5_vl"]
    saved = tmp_path / "clip.floc"
    done = run(film, QUESTION, "And then?", "--model", folder, "--max-new-tokens", 4, "-o", saved, "--ratio", "1/4")
    assert done.exit_code == 0, done.stderr
    first, second = (each for each in done.stdout.split("\n") if each)
    assert str(saved) in done.stderr.replace("\n", "")
    again = run(saved, "And then?", "--model", folder, "--max-new-tokens", 4, "--json")
    (told,) = json.loads(again.stdout)
    assert told["answer"] == second != first
    smaller = run(saved, QUESTION, "--model", folder, "--max-new-tokens", 1, "--json", "--ratio", "1/16")
    (less,) = json.loads(smaller.stdout)
    assert less["kept"] == round(less["tokens"] / 16)
    assert less["seconds"].keys() == {"prefill", "answer"}  # the rest was spent another day


def test_the_figures_are_whole_on_a_narrow_screen(film: Path, models, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = run(
        film, "One?", "Two, with quite a few more words?", "--model", models["qwen2_5_vl"], "--max-new-tokens", 2
    )
    assert "visual tokens" in done.stderr
    assert "peak memory, GB" in done.stderr
    assert done.stderr.count(" 8 ") >= 1, done.stderr


def test_a_method_on_its_own_parameters(film: Path, models) -> None:
    method = "sttm:spatial_threshold=0.85,temporal_threshold=0.75"
    done = run(film, "?", "--model", models["qwen2_5_vl"], "--max-new-tokens", 1, "--json", "--method", method)
    assert done.exit_code == 0, done.stderr


def test_compare_asks_with_all_tokens_too(film: Path, models) -> None:
    done = run(film, QUESTION, "--model", models["qwen3_vl"], "--max-new-tokens", 3, "--compare", "--json")
    kept, whole = json.loads(done.stdout)
    assert (whole["kept"], whole["read_tokens"]) == (whole["tokens"], whole["prompt_tokens"])
    assert kept["tokens"] == whole["tokens"] > 7 * kept["kept"]
    # the bare model on the same pixels says the same as all tokens replayed
    session = asking.Session(str(models["qwen3_vl"]), "cpu")
    video = floc.capture(session.model, film, ratio=1, source=session.source)
    inputs = video.inputs(session.model, session.tokenizer, QUESTION)
    from floc.encoders.vision_tower import around
    from floc.video import read

    tower = around(session.model, session.source)
    pixels = np.concatenate([each.pixels for each in read(film, fps=1, size=tower.frame_size)])
    images = ((torch.from_numpy(pixels).float() - tower.mean) / tower.std).permute(0, 3, 1, 2)
    layout: Any = tower.layout
    t, h, w = video.shape
    patches = images.view(t, 2, 3, h, layout.merge, layout.patch, w, layout.merge, layout.patch)
    patches = patches.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(t * h * w * layout.merge**2, -1)
    ids = session.model.generate(**inputs, pixel_values_videos=patches, max_new_tokens=3, do_sample=False)
    said = session.tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert whole["answer"] == said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{film}", "?", "--model", "{empty}"], "neither a folder with a tokenizer"),
        (["{film}", "?", "--model", "{model}", "--ratio", "3"], "ratio must be in"),
        (["{film}", "?", "--model", "{model}", "--method", "nope"], "unknown method"),
        (["{film}", "?", "--model", "{model}", "-o", "a.txt"], ".floc file"),
        (["no.mp4", "?", "--model", "{model}"], "no.mp4"),
        (["no.floc", "?", "--model", "{model}"], "no such file"),
        (["no.floc", "?", "--model", "{model}", "--compare"], "needs the video itself"),
        (["no.floc", "?", "--model", "{model}", "--fps", "2"], "captured already"),
        (["{film}", "?", "--model", "{model}", "--device", "cuda:9"], "cannot be put on"),
        (["{film}", "?", "--model", "{llama}"], "does not know video models of type 'llama'"),
        (["{film}", "?", "--model", "{weightless}"], "its weights cannot be loaded"),
        (["{film}", "?", "--model", "{blind}"], "none of the files that say how to prepare frames"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    arguments: list[str], message: str, film: Path, models, tmp_path: Path
) -> None:
    folder = models["qwen2_5_vl"]
    places = {"film": film, "model": folder, "empty": tmp_path}
    for name, left_out in {"weightless": "model.safetensors", "blind": "preprocessor_config.json"}.items():
        places[name] = tmp_path / name
        places[name].mkdir()
        for file in folder.iterdir():
            if file.name != left_out:
                (places[name] / file.name).symlink_to(file)
    places["llama"] = tmp_path / "llama"
    places["llama"].mkdir()
    for file in folder.iterdir():
        if "token" in file.name or file.suffix == ".jinja":
            (places["llama"] / file.name).symlink_to(file)
    (places["llama"] / "config.json").write_text(json.dumps({"model_type": "llama"}))
    done = run(*[each.format(**places) for each in arguments])
    assert done.exit_code != 0
    assert message in f"{done.exception} {done.stderr}"
