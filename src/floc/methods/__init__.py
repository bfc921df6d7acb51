"""Methods: one file each, one call, `(grid, budget) -> Kept`.

A method is a frozen dataclass whose fields are its options and whose `facts` say what it is. Every module in this
package is imported when the names are first asked for, so a new file is all that a new method takes.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import fields
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

from ..naming import require_known
from ..types import Kept, TokenGrid


class Facts(NamedTuple):
    """What there is to know of a method before it runs."""

    paper: str  # where it was published, in a line
    kind: Literal["select", "merge"]
    exact: bool = True  # whether it reaches any budget above its floor exactly
    floor: str = ""  # the fewest tokens it can keep, in words
    needs: str = ""  # what it can use beside the tokens
    searched: tuple[str, ...] = ()  # options that a budget sets, so that giving both is an error


class Method(Protocol):
    """What compresses a grid to a budget."""

    facts: ClassVar[Facts]

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        """Keep `budget` tokens, 1 <= budget <= grid.n."""
        ...


@runtime_checkable
class Native(Method, Protocol):
    """A method that also runs on its own parameters, without a budget."""

    def native(self, grid: TokenGrid) -> Kept:
        """Keep what its parameters say."""
        ...


@runtime_checkable
class Reaching(Method, Protocol):
    """A method that knows how many tokens a coverage takes without trying."""

    def reaching(self, grid: TokenGrid, coverage: float) -> Kept:
        """Keep as few tokens as reach a coverage."""
        ...


_registry: dict[str, type] = {}
M = TypeVar("M", bound=type)


def register(name: str) -> Callable[[M], M]:
    """Put a method's class behind a name."""

    def put(cls: M) -> M:
        _registry[name] = cls
        return cls

    return put


def names() -> list[str]:
    """All methods there are."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return sorted(_registry)


def get(name: str) -> Any:
    """The class behind a method's name; its fields are the method's options."""
    require_known("method", name, names())
    return _registry[name]


def options(name: str) -> list[str]:
    """The options a method takes."""
    return [each.name for each in fields(get(name)) if each.init]


def defaults(name: str) -> dict[str, object]:
    """Each option's default."""
    return {each.name: each.default for each in fields(get(name)) if each.init}


def facts(name: str) -> Facts:
    """What there is to know of a method."""
    return get(name).facts


def describe(name: str) -> str:
    """The first line of what a method's class says of itself."""
    return (get(name).__doc__ or "").strip().splitlines()[0]


def make(name: str, given: dict[str, object]) -> Method:
    """A method with its options, or an error that lists the options there are."""
    cls = get(name)
    for option in given:
        require_known(f"option of method {name!r},", option, options(name))
    return cls(**given)
