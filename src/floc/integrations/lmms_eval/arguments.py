"""What stands in `--model_args`: some of it is floc's, the rest the wrapped model's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from floc import methods
from floc._checks import check_choice
from floc.integrations.lmms_eval.measured import Measured
from floc.integrations.lmms_eval.sampling import Sampling

DIALS = ("ratio", "budget", "coverage")
OWN = (*DIALS, "method", "positions", "max_frames", "fps")


@dataclass(frozen=True)
class Arguments:
    """Sorted, and checked before any weights are loaded."""

    recipe: Measured
    positions: Any
    sampling: Sampling
    wrapped: dict[str, Any]

    @classmethod
    def of(cls, given: Mapping[str, Any], accepted: Iterable[str]) -> Arguments:
        """Sort them.

        Args:
            given: as lmms-eval parsed them: numbers where they look like numbers, else text.
            accepted: the names that the wrapped model takes.
        """
        method = str(given.get("method", "floc"))
        options = [name for name in methods.options(methods.parse(method).method) if name != "progress"]
        mine = {name: given[name] for name in given if name in options}
        rest = {name: given[name] for name in given if name not in (*OWN, *options)}
        for name in rest:
            check_choice("model argument", name, [*OWN, *options, *accepted])
        spec = methods.parse(_written(method, mine))
        dial: dict[str, Any] = {name: given.get(name) for name in DIALS}
        return cls(
            Measured(**dial, method=spec.method, options=spec.options),
            given.get("positions", "keep"),
            Sampling(given.get("max_frames"), given.get("fps")),
            rest,
        )


def _written(method: str, options: Mapping[str, object]) -> str:
    """A method and its options as the command line has them: lmms-eval leaves none and lists as text.

    >>> _written("floc", {"detail": 1, "block": "none"})
    'floc:detail=1:block=none'
    """
    return ":".join([method, *(f"{name}={value}" for name, value in options.items())])
