"""Films with known content: what is drawn, what is asked, and which answers are right."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.tiny_video_model.films import (
    GAP,
    PLACES,
    UNSEEN_PAIRS,
    ZONES,
    Film,
    label_tokens,
    locate_thing,
    make_film,
    write_film,
)
from examples.tiny_video_model.questions import GROUPS, KINDS, NUMBERS, THIRDS, QuestionPicker, list_questions
from examples.tiny_video_model.rendering import render_film
from examples.tiny_video_model.things import THINGS, draw_thing

HEIGHT, WIDTH, CELL = 112, 168, 28
films = st.builds(make_film, st.integers(0, 10**6), st.integers(4, 64), training=st.booleans())


def see(film: Film, thing: str) -> np.ndarray:
    """Return where the labels show a thing, [slices, rows, columns]."""
    return label_tokens(film, HEIGHT, WIDTH, CELL) == len(PLACES) + THINGS.index(thing)


def answer_from_labels(film: Film, kind: str, text: str) -> set[str]:
    """Answer a question from the labels of the tokens alone; more than one answer means that it is ambiguous."""
    labels = label_tokens(film, HEIGHT, WIDTH, CELL)
    words = text.replace("?", "").replace(",", "").replace(":", "").split()
    named = [word for word in words if word in THINGS]
    shown = {thing: see(film, thing) for thing in THINGS}
    seconds = {thing: np.flatnonzero(shown[thing].any((1, 2))) for thing in THINGS}
    if kind == "scene":
        totals = Counter(PLACES[frame.ravel()[frame.ravel() < len(PLACES)][0]] for frame in labels)
        return {place for place, total in totals.items() if total == max(totals.values())}
    if kind == "present":
        return {"yes" if shown[named[0]].any() else "no"}
    if kind == "needle":
        return {thing for thing in named if shown[thing].any()}
    if kind == "what":
        row, column = divmod(ZONES.index(" ".join(words[-2:])), 3)
        part = labels[:, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
        return {THINGS[label - len(PLACES)] for label in np.unique(part) if label >= len(PLACES)}
    if kind == "where":
        _, rows, columns = np.nonzero(shown[named[0]])
        return {ZONES[3 * (row // 2) + column // 2] for row, column in zip(rows, columns, strict=True)}
    if kind == "when":
        return {THIRDS[min(2, 3 * second // film.slices)] for second in seconds[named[0]]}
    if kind == "count":
        return {NUMBERS[int((np.diff(seconds[named[0]]) > 1).sum())]}
    a, b = named
    if kind == "order":
        return {min(named, key=lambda thing: seconds[thing][0])} if seconds[a][0] != seconds[b][0] else {a, b}
    return {max(named, key=lambda thing: len(seconds[thing]))} if len(seconds[a]) != len(seconds[b]) else {a, b}


@settings(max_examples=60, deadline=None)
@given(films)
def test_every_answer_follows_from_the_labels_and_only_one_is_right(film: Film) -> None:
    for kind in KINDS:
        for question in list_questions(film, kind):
            assert answer_from_labels(film, kind, question.text) == {question.answer}, question


@settings(max_examples=60, deadline=None)
@given(films)
def test_shots_fill_the_film_and_things_are_shown_briefly(film: Film) -> None:
    assert [shot.start for shot in film.shots] == [0, *(shot.end for shot in film.shots[:-1])]
    assert film.shots[-1].end == film.slices
    assert all(before.place != after.place for before, after in itertools.pairwise(film.shots))
    for thing in film.things:
        appearances = film.get_appearances(thing)
        assert 1 <= len(appearances) <= 4
        assert all(1 <= a.end - a.start <= 3 and a.end <= film.slices for a in appearances)
        assert all(b.start - a.end >= GAP for a, b in itertools.pairwise(appearances))
        assert len({a.zone for a in appearances}) == 1
    assert len({a.zone for a in film.appearances}) == len(film.things)


def test_a_seed_determines_the_film() -> None:
    assert make_film(5) == make_film(5) != make_film(6)
    film = make_film(5, 8)
    assert np.array_equal(render_film(film), render_film(film))


def test_some_pairs_are_in_films_for_tests_only() -> None:
    def list_pairs(film: Film) -> set[tuple[str, str]]:
        return {(a.thing, film.get_place(second)) for a in film.appearances for second in range(a.start, a.end)}

    assert 0.1 < len(UNSEEN_PAIRS) / (len(THINGS) * len(PLACES)) < 0.15
    for seed in range(150):
        assert not list_pairs(make_film(seed, training=True)) & UNSEEN_PAIRS
    assert sum(bool(list_pairs(make_film(seed)) & UNSEEN_PAIRS) for seed in range(50)) > 20


def test_a_thing_is_drawn_in_its_box_and_nowhere_else() -> None:
    film = make_film(1, 16)
    shown = film.appearances[0]
    without = replace(film, appearances=tuple(a for a in film.appearances if a is not shown))
    changed = (render_film(film) != render_film(without)).any(-1)
    left, top, side = locate_thing(shown, HEIGHT, WIDTH)
    inside = changed[2 * shown.start : 2 * shown.end, top : top + side, left : left + side]
    assert inside.mean() > 0.3
    assert inside.sum() == changed.sum()


def test_answers_are_balanced() -> None:
    picker = QuestionPicker()
    asked = [question for seed in range(200) for question in picker.pick(make_film(seed))]
    for kind in ("present", "where", "when", "count"):
        counts = Counter(question.answer for question in asked if question.kind == kind)
        assert max(counts.values()) <= 1.25 * min(counts.values()), (kind, counts)
    for kind in ("order", "longer"):
        first = [q.text.split("the ")[1].startswith(q.answer) for q in asked if q.kind == kind]
        assert abs(np.mean(first) - 0.5) < 0.03
    assert {question.kind for question in asked} == set(KINDS)
    assert sorted(kind for kinds in GROUPS.values() for kind in kinds) == sorted(KINDS)


def test_things_look_different() -> None:
    pictures = np.stack([draw_thing(name, 24) for name in THINGS]).astype(float)
    solid = pictures[..., :3] * pictures[..., 3:] / 255
    for at, picture in enumerate(solid):
        others = np.abs(np.delete(solid, at, 0) - picture).mean((1, 2, 3))
        assert others.min() > 15, THINGS[at]


def test_film_file_has_the_frames(tmp_path: Path) -> None:
    av = pytest.importorskip("av", reason="writing films needs pip install 'floc-video[video]'")
    frames = render_film(make_film(2, 4))
    write_film(tmp_path / "film.mp4", frames)
    with av.open(str(tmp_path / "film.mp4")) as container:
        decoded = [(frame.to_ndarray(format="rgb24"), frame.time) for frame in container.decode(video=0)]
    assert [time for _, time in decoded] == [number / 2 for number in range(8)]
    error = np.abs(np.stack([picture for picture, _ in decoded]).astype(int) - frames)
    assert error.mean() < 6


@pytest.mark.parametrize("slices", [0, 3, 257])
def test_a_film_of_another_length_is_refused(slices: int) -> None:
    with pytest.raises(ValueError, match=f"4 to 256 slices, got {slices}"):
        make_film(0, slices)
