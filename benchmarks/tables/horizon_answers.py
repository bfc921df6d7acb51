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
    """Return accuracy at each ratio and their mean, and the mean above that of `base`; counts are [R, F, kinds, 2]."""
    from examples.tiny_video_model.exam import compute_accuracy

    values = compute_accuracy(own.sum(1))[2]
    films = np.random.default_rng(0).integers(own.shape[1], size=(RESAMPLES, own.shape[1]))
    drawn = [compute_accuracy(counts[:, films].sum(2))[2].mean(0) for counts in (own, base)]  # [RESAMPLES]
    low, high = np.percentile(drawn[0] - drawn[1], (2.5, 97.5))
    difference = values.mean() - compute_accuracy(base.sum(1))[2].mean()
    return {
        "values": dict(zip(RATIOS, map(float, values), strict=True)),
        "mean": float(values.mean()),
        "error": float(drawn[0].std()),
        "difference": float(difference),
        "interval": [float(low), float(high)],
    }


def list_oracles(answers: Answers, asked: Asked) -> list[dict[str, Any]]:
    """Return what choosing one of HORIZONS for each film by its answers gains on the default, at each ratio."""
    from examples.tiny_video_model.exam import compute_accuracy

    halves = [_split(questions) for questions in asked]
    records = []
    for ratio in ORACLE_RATIOS:
        default = HORIZONS.index(get_horizon(AUTO, ratio))
        whole = np.stack([_count(asked, answers[("floc", h, DETAIL), ratio]) for h in HORIZONS])
        parts = []  # [halves, horizons, films, kinds, 2]
        for half in (False, True):
            chosen = [
                [q for q, is_in in zip(*film, strict=True) if is_in == half] for film in zip(asked, halves, strict=True)
            ]
            right = [
                [each[part == half] for each, part in zip(answers[("floc", h, DETAIL), ratio], halves, strict=True)]
                for h in HORIZONS
            ]
            parts.append(np.stack([_count(chosen, each) for each in right]))
        films = np.arange(len(asked))
        by_half = [_choose(part, default) for part in parts]
        other = np.random.default_rng(0).permutation(len(films))
        other = other[(np.argsort(other) + 1) % len(films)]  # no film is its own
        gained = {
            "same": whole[_choose(whole, default), films],
            "other half": parts[1][by_half[0], films] + parts[0][by_half[1], films],
            "other film": whole[_choose(whole, default)[other], films],
        }
        record: dict[str, Any] = {"keep": ratio}
        record["default"] = float(compute_accuracy(whole[default].sum(0))[2])
        record["best fixed"] = float(compute_accuracy(whole.sum(1))[2].max())
        draws = np.random.default_rng(0).integers(len(films), size=(RESAMPLES, len(films)))
        base = compute_accuracy(whole[default][draws].sum(1))[2]
        for name, counts in gained.items():
            low, high = np.percentile(compute_accuracy(counts[draws].sum(1))[2] - base, (2.5, 97.5))
            mean = float(compute_accuracy(counts.sum(0))[2])
            record[name] = {"mean": mean, "difference": mean - record["default"], "interval": [float(low), float(high)]}
        record["chosen"] = np.bincount(_choose(whole, default), minlength=len(HORIZONS)).tolist()
        records.append(record)
    return records


def _split(questions: Sequence[Any]) -> np.ndarray:
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
            for name in ("same", "other half", "other film"):
                low, high = record[name]["interval"]
                cells.append(f"{100 * record[name]['difference']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})")
            name = f"{model['model']}, {model['slices']} slices"
            fixed = [f"{100 * record[key]:.1f}" for key in ("default", "best fixed")]
            rows.append([name, record["keep"], *fixed, *cells, " / ".join(map(str, record["chosen"]))])
    note = (
        "Percentage points above the default of the best of the horizons 4, 8, 16 and none for each film, chosen by "
        "its answers: on the same questions, on the other half of the questions about the film, and with the choice "
        "of another film. Equal horizons: the default. Last column: films for which each horizon was chosen."
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
