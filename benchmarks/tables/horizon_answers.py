"""Table "horizon-answers": answers of trained tiny models by the horizon and the detail of method `floc`.

python -m benchmarks horizon-answers --checkpoint out/models/drop-0.tar

The rule, written down before the study: among horizons whose window has at least eight slices, which are those of four
slices and more, the best is the one with the highest accuracy, the mean over the three groups of questions and over the
ratios. A difference counts if its 95% interval over films excludes 0.

The second table asks whether the best horizon depends on the film. An oracle chooses a horizon for each film by its
answers. On the same questions it wins by noise alone. What a rule could gain is what the oracle gains on questions that
it did not choose by: it chooses by one half of the questions about a film and answers the other half.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

import floc
from benchmarks.markdown import show_environment, show_rows
from benchmarks.registry import BenchTable, Echo, Unavailable
from benchmarks.scoring import get_widen_options
from benchmarks.tables.accuracy import RATIOS
from benchmarks.tables.accuracy_models import describe_training

FILMS, SMALL_FILMS = 24, 2
QUESTIONS = 3  # of each kind about a film
FIRST_FILM = 5_000_000  # after the seeds of all other tables and of the demo's first film
LENGTHS = (32, 64)  # slices of the films that the model of the repository is asked about
NONE = 10**6  # the horizon None
HORIZONS = (4, 8, 16, NONE)
DETAIL = 3.0
DETAILS = (1.0, 2.0, 4.0)  # with the default's horizons
METHODS = ("floc-paper", "kmeans", "vcast", "scope", "divprune")
# a rule -> its horizon at a ratio, which is one of HORIZONS for each of RATIOS
RULES: dict[str, Callable[[float], int]] = {
    "4": lambda ratio: 4,
    "8": lambda ratio: 8,
    "16": lambda ratio: 16,
    "no limit": lambda ratio: NONE,
    "max(4, 1 / (16 ratio))": lambda ratio: max(4, round(1 / (16 * ratio))),
    "max(4, 1 / (8 ratio))": lambda ratio: max(4, round(1 / (8 * ratio))),
    "max(4, 1 / (4 ratio))": lambda ratio: max(4, round(1 / (4 * ratio))),
}
AUTO = "max(4, 1 / (8 ratio))"  # the default
ORACLE_RATIOS = RATIOS[1:]  # at 1/4 hardly anything is lost
ALL_RATIOS = "mean"
ORACLES = ("same", "other half", "other film")
RESAMPLES = 2000

Setting: TypeAlias = tuple[str, int, float]  # method, horizon and detail, or zeros
ALL: Setting = ("all tokens", 0, 0)
Asked: TypeAlias = list[list[Any]]  # the questions about each film
Answers: TypeAlias = dict[tuple[Setting, str], list[np.ndarray]]  # by ratio: which answers are right, for each film


def run(small: bool, echo: Echo, checkpoints: Sequence[Path] = ()) -> dict[str, Any]:
    """Measure the model of the repository with films of two lengths, and other trained models."""
    try:
        from examples.tiny_video_model.checkpoint import CHECKPOINT, describe_checkpoint

        sources = [(CHECKPOINT, slices) for slices in LENGTHS] + [(path, LENGTHS[0]) for path in checkpoints]
        abouts = [describe_checkpoint(path) for path, _ in sources]  # all, before the work
    except (ImportError, OSError, ValueError) as error:
        raise Unavailable(f"a trained model cannot be loaded: {error}") from error
    pairs = zip(sources, abouts, strict=True)
    return {"models": [measure(path, slices, about, small, echo) for (path, slices), about in pairs]}


def measure(source: Path, slices: int, about: dict[str, Any], small: bool, echo: Echo) -> dict[str, Any]:
    """Ask a model about films of a length, with the tokens that each setting keeps."""
    asked, answers = ask(source, slices, about, SMALL_FILMS if small else FILMS, list_settings(), echo)
    return summarize(source, slices, about, asked, answers)


def list_settings() -> list[Setting]:
    """Return what is measured at each ratio."""
    settings: list[Setting] = [(name, 0, 0) for name in METHODS] + [("floc", h, DETAIL) for h in HORIZONS]
    return [*settings, *(("floc", 0, detail) for detail in DETAILS)]  # 0: the default's horizon


def ask(
    source: Path, slices: int, about: dict[str, Any], films: int, settings: Sequence[Setting], echo: Echo
) -> tuple[Asked, Answers]:
    """Return the questions about each film, and which answers are right with the tokens that each setting keeps."""
    from examples.tiny_video_model.checkpoint import load_checkpoint
    from examples.tiny_video_model.exam import TEST_SEED, Examiner, make_exams
    from examples.tiny_video_model.model import CELL

    size = {"height": about["training"]["rows"] * CELL, "width": about["training"]["columns"] * CELL}
    model, processor = load_checkpoint(source)
    examiner = Examiner(model, processor.tokenizer, **size)
    seed = TEST_SEED + FIRST_FILM
    exams = list(make_exams(model, films, slices=slices, questions=QUESTIONS, seed=seed, **size))
    answers: Answers = {(ALL, "1"): [examiner.check(exam, None) for exam in exams]}
    for setting in settings:
        for ratio in RATIOS:
            kept = [_compress(exam.tokens, ratio, setting) for exam in exams]
            answers[setting, ratio] = [examiner.check(exam, one) for exam, one in zip(exams, kept, strict=True)]
        echo(f"{get_name(source)}, {slices} slices: {setting}")
    return [exam.questions for exam in exams], answers


def get_name(source: Path) -> str:
    """Return the name of a model."""
    return "shipped" if source.is_dir() else source.stem


def summarize(source: Path, slices: int, about: dict[str, Any], asked: Asked, answers: Answers) -> dict[str, Any]:
    """Return the results of a model."""
    from examples.tiny_video_model.exam import TEST_SEED

    return {
        "model": get_name(source),
        "slices": slices,
        "tokens": about["training"]["rows"] * about["training"]["columns"],
        "films": len(asked),
        "seed": TEST_SEED + FIRST_FILM,
        "questions": sum(map(len, asked)),
        **about,
        "accuracy": list_accuracies(answers, asked),
        "oracle": list_oracles(answers, asked),
    }


def _compress(tokens: Any, ratio: str, setting: Setting) -> floc.Kept:
    method, horizon, detail = setting
    if method != "floc":
        return floc.compress(tokens, ratio=ratio, method=method, **get_widen_options(method))
    chosen = None if horizon == NONE else horizon or "auto"
    return floc.compress(tokens, ratio=ratio, method="floc", horizon=chosen, detail=detail)


def get_horizon(rule: str, ratio: str) -> int:
    """Return the horizon of a rule at a ratio."""
    return RULES[rule](float(Fraction(ratio)))


def list_accuracies(answers: Answers, asked: Asked) -> list[dict[str, Any]]:
    """Return the accuracy of each rule, each detail and each method at each ratio, beside the default's."""
    counts = {key: _count(asked, right) for key, right in answers.items()}

    def gather(settings: Sequence[Setting]) -> np.ndarray:
        return np.stack([counts[setting, ratio] for setting, ratio in zip(settings, RATIOS, strict=True)])

    rules = {rule: gather([("floc", get_horizon(rule, ratio), DETAIL) for ratio in RATIOS]) for rule in RULES}
    rows = {("all tokens", ""): np.stack([counts[ALL, "1"]] * len(RATIOS))}
    rows |= {("horizon", rule): own for rule, own in rules.items()}
    rows |= {("detail", f"{detail:g}"): gather([("floc", 0, detail)] * len(RATIOS)) for detail in DETAILS}
    rows |= {("method", name): gather([(name, 0, 0)] * len(RATIOS)) for name in METHODS}
    return [{"kind": kind, "name": name, **_score(own, rules[AUTO])} for (kind, name), own in rows.items()]


