"""Table "accuracy-models": the table "accuracy" for other trained models, and how alike they rank the methods.

python -m benchmarks accuracy --checkpoint out/models/all-0.tar --checkpoint out/models/all-1.tar
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.markdown import show_rows
from benchmarks.registry import BenchTable, Echo, Unavailable
from benchmarks.tables.accuracy import FULL, RATIOS, VARIANTS, measure_model, show_methods

MEAN = "mean of ratios"
SLICES = 32  # of the films that are asked about


def run(
    small: bool, echo: Echo, checkpoints: Sequence[Path] = (), processes: int = 1, films: int | None = None
) -> dict[str, Any]:
    """Measure trained models with the same questions about the same films, and compare their rankings of methods.

    Without SciPy the rankings are not compared.
    """
    if not checkpoints:
        raise Unavailable("name trained models: python -m benchmarks accuracy --checkpoint FILE --checkpoint FILE")
    try:
        from examples.tiny_video_model.checkpoint import describe_checkpoint

        abouts = [describe_checkpoint(path) for path in checkpoints]  # all, before the work
    except (ImportError, OSError, ValueError) as error:
        raise Unavailable(f"a trained model cannot be loaded: {error}") from error
    models = []
    for path, about in zip(checkpoints, abouts, strict=True):
        echo(f"\n{path}")
        tokens = SLICES * about["training"]["rows"] * about["training"]["columns"]
        results = measure_model(path, small, echo, processes, films)
        models.append({"model": path.stem, "tokens": tokens, **about, **results})
    pairs = combinations(models, 2) if importlib.util.find_spec("scipy") is not None else ()
    return {"models": models, "correlations": [record for pair in pairs for record in correlate(*pair)]}


def correlate(first: dict[str, Any], second: dict[str, Any]) -> list[dict[str, Any]]:
    """Return how alike two models rank the methods by accuracy: at each ratio, and by the mean over all ratios.

    Methods that cannot keep so few tokens are left out, and options of a method that have a row of their own.
    """
    from scipy import stats

    scores = [
        {(record["method"], record["keep"]): record["mean"] for record in model["accuracy"]}
        for model in (first, second)
    ]
    names = {method for method, _ in scores[0].keys() & scores[1].keys()} - {FULL, *VARIANTS}
    records = []
    for label, ratios in (*((ratio, (ratio,)) for ratio in RATIOS), (MEAN, RATIOS)):
        ranked = sorted(
            name for name in names if all((name, ratio) in accuracies for ratio in ratios for accuracies in scores)
        )
        means = [[np.mean([accuracies[name, ratio] for ratio in ratios]) for name in ranked] for accuracies in scores]
        records.append(
            {
                "models": [first["model"], second["model"]],
                "keep": label,
                "methods": len(ranked),
                "spearman": float(stats.spearmanr(*means).statistic),
                "kendall": float(stats.kendalltau(*means).statistic),
            }
        )
    return records


def _show_correlations(document: dict[str, Any]) -> str:
    records = document["correlations"]
    pairs = list(dict.fromkeys(tuple(record["models"]) for record in records))
    found = {(*record["models"], record["keep"]): record for record in records}
    rows = []
    for pair in pairs:
        cells = [found[*pair, label] for label in (*RATIOS, MEAN)]
        rows.append([" and ".join(pair), *(f"{cell['spearman']:.2f} / {cell['kendall']:.2f}" for cell in cells)])
    note = (
        "Rank correlation of the methods' accuracies between two models, Spearman's / Kendall's. "
        f"{found[*pairs[0], MEAN]['methods']} methods reach all ratios."
    )
    return show_rows(["models", *RATIOS, MEAN], rows, note)


def describe_training(made: dict[str, Any]) -> str:
    """Return in words how a model was trained."""
    drop = "with tokens left out at random" if made["drop"] else "never with missing tokens"
    duration = f"{made['steps']} steps" if "steps" in made else f"{made['minutes']:.1f} minutes"
    tokens = made["rows"] * made["columns"]
    text = f"trained with seed {made['seed']}, {drop}, {tokens} tokens a slice, for {duration} on {made['device']}"
    text += f" (torch {made['torch']}, transformers {made['transformers']})"
    if "start" not in made:
        return text
    weights = made["start"]["weights"][:8]
    before = describe_training(made["start"])
    return f"the weights {weights} trained further, so no independent model: {text}; {weights}: {before}"


def show_models(document: dict[str, Any]) -> str:
    """Return a section of a page: the rank correlations, and a table for each model."""
    parts = ["## Other trained models", "`python -m benchmarks accuracy --checkpoint FILE --checkpoint FILE`"]
    if document["correlations"]:
        parts.append(_show_correlations(document))
    for model in document["models"]:
        parts += [f"`{model['model']}`: {describe_training(model['training'])}.", show_methods({**document, **model})]
    return "\n\n".join(parts)


TABLE = BenchTable("accuracy-models", run, {"accuracy-models": show_models}, is_optional=True)
