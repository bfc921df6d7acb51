"""Plan an evaluation. A run is one model with one method and one budget on one task.

By default a run has the paper's settings: the frames that the paper reads for the model, and its blocks, 32 frames for
FLoC and DivPrune and 8 for clusterings.
"""

import hashlib
import itertools
import json
import math
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from floc import methods as registry
from floc._checks import check_choice, check_count
from floc.budget import Budget
from floc.evaluation import models, paper
from floc.evaluation.tasks import TASKS

FULL = "full"  # no compression
# model arguments that `floc eval` sets
OWN = {"pretrained", "ratio", "budget", "coverage", "method", "block", "max_frames", "fps"}
# arguments of lmms-eval that `floc eval` sets, or that would change the run
LMMS_OWN = "--config --model --model_args --tasks --limit --offset --batch_size --device --output_path --log_samples"
# values of --paper -> tables
PAPER = {"supp": ("table4", "table5"), **{name: (name,) for name in sorted(paper.ACCURACY)}}


@dataclass(frozen=True)
class EvalRun:
    """One evaluation by lmms-eval. Result files contain its fields."""

    model: str
    weights: str  # a repository or a folder
    method: str  # for `floc.methods.parse`, or FULL
    task: str
    max_frames: int
    ratio: str | None = None  # either this
    budget: int | None = None  # or this
    block: str | None = None  # None: the method has no blocks
    fps: float | None = None  # None: max_frames, evenly spaced
    limit: int | None = None  # of questions
    more: str = ""  # more model arguments for lmms-eval: NAME=VALUE,NAME=VALUE
    lmms: str = ""  # more arguments for lmms-eval, in shell syntax

    @property
    def video_model(self) -> models.VideoModel:
        """The model, with the run's arguments."""
        model = models.get(self.model)
        return replace(model, arguments={**model.arguments, **_parse_arguments(self.more)})

    @property
    def name(self) -> str:
        """A file name that is unique to the settings."""
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:8]
        return re.sub(r"[^\w.+-]+", "_", f"{self.model}-{self.method}-{self.size}-{self.task}") + f"-{digest}"

    @property
    def size(self) -> str:
        """The ratio or the budget."""
        return str(self.ratio if self.budget is None else self.budget)

    def count_kept(self, tokens: int) -> int:
        """Count how many of `tokens` are kept."""
        return Budget.parse(self.ratio, self.budget, None).count(tokens)

    def find_paper_score(self, part: str | None = None) -> paper.PaperScore | None:
        """Return the paper's score of the task or a part of it, if the run has the paper's settings."""
        sampling = _get_paper_sampling(models.get(self.model), self.budget)
        has_paper_settings = (self.max_frames, self.fps) == sampling and self.block == _get_block(self.method, None)
        if self.limit is not None or not has_paper_settings:
            return None
        return paper.get_accuracy(self.model, self.method, part or self.task, ratio=self.ratio, budget=self.budget)


@dataclass(frozen=True)
class PlanOptions:
    """What to evaluate. None means the paper's value or the default."""

    models: Sequence[str] | None = None  # names, or NAME=FOLDER for other weights
    methods: Sequence[str] | None = None
    ratios: Sequence[str] | None = None
    tasks: Sequence[str] | None = None
    budget: int | None = None
    block: str | None = None
    max_frames: int | None = None
    fps: float | None = None
    limit: int | None = None
    more: str = ""  # as in EvalRun
    lmms: str = ""

    def __post_init__(self) -> None:
        for name in ("models", "methods", "ratios", "tasks"):
            if getattr(self, name) == []:
                raise ValueError(f"{name} is an empty list; leave the option out for the defaults")
        for model in self.models or ():
            models.get(_parse_model(model)[0])
            if model.endswith("="):
                raise ValueError(f"{model}: the folder is missing; write NAME=FOLDER, or NAME alone")
        for method in self.methods or ():
            if method != FULL:
                registry.parse(method)
        if self.block is not None:
            registry.parse(f"floc:block={self.block}")  # raises if the block is invalid
        if self.ratios is not None and self.budget is not None:
            raise ValueError(f"give ratios or a budget, not both; got {', '.join(self.ratios)} and {self.budget}")
        for ratio in self.ratios or ():
            Budget.parse(ratio, None, None)
        if self.budget is not None:
            Budget.parse(None, self.budget, None)
        for name, unit in (("max_frames", "frames"), ("limit", "questions")):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), unit)
        if self.fps is not None and not 0 < self.fps < math.inf:
            raise ValueError(f"fps must be a finite number above 0, got {self.fps:g}")
        for name, value in _parse_arguments(self.more).items():
            if name in OWN:
                raise ValueError(f"--model-args: {name} has its own option; see floc eval --help")
            for method in registry.list_methods():
                if name in registry.list_options(method):
                    hint = f"write --methods {method}:{name}={value}"
                    raise ValueError(f"--model-args: {name} is an option of methods; {hint}")
        try:
            words = shlex.split(self.lmms)
        except ValueError as error:
            raise ValueError(f"--lmms: {error}; got {self.lmms!r}") from None
        for word, own in itertools.product(words, LMMS_OWN.split()):
            if word.startswith("--") and own.startswith(word.partition("=")[0]):  # lmms-eval accepts abbreviations
                raise ValueError(f"--lmms: floc eval sets {own} itself, see floc eval --help; got {self.lmms!r}")


