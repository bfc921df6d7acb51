"""The folder of an evaluation: what is finished, what failed, and what each run wrote.

results/NAME.json   a finished cell: it is there whole, or the cell is not finished
failed/NAME.json    a cell that failed, and why
logs/NAME.log       what a cell's run said, the last time
runs/NAME/          what lmms-eval wrote, the last time
report.md, report.json
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from floc.evaluation.plan import Cell
from floc.files import write_atomic

State = Literal["done", "failed", "to do"]


@dataclass(frozen=True)
class Folder:
    """Where the cells of one or more plans are kept."""

    path: Path

    def state(self, cell: Cell) -> State:
        """Where a cell stands."""
        if self._result(cell).exists():
            return "done"
        return "failed" if self._failure(cell).exists() else "to do"

    def log(self, cell: Cell) -> Path:
        """The file for what a cell's run says."""
        return self._file("logs", cell, "log")

    def run(self, cell: Cell) -> Path:
        """The folder for what a cell's run writes."""
        return self.path / "runs" / cell.name

    def fresh_run(self, cell: Cell) -> Path:
        """The same, empty."""
        path = self.run(cell)
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path

    def finish(self, cell: Cell, outcome: dict[str, Any]) -> None:
        """Put a cell's result in place: from now on it is finished."""
        write_json(self._result(cell), {"cell": cell.settings, **outcome})
        self._failure(cell).unlink(missing_ok=True)

    def fail(self, cell: Cell, about: dict[str, Any]) -> None:
        """Note that a cell failed."""
        write_json(self._failure(cell), {"cell": cell.settings, "log": str(self.log(cell)), **about})

    def results(self) -> list[dict[str, Any]]:
        """All finished cells."""
        return self._all("results")

    def failures(self) -> list[dict[str, Any]]:
        """All cells that failed."""
        return self._all("failed")

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep others from running cells here meanwhile. The system lets go of it, however this process ends."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                other = file.read().strip() or "unknown"
                raise ValueError(
                    f"{self.path}: process {other} is at work here; wait for it, or name another folder with --out"
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield

    def _result(self, cell: Cell) -> Path:
        return self._file("results", cell, "json")

    def _failure(self, cell: Cell) -> Path:
        return self._file("failed", cell, "json")

    def _file(self, kind: str, cell: Cell, suffix: str) -> Path:
        return self.path / kind / f"{cell.name}.{suffix}"

    def _all(self, kind: str) -> list[dict[str, Any]]:
        return [_read(path) for path in sorted((self.path / kind).glob("*.json"))]


def write_json(path: Path, document: Any) -> None:
    """Put a document in place of a file, which is never there by half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, lambda temporary: temporary.write_text(json.dumps(document, indent=1) + "\n"))


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
        Cell(**document["cell"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not a file of `floc eval` ({error!r}); move it elsewhere") from None
    return document
