"""How the plugin gets in, with a stand-in for vLLM that has no more than what it touches."""

from __future__ import annotations

import importlib.machinery
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from floc.integrations.vllm import MODELS, VERSIONS, plugin, register
from floc.integrations.vllm.support import require_model, require_version

QWEN = "Qwen2_5_VLForConditionalGeneration"


class Arguments:
    """vLLM's EngineArgs."""

    def __init__(
        self,
        rate: float | None = None,
        architecture: str = QWEN,
        stages: int = 1,
        guessing: str | None = None,
        executor: str = "mp",
        **additional: Any,
    ) -> None:
        self.video_pruning_rate = rate
        self.additional_config = additional
        self.architecture = architecture
        self.stages = stages
        self.executor = executor
        self.guessing = None if guessing is None else SimpleNamespace(method=guessing)

    def create_engine_config(self) -> Any:
        model = SimpleNamespace(
            architecture=self.architecture,
            hf_config=SimpleNamespace(),
            multimodal_config=SimpleNamespace(video_pruning_rate=self.video_pruning_rate),
        )
        return SimpleNamespace(
            model_config=model,
            parallel_config=SimpleNamespace(
                pipeline_parallel_size=self.stages, distributed_executor_backend=self.executor
            ),
            speculative_config=self.guessing,
        )


