"""Compression methods: one file each, one call, `(grid, budget) -> Kept`."""

from floc.methods.base import CoverageSearch, IndexSelection, Method, SelfSizing, Streamable
from floc.methods.registry import (
    MethodInfo,
    MethodSpec,
    describe,
    format_manual,
    format_markdown,
    get,
    get_defaults,
    get_info,
    list_methods,
    list_options,
    make,
    parse,
    register,
    runs_alone,
    stays_on,
)
