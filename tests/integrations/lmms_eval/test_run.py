"""lmms-eval for real: a process for every run, a task of films made here, tiny models from a folder, no network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lmms_eval", reason="lmms-eval is not installed: make test-lmms runs this where it is")
pytestmark = [pytest.mark.lmms, pytest.mark.filterwarnings("ignore")]  # other packages' warnings

from floc.integrations.lmms_eval import FAMILIES, read  # noqa: E402
from tests.integrations.lmms_eval import films, tiny  # noqa: E402
from tests.integrations.lmms_eval.process import MODELS, run, samples  # noqa: E402

ALL = pytest.mark.parametrize("name", FAMILIES)
# the unwrapped model, with nothing but `floc.attach` around it
BY_HAND = """
import json, sys
import floc
from lmms_eval.evaluator import simple_evaluate
from lmms_eval.models import get_model
from lmms_eval.tasks import TaskManager

name, arguments, is_simple, tasks = json.loads(sys.argv[1])
lm = get_model(name, force_simple=is_simple).create_from_arg_string(arguments, {"device": "cpu"})
with floc.attach(lm.model, ratio="1/8"):
    found = simple_evaluate(lm, tasks=["keys"], task_manager=TaskManager("INFO", include_path=tasks, model_name=name))
print("SAID", json.dumps([text for each in found["samples"]["keys"] for text in each["filtered_resps"]]))
"""


class Studio:
    """The task, the models, and where runs write to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.task = films.make(self._new("task"))

    def _new(self, name: str) -> Path:
        (self.folder / name).mkdir()
        return self.folder / name

    def arguments(self, name: str, more: str) -> str:
        """`--model_args` of one of our models or the one it wraps."""
        kind, needed, *_ = MODELS[name]
        folder = self.folder / kind
        if not folder.exists():
            tiny.write(kind, self._new(kind))
        return f"pretrained={folder},device_map=cpu,{needed},{more}"

    def flags(self, name: str, more: str, out: str) -> list[str]:
        """A command line."""
        return [
            *("-m", "lmms_eval", "--model", name, "--model_args", self.arguments(name, more), "--device", "cpu"),
            *("--tasks", "keys", "--include_path", str(self.task)),
            *("--output_path", str(self.folder / out), "--log_samples"),
        ]

    def run(self, *arguments: object, name: str) -> str:
        """A process for one of our models."""
        return run(*arguments, kind=MODELS[name][0], home=self.folder / "hub")


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Studio:
    return Studio(tmp_path_factory.mktemp("studio"))


def is_simple(name: str) -> bool:
    return not FAMILIES[name].is_chat


def said(logged: list[dict[str, Any]]) -> list[str]:
    return [each["filtered_resps"] for each in logged]


@ALL
def test_runs_against_the_unwrapped_model(name: str, studio: Studio) -> None:
    *_, theirs, ours = MODELS[name]
    cells = {
        "bare": (FAMILIES[name].wraps, theirs),
        "all": (name, f"{ours},ratio=1"),
        "eighth": (name, f"{ours},ratio=1/8"),
    }
    configs = [
        {
            "model": model,
            "model_args": studio.arguments(name, more),
            "device": "cpu",
            "tasks": "keys",
            "include_path": str(studio.task),
            "output_path": str(studio.folder / name / cell),
            "log_samples": True,
            "force_simple": is_simple(name),
        }
        for cell, (model, more) in cells.items()
    ]
    file = studio.folder / f"{name}.yaml"
    file.write_text(json.dumps(configs))
    told = studio.run("-m", "lmms_eval", "--config", file, name=name)
    bare, everything, eighth = (samples(studio.folder / name / cell) for cell in cells)
    assert len(bare) == len(everything) == len(eighth) == 4, told

    assert said(everything) == said(bare)
    assert [each["input"] for each in everything] == [each["input"] for each in bare]
    # the task words its prompts by model
    assert all(each["input"].startswith("Question: ") == (name == "floc_qwen3_vl") for each in everything)
    for each in everything:
        (counts,) = each["token_counts"]
        assert counts["floc"]["kept"] == counts["floc"]["tokens"]
        assert counts["floc"]["coverage"] == pytest.approx(1, abs=1e-3)

    assert said(eighth) != said(bare)
    (log,) = (studio.folder / name / "eighth").glob("*/*_samples_keys.jsonl")
    read_back = dict(read(log))
    assert read_back.keys() == {each["doc_id"] for each in eighth}
    for figures in read_back.values():
        assert figures.kept == round(figures.tokens / 8)
        assert 0 < figures.coverage < 1
        assert 0 < figures.select_s < figures.total_s
        ((frames, rows, columns),) = figures.shapes
        assert frames == (4 if "qwen" in name else 8)
        assert frames * rows * columns == figures.tokens

    asked = json.dumps([FAMILIES[name].wraps, studio.arguments(name, theirs), is_simple(name), str(studio.task)])
    by_hand = studio.run("-c", BY_HAND, asked, name=name)
    assert f"SAID {json.dumps(said(eighth))}" in by_hand, by_hand


