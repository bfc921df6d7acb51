"""How the plugin gets into vLLM: in every process, and again without harm.

vLLM calls `register` in each of its processes. The engine's arguments are seen in the first one alone, so what they ask
for goes on to the others in the environment, and with the model's config.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from floc.integrations.vllm.settings import LOG, Settings
from floc.integrations.vllm.support import MODELS, require_model, require_version

SWITCH = "FLOC_VLLM"
ACTIVE = "FLOC_VLLM_ACTIVE"  # in the environment of processes that are started by an engine with FLoC
GUESSING_FROM_TEXT = (None, "ngram", "suffix")  # ways of speculative decoding that look at no embeddings
NAME = "floc"  # in --additional-config, and where a model's config carries the settings


def register() -> None:
    """What the entry point `vllm.general_plugins` calls."""
    from vllm.engine.arg_utils import EngineArgs

    _wrap_once(EngineArgs, "create_engine_config", _asking)
    if is_switched_on() or is_active():
        activate()


def is_active() -> bool:
    """Whether some engine of this process, or the one that started it, chooses with FLoC."""
    return ACTIVE in os.environ


def is_switched_on() -> bool:
    """Whether the environment asks for FLoC."""
    said = os.environ.get(SWITCH, "0")
    if said not in ("", "0", "1"):
        raise ValueError(f"{SWITCH} must be 1 to choose video tokens with floc, or 0; got {said!r}")
    return said == "1"


def activate() -> None:
    """Put floc's classes in place of vLLM's, here and in processes that are started from here."""
    import vllm
    from vllm.model_executor.models.registry import ModelRegistry

    require_version(vllm.__version__)
    if os.environ.get("VLLM_USE_RUST_FRONTEND", "0") not in ("", "0"):
        raise ValueError("VLLM_USE_RUST_FRONTEND: that frontend writes prompts without floc; unset it")
    os.environ[ACTIVE] = "1"
    for architecture, place in MODELS.items():
        ModelRegistry.register_model(architecture, place)
    _refuse_evs()
    note_pruning_on_cpus()
    let_engines_start_beside_llvmlite()


def note_pruning_on_cpus() -> None:
    """On CPUs, vLLM forgets that positions change with the tokens that are kept, and fails on the first video."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        from vllm.v1.worker.cpu_model_runner import CPUModelRunner

        _wrap_once(CPUModelRunner, "load_model", _noting_pruning)


def let_engines_start_beside_llvmlite() -> None:
    """On CPUs, a vLLM that looks through all modules for kernels does not get past those of llvmlite."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu() and importlib.util.find_spec("vllm.triton_utils.dispatcher") is not None:
        from vllm.triton_utils import dispatcher

        _wrap_once(dispatcher, "_rebind_kernels", _past_llvmlite)


def settings_of(model_config: Any) -> Settings | None:
    """What a model was asked to do; None where it keeps all tokens."""
    given = getattr(model_config.hf_config, NAME, None)
    if given is not None:
        return Settings.of(given)
    multimodal = model_config.multimodal_config
    rate = None if multimodal is None else multimodal.video_pruning_rate
    return Settings().at_rate(rate) if rate and is_switched_on() else None


def _asking(create: Callable[..., Any]) -> Callable[..., Any]:
    """Read the engine's arguments before vLLM does."""

    @functools.wraps(create)
    def create_engine_config(arguments: Any, *args: Any, **kwargs: Any) -> Any:
        given = (arguments.additional_config or {}).get(NAME)
        if given is None and not is_switched_on():
            _require_nothing_to_prune(arguments)
            return create(arguments, *args, **kwargs)
        asked_rate = arguments.video_pruning_rate
        settings = _settled(arguments, given)
        activate()
        try:
            config = create(arguments, *args, **kwargs)
        finally:
            arguments.video_pruning_rate = asked_rate  # they may be used again
        if settings.has_count and settings.rate > 0:
            _require_fit(config)
            setattr(config.model_config.hf_config, NAME, settings.as_json())
            LOG.info("floc keeps %s", settings)
        else:
            LOG.info("floc keeps all tokens of every video: give --video-pruning-rate, or floc a ratio or tokens")
        return config

    return create_engine_config