def plan_grid(options: PlanOptions) -> list[EvalRun]:
    """Plan every combination of model, task, ratio and method."""
    return _unique(
        _create_run(options, model, method, ratio, options.budget, task)
        for model in options.models or ("qwen2.5-vl-7b",)
        for task in options.tasks or TASKS
        for ratio in (options.ratios or ("1/8", "1/16", "1/32") if options.budget is None else (None,))
        for method in options.methods or (FULL, "floc", "floc-paper", "frame_uniform", "random")
    )


def plan_paper(name: str, options: PlanOptions) -> list[EvalRun]:
    """Plan the runs of a value of --paper. Options select from its tables, or add to them."""
    check_choice("--paper", name, PAPER)
    rows = [row for table in PAPER[name] for row in paper.get_table(table).rows]
    names = _unique(row["model"] for row in rows)
    for model in options.models or ():
        check_choice(f"model of --paper {name},", _parse_model(model)[0], names)
    for task in options.tasks or ():
        check_choice(f"task of --paper {name},", task, _list_tasks(rows))
    runs = []
    for model in options.models or names:
        own = [row for row in rows if row["model"] == _parse_model(model)[0]]
        sizes = _unique((row.get("ratio"), row.get("budget")) for row in own if row["method"] != FULL)
        if options.ratios is not None or options.budget is not None:
            sizes = [(ratio, options.budget) for ratio in options.ratios or (None,)]
        runs += [
            _create_run(options, model, method, ratio, budget, task)
            for task in _list_tasks(own)
            if options.tasks is None or task in options.tasks
            for ratio, budget in sizes
            for method in options.methods or _unique(row["method"] for row in own)
        ]
    return _unique(runs)


def _list_tasks(rows: Iterable[dict[str, Any]]) -> list[str]:
    return _unique(task.partition("/")[0] for row in rows for task in row["scores"])


def _create_run(
    options: PlanOptions, model: str, method: str, ratio: str | None, budget: int | None, task: str
) -> EvalRun:
    name, folder = _parse_model(model)
    if ratio is not None and Fraction(ratio) == 1:
        method = FULL
    if method == FULL:
        ratio, budget = "1", None
    frames, fps = _get_paper_sampling(models.get(name), budget)
    weights, ratio = folder or models.get(name).repository, None if ratio is None else str(Fraction(ratio))
    sampling: dict[str, Any] = {"max_frames": options.max_frames or frames, "fps": options.fps or fps}
    size: dict[str, Any] = {"ratio": ratio, "budget": budget, "block": _get_block(method, options.block)}
    shared: dict[str, Any] = {"limit": options.limit, "more": options.more, "lmms": options.lmms}
    return EvalRun(name, weights, method, task, **sampling, **size, **shared)


def _get_paper_sampling(model: models.VideoModel, budget: int | None) -> tuple[int, float | None]:
    """Return the paper's maximum of frames and frames per second. Table 2, with a budget, has long videos."""
    for row in paper.get_table("table2").rows:
        if budget is not None and (row["model"], row.get("budget")) == (model.name, budget):
            return row["frames"], row["fps"]
    return model.frames, None


def _get_block(method: str, requested: str | None) -> str | None:
    """Return the block of a method: from its own options, as requested, or its default. None if it has no blocks."""
    if method == FULL:
        return None
    spec = registry.parse(method)
    if "block" not in registry.list_options(spec.method):
        return None
    if requested is not None and not spec.options.keys() & {"block", "horizon"}:
        return requested
    block = spec.options.get("block", registry.get_defaults(spec.method)["block"])
    return None if block is None else str(block).lower()


def _parse_model(model: str) -> tuple[str, str]:
    """Split NAME=FOLDER; the path is absolute, or empty for NAME alone."""
    name, _, folder = model.partition("=")
    return name, str(Path(folder).absolute()) if folder else ""


def _parse_arguments(text: str) -> dict[str, str]:
    pairs = [pair.strip().partition("=") for pair in text.split(",") if pair.strip()]
    for name, equals, value in pairs:
        if not (name and equals and value):
            raise ValueError(f"--model-args must be NAME=VALUE,NAME=VALUE; got {text!r}")
        if name in ("min_pixels", "max_pixels") and not (value.isascii() and value.isdigit()):
            raise ValueError(f"--model-args: {name} must be a whole number, got {value!r}")
    return {name: value for name, _, value in pairs}


def _unique(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))