def test_every_argument_from_the_command_line(studio: Studio) -> None:
    name = "floc_qwen2_5_vl"
    more = "fps=1,max_frames=6,budget=10,method=floc,block=none,dedupe=1,detail=1,backend=torch"
    told = studio.run(*studio.flags(name, more, "options"), name=name)
    logged = samples(studio.folder / "options")
    assert len(logged) == 4, told
    assert "Model Responding: 100%" in told
    assert told.count("Metric summary") == 0
    figures = [each["token_counts"][0]["floc"] for each in logged]
    assert [each["kept"] for each in figures] == [10] * 4
    # films of 6 and 8 seconds, two frames to a slice, at most 6 frames
    assert [each["shapes"][0][0] for each in figures] == [3] * 4
    scores = [each["keys_score"]["score"] for each in logged]
    (results,) = (studio.folder / "options").glob("*/*_results.json")
    assert json.loads(results.read_text())["results"]["keys"]["keys_score,none"] == 25 * sum(scores)


@pytest.mark.parametrize("name", ["floc_qwen2_5_vl", "floc_qwen2_vl"])
def test_frames_of_simple_models(name: str, studio: Studio) -> None:
    told = studio.run(*studio.flags(name, "fps=0.5,ratio=1/4", f"{name} simple"), "--force_simple", name=name)
    figures = [each["token_counts"][0]["floc"] for each in samples(studio.folder / f"{name} simple")]
    # a frame every two seconds of 6 and of 8, in pairs
    assert [each["shapes"][0][0] for each in figures] == [1, 1, 2, 2], told
    assert all(each["kept"] == round(each["tokens"] / 4) for each in figures)


def test_what_is_wrong_is_said_and_nothing_is_written(studio: Studio) -> None:
    name = "floc_internvl3"
    told = studio.run(*studio.flags(name, "ratio=1/8,num_frame=8", "wrong"), name=name)
    assert "unknown model argument 'num_frame': did you mean 'num_frames'" in told
    assert not (studio.folder / "wrong").exists()


def test_no_option_of_a_method_is_an_argument_of_a_model(studio: Studio) -> None:
    listing = (
        "import inspect, json\n"
        "from lmms_eval.models import get_model\n"
        "from floc.integrations.lmms_eval import FAMILIES\n"
        "found = {name: list(inspect.signature(get_model(each.wraps, True).__init__).parameters) "
        "for name, each in FAMILIES.items()}\n"
        "print('FOUND', json.dumps(found))"
    )
    told = studio.run("-c", listing, name="floc_internvl3")
    found = json.loads(told.partition("FOUND ")[2].splitlines()[0])
    import floc

    options = {option for method in floc.methods.names() for option in floc.methods.options(method)}
    for name, parameters in found.items():
        assert "pretrained" in parameters, name
        assert not options & set(parameters), name
