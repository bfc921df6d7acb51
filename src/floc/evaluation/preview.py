"""What `--dry-run` shows: the plan with its tokens and its time, and what is missing for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from floc.evaluation import downloads, estimate, models
from floc.evaluation.command import Command, gpus_of
from floc.evaluation.folder import Folder
from floc.evaluation.plan import Cell


def preview(cells: Sequence[Cell], folder: Folder, command: Command, gpus: str = "0") -> dict[str, Any]:
    """A plan in all detail, as JSON takes it."""
    basis = estimate.basis()
    return {
        "cells": [
            {**_cell(cell, folder, basis), "command": command(cell, folder.run(cell), gpus_of(gpus))} for cell in cells
        ],
        "assumed": models.assumptions(dict.fromkeys(cell.model for cell in cells)),
        "estimate": None if basis is None else basis.said,
        "missing": [{"repository": each.repository, "get": str(each)} for each in downloads.missing(cells)],
    }


def _cell(cell: Cell, folder: Folder, basis: estimate.Basis | None) -> dict[str, Any]:
    most, kept = estimate.tokens(cell)
    film = estimate.film_tokens(cell)
    published = cell.published()
    times = None if basis is None else estimate.spent(cell, basis)
    return {
        **cell.settings,
        "name": cell.name,
        "state": folder.state(cell),
        "tokens": most,
        "kept": kept,
        "film_tokens": film,
        "film_kept": cell.kept(film),
        "computing_s": None if times is None else times.computing_s,
        "reading_s": None if times is None else times.reading_s,
        "paper": None if published is None else published.value,
    }


def groups(cells: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Cells that differ in method and task alone, together."""
    alike: dict[tuple, list[dict[str, Any]]] = {}
    for cell in cells:
        key = tuple(cell[name] for name in ("model", "max_frames", "fps", "ratio", "budget", "limit", "more", "lmms"))
        alike.setdefault(key, []).append(cell)
    return list(alike.values())
