"""Table "query": whether the trained tiny model answers better if a question steers the selection or tokens are merged.

The model, the films and the score are those of the table "accuracy". Tokens are selected for each question, with the
model's embeddings of its words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import floc
from benchmarks.markdown import show_environment, show_rows
from benchmarks.registry import BenchTable, Echo, Unavailable
from benchmarks.scoring import show_arrow
from benchmarks.tables.accuracy import BASE, make_record

if TYPE_CHECKING:
    from examples.tiny_video_model.exam import Exam, Examiner

RATIOS = ("1/8", "1/16", "1/32", "1/64")
CAPTURED = "1/8"  # what is selected from again
FILMS, SMALL_FILMS = 40, 2
WEIGHTS, MERGES = (0.1, 0.25, 1.0), (0.25, 0.5, 1.0)
SHOWN = "question 0.25"  # by kind of question
Select = Callable[[Any, str, Any], floc.Kept]  # exam, ratio, [Q, D] words -> tokens


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Ask the same questions about the same films, with tokens selected for all questions or for each."""
    try:
        from examples.tiny_video_model.checkpoint import CHECKPOINT, SUMS, load_checkpoint
        from examples.tiny_video_model.exam import TEST_SEED, Examiner, make_exams
        from floc.integrations.transformers import embed_text

        model, processor = load_checkpoint()
    except (ImportError, ValueError) as error:
        raise Unavailable(f"the trained model cannot be loaded: {error}") from error
    examiner = Examiner(model, processor.tokenizer)
    exams = list(make_exams(model, SMALL_FILMS if small else FILMS))
    words = [[embed_text(model, processor, f" {question.text}") for question in exam.questions] for exam in exams]
    others = [*words[1:], words[0]]  # questions about another film
    counts: dict[tuple[str, str], np.ndarray] = {}
    rows: dict[str, tuple[Select, list[list[torch.Tensor]] | None]] = {BASE: (_select, None)}
    rows |= {f"question {weight:g}": (_steer(weight), words) for weight in WEIGHTS}
    rows["another question 0.25"] = _steer(0.25), others
    rows |= {"mmtok": (_select_mmtok, words), "cdpruner": (_select_cdpruner, words)}
    rows |= {f"merge {share:g}": (_merge(share), None) for share in MERGES}
    rows |= {
        f"from {CAPTURED}": (_reselect(model, 0), None),
        f"from {CAPTURED}, question 0.25": (_reselect(model, 0.25), words),
    }
    for name, (select, asked) in rows.items():
        for ratio in RATIOS[:2] if small else RATIOS:
            if name.startswith("from") and ratio == CAPTURED:
                continue
            films = zip(exams, [None] * len(exams) if asked is None else asked, strict=True)
            counts[name, ratio] = np.stack([_grade(examiner, exam, ratio, select, texts) for exam, texts in films])
        echo(f"{name}: done")
    return {
        "checkpoint": (CHECKPOINT / SUMS).read_text().splitlines(),
        "seed": TEST_SEED,
        "films": len(exams),
        "questions": sum(len(exam.questions) for exam in exams),
        "accuracy": [_make_record(name, ratio, counts) for name, ratio in counts],
    }


def _select(exam: Exam, ratio: str, words: Any) -> floc.Kept:
    return floc.compress(exam.tokens, ratio=ratio)


def _steer(weight: float) -> Select:
    return lambda exam, ratio, words: floc.compress(exam.tokens, ratio=ratio, query=words, query_weight=weight)


def _merge(share: float) -> Select:
    return lambda exam, ratio, words: floc.compress(exam.tokens, ratio=ratio, merge=share)


def _select_mmtok(exam: Exam, ratio: str, words: torch.Tensor) -> floc.Kept:
    return floc.compress(exam.tokens, ratio=ratio, method="mmtok", query=words)


def _select_cdpruner(exam: Exam, ratio: str, words: torch.Tensor) -> floc.Kept:
    """Relevance is the mean cosine with the words of the question, from 0 to 1 over the film."""
    unit, rows = (torch.nn.functional.normalize(values, dim=-1) for values in (words, exam.tokens))
    cosine = (rows @ unit.T).mean(-1)
    relevance = (cosine - cosine.min() + 1e-6) / (cosine.max() - cosine.min()).clamp_min(1e-6)
    return floc.compress(exam.tokens, ratio=ratio, method="cdpruner", relevance=relevance)


