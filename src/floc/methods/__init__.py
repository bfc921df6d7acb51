"""Compression methods: one file each, one call, `(grid, budget) -> Kept`."""

from floc.methods.base import Method, Naming, Native, Reaching, Streaming
from floc.methods.registry import (
    Facts,
    Spec,
    defaults,
    describe,
    facts,
    get,
    make,
    manual,
    markdown,
    names,
    options,
    parse,
    register,
    runs_alone,
    stays_on,
)

__all__ = [
    "Facts",
    "Method",
    "Naming",
    "Native",
    "Reaching",
    "Spec",
    "Streaming",
    "defaults",
    "describe",
    "facts",
    "get",
    "make",
    "manual",
    "markdown",
    "names",
    "options",
    "parse",
    "register",
    "runs_alone",
    "stays_on",
]
