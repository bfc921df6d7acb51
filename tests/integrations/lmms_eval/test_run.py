"""Tests that run lmms-eval in subprocesses, offline, with tiny models on rendered films."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lmms_eval", reason="needs lmms-eval: run make test-lmms")
pytestmark = [pytest.mark.lmms, pytest.mark.filterwarnings("ignore")]  # other packages' warnings

from floc.integrations.lmms_eval import LMMS_MODELS  # noqa: E402
from tests.integrations.lmms_eval import films, tiny  # noqa: E402
from tests.integrations.lmms_eval.process import MODELS, read_samples, run  # noqa: E402

ALL = pytest.mark.parametrize("name", LMMS_MODELS)
# the unwrapped model with `floc.attach`
BY_HAND = """
import json, sys
import floc
from lmms_eval.evaluator import simple_evaluate
from lmms_eval.models import get_model
from lmms_eval.tasks import TaskManager

name, arguments, is_simple, tasks = json.loads(sys.argv[1])
lm = get_model(name, force_simple=is_simple).create_from_arg_string(arguments, {"device": "cpu"})
with floc.attach(lm.model, ratio="1/8"):
    results = simple_evaluate(lm, tasks=["keys"], task_manager=TaskManager("INFO", include_path=tasks, model_name=name))
print("ANSWERS", json.dumps([text for each in results["samples"]["keys"] for text in each["filtered_resps"]]))
"""


class Studio:
    """A folder with the task, the models and the outputs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.task = films.write_task(self._new("task"))

    def _new(self, name: str) -> Path:
        (self.folder / name).mkdir()
        return self.folder / name

    def arguments(self, name: str, more: str) -> str:
        """Return `--model_args` for a floc model or the model that it wraps."""
        kind, needed, *_ = MODELS[name]
        folder = self.folder / kind
        if not folder.exists():
            tiny.write(kind, self._new(kind))
        return f"pretrained={folder},device_map=cpu,{needed},{more}"

    def flags(self, name: str, more: str, out: str) -> list[str]:
        """Return the arguments of `python` for a run of lmms-eval."""
        return [
            *("-m", "lmms_eval", "--model", name, "--model_args", self.arguments(name, more), "--device", "cpu"),
            *("--tasks", "keys", "--include_path", str(self.task)),
            *("--output_path", str(self.folder / out), "--log_samples"),
        ]

    def run(self, *arguments: object, name: str) -> str:
        """Run Python for a floc model and return its output."""
        return run(*arguments, kind=MODELS[name][0], home=self.folder / "hub")


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Studio:
    return Studio(tmp_path_factory.mktemp("studio"))


def is_simple(name: str) -> bool:
    return not LMMS_MODELS[name].is_chat


def get_answers(logged: list[dict[str, Any]]) -> list[str]:
    return [each["filtered_resps"] for each in logged]


@ALL
def test_runs_against_the_unwrapped_model(name: str, studio: Studio) -> None:
    *_, theirs, ours = MODELS[name]
    cells = {
        "bare": (LMMS_MODELS[name].wraps, theirs),
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
    output = studio.run("-m", "lmms_eval", "--config", file, name=name)
    bare, everything, eighth = (read_samples(studio.folder / name / cell) for cell in cells)
    assert len(bare) == len(everything) == len(eighth) == 4, output

    assert get_answers(everything) == get_answers(bare)
    assert [each["input"] for each in everything] == [each["input"] for each in bare]
    # the task has a special prompt for qwen3_vl
    assert all(each["input"].startswith("Question: ") == (name == "floc_qwen3_vl") for each in everything)
    for each in everything:
        (counts,) = each["token_counts"]
        assert counts["floc"]["kept"] == counts["floc"]["tokens"]
        assert counts["floc"]["coverage"] == pytest.approx(1, abs=1e-3)

    assert get_answers(eighth) != get_answers(bare)
    for each in eighth:
        cost = each["token_counts"][0]["floc"]
        assert cost["kept"] == round(cost["tokens"] / 8)
        assert 0 < cost["coverage"] < 1
        assert 0 < cost["select_s"] < cost["total_s"]
        ((frames, rows, columns),) = cost["shapes"]
        if name == "floc_qwen3_omni":
            assert frames in (6, 8)  # pairs of two frames per second
        else:
            assert frames == (4 if "qwen" in name else 8)
        assert frames * rows * columns == cost["tokens"]

    request = json.dumps([LMMS_MODELS[name].wraps, studio.arguments(name, theirs), is_simple(name), str(studio.task)])
    by_hand = studio.run("-c", BY_HAND, request, name=name)
    assert f"ANSWERS {json.dumps(get_answers(eighth))}" in by_hand, by_hand


def test_all_arguments_from_the_command_line(studio: Studio) -> None:
    name = "floc_qwen2_5_vl"
    more = "fps=1,max_frames=6,budget=10,method=floc,block=none,dedupe=1,detail=1,backend=torch"
    output = studio.run(*studio.flags(name, more, "options"), name=name)
    logged = read_samples(studio.folder / "options")
    assert len(logged) == 4, output
    assert "Model Responding: 100%" in output
    assert output.count("Metric summary") == 0
    costs = [each["token_counts"][0]["floc"] for each in logged]
    assert [each["kept"] for each in costs] == [10] * 4
    # films of 6 and 8 seconds, at most 6 frames, two frames per slice
    assert [each["shapes"][0][0] for each in costs] == [3] * 4
    scores = [each["keys_score"]["score"] for each in logged]
    (results,) = (studio.folder / "options").glob("*/*_results.json")
    assert json.loads(results.read_text())["results"]["keys"]["keys_score,none"] == 25 * sum(scores)


@pytest.mark.parametrize("name", ["floc_qwen2_5_vl", "floc_qwen2_vl", "floc_qwen3_omni"])
def test_frames_of_simple_models_and_of_omni(name: str, studio: Studio) -> None:
    force = ["--force_simple"] if LMMS_MODELS[name].is_simple else []
    output = studio.run(*studio.flags(name, "fps=0.5,ratio=1/4", f"{name} frames"), *force, name=name)
    costs = [each["token_counts"][0]["floc"] for each in read_samples(studio.folder / f"{name} frames")]
    # one frame per two seconds of 6 and 8 seconds, in pairs
    assert [each["shapes"][0][0] for each in costs] == [1, 1, 2, 2], output
    assert all(each["kept"] == round(each["tokens"] / 4) for each in costs)


def test_rejects_unknown_argument(studio: Studio) -> None:
    name = "floc_internvl3"
    output = studio.run(*studio.flags(name, "ratio=1/8,num_frame=8", "wrong"), name=name)
    assert "unknown model argument 'num_frame'; did you mean 'num_frames'" in output
    assert not (studio.folder / "wrong").exists()


def test_method_options_differ_from_model_arguments(studio: Studio) -> None:
    listing = (
        "import inspect, json\n"
        "from lmms_eval.models import get_model\n"
        "from floc.integrations.lmms_eval import LMMS_MODELS\n"
        "parameters = {name: list(inspect.signature(get_model(each.wraps, True).__init__).parameters) "
        "for name, each in LMMS_MODELS.items()}\n"
        "print('FOUND', json.dumps(parameters))"
    )
    output = studio.run("-c", listing, name="floc_internvl3")
    by_name = json.loads(output.partition("FOUND ")[2].splitlines()[0])
    import floc

    options = {option for method in floc.methods.list_methods() for option in floc.methods.list_options(method)}
    for name, parameters in by_name.items():
        assert "pretrained" in parameters, name
        assert not options & set(parameters), name
