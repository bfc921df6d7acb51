"""The numbers in the paper's tables, as data: `paper.json`, a line for a row.

Models, methods, tasks and ratios have the names that `floc eval` gives them; `videomme/short` is a part of a task. What
does not add up in the paper is printed as it stands there, and told in the notes of its table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from floc._checks import check_choice

# where an accuracy is looked up, in this order: a score of MLVU in Table 4 is another row's, Table 6 has the right one
ACCURACY = ("table1", "table2", "table6", "table4", "table5", "table8")
# the paper's FLoC is `floc-paper`; `floc` goes beyond it, and is held against the same number
AS_IN_THE_PAPER = {"floc": "floc-paper"}


@dataclass(frozen=True)
class Table:
    """One table of the paper."""

    name: str
    label: str  # in the paper's source
    caption: str
    unit: str
    notes: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]

    @property
    def title(self) -> str:
        """How the paper calls it."""
        return f"Table {self.name.removeprefix('table')}"


class Published(NamedTuple):
    """A number of the paper, and where it stands."""

    value: float
    table: str


def table(name: str) -> Table:
    """One table, by its name."""
    check_choice("table of the paper", name, tables())
    return tables()[name]


def row(name: str, method: str) -> dict[str, Any]:
    """The row of a method in a table that has one for each; empty where the table has none.

    >>> row("table7", "sttm")["compression_s"]
    0.07
    """
    return next((each for each in table(name).rows if each["method"] == method), {})


@cache
def tables() -> dict[str, Table]:
    """All tables, by name: table1 to table8."""
    return {
        name: Table(name, each["label"], each["caption"], each["unit"], tuple(each["notes"]), tuple(each["rows"]))
        for name, each in _document()["tables"].items()
    }


def accuracy(
    model: str, method: str, task: str, *, ratio: str | None = None, budget: int | None = None
) -> Published | None:
    """The accuracy in the paper, in percent.

    >>> accuracy("qwen2.5-vl-7b", "floc", "videomme", ratio="1/8")
    Published(value=63.33, table='table1')
    """
    method = AS_IN_THE_PAPER.get(method, method)
    for name, row in _rows():
        same = (row["model"], row["method"], row.get("ratio"), row.get("budget")) == (model, method, ratio, budget)
        if same and task in row["scores"]:
            return Published(row["scores"][task], name)
    return None


def _rows() -> Iterator[tuple[str, dict[str, Any]]]:
    return ((name, row) for name in ACCURACY for row in tables()[name].rows)


@cache
def _document() -> dict[str, Any]:
    return json.loads(resources.files(__package__).joinpath("paper.json").read_text(encoding="utf-8"))
