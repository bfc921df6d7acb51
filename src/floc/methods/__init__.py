"""Methods: one file each, one call, `(grid, budget) -> Kept`.

A method is a frozen dataclass whose fields are its options and whose `facts` say what it is. Every module in this
package is imported when the names are first asked for, so a new file is all that a new method takes.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import fields
from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch

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


@runtime_checkable
class Streaming(Method, Protocol):
    """A method that `floc.Stream` can follow, a few frames at a time and in bounded memory."""

    def streaming(self) -> dict[str, Any] | None:
        """The options with which a stream chooses in the same way; None where it cannot."""
        ...


@runtime_checkable
class Naming(Method, Protocol):
    """A method that says which tokens it keeps sooner than who stands for whom."""

    def indices(self, grid: TokenGrid, budget: int) -> torch.Tensor:
        """[K] int64 ascending flat indices, what a call keeps, on the tokens' device."""
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
    if name not in _registry:  # looking through the package takes longer than some methods do
        require_known("method", name, names())
    return _registry[name]


def options(name: str) -> tuple[str, ...]:
    """The options a method takes."""
    return _fields(get(name))


@lru_cache
def _fields(method: type) -> tuple[str, ...]:
    return tuple(each.name for each in fields(method) if each.init)


def defaults(name: str) -> dict[str, object]:
    """Each option's default."""
    return {each.name: each.default for each in fields(get(name)) if each.init}


def facts(name: str) -> Facts:
    """What there is to know of a method."""
    return get(name).facts


def describe(name: str) -> str:
    """The first line of what a method's class says of itself."""
    return (get(name).__doc__ or "").strip().splitlines()[0]


def manual(name: str) -> str:
    """All there is to know of a method, in words."""
    known = facts(name)
    lines = [f"{name}: {known.paper}", "", inspect.cleandoc(get(name).__doc__ or ""), ""]
    lines += [f"Kind: {known.kind}. Budget: {'exact' if known.exact else 'the largest count within it'}."]
    lines += [f"Floor: {known.floor}."] * bool(known.floor) + [f"Can use: {known.needs}."] * bool(known.needs)
    given = [f"{key}={value!r}" for key, value in defaults(name).items() if key != "progress"]
    lines += [f"Options: {', '.join(given) or 'none'}."]
    lines += [f"A budget sets: {', '.join(known.searched)}."] * bool(known.searched)
    return "\n".join(lines)


def markdown() -> str:
    """The page on all methods, docs/methods.md: nothing in it is typed twice."""
    head = "| method | paper | kind | budget | floor | can use |\n|---|---|---|---|---|---|"
    rows = [
        f"| [{name}](#{name}) | {known.paper} | {known.kind} | {'exact' if known.exact else 'at most'} "
        f"| {known.floor or 'none'} | {known.needs or 'tokens'} |"
        for name, known in ((name, facts(name)) for name in names())
    ]
    parts = [
        "# Methods\n\nGenerated by `floc methods --markdown`. Every method is one call, "
        '`floc.compress(tokens, ratio=1/8, method="longvu")`; its options are keyword arguments, and on the '
        "command line `--method longvu:threshold=0.8`. Methods with parameters of their own that decide how much is "
        "kept also run without a ratio or budget. All are written from descriptions of what the published programs do.",
        "\n".join([head, *rows]),
    ]
    for name in names():
        known, doc = facts(name), inspect.cleandoc(get(name).__doc__ or "")
        given = [f"`{key}={value!r}`" for key, value in defaults(name).items() if key != "progress"]
        sets = f" A budget sets {' and '.join(f'`{each}`' for each in known.searched)}." if known.searched else ""
        parts.append(f"## {name}\n\n{doc}\n\nOptions: {', '.join(given) or 'none'}.{sets}")
    return "\n\n".join(parts) + "\n"


def runs_alone(spec: Spec) -> bool:
    """Whether a method's own parameters say how many tokens it keeps."""
    return isinstance(make(spec.method, spec.options), Native)


def make(name: str, given: dict[str, object]) -> Method:
    """A method with its options, or an error that lists the options there are."""
    cls = get(name)
    for option in given:
        require_known(f"option of method {name!r},", option, options(name))
    return cls(**{option: _plain(value) for option, value in given.items()})


def stays_on(method: Method, device: torch.device) -> bool:
    """Whether a method does all its work on a device, without waiting for it: some have a `stays_on` that tells."""
    tells = getattr(method, "stays_on", None)
    return tells is not None and tells(device)


def _plain(value: object) -> object:
    """A number, or a list of them, as Python's own, where it comes from an array or a file of them."""
    if isinstance(value, np.ndarray | np.generic | torch.Tensor) and value.ndim == 0:
        return value.item()
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


class Spec(NamedTuple):
    """A method and its options, as text."""

    label: str
    method: str
    options: dict[str, Any]


def parse(text: str) -> Spec:
    """A method with its options, checked.

    >>> parse("floc:detail=1:block=none").options
    {'detail': 1, 'block': None}
    """
    method, *pairs = text.strip().split(":")
    given: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"{text!r}: {pair!r} is no option; write them as floc:detail=1:block=none")
        given[name.strip()] = _value(value.strip())
    if "progress" in given:
        raise ValueError(f"{text!r}: progress is not for text; leave it out")
    make(method, given)  # says what is wrong with them
    return Spec(text.strip(), method, given)


def _value(text: str) -> object:
    if text.lower() in ("none", "true", "false"):
        return {"none": None, "true": True, "false": False}[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
