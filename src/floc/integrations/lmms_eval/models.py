"""The classes that lmms-eval loads, created on demand. Importing this module needs lmms-eval."""

import inspect
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

from lmms_eval import models as registry
from lmms_eval.api.instance import GenerationResult, Instance, TokenCounts, unwrap_generation_output
from lmms_eval.api.model import lmms
from lmms_eval.api.task import ConfigurableTask
from loguru import logger
from tqdm import tqdm

import floc
from floc.integrations.lmms_eval.arguments import ModelArguments
from floc.integrations.lmms_eval.log import KEY, SampleCost
from floc.integrations.lmms_eval.model_table import LMMS_MODELS, LmmsModel
from floc.integrations.lmms_eval.sampling import override_attribute


def __getattr__(name: str) -> type:
    model, _, kind = name.rpartition("_")
    if model not in LMMS_MODELS or kind not in ("chat", "simple"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    wrapped = registry.get_model(LMMS_MODELS[model].wraps, force_simple=kind == "simple")
    return type(name, (CompressedModel, wrapped), {"wrapped_model": LMMS_MODELS[model], "__module__": __name__})


class CompressedModel(lmms):
    """Mixin for a model of lmms-eval: FLoC compresses every video that it reads."""

    wrapped_model: ClassVar[LmmsModel]

    def __init__(self, **given: Any) -> None:
        if str(given.get("batch_size", 1)) != "1":
            raise ValueError(f"batch_size must be 1, so that every sample is measured; got {given['batch_size']!r}")
        arguments = ModelArguments.parse(given, _list_arguments(type(self)))
        super().__init__(**arguments.wrapped)
        self.recipe = arguments.recipe
        self.floc_contexts = ExitStack()
        attached = floc.attach(self.model, recipe=arguments.recipe, positions=arguments.positions)
        self.floc_contexts.enter_context(attached)
        if arguments.sampling.is_given:
            self.floc_contexts.enter_context(self.wrapped_model.override_sampling(self, arguments.sampling))

    def generate_until(self, requests: list[Instance]) -> list[GenerationResult]:
        with _share_progress_bar(super().generate_until, len(requests), is_hidden=self.rank != 0):
            return [self._answer(request) for request in requests]

    def _answer(self, request: Instance) -> GenerationResult:
        self.recipe.videos.clear()
        started = time.perf_counter()
        with ExitStack() as raising:
            raising.enter_context(_raise_errors(self.model, "generate"))
            if hasattr(self, "_infer_one"):  # models for audio, too: all that they do for a sample
                raising.enter_context(_raise_errors(self, "_infer_one"))
            (output,) = super().generate_until([request])
        cost = self.recipe.pop_cost(time.perf_counter() - started)
        if not cost.tokens:
            logger.warning(f"{request.task_name}, sample {request.doc_id}: no video, so floc compressed nothing")
        text, counts = unwrap_generation_output(output)
        return GenerationResult(text, MeasuredCounts(**vars(counts or TokenCounts()), cost=cost))

    def clean(self) -> None:
        self.floc_contexts.close()
        super().clean()


def _list_arguments(model: type) -> list[str]:
    """Return the names that the wrapped model accepts: a class may pass arguments on to its bases."""
    functions = [vars(base)["__init__"] for base in model.__mro__ if "__init__" in vars(base)]
    parameters = [parameter for each in functions[1:-1] for parameter in inspect.signature(each).parameters.values()]
    names = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD and each.name != "self"]
    return [*dict.fromkeys(names)]


@dataclass
class MeasuredCounts(TokenCounts):
    """The token counts that lmms-eval logs, with the cost of the sample."""

    cost: SampleCost | None = None

    def to_dict(self) -> dict[str, Any]:
        assert self.cost is not None
        return {**super().to_dict(), KEY: asdict(self.cost)}


@contextmanager
def _raise_errors(owner: Any, name: str) -> Iterator[None]:
    """Raise the errors of a method: some models of lmms-eval return an empty, wrong answer instead."""
    function, errors = getattr(owner, name), []

    def collect_errors(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            errors.append(error)
            raise

    with override_attribute(owner, name, collect_errors):
        yield
    if errors:
        raise errors[0]


@contextmanager
def _share_progress_bar(function: Any, total: int, *, is_hidden: bool) -> Iterator[None]:
    """Show one progress bar for all samples, although the wrapped `function` creates one per call."""
    with tqdm(total=total, disable=is_hidden, desc="Model Responding") as bar:
        shared = SimpleNamespace(update=bar.update, close=lambda: None)
        with override_attribute(sys.modules[function.__module__], "tqdm", lambda *args, **kwargs: shared):
            yield


_prepare = ConfigurableTask._prepare_model_specific_config


def _prepare_task(task: Any) -> None:
    """Give a task the name of the wrapped model, since it may have special prompts for it."""
    if task.model_name in LMMS_MODELS:
        task.model_name = LMMS_MODELS[task.model_name].wraps
    _prepare(task)


ConfigurableTask._prepare_model_specific_config = _prepare_task
logger.disable("lmms_eval.models.model_utils.gen_metrics")  # prints a summary per sample; lmms-eval prints one of all
