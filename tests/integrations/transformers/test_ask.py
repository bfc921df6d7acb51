"""`floc ask` with tiny checkpoints on a short video."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import floc
from floc.cli.application import load_app
from floc.cli.output import escape_controls
from floc.integrations.transformers import embed_text
from tests.integrations.transformers.checkpoints import create, save
from tests.integrations.transformers.processors import PARTS
from tests.integrations.transformers.test_capture import list_kinds

av = pytest.importorskip("av", reason="av is not installed: pip install 'floc-video[video]'")
QUESTION = "What is on the table?"


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("clip") / "clip.mp4"
    rng = np.random.default_rng(0)
    with av.open(path, "w") as out:
        stream = out.add_stream("mpeg4", rate=12)
        stream.width, stream.height = 96, 64
        for i in range(48):
            image = rng.integers(0, 256, (64, 96, 3), dtype=np.uint8) // 4 + i
            out.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        out.mux(stream.encode())
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Any:
    class LazyFolders(dict):  # type: ignore[type-arg]
        def __missing__(self, kind: str) -> Path:
            self[kind] = save(kind, tmp_path_factory.mktemp(kind))
            return self[kind]

    return LazyFolders()


def run(*arguments: object) -> Any:
    return CliRunner().invoke(load_app(), ["ask", *map(str, arguments)])


# of every kind of processor and language model; for the table of models, slow tests ask all types
ASKED = {
    *(
        "cohere_compass",
        "ernie4_5_vl_moe",
        "gemma4",
        "glm4v",
        "glm5_next",
        "internvl",
        "llava_onevision",
        "minicpmv4_6",
    ),
    *("molmo2", "muse_spark", "qwen2_5_omni", "qwen2_5_vl", "qwen3_5", "qwen3_vl", "smolvlm", "video_llama_3"),
}


def list_asked() -> list[Any]:
    left = PARTS.keys() - ASKED
    return [pytest.param(k, marks=pytest.mark.slow) if isinstance(k, str) and k in left else k for k in list_kinds()]


@pytest.mark.parametrize("kind", list_asked())
def test_answer_equals_capture_and_replay(kind: str, clip: Path, models) -> None:
    folder = models[kind]
    done = run(clip, QUESTION, "--model", folder, "--max-new-tokens", 6, "--json")
    assert done.exit_code == 0, done.stderr
    (reply,) = json.loads(done.stdout)
    assert reply["kept"] == int(reply["tokens"] / 8 + 0.5)
    assert reply["prompt_tokens"] - reply["read_tokens"] == reply["tokens"] - reply["kept"]
    assert reply["answer_tokens"] == 6
    assert {"decode", "preprocess", "vision", "select", "other", "prefill", "answer"} == reply["seconds"].keys()
    assert reply["peak_bytes"] > 1e8

    # by hand, with the model that was saved: capture, build the prompt, replay
    model, processor = create(kind)
    video = floc.capture(model, clip, ratio=1 / 8, processor=processor)
    with floc.replay(model, video):
        inputs = video.inputs(processor, QUESTION)
        ids = model.generate(**inputs, max_new_tokens=6, do_sample=False)
    answer = processor.tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert reply["answer"] == answer
    assert QUESTION in processor.tokenizer.decode(inputs["input_ids"][0])


def test_saves_a_file_and_asks_it_again(clip: Path, models, tmp_path: Path) -> None:
    folder = models["qwen2_5_vl"]
    saved = tmp_path / "clip.floc"
    done = run(clip, QUESTION, "And then?", "--model", folder, "--max-new-tokens", 4, "-o", saved, "--ratio", "1/4")
    assert done.exit_code == 0, done.stderr
    first, second = (line for line in done.stdout.split("\n") if line)
    assert str(saved) in done.stderr.replace("\n", "")
    again = run(saved, "And then?", "--model", folder, "--max-new-tokens", 4, "--json")
    (reply,) = json.loads(again.stdout)
    assert escape_controls(reply["answer"]) == second != first
    smaller = run(saved, QUESTION, "--model", folder, "--max-new-tokens", 1, "--json", "--ratio", "1/16")
    (smaller_reply,) = json.loads(smaller.stdout)
    assert smaller_reply["kept"] == round(smaller_reply["tokens"] / 16)
    assert smaller_reply["seconds"].keys() == {"prefill", "answer"}  # no time was spent on capturing


def test_each_question_chooses_among_captured_tokens(clip: Path, models, tmp_path: Path) -> None:
    folder, saved, questions = models["qwen2_5_vl"], tmp_path / "clip.floc", (QUESTION, "QUIZ 1234567890")
    given = ("--model", folder, "--max-new-tokens", 6, "--json", "--ratio", "1/16", "--query-weight", "50")
    done = run(clip, *questions, *given, "-o", saved)
    assert done.exit_code == 0, done.stderr
    direct = json.loads(done.stdout)

    # by hand: capture an eighth, select from it, replay
    model, processor = create("qwen2_5_vl")
    video = floc.capture(model, clip, ratio=1 / 8, processor=processor)
    assert len(floc.load(saved)) == len(video)
    kept = []
    for question, reply in zip(questions, direct, strict=True):
        query = embed_text(model, processor, question)
        smaller = video.at(ratio=1 / 16, query=query, query_weight=50)
        kept.append(smaller.indices.tolist())
        with floc.replay(model, smaller):
            inputs = smaller.inputs(processor, question)
            ids = model.generate(**inputs, max_new_tokens=6, do_sample=False)
        assert reply["kept"] == len(smaller) == round(video.n / 16)
        answer = processor.tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        assert reply["answer"] == answer
    assert kept[0] != kept[1]
    again = json.loads(run(saved, *questions, *given).stdout)
    assert [reply["answer"] for reply in again] == [reply["answer"] for reply in direct]


def test_table_fits_a_narrow_screen(clip: Path, models, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = run(
        clip, "One?", "Two, with quite a few more words?", "--model", models["qwen2_5_vl"], "--max-new-tokens", 2
    )
    assert "visual tokens" in done.stderr
    assert "peak memory" in done.stderr
    assert done.stderr.count(" 14 ") >= 1, done.stderr


def test_method_with_its_own_parameters(clip: Path, models) -> None:
    method = "sttm:spatial_threshold=0.85:temporal_threshold=0.75"
    done = run(clip, "?", "--model", models["qwen2_5_vl"], "--max-new-tokens", 1, "--json", "--method", method)
    assert done.exit_code == 0, done.stderr


def test_compare_also_asks_with_all_tokens(clip: Path, models) -> None:
    done = run(clip, QUESTION, "--model", models["qwen3_vl"], "--max-new-tokens", 3, "--compare", "--json")
    kept, whole = json.loads(done.stdout)
    assert (whole["kept"], whole["read_tokens"]) == (whole["tokens"], whole["prompt_tokens"])
    assert kept["tokens"] == whole["tokens"] > 7 * kept["kept"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{clip}", "?", "--model", "{empty}"], "not a folder or hub id with a config"),
        (["{clip}", "?", "--model", "{model}", "--ratio", "3"], "ratio must be in"),
        (["{clip}", "?", "--model", "{model}", "--method", "nope"], "unknown method"),
        (["{clip}", "?", "--model", "{model}", "-o", "a.txt"], ".floc file"),
        (["{clip}", "?", "--model", "{model}", "--query-weight", "1"], "give --ratio or --budget"),
        (["no.floc", "?", "--model", "{model}", "--query-weight", "-1"], "query_weight must be a number from 0"),
        (["no.floc", "?", "--model", "{model}", "--query-weight", "nan"], "query_weight must be a number from 0"),
        (["{clip}", "?", "--model", "{model}", "--query-weight", "1", "--ratio", "1/2"], "larger budget"),
        (["no.mp4", "?", "--model", "{model}"], "no.mp4"),
        (["no.floc", "?", "--model", "{model}"], "no such file"),
        (["no.floc", "?", "--model", "{model}", "--compare"], "--compare is for videos"),
        (["no.floc", "?", "--model", "{model}", "--fps", "2"], "already captured"),
        (["{clip}", "?", "--model", "{model}", "--device", "cuda:9"], "device 'cuda:9' cannot be used here"),
        (["{clip}", "?", "--model", "{llama}"], "does not support video models of type 'llama'"),
        (["{clip}", "?", "--model", "{weightless}"], "its weights cannot be loaded"),
        (["{clip}", "?", "--model", "{unprepared}"], "not a folder or hub id with a processor"),
        (["{clip}", "?", "--model", "{silent}"], "has no chat template"),
    ],
)
def test_errors_are_one_line(arguments: list[str], message: str, clip: Path, models, tmp_path: Path) -> None:
    folder = models["qwen2_5_vl"]
    places = {"clip": clip, "model": folder, "empty": tmp_path}
    missing_files = {"weightless": "model.safetensors", "unprepared": "processor_config.json"}
    for name, missing in {**missing_files, "silent": "chat_template.jinja"}.items():
        places[name] = tmp_path / name
        places[name].mkdir()
        for file in folder.iterdir():
            if file.name != missing:
                (places[name] / file.name).symlink_to(file)
    places["llama"] = tmp_path / "llama"
    places["llama"].mkdir()
    for file in folder.iterdir():
        if "token" in file.name or file.suffix == ".jinja":
            (places["llama"] / file.name).symlink_to(file)
    (places["llama"] / "config.json").write_text(json.dumps({"model_type": "llama"}))
    done = run(*[argument.format(**places) for argument in arguments])
    assert done.exit_code != 0
    assert message in f"{done.exception} {done.stderr}"


def test_refuses_a_prompt_beyond_the_context(clip: Path, tmp_path: Path) -> None:
    model = save("qwen2_5_vl", tmp_path, max_position_embeddings=520)
    (model / "model.safetensors").unlink()  # the error comes before the weights are loaded
    done = run(clip, "?", "--model", model, "--max-new-tokens", 1)
    assert done.exit_code != 0
    assert "the model's context is 520" in f"{done.exception} {done.stderr}"
    done = run(clip, "?", "--model", model, "--max-frames", 1)
    assert "cannot take this video" in f"{done.exception} {done.stderr}"
