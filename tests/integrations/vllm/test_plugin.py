"""Tests of the plugin on a fake vLLM that has only what the plugin touches."""

from __future__ import annotations

import importlib.machinery
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from floc.integrations.vllm import VLLM_MODELS, VLLM_VERSIONS, plugin, register

QWEN = "Qwen2_5_VLForConditionalGeneration"


class Arguments:
    """Fake of vLLM's EngineArgs."""

    def __init__(
        self,
        rate: float | None = None,
        architecture: str = QWEN,
        stages: int = 1,
        draft: str | None = None,
        executor: str = "mp",
        **additional: Any,
    ) -> None:
        self.video_pruning_rate = rate
        self.additional_config = additional
        self.architecture = architecture
        self.stages = stages
        self.executor = executor
        self.draft = None if draft is None else SimpleNamespace(method=draft)

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
            speculative_config=self.draft,
        )


class Registry:
    """Fake of vLLM's ModelRegistry."""

    def __init__(self) -> None:
        self.models: dict[str, str] = {}

    def register_model(self, architecture: str, class_path: str) -> None:
        self.models[architecture] = class_path


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Install fakes of the vLLM modules that the plugin imports."""
    monkeypatch.setenv("FLOC_VLLM", "0")
    monkeypatch.setenv(plugin.ACTIVE, "1")  # restores the variable after the test
    monkeypatch.delenv(plugin.ACTIVE)

    class EngineArgs(Arguments):
        pass

    evs = SimpleNamespace(compute_retained_tokens_count=len, compute_retention_mask=len)
    modules = {
        "vllm": {"__version__": f"{VLLM_VERSIONS[-1]}.0"},
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


def test_does_nothing_by_default(fake: Any) -> None:
    register()
    config = fake.arguments(rate=0.875).create_engine_config()
    assert fake.models.models == {}
    assert not vars(config.model_config.hf_config)
    assert fake.evs.compute_retention_mask is len


def test_environment_variable_switches_on(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOC_VLLM", "1")
    register()
    assert fake.models.models == {**VLLM_MODELS, **plugin.COMPACT_MODELS}
    config = fake.arguments(rate=0.9).create_engine_config()
    settings = plugin.get_settings(config.model_config)
    assert settings is not None
    assert settings.count(1000) == 100
    with pytest.raises(ValueError, match="this model uses vLLM's own pruning"):
        fake.evs.compute_retention_mask()


@pytest.mark.parametrize(("given", "kept"), [({"ratio": "1/4"}, 250), ({"budget": 64}, 64)])
def test_reads_settings_from_arguments(given: dict, kept: int, fake: Any) -> None:
    register()
    arguments = fake.arguments(floc={**given, "block": 16})
    for _ in range(2):  # arguments can be used again
        config = arguments.create_engine_config()
        assert 0 < config.model_config.multimodal_config.video_pruning_rate < 1  # so that vLLM expects fewer tokens
        settings = plugin.get_settings(config.model_config)
        assert settings is not None
        assert settings.count(1000) == kept
    assert settings.options == {"block": 16}
    assert plugin.is_active()  # for child processes
    assert not plugin.is_switched_on()  # it would apply to other engines of this process


def test_register_is_idempotent(fake: Any) -> None:
    register()
    once = fake.arguments.create_engine_config
    register()
    assert fake.arguments.create_engine_config is once


def test_engine_without_floc_next_to_one_with_floc(fake: Any) -> None:
    register()
    fake.arguments(floc={"ratio": "1/4"}).create_engine_config()
    whole = fake.arguments().create_engine_config()
    assert plugin.get_settings(whole.model_config) is None
    with pytest.raises(ValueError, match=r"--video-pruning-rate 0.75 needs vLLM\'s own pruning.* process of its own"):
        fake.arguments(rate=0.75).create_engine_config()


def test_child_process_registers_models(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(plugin.ACTIVE, "1")
    register()
    assert fake.models.models == {**VLLM_MODELS, **plugin.COMPACT_MODELS}


@pytest.mark.parametrize("fails", [False, True])
def test_hides_llvmlite_during_kernel_search(fake: Any, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    visible: list[str] = []

    def rebind(kernels: list[int]) -> list[int]:
        visible.extend(name for name in sys.modules if name.startswith("llvmlite"))
        if fails:
            raise RuntimeError
        return kernels

    dispatcher = ModuleType("vllm.triton_utils.dispatcher")
    dispatcher.__spec__ = importlib.machinery.ModuleSpec(dispatcher.__name__, None)
    dispatcher._rebind_kernels = rebind
    package = ModuleType("vllm.triton_utils")
    package.dispatcher = dispatcher
    for module in (package, dispatcher, ModuleType("llvmlite"), ModuleType("llvmlite.binding")):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    before = sys.modules["llvmlite.binding"]
    runner = ModuleType("vllm.v1.worker.cpu_model_runner")
    runner.CPUModelRunner = type("CPUModelRunner", (), {"load_model": lambda self: None})
    for name in ("vllm.v1", "vllm.v1.worker"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, runner.__name__, runner)
    monkeypatch.setattr(sys.modules["vllm.platforms"], "current_platform", SimpleNamespace(is_cpu=lambda: True))
    plugin.work_around_cpu_faults()
    if fails:
        with pytest.raises(RuntimeError):
            dispatcher._rebind_kernels([1])
    else:
        assert dispatcher._rebind_kernels([1]) == [1]
    assert visible == []
    assert sys.modules["llvmlite.binding"] is before


def test_process_without_arguments_uses_the_rate(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOC_VLLM", "1")
    config = Arguments(rate=0.75).create_engine_config()
    settings = plugin.get_settings(config.model_config)
    assert settings is not None
    assert settings.count(100) == 25
    assert plugin.get_settings(Arguments().create_engine_config().model_config) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            dict(rate=0.5, architecture="LlavaOnevisionForConditionalGeneration"),
            'LlavaOnevisionForConditionalGeneration needs "positions": "compact" in the floc settings',
        ),
        (
            dict(floc={"ratio": "1/8", "positions": "compact"}),
            f'in {QWEN} a position is a frame, row and column: use "positions": "keep"',
        ),
        (dict(rate=0.5, architecture="GlmForConditionalGeneration"), "floc does not support Glm"),
        (dict(rate=0.5, stages=2), "--pipeline-parallel-size 2"),
        (dict(rate=0.5, draft="eagle3"), "--speculative-config with method eagle3.* use ngram or suffix"),
        (dict(rate=0.5, executor="ray"), "does not pass the floc settings to workers on Ray"),
        (
            dict(rate=0.5, floc={"record": "/nowhere/kept.jsonl"}),
            "cannot write its record to /nowhere/kept.jsonl: No such file",
        ),
        (dict(floc={}), "no token count for floc: add ratio or budget"),
        (dict(floc={"block": 16}), "no token count for floc: add ratio or budget"),
        (dict(rate=0.5, floc={"ratio": "1/8"}), "keeps 1/2 of the tokens, but floc has ratio=1/8"),
    ],
)
def test_rejects_unsupported_engines(arguments: dict, message: str, fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOC_VLLM", "1")
    register()
    with pytest.raises(ValueError, match=message):
        fake.arguments(**arguments).create_engine_config()


@pytest.mark.parametrize("architecture", plugin.COMPACT_MODELS)
def test_accepts_compact_positions(architecture: str, fake: Any) -> None:
    register()
    given = {"ratio": "1/8", "positions": "compact"}
    config = fake.arguments(architecture=architecture, floc=given).create_engine_config()
    settings = plugin.get_settings(config.model_config)
    assert settings is not None
    assert settings.positions == "compact"
    with pytest.raises(ValueError, match=r"keep whole pictures; remove images='1/4'"):
        fake.arguments(architecture=architecture, floc={**given, "images": "1/4"}).create_engine_config()


def test_keeps_all_tokens_but_of_requests_that_ask(fake: Any) -> None:
    register()
    config = fake.arguments(floc={"ratio": 1}).create_engine_config()
    assert config.model_config.multimodal_config.video_pruning_rate > 0  # so that vLLM expects fewer tokens
    settings = plugin.get_settings(config.model_config)
    assert settings is not None
    assert settings.count(1000) == 1000


@pytest.mark.parametrize("draft", ["ngram", "suffix"])
def test_accepts_speculative_decoding_from_text(draft: str, fake: Any) -> None:
    register()
    config = fake.arguments(draft=draft, floc={"ratio": "1/8"}).create_engine_config()
    assert plugin.get_settings(config.model_config) is not None


def test_rejects_another_pruning_method(fake: Any) -> None:
    register()
    arguments = fake.arguments(floc={"ratio": "1/8"})
    arguments.video_pruning_method = "vidcom2"
    with pytest.raises(ValueError, match="--video-pruning-method vidcom2 and floc exclude each other"):
        arguments.create_engine_config()


def test_rejects_untested_release(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.vllm.__version__ = "0.99.1"
    monkeypatch.setenv("FLOC_VLLM", "1")
    with pytest.raises(RuntimeError, match=rf"supports vLLM {VLLM_VERSIONS[0]}.* but 0.99.1 is installed"):
        register()


def test_rejects_rust_frontend(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOC_VLLM", "1")
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "1")
    with pytest.raises(ValueError, match=r"VLLM_USE_RUST_FRONTEND is set.* unset it"):
        register()


def test_logs_the_settings(fake: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "vllm.floc")
    register()
    fake.arguments(floc={"ratio": "1/8", "block": 16}).create_engine_config()
    assert caplog.messages == ["floc keeps 1/8 of the tokens of every video, selected by floc with block=16"]
    monkeypatch.setenv("FLOC_VLLM", "1")
    fake.arguments().create_engine_config()
    assert "floc keeps all tokens of every video: set --video-pruning-rate" in caplog.messages[1]


def test_stored_videos_alone_keep_all_tokens_of_others(fake: Any, tmp_path: Path, caplog: Any) -> None:
    caplog.set_level("INFO", "vllm.floc")
    register()
    config = fake.arguments(floc={"stored": [str(tmp_path)]}).create_engine_config()
    settings = plugin.get_settings(config.model_config)
    assert settings is not None
    assert (settings.stored, settings.count(1000)) == ([str(tmp_path)], 1000)
    assert config.model_config.multimodal_config.video_pruning_rate > 0
    text = f"floc keeps all tokens of every video, selected by floc; stored videos are in {tmp_path}"
    assert caplog.messages == [text]
    with pytest.raises(ValueError, match=r"nowhere: no such folder of stored videos; create it"):
        fake.arguments(floc={"stored": [str(tmp_path / "nowhere")]}).create_engine_config()


def test_rejects_other_values_of_the_switch(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOC_VLLM", "yes")
    with pytest.raises(ValueError, match=r"FLOC_VLLM must be 1 .* got 'yes'"):
        register()


def test_error_names_supported_models(fake: Any) -> None:
    plugin.check_version("0.32.0")
    register()
    with pytest.raises(ValueError, match=r"InternVLChatModel in vLLM; it supports Qwen2VL.*, Qwen2_5_VL.*, Qwen3VLMoe"):
        fake.arguments(architecture="InternVLChatModel", floc={"ratio": "1/8"}).create_engine_config()
