"""The numbers in the paper's tables, from `paper.json`.

Models, methods, tasks and ratios have the names of `floc eval`; `videomme/short` is a part of a task. Numbers are as
printed. Where they contradict each other, the notes of the table say so.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from floc._checks import check_choice

# tables with accuracies, in the order of lookup: Table 4 prints one MLVU score in the wrong row, Table 6 has it right
ACCURACY = ("table1", "table2", "table6", "table4", "table5", "table8")
# `floc-paper` is the paper's FLoC; `floc` goes beyond it and is compared with the same number
PAPER_METHODS = {"floc": "floc-paper"}


@dataclass(frozen=True)
class PaperTable:
    """One table of the paper."""

    name: str
    label: str  # in the LaTeX source
    caption: str
    unit: str
    notes: list[str]
    rows: list[dict[str, Any]]

    @property
    def title(self) -> str:
        """The table's title, such as "Table 1"."""
        return f"Table {self.name.removeprefix('table')}"


class PaperScore(NamedTuple):
    """A score in the paper, and the table that has it."""

    value: float
    table: str


@cache
def get_tables() -> dict[str, PaperTable]:
    """Return all tables by name: table1 to table8."""
    document = json.loads(resources.files(__package__).joinpath("paper.json").read_text(encoding="utf-8"))
    return {name: PaperTable(name, **table) for name, table in document["tables"].items()}


def get_table(name: str) -> PaperTable:
    """Return one table by name."""
    check_choice("table of the paper", name, get_tables())
    return get_tables()[name]


def get_row(name: str, method: str) -> dict[str, Any]:
    """Return the row of a method in a table with one row per method, or an empty dict.

    >>> get_row("table7", "sttm")["compression_s"]
    0.07
    """
    return next((row for row in get_table(name).rows if row["method"] == method), {})


def get_accuracy(
    model: str, method: str, task: str, *, ratio: str | None = None, budget: int | None = None
) -> PaperScore | None:
    """Return the accuracy in the paper in percent, or None if the paper does not have it.

    >>> get_accuracy("qwen2.5-vl-7b", "floc", "videomme", ratio="1/8")
    PaperScore(value=63.33, table='table1')
    """
    key = (model, PAPER_METHODS.get(method, method), ratio, budget)
    for name in ACCURACY:
        for row in get_tables()[name].rows:
            if (row["model"], row["method"], row.get("ratio"), row.get("budget")) == key and task in row["scores"]:
                return PaperScore(row["scores"][task], name)
    return None
