"""Methods: one file each, one call, `(grid, budget) -> Kept`.

A method is a frozen dataclass whose fields are its options. Every module in this package is imported when the names are
first asked for, so a new file is all that a new method takes.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import fields
from typing import Protocol, TypeVar, runtime_checkable

from ..naming import require_known
from ..types import Kept, TokenGrid


class Method(Protocol):
    """What compresses a grid to a budget."""

    def __call__(self, grid: TokenGrid, budget: int) -> Kept:
        """Keep `budget` tokens, 1 <= budget <= grid.n."""
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


def get(name: str) -> type:
    """The class behind a method's name; its fields are the method's options."""
    require_known("method", name, names())
    return _registry[name]


def options(name: str) -> list[str]:
    """The options a method takes."""
    return [each.name for each in fields(get(name)) if each.init]


def defaults(name: str) -> dict[str, object]:
    """Each option's default."""
    return {each.name: each.default for each in fields(get(name)) if each.init}


def describe(name: str) -> str:
    """The first line of what a method's class says of itself."""
    return (get(name).__doc__ or "").strip().splitlines()[0]


def make(name: str, given: dict[str, object]) -> Method:
    """A method with its options, or an error that lists the options there are."""
    cls = get(name)
    for option in given:
        require_known(f"option of method {name!r},", option, options(name))
    return cls(**given)
