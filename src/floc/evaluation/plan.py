"""What is to be run: a cell is one model, with one method and one budget, on one task.

Without anything said, a cell has the paper's settings: the frames it reads for the model, and its blocks, 32 frames for
FLoC and DivPrune and 8 for the clusterings. Those that the paper's tables name are taken from their rows.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from floc import methods as registry
from floc._checks import check_choice
from floc.budget import Budget
from floc.evaluation import models, paper
from floc.evaluation.paper import Published
from floc.evaluation.tasks import TASKS

FULL = "full"  # no compression at all
MODELS = ("qwen2.5-vl-7b",)
METHODS = (FULL, "floc", "floc-paper", "frame_uniform", "random")
RATIOS = ("1/8", "1/16", "1/32")
OWN = {"pretrained", "ratio", "budget", "coverage", "method", "block", "max_frames", "fps"}  # arguments with options
PIXELS = ("min_pixels", "max_pixels")
# arguments of lmms-eval that cells have by other options, or that would change what a cell is about
SAID = (
    *("--config", "--model", "--model_args", "--tasks", "--limit", "--offset"),
    *("--batch_size", "--device", "--output_path", "--log_samples"),
)
# what --paper takes, and the tables it stands for; Table 6 are parts of the answers that Table 4 is about
PAPER = {
    "table1": ("table1",),
    "table2": ("table2",),
    "supp": ("table4", "table5"),
    "table4": ("table4",),
    "table5": ("table5",),
    "table6": ("table6",),
    "table8": ("table8",),
}


@dataclass(frozen=True)
class Cell:
    """One run of lmms-eval."""

    model: str
    weights: str  # a repository, or a folder
    method: str  # as `floc.methods.parse` takes it, or FULL
    task: str
    max_frames: int
    ratio: str | None = None  # this
    budget: int | None = None  # or this
    block: str | None = None  # None: the method has no blocks
    fps: float | None = None  # None: so many frames, spread evenly
    limit: int | None = None  # only the first questions
    more: str = ""  # further arguments for the model, as lmms-eval takes them
    lmms: str = ""  # further arguments for lmms-eval, as a shell takes them

    @property
    def told(self) -> models.Model:
        """The model, with what it is told."""
        return models.get(self.model).told(_pairs(self.more))

    @property
    def settings(self) -> dict[str, Any]:
        """All there is to it, as JSON takes it."""
        return asdict(self)

    @property
    def name(self) -> str:
        """A name for files, another one for other settings."""
        told = [self.model, self.method, self.dial, self.task]
        digest = hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()[:8]
        return re.sub(r"[^\w.+-]+", "_", "-".join(told)) + f"-{digest}"

    @property
    def dial(self) -> str:
        """How much is kept, in a word."""
        return str(self.ratio if self.budget is None else self.budget)

    def kept(self, tokens: int) -> int:
        """How many of so many tokens are kept."""
        return Budget.parse(self.ratio, self.budget, None).count(tokens)

    def published(self, part: str | None = None) -> Published | None:
        """The paper's number for it, or for a part of its task, where it has the paper's settings."""
        told = paper.accuracy(self.model, self.method, part or self.task, ratio=self.ratio, budget=self.budget)
        if told is None or self.limit is not None or not self._is_as_in_the_paper():
            return None
        return told

    def _is_as_in_the_paper(self) -> bool:
        if self.block != _block(self.method, None):
            return False
        return (self.max_frames, self.fps) == _sampling(models.get(self.model), self.budget)


@dataclass(frozen=True)
class Wish:
    """What a user asks for; what is None is the paper's, or the default."""

    models: Sequence[str] | None = None  # names, or NAME=FOLDER for weights elsewhere
    methods: Sequence[str] | None = None
    ratios: Sequence[str] | None = None
    tasks: Sequence[str] | None = None
    budget: int | None = None
    block: str | None = None
    max_frames: int | None = None
    fps: float | None = None
    limit: int | None = None
    more: str = ""  # model arguments of lmms-eval: NAME=VALUE,NAME=VALUE
    lmms: str = ""  # other arguments of lmms-eval, as a shell takes them

    def check(self) -> None:
        """Complain of what would fail after hours."""
        for model in self.models or ():
            models.get(_name(model))
            if model.endswith("="):
                raise ValueError(f"{model}: no folder is named; write NAME=FOLDER, or the name alone")
        for method in self.methods or ():
            if method != FULL:
                registry.parse(method)
        if self.block is not None:
            registry.parse(f"floc:block={self.block}")  # it says what is wrong with it
        if self.ratios is not None and self.budget is not None:
            raise ValueError(f"give ratios or a budget, not both; got {', '.join(self.ratios)} and {self.budget}")
        for ratio in self.ratios or ():
            Budget.parse(ratio, None, None)
        if self.budget is not None:
            Budget.parse(None, self.budget, None)
        for name in ("max_frames", "limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.fps is not None and not 0 < self.fps < math.inf:
            raise ValueError(f"fps must be a number of frames a second above 0, got {self.fps:g}")
        for name in set(_pairs(self.more)) & OWN:
            raise ValueError(f"model arguments: {name} has an option of its own; see floc eval --help")
        for name, value in _pairs(self.more).items():
            if owner := next((each for each in registry.names() if name in registry.options(each)), None):
                raise ValueError(
                    f"model arguments: {name} is an option of methods; write it there, as in {owner}:{name}={value}"
                )
        _check_lmms(self.lmms)
        for name in ("models", "methods", "ratios", "tasks"):
            if getattr(self, name) == []:
                raise ValueError(f"{name}: none is named; leave the option out for the usual ones")


def grid(wish: Wish) -> list[Cell]:
    """Every model with every method, ratio and task."""
    wish.check()
    return _in_order(
        _cell(wish, model, method, ratio, wish.budget, task)
        for model in wish.models or MODELS
        for task in wish.tasks or TASKS
        for ratio in (wish.ratios or RATIOS if wish.budget is None else (None,))
        for method in wish.methods or METHODS
    )


def from_paper(name: str, wish: Wish) -> list[Cell]:
    """What a table of the paper is made of, or of it what is asked for."""
    check_choice("--paper", name, PAPER)
    wish.check()
    tables = [paper.table(each) for each in PAPER[name]]
    rows = [row for table in tables for row in table.rows]
    for model in wish.models or ():
        check_choice(f"model of --paper {name},", _name(model), _in_order(row["model"] for row in rows))
    for task in wish.tasks or ():
        check_choice(f"task of --paper {name},", task, _tasks(rows))
    return _in_order(cell for table in tables for cell in _of_table(table, wish))


def _of_table(table: paper.Table, wish: Wish) -> Iterator[Cell]:
    for model in wish.models or _in_order(row["model"] for row in table.rows):
        rows = [row for row in table.rows if row["model"] == _name(model)]
        for task in [each for each in _tasks(rows) if wish.tasks is None or each in wish.tasks]:
            for method, ratio, budget in _wished(rows, wish):
                yield _cell(wish, model, method, ratio, budget, task)


def _tasks(rows: Iterable[dict[str, Any]]) -> list[str]:
    """The tasks that rows have scores of, or of their parts."""
    return _in_order(task.partition("/")[0] for row in rows for task in row["scores"])


def _wished(rows: Sequence[dict[str, Any]], wish: Wish) -> Iterable[tuple[str, str | None, int | None]]:
    """Methods with their dials: what is asked for, and else what a model's rows have."""
    dials = _in_order((row.get("ratio"), row.get("budget")) for row in rows if row["method"] != FULL)
    if wish.ratios is not None or wish.budget is not None:
        dials = [(ratio, wish.budget) for ratio in wish.ratios or (None,)]
    methods = wish.methods or _in_order(row["method"] for row in rows)
    return [(method, *dial) for dial in dials for method in methods]


def _cell(wish: Wish, model: str, method: str, ratio: str | None, budget: int | None, task: str) -> Cell:
    known = models.get(_name(model))
    if ratio is not None and Fraction(ratio) == 1:
        method = FULL
    if method == FULL:
        ratio, budget = "1", None
    frames, fps = _sampling(known, budget)
    return Cell(
        known.name,
        _weights(model) or known.repository,
        method,
        task,
        wish.max_frames or frames,
        None if ratio is None else str(Fraction(ratio)),
        budget,
        _block(method, wish.block),
        wish.fps or fps,
        wish.limit,
        wish.more,
        wish.lmms,
    )


def _sampling(model: models.Model, budget: int | None) -> tuple[int, float | None]:
    """The frames that the paper reads, at most, and how many a second: its budget is for long videos."""
    for row in paper.table("table2").rows:
        if budget is not None and (row["model"], row.get("budget")) == (model.name, budget):
            return row["frames"], row["fps"]
    return model.frames, None


def _block(method: str, wished: str | None) -> str | None:
    """The block of a method that has blocks: what is wished, what its own options say, or its default."""
    if method == FULL:
        return None
    spec = registry.parse(method)
    if "block" not in registry.options(spec.method):
        return None
    held = spec.options.get("block", registry.defaults(spec.method)["block"])
    return wished if wished is not None and "block" not in spec.options else str(held).lower()


def _pairs(more: str) -> dict[str, str]:
    """Further arguments by name."""
    pairs = [each.strip().partition("=") for each in more.split(",") if each.strip()]
    for name, equals, value in pairs:
        if not (name and equals and value):
            raise ValueError(f"model arguments are NAME=VALUE,NAME=VALUE; got {more!r}")
        if name in PIXELS and not (value.isascii() and value.isdigit()):
            raise ValueError(f"model arguments: {name} must be a whole number, got {value!r}")
    return {name: value for name, _, value in pairs}


def _check_lmms(given: str) -> None:
    """Complain of arguments for lmms-eval that would make another cell of a cell."""
    try:
        words = shlex.split(given)
    except ValueError as error:
        raise ValueError(f"--lmms: {error}; got {given!r}") from None
    for word in words:
        name = word.partition("=")[0]
        # lmms-eval takes the beginning of a name for the name
        said = next((each for each in SAID if name.startswith("--") and each.startswith(name)), None)
        if said is not None:
            raise ValueError(f"--lmms: floc eval says {said} itself, see floc eval --help; got {given!r}")


def _name(model: str) -> str:
    return model.partition("=")[0]


def _weights(model: str) -> str | None:
    """The folder that NAME=FOLDER names, wherever the command is run from the next time."""
    folder = model.partition("=")[2]
    return str(Path(folder).absolute()) if folder else None


def _in_order(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))
