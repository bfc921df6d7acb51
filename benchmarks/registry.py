"""The tables that can be measured: every module in `benchmarks/tables` defines one `TABLE`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import benchmarks.tables
from floc._checks import check_choice

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Echo = Callable[[str], object]  # called with each line to show
View = Callable[[dict], str]  # results -> Markdown
Plot = Callable[[dict], "Figure"]  # results -> figure


class Unavailable(RuntimeError):
    """A table cannot be measured on this machine, for example because it has no GPU."""


@dataclass(frozen=True)
class BenchTable:
    """A table: the function that measures it, and the functions that show its results."""

    name: str
    run: Callable[..., dict]  # (small, echo, **options) -> JSON-serialisable results
    views: Mapping[str, View]  # by the name used in page markers
    plots: Mapping[str, Plot] = field(default_factory=dict)  # by file name
    is_optional: bool = False  # a page shows nothing of it until it is measured


def load_tables() -> dict[str, BenchTable]:
    """Import all tables, by name."""
    modules = pkgutil.iter_modules(benchmarks.tables.__path__)
    tables = [importlib.import_module(f"benchmarks.tables.{module.name}").TABLE for module in modules]
    return {table.name: table for table in sorted(tables, key=lambda table: table.name)}


def get(name: str) -> BenchTable:
    """Return a table by name; raise ValueError if there is none."""
    tables = load_tables()
    check_choice("table", name, tables)
    return tables[name]
