"""Results as Markdown tables and short numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from floc._text import markdown_table

RATIO_NOTE = "median, with the 20th and 80th percentile over rounds in one process"


def show_rows(head: Sequence[str], rows: Iterable[Sequence[str]], *notes: str) -> str:
    """Return a table without its empty columns, followed by notes.

    >>> print(show_rows(["method", "ms", "not measured"], [["floc", "1.5", ""]], "Median.", "2 cores."))
    | method | ms |
    |---|---:|
    | floc | 1.5 |
    <BLANKLINE>
    Median. 2 cores.
    """
    cells = [list(row) for row in rows]
    used = [place for place in range(len(head)) if place == 0 or any(row[place] for row in cells)]
    table = markdown_table([head[place] for place in used], [[row[place] for place in used] for row in cells])
    note = " ".join(filter(None, notes))
    return f"{table}\n\n{note}" if note else table


def show_records(
    records: Iterable[Mapping[str, Any]], columns: Mapping[str, Callable[[Mapping[str, Any]], str]], *notes: str
) -> str:
    """Return a table with one row for each record; `columns` maps a head to the function that formats its cells."""
    return show_rows(list(columns), [[cell(record) for cell in columns.values()] for record in records], *notes)


def show_ratio(record: Mapping[str, Any], digits: int = 3) -> str:
    """Format a ratio with its spread.

    >>> show_ratio({"ratio": 45.67, "ratio_p20": 44.12, "ratio_p80": 47.9})
    '45.7x (44.1 to 47.9)'
    >>> show_ratio({"ratio": 0.00456, "ratio_p20": 0.004, "ratio_p80": 0.12})
    '0.00456x (0.004 to 0.12)'
    """
    ratio, low, high = (_round(record[key], digits) for key in ("ratio", "ratio_p20", "ratio_p80"))
    return f"{ratio}x ({low} to {high})"


def show_ms(record: Mapping[str, Any]) -> str:
    """Format a record's milliseconds.

    >>> show_ms({"ms": 1234.56}), show_ms({"ms": 1.23456})
    ('1235', '1.23')
    """
    return _round(record["ms"], 3)


def show_number(value: float | None, unit: float = 1) -> str:
    """Format a value in a unit with three digits; empty if it was not measured.

    >>> show_number(1234.5), show_number(12340, unit=1e6), show_number(None)
    ('1,234', '0.0123', '')
    """
    if value is None:
        return ""
    scaled = value / unit
    return f"{scaled:,.0f}" if scaled >= 1000 else f"{scaled:.3g}"


def show_coverage(record: Mapping[str, float]) -> str:
    """Format mean coverage and the mean of the worst-covered 5%."""
    return f"{record['true']:.4f} / {record['worst']:.3f}"


def _round(value: float, digits: int) -> str:
    if 0 < abs(value) < 0.1:
        return f"{value:.{digits}g}"
    whole = len(str(int(abs(value))))
    return f"{value:.{max(0, digits - whole)}f}"


def show_environment(document: Mapping[str, Any], *packages: str) -> str:
    """Return one line with the machine, package versions, date and commit of the results."""
    versions = [
        f"{name} {document['versions'][name]}" for name in packages if document["versions"].get(name) is not None
    ]
    device = document["device"]
    cores = f"{device['cores']} core{'' if device['cores'] == 1 else 's'}"
    commit, _, changed = (document["commit"] or "").partition("-")
    at = [f"commit {commit[:10]}{' with local changes' if changed else ''}"] if commit else []
    return f"{device['cpu']}, {cores}; {', '.join(versions)}; {', '.join([document['date'][:10], *at])}."
