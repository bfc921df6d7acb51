"""The classes that lmms-eval loads, each made when it is asked for; importing this needs lmms-eval."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from lmms_eval import models as registry
from lmms_eval.api.instance import GenerationResult, Instance, TokenCounts, unwrap_generation_output
from lmms_eval.api.model import lmms
from lmms_eval.api.task import ConfigurableTask
from loguru import logger
from tqdm import tqdm

import floc
from floc.integrations.lmms_eval.arguments import Arguments
from floc.integrations.lmms_eval.families import FAMILIES, Family
from floc.integrations.lmms_eval.log import KEY, Figures
from floc.integrations.lmms_eval.sampling import changed


def __getattr__(name: str) -> type:
    model, _, kind = name.rpartition("_")
    if model not in FAMILIES or kind not in ("chat", "simple"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    family = FAMILIES[model]
    wrapped = registry.get_model(family.wraps, force_simple=kind == "simple")
    return type(name, (Compressed, wrapped), {"family": family, "__module__": __name__})


class Compressed(lmms):
    """Stands before a model of lmms-eval, which then reads a fraction of the tokens of every video."""

    family: ClassVar[Family]

    def __init__(self, **given: Any) -> None:
        if str(given.get("batch_size", 1)) != "1":
            raise ValueError(
                f"batch_size must be 1, so that every sample has its own figures; got {given['batch_size']!r}"
            )
        arguments = Arguments.of(given, _parameters(super().__init__))
        super().__init__(**arguments.wrapped)
        self.recipe = arguments.recipe
        self.until_clean = ExitStack()
        self.until_clean.enter_context(floc.attach(self.model, recipe=arguments.recipe, positions=arguments.positions))
        if arguments.sampling.is_given:
            self.until_clean.enter_context(self.family.sampled(self, arguments.sampling))

    def generate_until(self, requests: list[Instance]) -> list[GenerationResult]:
        with _one_bar(super().generate_until, len(requests), is_hidden=self.rank != 0):
            return [self._answer(each) for each in requests]

    def _answer(self, request: Instance) -> GenerationResult:
        self.recipe.notes.clear()
        started = time.perf_counter()
        with _loud(self.model):
            (output,) = super().generate_until([request])
        figures = self.recipe.take(time.perf_counter() - started)
        if not figures.tokens:
            logger.warning(
                f"{request.task_name}, sample {request.doc_id}: floc found no video in it, and compresses nothing else"
            )
        text, counts = unwrap_generation_output(output)
        return GenerationResult(text, Counts.of(counts, figures))

    def clean(self) -> None:
        self.until_clean.close()
        super().clean()


@dataclass
class Counts(TokenCounts):
    """What lmms-eval logs of a sample's tokens, and floc's figures with it."""

    figures: Figures | None = None

    @classmethod
    def of(cls, counts: TokenCounts | None, figures: Figures) -> Counts:
        """Beside what the model counted itself."""
        return cls(**vars(counts or TokenCounts()), figures=figures)

    def to_dict(self) -> dict[str, Any]:
        assert self.figures is not None
        return {**super().to_dict(), KEY: self.figures.as_json()}


def _parameters(function: Any) -> list[str]:
    every = inspect.signature(function).parameters.values()
    return [each.name for each in every if each.kind is not inspect.Parameter.VAR_KEYWORD]


@contextmanager
def _loud(model: Any) -> Iterator[None]:
    """Raise what `generate` raises: some models of lmms-eval take it for an empty answer, and count that as wrong."""
    generate, errors = model.generate, []

    def noting(*args: Any, **kwargs: Any) -> Any:
        try:
            return generate(*args, **kwargs)
        except Exception as error:
            errors.append(error)
            raise

    with changed(model, "generate", noting):
        yield
    if errors:
        raise errors[0]


@contextmanager
def _one_bar(function: Any, total: int, *, is_hidden: bool) -> Iterator[None]:
    """Show one bar for all samples, where a model makes one each time it is asked."""
    with tqdm(total=total, disable=is_hidden, desc="Model Responding") as bar:

        class Shared:
            """What the model takes for a bar of its own."""

            update = staticmethod(bar.update)
            close = staticmethod(lambda: None)

        names = function.__func__.__globals__
        before = names["tqdm"]
        names["tqdm"] = lambda *args, **kwargs: Shared
        try:
            yield
        finally:
            names["tqdm"] = before


def _ask_as_wrapped() -> None:
    """Word prompts as for the wrapped models: tasks have prompts by the name of the model."""
    prepare = ConfigurableTask._prepare_model_specific_config

    def prepare_as_wrapped(task: Any) -> None:
        if task.model_name in FAMILIES:
            task.model_name = FAMILIES[task.model_name].wraps
        prepare(task)

    ConfigurableTask._prepare_model_specific_config = prepare_as_wrapped


_ask_as_wrapped()
logger.disable("lmms_eval.models.model_utils.gen_metrics")  # a summary for each sample; lmms-eval prints one of all
