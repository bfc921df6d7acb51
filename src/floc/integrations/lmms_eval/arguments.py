"""Split `--model_args` into FLoC's arguments and those of the wrapped model."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from floc import methods
from floc._checks import check_choice
from floc.integrations.lmms_eval.log import MeasuredRecipe
from floc.integrations.lmms_eval.sampling import FrameSampling

BUDGETS = ("ratio", "budget", "coverage")
OWN = (*BUDGETS, "method", "positions", "max_frames", "fps")


@dataclass(frozen=True)
class ModelArguments:
    """The arguments of a model, checked before any weights are loaded."""

    recipe: MeasuredRecipe
    positions: Any
    sampling: FrameSampling
    wrapped: dict[str, Any]  # of the wrapped model

    @classmethod
    def parse(cls, given: Mapping[str, Any], accepted: Iterable[str]) -> "ModelArguments":
        """Split and check the arguments.

        Args:
            given: as lmms-eval parsed them: numbers if they look like numbers, else text.
            accepted: the names that the wrapped model accepts.
        """
        method = str(given.get("method", "floc"))
        names = [name for name in methods.list_options(methods.parse(method).method) if name != "progress"]
        wrapped = {name: value for name, value in given.items() if name not in (*OWN, *names)}
        for name in wrapped:
            check_choice("model argument", name, [*OWN, *names, *accepted])
        # lmms-eval leaves None and lists as text, which methods.parse converts
        spec = methods.parse(":".join([method, *(f"{name}={given[name]}" for name in given if name in names)]))
        budget: dict[str, Any] = {name: given.get(name) for name in BUDGETS}
        recipe = MeasuredRecipe(**budget, method=spec.method, options=spec.options)
        sampling = FrameSampling(given.get("max_frames"), given.get("fps"))
        return cls(recipe, given.get("positions", "keep"), sampling, wrapped)
