"""Install the plugin into vLLM.

vLLM calls `register` in each of its processes, and may call it more than once. Only the first process sees the engine's
arguments. The settings reach the others through an environment variable and the model's config.
"""

import contextlib
import functools
import importlib.util
import multiprocessing
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from floc._system import single_threaded_blas
from floc.integrations.vllm.settings import LOG, Settings

VLLM_VERSIONS = ("0.31", "0.32")  # releases that pass the engine tests
# architecture in a model's config.json -> class that replaces vLLM's
VLLM_MODELS = {
    "Qwen2VLForConditionalGeneration": "floc.integrations.vllm.hooks:Qwen2VL",
    "Qwen2_5_VLForConditionalGeneration": "floc.integrations.vllm.hooks:Qwen2_5_VL",
    "Qwen3VLForConditionalGeneration": "floc.integrations.vllm.hooks:Qwen3VL",
    "Qwen3VLMoeForConditionalGeneration": "floc.integrations.vllm.hooks:Qwen3VLMoe",
    "Qwen3_5ForConditionalGeneration": "floc.integrations.vllm.hooks:Qwen3_5",
    "Qwen3_5MoeForConditionalGeneration": "floc.integrations.vllm.hooks:Qwen3_5Moe",
}
# models with plain positions, which need positions="compact"
COMPACT_MODELS = {
    "LlavaOnevisionForConditionalGeneration": "floc.integrations.vllm.compact:LlavaOnevision",
    "InternVLForConditionalGeneration": "floc.integrations.vllm.compact:InternVL",
}
SWITCH = "FLOC_VLLM"
ACTIVE = "FLOC_VLLM_ACTIVE"  # set for the processes that an engine with FLoC starts
_limits = contextlib.ExitStack()  # held until the process ends
NAME = "floc"  # the key in --additional-config and in the model's config


def register() -> None:
    """Install the plugin: the entry point `vllm.general_plugins`."""
    from vllm.engine.arg_utils import EngineArgs

    _wrap_once(EngineArgs, "create_engine_config", _create_engine_config)
    if is_switched_on() or is_active():
        activate()


def is_active() -> bool:
    """Return whether an engine of this process, or of the process that started it, uses FLoC."""
    return ACTIVE in os.environ


def is_switched_on() -> bool:
    """Return whether the environment switches FLoC on for all engines."""
    value = os.environ.get(SWITCH, "0")
    if value not in ("", "0", "1"):
        raise ValueError(f"{SWITCH} must be 1 to select video tokens with floc, or 0; got {value!r}")
    return value == "1"


def activate() -> None:
    """Replace vLLM's model classes with FLoC's, in this process and those that it starts."""
    import vllm
    from vllm.model_executor.models.registry import ModelRegistry
    from vllm.multimodal.video_prune import evs

    check_version(vllm.__version__)
    if os.environ.get("VLLM_USE_RUST_FRONTEND", "0") not in ("", "0"):
        raise ValueError("VLLM_USE_RUST_FRONTEND is set, but that frontend writes prompts without floc; unset it")
    os.environ[ACTIVE] = "1"
    for architecture, class_path in {**VLLM_MODELS, **COMPACT_MODELS}.items():
        ModelRegistry.register_model(architecture, class_path)
    evs.compute_retained_tokens_count = evs.compute_retention_mask = _refuse_evs
    work_around_cpu_faults()


def check_version(version: str) -> None:
    """Raise RuntimeError unless `version` of vLLM is supported."""
    if ".".join(version.split(".")[:2]) not in VLLM_VERSIONS:
        problem = f"the floc plugin supports vLLM {' and '.join(VLLM_VERSIONS)}, but {version} is installed"
        remedy = "unset FLOC_VLLM and remove floc from --additional-config to run without the plugin"
        raise RuntimeError(f"{problem}: install a supported release, or {remedy}")