class Registry:
    """vLLM's ModelRegistry."""

    def __init__(self) -> None:
        self.models: dict[str, str] = {}

    def register_model(self, architecture: str, place: str) -> None:
        self.models[architecture] = place


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Modules that the plugin imports."""
    monkeypatch.setenv("FLOC_VLLM", "0")
    monkeypatch.setenv(plugin.ACTIVE, "1")  # so that it is as before in the end
    monkeypatch.delenv(plugin.ACTIVE)

    class EngineArgs(Arguments):
        pass

    evs = SimpleNamespace(compute_retained_tokens_count=len, compute_retention_mask=len)
    modules = {
        "vllm": {"__version__": f"{VERSIONS[-1]}.0"},
        "vllm.engine": {},
        "vllm.engine.arg_utils": {"EngineArgs": EngineArgs},
        "vllm.model_executor": {},
        "vllm.model_executor.models": {},
        "vllm.model_executor.models.registry": {"ModelRegistry": Registry()},
        "vllm.platforms": {"current_platform": SimpleNamespace(is_cpu=lambda: False)},
        "vllm.multimodal": {},
        "vllm.multimodal.video_prune": {"evs": evs},
    }
    for name, values in modules.items():
        module = ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
    models = modules["vllm.model_executor.models.registry"]["ModelRegistry"]
    return SimpleNamespace(arguments=EngineArgs, models=models, evs=evs, vllm=sys.modules["vllm"])


def test_it_does_nothing_unless_it_is_asked_to(stand_in: Any) -> None:
    register()
    config = stand_in.arguments(rate=0.875).create_engine_config()
    assert stand_in.models.models == {}
    assert not vars(config.model_config.hf_config)
    assert stand_in.evs.compute_retention_mask is len


def test_the_switch(stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOC_VLLM", "1")
    register()
    assert stand_in.models.models == MODELS
    config = stand_in.arguments(rate=0.9).create_engine_config()
    settings = plugin.settings_of(config.model_config)
    assert settings is not None
    assert settings.count(1000) == 100
    with pytest.raises(ValueError, match="this model has vLLM choose"):
        stand_in.evs.compute_retention_mask()


@pytest.mark.parametrize(("given", "kept"), [({"ratio": "1/4"}, 250), ({"tokens": 64}, 64)])
def test_settings_in_the_arguments(given: dict, kept: int, stand_in: Any) -> None:
    register()
    arguments = stand_in.arguments(floc={**given, "block": 16})
    for _ in range(2):  # the same arguments may be asked again
        config = arguments.create_engine_config()
        assert 0 < config.model_config.multimodal_config.video_pruning_rate < 1  # so that vLLM expects fewer tokens
        settings = plugin.settings_of(config.model_config)
        assert settings is not None
        assert settings.count(1000) == kept
    assert settings.options == {"block": 16}
    assert plugin.is_active()  # for processes that are started from here
    assert not plugin.is_switched_on()  # which other engines of this one would take for themselves


def test_again_does_no_harm(stand_in: Any) -> None:
    register()
    once = stand_in.arguments.create_engine_config
    register()
    assert stand_in.arguments.create_engine_config is once


def test_an_engine_without_floc_beside_one_with(stand_in: Any) -> None:
    register()
    stand_in.arguments(floc={"ratio": "1/4"}).create_engine_config()
    whole = stand_in.arguments().create_engine_config()
    assert plugin.settings_of(whole.model_config) is None
    with pytest.raises(ValueError, match=r"--video-pruning-rate 0.75 leaves the choice to vLLM.* process of its own"):
        stand_in.arguments(rate=0.75).create_engine_config()


def test_a_process_that_an_engine_starts(stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(plugin.ACTIVE, "1")
    register()
    assert stand_in.models.models == MODELS


@pytest.mark.parametrize("fails", [False, True])
def test_an_engine_starts_beside_llvmlite(stand_in: Any, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    seen: list[str] = []

    def rebind(kernels: list[int]) -> list[int]:
        seen.extend(name for name in sys.modules if name.startswith("llvmlite"))
        if fails:
            raise RuntimeError
        return kernels

    dispatcher = ModuleType("vllm.triton_utils.dispatcher")
    dispatcher.__spec__ = importlib.machinery.ModuleSpec(dispatcher.__name__, None)
    dispatcher._rebind_kernels = rebind
    around = ModuleType("vllm.triton_utils")
    around.dispatcher = dispatcher
    for each in (around, dispatcher, ModuleType("llvmlite"), ModuleType("llvmlite.binding")):
        monkeypatch.setitem(sys.modules, each.__name__, each)
    before = sys.modules["llvmlite.binding"]
    monkeypatch.setattr(sys.modules["vllm.platforms"], "current_platform", SimpleNamespace(is_cpu=lambda: True))
    plugin.let_engines_start_beside_llvmlite()
    if fails:
        with pytest.raises(RuntimeError):
            dispatcher._rebind_kernels([1])
    else:
        assert dispatcher._rebind_kernels([1]) == [1]
    assert seen == []
    assert sys.modules["llvmlite.binding"] is before


def test_a_process_that_sees_no_arguments_takes_the_rate(stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOC_VLLM", "1")
    config = Arguments(rate=0.75).create_engine_config()
    settings = plugin.settings_of(config.model_config)
    assert settings is not None
    assert settings.count(100) == 25
    assert plugin.settings_of(Arguments().create_engine_config().model_config) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            dict(rate=0.5, architecture="LlavaOnevisionForConditionalGeneration"),
            "cannot choose the video tokens of Lla",
        ),
        (dict(rate=0.5, stages=2), "--pipeline-parallel-size 2"),
        (dict(rate=0.5, guessing="eagle3"), "--speculative-config with method eagle3.* take ngram or suffix"),
        (dict(rate=0.5, executor="ray"), "does not tell workers on Ray that floc is to choose"),
        (dict(rate=0.5, floc={"record": "/nowhere/kept.jsonl"}), r"cannot write to /nowhere/kept.jsonl .*No such file"),
        (dict(floc={}), "not how many tokens to keep: add a ratio or tokens"),
        (dict(floc={"block": 16}), "not how many tokens to keep: add a ratio or tokens"),
        (dict(rate=0.5, floc={"ratio": "1/8"}), "keeps 1/2 of the tokens, and floc was told ratio=1/8"),
    ],
)
def test_what_cannot_work_is_refused(
    arguments: dict, message: str, stand_in: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOC_VLLM", "1")
    register()
    with pytest.raises(ValueError, match=message):
        stand_in.arguments(**arguments).create_engine_config()


@pytest.mark.parametrize("guessing", ["ngram", "suffix"])
def test_guesses_from_text_are_no_matter(guessing: str, stand_in: Any) -> None:
    register()
    config = stand_in.arguments(guessing=guessing, floc={"ratio": "1/8"}).create_engine_config()
    assert plugin.settings_of(config.model_config) is not None


def test_another_method_of_pruning_is_refused(stand_in: Any) -> None:
    register()
    arguments = stand_in.arguments(floc={"ratio": "1/8"})
    arguments.video_pruning_method = "vidcom2"
    with pytest.raises(ValueError, match="--video-pruning-method vidcom2 and floc cannot both choose"):
        arguments.create_engine_config()


def test_an_unknown_release_is_refused(stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in.vllm.__version__ = "0.99.1"
    monkeypatch.setenv("FLOC_VLLM", "1")
    with pytest.raises(RuntimeError, match=rf"tested with vLLM {VERSIONS[0]}.* and this is 0.99.1"):
        register()


def test_a_frontend_that_writes_prompts_itself_is_refused(stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOC_VLLM", "1")
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "1")
    with pytest.raises(ValueError, match=r"VLLM_USE_RUST_FRONTEND: .* unset it"):
        register()


def test_the_log_tells_what_is_kept(
    stand_in: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "vllm.floc")
    register()
    stand_in.arguments(floc={"ratio": "1/8", "block": 16}).create_engine_config()
    assert caplog.messages == ["floc keeps 1/8 of the tokens of every video, chosen by floc with block=16"]
    monkeypatch.setenv("FLOC_VLLM", "1")
    stand_in.arguments().create_engine_config()
    assert "floc keeps all tokens of every video: give --video-pruning-rate" in caplog.messages[1]


def test_a_switch_that_says_neither(stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOC_VLLM", "yes")
    with pytest.raises(ValueError, match=r"FLOC_VLLM must be 1 .* got 'yes'"):
        register()


def test_names_of_what_is_supported_are_in_what_is_said() -> None:
    require_version("0.28.0")
    with pytest.raises(ValueError, match=r"Qwen2VLForConditionalGeneration, Qwen2_5_VL.* and Qwen3VLMoe"):
        require_model("InternVLChatModel")