def _settled(arguments: Any, given: object) -> Settings:
    """The settings, with vLLM's own arguments brought in line with them."""
    if getattr(arguments, "video_pruning_method", "evs") != "evs":
        raise ValueError(
            f"--video-pruning-method {arguments.video_pruning_method} and floc cannot both choose: leave one out"
        )
    settings = Settings.of({} if given is None else given).at_rate(arguments.video_pruning_rate)
    _require_record(settings)
    if settings.has_count:
        arguments.video_pruning_rate = settings.rate
    elif given is not None:
        raise ValueError(
            f"floc was told {given} and not how many tokens to keep: add a ratio or tokens, or --video-pruning-rate"
        )
    return settings


def _require_record(settings: Settings) -> None:
    if settings.record is not None:
        try:
            Path(settings.record).open("a").close()
        except OSError as error:
            raise ValueError(
                f"floc cannot write to {settings.record} what it keeps ({error.strerror}): "
                "name a file in a folder that is there"
            ) from error


def _require_nothing_to_prune(arguments: Any) -> None:
    if is_active() and arguments.video_pruning_rate:
        raise ValueError(
            f"--video-pruning-rate {arguments.video_pruning_rate:g} leaves the choice to vLLM, and an engine of this "
            "process, or of the one that started it, has floc choose: give this one settings for floc too, or start "
            f"it in a process of its own, without {ACTIVE} in its environment"
        )


def _require_fit(config: Any) -> None:
    require_model(config.model_config.architecture)
    stages = config.parallel_config.pipeline_parallel_size
    if stages > 1:
        raise ValueError(
            f"--pipeline-parallel-size {stages}: vLLM tells only the first stage where kept tokens are; leave it out"
        )
    backend = config.parallel_config.distributed_executor_backend
    if backend == "ray":
        raise ValueError(
            "--distributed-executor-backend ray: vLLM does not tell workers on Ray that floc is to choose, and they "
            "would choose by themselves; use mp"
        )
    guessing = getattr(config.speculative_config, "method", None)
    if guessing not in GUESSING_FROM_TEXT:
        raise ValueError(
            f"--speculative-config with method {guessing}: vLLM gives draft models embeddings from one token further "
            "on than it says, so kept tokens would get the positions of others; take ngram or suffix"
        )


def _refuse_evs() -> None:
    """Let nothing be chosen by vLLM's own pruning where floc was asked for."""
    from vllm.multimodal.video_prune import evs

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise ValueError(
            f"floc was asked to choose video tokens, and this model has vLLM choose: use {', '.join(MODELS)}"
        )

    evs.compute_retained_tokens_count = evs.compute_retention_mask = refuse


def _noting_pruning(load: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(load)
    def load_model(runner: Any, *args: Any, **kwargs: Any) -> Any:
        loaded = load(runner, *args, **kwargs)
        # on CPUs vLLM looks at no video before the first request
        getattr(runner.get_model(), "warm_floc_up", lambda: None)()
        multimodal = runner.model_config.multimodal_config
        runner.is_multimodal_pruning_enabled = multimodal is not None and multimodal.is_multimodal_pruning_enabled()
        return loaded

    return load_model


def _past_llvmlite(rebind: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(rebind)
    def rebind_kernels(*args: Any, **kwargs: Any) -> Any:
        aside = {name: sys.modules.pop(name) for name in [*sys.modules] if name.split(".")[0] == "llvmlite"}
        try:
            return rebind(*args, **kwargs)
        finally:
            sys.modules.update(aside)

    return rebind_kernels


def _wrap_once(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    before = getattr(owner, name)
    if getattr(before, "wrapped_by", None) != NAME:
        after: Any = wrap(before)
        after.wrapped_by = NAME
        setattr(owner, name, after)