def _count(asked: Asked, right: Sequence[np.ndarray]) -> np.ndarray:
    """Return right answers and questions by kind, [films, kinds, 2]."""
    from examples.tiny_video_model.exam import count_right

    return np.stack([count_right(*film) for film in zip(asked, right, strict=True)])


def _score(own: np.ndarray, base: np.ndarray) -> dict[str, Any]:
    """Return accuracy at each of RATIOS, and their mean beside that of `base`."""
    from examples.tiny_video_model.exam import compute_accuracy

    values = compute_accuracy(own.sum(1))[2]
    return {"values": dict(zip(RATIOS, map(float, values), strict=True)), **_compare(own, base)}


def _compare(own: np.ndarray, base: np.ndarray) -> dict[str, Any]:
    """Return the mean accuracy over ratios, and its difference to that of `base`; counts are [R, films, kinds, 2]."""
    from examples.tiny_video_model.exam import compute_accuracy

    mean, other = (float(compute_accuracy(counts.sum(1))[2].mean()) for counts in (own, base))
    films = np.random.default_rng(0).integers(own.shape[1], size=(RESAMPLES, own.shape[1]))
    drawn = [compute_accuracy(counts[:, films].sum(2))[2].mean(0) for counts in (own, base)]  # [RESAMPLES]
    low, high = np.percentile(drawn[0] - drawn[1], (2.5, 97.5))
    return {"mean": mean, "difference": mean - other, "interval": [float(low), float(high)]}


