"""From results to Markdown, so that no number in the documentation is typed.

A page marks the place: `<!-- bench:select -->` and `<!-- /bench:select -->`. `fill` puts the table between the two.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from floc._checks import check_choice
from floc.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Echo = Callable[[str], object]
View = Callable[[dict], str]
Plot = Callable[[dict], "Figure"]

_MARKED = re.compile(r"(<!-- bench:([\w-]+) -->\n)(.*?)(<!-- /bench:\2 -->)", re.DOTALL)


class Unavailable(RuntimeError):
    """A table cannot be measured here: no GPU, say. The message tells what is missing."""


@dataclass(frozen=True)
class Table:
    """What one file in this package measures, and how it is shown."""

    name: str
    run: Callable[[bool, Echo], dict]  # (small, echo) -> the results, by part
    views: Mapping[str, View]  # Markdown from a results file
    plots: Mapping[str, Plot] = field(default_factory=dict)  # figures from one


def tables() -> dict[str, Table]:
    """All tables there are: every file in this package that has a `TABLE`."""
    found = {}
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if module.name not in ("__main__", "sanitize", "vllm_worker"):
            table = getattr(importlib.import_module(f"{__package__}.{module.name}"), "TABLE", None)
            if table is not None:
                found[table.name] = table
    return found


def names() -> list[str]:
    """The tables that can be measured."""
    return sorted(tables())


def get(name: str) -> Table:
    """The table behind a name."""
    check_choice("table", name, names())
    return tables()[name]


def fill(path: Path, results: Path = Path("benchmarks/results")) -> list[str]:
    """Replace what stands between the markers of a Markdown file, and return the names that were found."""
    text = path.read_text()
    opened = re.findall(r"<!-- bench:([\w-]+) -->", text)
    filled: list[str] = []

    def replace(found: re.Match[str]) -> str:
        filled.append(found[2])
        return f"{found[1]}\n{markdown(found[2], results)}\n\n{found[4]}"

    new = _MARKED.sub(replace, text)
    if opened != filled:
        raise ValueError(f"{path}: bench markers {opened} are not each closed by a <!-- /bench:NAME --> of their own")
    if new != text:
        path.write_text(new)
    return filled


def markdown(view: str, results: Path = Path("benchmarks/results")) -> str:
    """One view of the results in a folder."""
    from benchmarks import accuracy

    owners = {name: table for table in tables().values() for name in table.views}
    check_choice("bench view", view, sorted({*owners, *accuracy.VIEWS}))
    if view in accuracy.VIEWS:
        return accuracy.VIEWS[view](results)
    table = owners[view]
    path = results / f"{table.name}.json"
    if not path.exists():
        raise FileNotFoundError(f"no results in {path}: run `python -m benchmarks {table.name}` first")
    return table.views[view](json.loads(path.read_text()))


def plot(table: Table, document: dict, folder: Path) -> Iterator[Path]:
    """Draw a table's figures as NAME.png, where matplotlib is installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return
    for name, draw in table.plots.items():
        path = folder / f"{name}.png"
        write_atomic(path, partial(draw(document).savefig, format="png", dpi=150, bbox_inches="tight"))
        yield path


def draw(results: Path) -> list[Path]:
    """Draw the figures of all results in a folder, such as those measured where matplotlib is not installed."""
    drawn: list[Path] = []
    for table in tables().values():
        path = results / f"{table.name}.json"
        if table.plots and path.exists():
            drawn += plot(table, json.loads(path.read_text()), results)
    return drawn


def times(record: dict, digits: int = 3) -> str:
    """A ratio with its spread.

    >>> times({"ratio": 45.67, "ratio_p20": 44.12, "ratio_p80": 47.9})
    '45.7x (44.1 to 47.9)'
    >>> times({"ratio": 0.00456, "ratio_p20": 0.004, "ratio_p80": 0.12})
    '0.00456x (0.004 to 0.12)'
    """
    ratio, low, high = (_significant(record[key], digits) for key in ("ratio", "ratio_p20", "ratio_p80"))
    return f"{ratio}x ({low} to {high})"


def milliseconds(record: dict) -> str:
    """A time for people.

    >>> milliseconds({"ms": 1234.56}), milliseconds({"ms": 1.23456})
    ('1235', '1.23')
    """
    return _significant(record["ms"], 3)


def number(value: float | None, unit: float = 1) -> str:
    """So many of a unit, in three digits; nothing where it was not measured.

    >>> number(1234.5), number(12340, unit=1e6), number(None)
    ('1,234', '0.0123', '')
    """
    if value is None:
        return ""
    scaled = value / unit
    return f"{scaled:,.0f}" if scaled >= 1000 else f"{scaled:.3g}"


def _significant(value: float, digits: int) -> str:
    if 0 < abs(value) < 0.1:
        return f"{value:.{digits}g}"
    whole = len(str(int(abs(value))))
    return f"{value:.{max(0, digits - whole)}f}"


def where(document: dict, *packages: str) -> str:
    """One line under a table: the machine, the versions, the commit."""
    versions = ", ".join(
        f"{name} {document['versions'][name]}" for name in packages if document["versions"].get(name) is not None
    )
    device = document["device"]
    commit, _, changed = (document["commit"] or "").partition("-")
    at = f", commit {commit[:10]}{', changed' if changed else ''}" if commit else ""
    return f"{device['cpu']}, {device['cores']} cores; {versions}; {document['date'][:10]}{at}."