def _reselect(model: Any, weight: float) -> Select:
    """Return a selection from tokens that were kept of each film before, as `Captured.at` makes it."""
    from floc.captured.identity import Identity
    from floc.captured.pieces import capture_kept

    identity = Identity.from_model(model)
    captured: dict[int, tuple[floc.Captured, floc.Kept]] = {}

    def select(exam: Exam, ratio: str, words: Any) -> floc.Kept:
        seed = exam.film.seed
        if seed not in captured:
            kept = floc.compress(exam.tokens, ratio=CAPTURED)
            captured[seed] = capture_kept(kept, identity), kept
        video, kept = captured[seed]
        smaller = video.at(ratio=ratio, **({"query": words, "query_weight": weight} if weight else {}))
        return replace(kept, indices=smaller.indices, features=smaller.features)

    return select


def _grade(examiner: Examiner, exam: Exam, ratio: str, select: Select, texts: list[torch.Tensor] | None) -> np.ndarray:
    """Return right answers and questions [kinds, 2], with one selection for all questions or one for each."""
    if texts is None:
        return examiner.grade(exam, select(exam, ratio, None))
    # another film may have fewer questions
    single = [(replace(exam, questions=[question]), texts[i % len(texts)]) for i, question in enumerate(exam.questions)]
    return np.sum([examiner.grade(one, select(one, ratio, words)) for one, words in single], 0)


def _make_record(name: str, ratio: str, counts: dict[tuple[str, str], np.ndarray]) -> dict[str, Any]:
    """Return the accuracy of a row at a ratio, and its difference to BASE, also by kind of question."""
    from examples.tiny_video_model.exam import RESAMPLES, compute_accuracy
    from examples.tiny_video_model.questions import KINDS

    record = make_record(name, ratio, counts)
    if name == BASE:
        return record
    own, base = counts[name, ratio], counts[BASE, ratio]
    films = np.random.default_rng(0).integers(len(own), size=(RESAMPLES, len(own)))
    by_kind = compute_accuracy(own[films].sum(1))[0] - compute_accuracy(base[films].sum(1))[0]
    limits = np.nanpercentile(by_kind, [2.5, 97.5], axis=0).T
    mean = compute_accuracy(own.sum(0))[0] - compute_accuracy(base.sum(0))[0]
    record["kind_differences"] = {
        kind: [float(m), *map(float, pair)] for kind, m, pair in zip(KINDS, mean, limits, strict=True)
    }
    return record


def _index(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(record["method"], record["keep"]): record for record in document["accuracy"]}


def _format_difference(values: list[float]) -> str:
    mean, low, high = (100 * value for value in values)
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f}){show_arrow(low, high)}"


def _show(document: dict[str, Any]) -> str:
    records = _index(document)
    rows = []
    for name in dict.fromkeys(name for name, _ in records):
        cells = []
        for ratio in RATIOS:
            record = records.get((name, ratio))
            if record is None:
                cells.append("-")
            elif name == BASE:
                cells.append(f"{100 * record['mean']:.1f}")
            else:
                cells.append(_format_difference([record["difference"], *record["difference_interval"]]))
        rows.append([name, *cells])
    note = (
        f"First row: right answers in percent, the mean of the three groups of questions; {document['films']} films, "
        f"{document['questions']:,} questions. Other rows: the difference to the first row in percentage points, with "
        "the 95% interval over films (bootstrap, the same films for both). ↑ ↓: the interval excludes 0. `question w`: "
        "query_weight=w. `another question`: with the words of a question about another film. `from 1/8`: selected "
        "from a captured eighth. `mmtok` and `cdpruner` get the same words; `cdpruner` gets their mean cosine in place "
        "of CLIP's relevance."
    )
    machine = show_environment(document, "numpy", "torch", "transformers", "numba")
    return show_rows(["selection", *RATIOS], rows, note, machine)


def _show_kinds(document: dict[str, Any]) -> str:
    records = _index(document)
    kinds = list(records[SHOWN, RATIOS[0]]["kind_differences"])
    ratios = [ratio for ratio in RATIOS if (SHOWN, ratio) in records]
    rows = [
        [kind, *(_format_difference(records[SHOWN, ratio]["kind_differences"][kind]) for ratio in ratios)]
        for kind in kinds
    ]
    note = f"Difference of `{SHOWN}` to `{BASE}` in percentage points, with the 95% interval over films."
    return show_rows(["kind", *ratios], rows, note)


TABLE = BenchTable("query", run, {"query": _show, "query-kinds": _show_kinds})
