"""Questions about a film, with answers in words.

Kinds of questions form three groups, as in MLVU. A score is the mean over the groups, so that no kind decides alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from examples.tiny_video_model.films import PLACES, ZONES, Film
from examples.tiny_video_model.things import THINGS

GROUPS = {
    "holistic": ("scene", "present"),
    "single detail": ("needle", "what", "where", "when"),
    "several details": ("count", "order", "longer"),
}
KINDS = tuple(kind for kinds in GROUPS.values() for kind in kinds)
NUMBERS = ("one", "two", "three", "four")
THIRDS = ("start", "middle", "end")


class Question(NamedTuple):
    """A question, its answer, and the thing it is about, if there is one."""

    kind: str
    text: str
    answer: str
    thing: str | None = None


def _ask_scene(film: Film, rng: np.random.Generator) -> list[Question]:
    totals = Counter[str]()
    for shot in film.shots:
        totals[shot.place] += shot.end - shot.start
    return [Question("scene", "Where is most of the film?", totals.most_common(1)[0][0])]


def _ask_present(film: Film, rng: np.random.Generator) -> list[Question]:
    absent = _pick_absent(film, rng, len(film.things))
    questions = [(thing, "yes") for thing in film.things] + [(thing, "no") for thing in absent]
    return [Question("present", f"Is the {thing} shown?", answer, thing) for thing, answer in questions]


def _ask_needle(film: Film, rng: np.random.Generator) -> list[Question]:
    questions = []
    for thing in film.things:
        options = [thing, *_pick_absent(film, rng, 3)]
        a, b, c, d = (options[at] for at in rng.permutation(4))
        questions.append(Question("needle", f"Which is shown: the {a}, the {b}, the {c} or the {d}?", thing, thing))
    return questions


def _ask_what(film: Film, rng: np.random.Generator) -> list[Question]:
    zones = {appearance.zone: appearance.thing for appearance in film.appearances}
    return [Question("what", f"What is shown at the {ZONES[zone]}?", thing, thing) for zone, thing in zones.items()]


def _ask_where(film: Film, rng: np.random.Generator) -> list[Question]:
    zones = {appearance.thing: appearance.zone for appearance in film.appearances}
    return [Question("where", f"Where is the {thing} shown?", ZONES[zone], thing) for thing, zone in zones.items()]


def _ask_when(film: Film, rng: np.random.Generator) -> list[Question]:
    questions = []
    for thing in film.things:
        appearances = film.get_appearances(thing)
        # all appearances are in one third, and none is near its edges
        thirds = {
            third for a in appearances for at in (a.start - 0.5, a.end - 0.5) for third in [3 * at // film.slices]
        }
        if len(thirds) == 1 and min(thirds) >= 0:
            answer = THIRDS[min(int(thirds.pop()), 2)]
            questions.append(Question("when", f"When is the {thing} shown?", answer, thing))
    return questions


def _ask_count(film: Film, rng: np.random.Generator) -> list[Question]:
    return [
        Question("count", f"How many times is the {thing} shown?", NUMBERS[len(film.get_appearances(thing)) - 1], thing)
        for thing in film.things
    ]


def _ask_order(film: Film, rng: np.random.Generator) -> list[Question]:
    starts = {thing: film.get_appearances(thing)[0].start for thing in film.things}
    questions = []
    for a in film.things:
        for b in film.things:
            if a != b and abs(starts[a] - starts[b]) >= 2:
                answer = a if starts[a] < starts[b] else b
                questions.append(Question("order", f"Which is shown first, the {a} or the {b}?", answer, answer))
    return questions


def _ask_longer(film: Film, rng: np.random.Generator) -> list[Question]:
    totals = {thing: sum(a.end - a.start for a in film.get_appearances(thing)) for thing in film.things}
    questions = []
    for a in film.things:
        for b in film.things:
            if a != b and max(totals[a], totals[b]) >= 2 * min(totals[a], totals[b]):
                answer = a if totals[a] > totals[b] else b
                questions.append(Question("longer", f"Which is shown longer, the {a} or the {b}?", answer, answer))
    return questions


_ASK: dict[str, Callable[[Film, np.random.Generator], list[Question]]] = {
    "scene": _ask_scene,
    "present": _ask_present,
    "needle": _ask_needle,
    "what": _ask_what,
    "where": _ask_where,
    "when": _ask_when,
    "count": _ask_count,
    "order": _ask_order,
    "longer": _ask_longer,
}


def _pick_absent(film: Film, rng: np.random.Generator, count: int) -> list[str]:
    absent = [thing for thing in THINGS if thing not in film.things]
    return [absent[at] for at in rng.permutation(len(absent))[:count]]


def list_questions(film: Film, kind: str) -> list[Question]:
    """Return all questions of a kind that the film answers."""
    return _ASK[kind](film, np.random.default_rng([film.seed, 2, KINDS.index(kind)]))


class QuestionPicker:
    """Pick questions so that the answers of each kind are equally frequent over the films."""

    def __init__(self, seed: int = 0):
        self._rng = np.random.default_rng([seed, 3])
        self._counts: Counter[tuple[str, str]] = Counter()

    def pick(self, film: Film, each: int = 1, **other: int) -> list[Question]:
        """Return up to `each` questions of every kind, or as many as `other` says of a kind, in a random order."""
        picked: list[Question] = []
        for kind in KINDS:
            questions = list_questions(film, kind)
            self._rng.shuffle(questions)
            for _ in range(min(other.get(kind, each), len(questions))):
                best = min(questions, key=lambda question: self._counts[kind, _balance_key(question)])
                questions.remove(best)
                self._counts[kind, _balance_key(best)] += 1
                picked.append(best)
        return [picked[at] for at in self._rng.permutation(len(picked))]


def _balance_key(question: Question) -> str:
    """Return what is balanced: the answer, or for a choice of two, whether it is the first."""
    if question.kind in ("order", "longer"):
        return str(question.text.split("the ")[1].startswith(question.answer))
    return question.answer


def list_texts() -> list[str]:
    """Return every sentence form and every answer, to train a tokenizer on."""
    films = "Is the {0} shown? Which is shown: the {0}, the {0}, the {0} or the {0}? Where is the {0} shown?"
    films += " When is the {0} shown? How many times is the {0} shown? Which is shown first, the {0} or the {0}?"
    films += " Which is shown longer, the {0} or the {0}?"
    texts = [films.format(thing) for thing in THINGS]
    texts += [f"What is shown at the {zone}?" for zone in ZONES]
    texts += ["Where is most of the film?", "user assistant system"]
    return texts + [f" {word}" for word in (*PLACES, *THINGS, *NUMBERS, *THIRDS, *ZONES, "yes", "no")]