def work_around_cpu_faults() -> None:
    """Work around two faults of vLLM on CPUs.

    Its model runner does not set `is_multimodal_pruning_enabled` and fails on the first video, and its search of all
    modules for kernels fails on those of llvmlite.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    _wrap_once(CPUModelRunner, "load_model", _load_model)
    if importlib.util.find_spec("vllm.triton_utils.dispatcher") is not None:
        from vllm.triton_utils import dispatcher

        _wrap_once(dispatcher, "_rebind_kernels", _rebind_kernels)


def get_settings(model_config: Any) -> Settings | None:
    """Return the settings of a model, or None if it keeps all tokens."""
    given = getattr(model_config.hf_config, NAME, None)
    if given is not None:
        return Settings.from_dict(given)
    multimodal = model_config.multimodal_config
    rate = None if multimodal is None else multimodal.video_pruning_rate
    return Settings().with_rate(rate) if rate and is_switched_on() else None


def _create_engine_config(create: Callable[..., Any], arguments: Any, *args: Any, **kwargs: Any) -> Any:
    """Read FLoC's settings from the engine's arguments, then let vLLM create its config."""
    given = (arguments.additional_config or {}).get(NAME)
    rate = arguments.video_pruning_rate
    if given is None and not is_switched_on():
        if is_active() and rate:
            reason = "vLLM's own pruning, which floc replaced in this process or in the one that started it"
            remedy = f"give this engine floc settings too, or start it in a process of its own without {ACTIVE} set"
            raise ValueError(f"--video-pruning-rate {rate:g} needs {reason}: {remedy}")
        return create(arguments, *args, **kwargs)
    settings = _resolve_settings(arguments, given)
    activate()
    try:
        config = create(arguments, *args, **kwargs)
    finally:
        arguments.video_pruning_rate = rate  # the caller may use the arguments again
    if settings.has_count:
        _check_config(config, settings)
        setattr(config.model_config.hf_config, NAME, settings.to_dict())
        LOG.info("floc keeps %s", settings)
    else:
        LOG.info("floc keeps all tokens of every video: set --video-pruning-rate, or a floc ratio or budget")
    return config


def _resolve_settings(arguments: Any, given: object) -> Settings:
    """Combine the settings with vLLM's arguments, and set the pruning rate there to match."""
    if getattr(arguments, "video_pruning_method", "evs") != "evs":
        raise ValueError(f"--video-pruning-method {arguments.video_pruning_method} and floc exclude each other")
    settings = Settings.from_dict({} if given is None else given).with_rate(arguments.video_pruning_rate)
    if settings.record is not None:
        try:
            Path(settings.record).open("a").close()
        except OSError as error:
            raise ValueError(f"floc cannot write its record to {settings.record}: {error.strerror}") from error
    for folder in settings.stored or ():
        if not Path(folder).is_dir():
            raise ValueError(f"{folder}: no such folder of stored videos; create it, or take it out of stored")
    if settings.stored and not settings.has_count:  # all tokens of other videos
        settings = replace(settings, ratio="1")
    if settings.has_count:
        arguments.video_pruning_rate = settings.rate
    elif given is not None:
        raise ValueError(f"no token count for floc: add ratio or budget to {given}, or set --video-pruning-rate")
    return settings


def _check_config(config: Any, settings: Settings) -> None:
    """Raise ValueError if the engine uses something that does not work with compressed videos."""
    architecture = config.model_config.architecture
    if architecture not in VLLM_MODELS and architecture not in COMPACT_MODELS:
        remedy = "For other models use floc.attach with transformers, or serve without a pruning rate"
        supported = ", ".join([*VLLM_MODELS, *COMPACT_MODELS])
        raise ValueError(f"floc does not support {architecture} in vLLM; it supports {supported}. {remedy}")
    if architecture in COMPACT_MODELS and settings.positions != "compact":
        reason = "vLLM counts its positions over the kept tokens, so that they differ from those in the whole video"
        raise ValueError(f'{architecture} needs "positions": "compact" in the floc settings: {reason}')
    if architecture in COMPACT_MODELS and settings.stored:
        raise ValueError(f"floc answers from stored videos with {', '.join(VLLM_MODELS)} only; remove stored")
    if architecture in VLLM_MODELS and settings.positions != "keep":
        raise ValueError(f'in {architecture} a position is a frame, row and column: use "positions": "keep"')
    stages = config.parallel_config.pipeline_parallel_size
    if stages > 1:
        reason = "vLLM gives the positions of kept tokens to the first stage only; leave it out"
        raise ValueError(f"--pipeline-parallel-size {stages}: {reason}")
    if config.parallel_config.distributed_executor_backend == "ray":
        reason = "vLLM does not pass the floc settings to workers on Ray; use mp"
        raise ValueError(f"--distributed-executor-backend ray: {reason}")
    draft = getattr(config.speculative_config, "method", None)
    if draft not in (None, "ngram", "suffix"):  # speculative decoding without embeddings
        reason = "vLLM shifts the embeddings of draft models by one token, so kept tokens would get wrong positions"
        raise ValueError(f"--speculative-config with method {draft}: {reason}; use ngram or suffix")


def _refuse_evs(*args: Any, **kwargs: Any) -> Any:
    raise ValueError(f"floc is on, but this model uses vLLM's own pruning; floc supports {', '.join(VLLM_MODELS)}")


def _load_model(load: Callable[..., Any], runner: Any, *args: Any, **kwargs: Any) -> Any:
    loaded = load(runner, *args, **kwargs)
    model = runner.get_model()
    if getattr(model, "floc", None) is not None:
        if multiprocessing.parent_process() is not None:
            # starting and ending the limit for each video takes as long as a small selection; it applies to the whole
            # process, so it is not set in one that vLLM did not start
            _limits.enter_context(single_threaded_blas())
        model.warm_up_floc()  # on CPUs vLLM profiles no dummy video, so the first request would wait for compilation
    multimodal = runner.model_config.multimodal_config
    runner.is_multimodal_pruning_enabled = multimodal is not None and multimodal.is_multimodal_pruning_enabled()
    return loaded


def _rebind_kernels(rebind: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    hidden = {name: sys.modules.pop(name) for name in [*sys.modules] if name.split(".")[0] == "llvmlite"}
    try:
        return rebind(*args, **kwargs)
    finally:
        sys.modules.update(hidden)


def _wrap_once(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Replace `owner.name` with a call of `wrapper(original, *args, **kwargs)`, unless that was done before."""
    original = getattr(owner, name)
    if getattr(original, "wrapped_by", None) == NAME:
        return

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    wrapped.wrapped_by = NAME  # type: ignore[attr-defined]
    setattr(owner, name, wrapped)