def list_oracles(answers: Answers, asked: Asked) -> list[dict[str, Any]]:
    """Return what choosing one of HORIZONS for each film by its answers gains on the default, at each ratio and all."""
    from examples.tiny_video_model.exam import compute_accuracy

    seconds = [_find_second_half(questions) for questions in asked]
    films = np.arange(len(asked))
    order = np.random.default_rng(0).permutation(len(films))
    other = order[(np.argsort(order) + 1) % len(films)]  # no film is its own
    counts: dict[str, list[np.ndarray]] = {name: [] for name in (AUTO, *ORACLES)}  # [films, kinds, 2] for each ratio
    fixed, chosen = [], []
    for ratio in ORACLE_RATIOS:
        default = HORIZONS.index(get_horizon(AUTO, ratio))
        right = [answers[("floc", horizon, DETAIL), ratio] for horizon in HORIZONS]
        whole = np.stack([_count(asked, each) for each in right])
        second = np.stack([_count(*_take(asked, each, seconds)) for each in right])
        first = whole - second
        best = _choose(whole, default)
        counts[AUTO].append(whole[default])
        counts["same"].append(whole[best, films])
        counts["other half"].append(second[_choose(first, default), films] + first[_choose(second, default), films])
        counts["other film"].append(whole[best[other], films])
        fixed.append(compute_accuracy(whole.sum(1))[2])
        chosen.append(np.bincount(best, minlength=len(HORIZONS)))
    stacked = {name: np.stack(each) for name, each in counts.items()}
    records = []
    for place, ratio in enumerate((*ORACLE_RATIOS, ALL_RATIOS)):
        part = slice(None) if ratio == ALL_RATIOS else slice(place, place + 1)
        compared = {name: _compare(stacked[name][part], stacked[AUTO][part]) for name in stacked}
        record = {"keep": ratio, "default": compared.pop(AUTO)["mean"], **compared}
        record |= {"best fixed": float(np.mean(fixed[part], 0).max()), "chosen": np.sum(chosen[part], 0).tolist()}
        records.append(record)
    return records


def _take(asked: Asked, right: Sequence[np.ndarray], chosen: Sequence[np.ndarray]) -> tuple[Asked, list[np.ndarray]]:
    """Return the chosen questions about each film, and whether their answers are right."""
    some = [[questions[place] for place in np.flatnonzero(at)] for questions, at in zip(asked, chosen, strict=True)]
    return some, [answers[at] for answers, at in zip(right, chosen, strict=True)]


def _find_second_half(questions: Sequence[Any]) -> np.ndarray:
    """Return which questions are in the second half: every second one of a kind, from the first or the second on."""
    seen: dict[str, int] = {}
    halves = []
    for question in questions:
        number = seen.get(question.kind, len(seen) % 2)
        seen[question.kind] = number + 1
        halves.append(number % 2 == 1)
    return np.array(halves)


def _choose(counts: np.ndarray, default: int) -> np.ndarray:
    """Return the best horizon of each film, the default among equals; counts are [horizons, films, kinds, 2]."""
    from examples.tiny_video_model.exam import compute_accuracy

    with np.errstate(invalid="ignore"):
        scores = compute_accuracy(counts)[2]
    scores = np.where(np.isnan(scores), 0, scores)
    scores[default] += 1e-9
    return scores.argmax(0)


def show_models(document: dict[str, Any]) -> str:
    """Return a table of the settings' accuracy for each model."""
    parts = []
    for model in document["models"]:
        rows = []
        for record in model["accuracy"]:
            low, high = record["interval"]
            is_base = (record["kind"], record["name"]) == ("horizon", AUTO)
            difference = f"{100 * record['difference']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
            values = [f"{100 * record['values'][ratio]:.1f}" for ratio in RATIOS]
            name = f"{record['kind']} {record['name']}".strip().removeprefix("method ")
            rows.append([name, *values, f"{100 * record['mean']:.1f}", "" if is_base else difference])
        note = (
            f"`{model['model']}`: {describe_training(model['training'])}. {model['films']} films of {model['slices']} "
            f"slices with {model['tokens']} tokens each, {model['questions']:,} questions."
        )
        parts.append(show_rows(["setting", *RATIOS, "mean", "above the default"], rows, note))
    parts.append(
        f"Right answers in percent, the mean of the three groups of questions. The default is the horizon {AUTO} with "
        f"detail {DETAIL:g}; other horizons have its detail, other details its horizon. Differences are of the mean "
        "over the ratios, with the 95% interval over films (bootstrap, the same films for both). "
        f"{_show_machine(document)}"
    )
    return "\n\n".join(parts)


def show_oracle(document: dict[str, Any]) -> str:
    """Return a table of what the best horizon for each film would gain."""
    rows = []
    for model in document["models"]:
        for record in model["oracle"]:
            cells = []
            for name in ORACLES:
                low, high = record[name]["interval"]
                cells.append(f"{100 * record[name]['difference']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})")
            name = f"{model['model']}, {model['slices']} slices"
            fixed = [f"{100 * record[key]:.1f}" for key in ("default", "best fixed")]
            rows.append([name, record["keep"], *fixed, *cells, " / ".join(map(str, record["chosen"]))])
    note = (
        "Percentage points above the default of the best of the horizons 4, 8, 16 and none for each film, chosen by "
        "its answers: on the same questions, on the other half of the questions about the film, and with the choice "
        "of another film. Among equal horizons: the default's. Last column: films for which each horizon was chosen by "
        "all questions."
    )
    head = [
        "model",
        "kept",
        "default",
        "best for all",
        "same questions",
        "other half",
        "another film",
        "4 / 8 / 16 / none",
    ]
    return show_rows(head, rows, note)


def _show_machine(document: dict[str, Any]) -> str:
    return show_environment(document, "numpy", "torch", "transformers", "numba", "scikit-learn")


VIEWS = {"horizon-answers": show_models, "horizon-oracle": show_oracle}
TABLE = BenchTable("horizon-answers", run, VIEWS, is_optional=True)
