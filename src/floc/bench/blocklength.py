"""The table "blocks": how long blocks should be, and what choosing across them gains, on real footage.

The paper's figure of block lengths, with all that looks beyond a block beside it: one share of the budget for all
blocks, the second pass, blocks along scenes, the whole video as one set. Then the second pass by itself: how many
survivors, and chosen from once or again and again, as a stream does. Coverage is true, every token's best cosine over
all that was kept. Films are those in `$FLOC_DATA`, and made up where there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

import floc

from .. import encoders
from .blocks import Shape
from .harness import Contender, compare
from .second_pass import KINDS, count_of, true_coverage, unit_of
from .tables import Echo, Table, grid, times, where
from .video import real_films

LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
BASELINE = "32"
WAYS: dict[str, dict[str, Any]] = {
    **{str(length): {"block": length} for length in LENGTHS},
    "32, global": {"block": 32, "allocate": "global"},
    "32, dedupe=2": {"block": 32, "dedupe": 2},
    "32, dedupe=4": {"block": 32, "dedupe": 4},
    "scene": {"block": "scene"},
    "whole video": {"block": None},
}
FLOORS = {"random": "random", "uniform in time": "frame_uniform"}
RATIOS = ("1/8", "1/16", "1/32")
SPAN = 32  # frames: tokens of different spans count as those of different blocks, whatever the blocks were
FILMS = {"intel_person.mp4": 2.0, "bbb480.mp4": 9.0}  # frames a second: 279 of a fixed camera, 270 with cuts
SIZE = (256, 160)  # pixels, 40 tokens a frame: the whole of it must still be chosen from as one set

ROUNDS_FILM, ROUNDS_FPS = "intel_person.mp4", 3.0
ROUNDS_RATIO = "1/32"
ROUNDS_BLOCKS = (32, 8)  # shorter blocks make a stream choose more often
SURVIVORS = (1, 1.5, 2, 4)
ENCODER = "mobilenet"


@dataclass(frozen=True)
class Film:
    """Tokens with a name."""

    name: str
    tokens: np.ndarray  # [T, H, W, D]


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Both parts of the table."""
    if small:
        film = Film("made up", KINDS[2].tokens(Shape(80, 2, 5, 32)))
        return {"encoder": "", "figure": _figure(film, 1, echo), "rounds": _rounds(film, 1, echo)}
    films, longest, encoder = _films()
    figure = [record for film in films for record in _figure(film, 1, echo)]
    return {"encoder": encoder, "figure": figure, "rounds": _rounds(longest, 2, echo)}


def _films() -> tuple[list[Film], Film, str]:
    """The films of the figure, the one that is chosen from again and again, and who made the tokens."""
    from ..video import read

    paths = {path.name: path for path in real_films()}
    if not {*FILMS, ROUNDS_FILM} <= {*paths}:
        fixed, cut = KINDS[4], KINDS[2]
        films = [Film(f"made up: {kind.name}", kind.tokens(Shape(280, 5, 8, 384))) for kind in (fixed, cut)]
        return films, Film(films[0].name, fixed.tokens(Shape(420, 5, 8, 384))), ""
    network = encoders.get(ENCODER)

    def load(name: str, fps: float) -> Film:
        video = read(paths[name], fps=fps, size=lambda width, height: SIZE)
        return Film(f"{name}, {fps:g} fps", np.asarray(encoders.encode(video, network, planned=video.planned).tokens))

    return [load(name, fps) for name, fps in FILMS.items()], load(ROUNDS_FILM, ROUNDS_FPS), ENCODER


def redundancy(unit: np.ndarray, picks: np.ndarray, span: np.ndarray) -> float | None:
    """The mean, over picks, of the highest cosine with a pick of another span; None where there is one span.

    Args:
        unit: [N, D], all tokens at length 1.
        picks: [K] flat indices.
        span: [N], which span each token is in.

    >>> redundancy(np.eye(3)[[0, 0, 1, 2]], np.array([0, 1, 2]), np.array([0, 1, 1, 1]))
    0.6666666666666666
    """
    of = span[picks]
    if (of == of[0]).all():
        return None
    cosine = np.where(of[:, None] == of, -np.inf, unit[picks] @ unit[picks].T)
    return float(cosine.max(1).mean(dtype=np.float64))


def _figure(film: Film, rounds: int, echo: Echo) -> list[dict[str, Any]]:
    """Records of all ways to choose from one film."""
    records = []
    for ratio in RATIOS:
        calls = {
            way: partial(floc.compress, film.tokens, ratio=ratio, **{"dedupe": 1, "detail": 1, **options})
            for way, options in WAYS.items()
        }
        floors = {way: partial(floc.compress, film.tokens, ratio=ratio, method=name) for way, name in FLOORS.items()}
        measured = _measured(film, ratio, floors | calls, rounds)
        records += [{**each, "keep": ratio} for each in measured]
        shown = ", ".join(f"{each['contender']} {each['true']:.4f}" for each in measured)
        echo(f"{film.name}, {ratio}: {shown}")
    return records


def _rounds(film: Film, rounds: int, echo: Echo) -> list[dict[str, Any]]:
    """Records of choosing from survivors once, and again and again."""
    budget = count_of(ROUNDS_RATIO, film.tokens[..., 0].size)
    calls: dict[str, Callable[[], floc.Kept]] = {}
    cases: dict[str, dict[str, Any]] = {}

    def add(block: int | None, survivors: float | None, way: str, call: Callable[[], floc.Kept]) -> None:
        name = f"{way}, {block}, {survivors}"
        calls[name] = call
        cases[name] = {"block": block, "survivors": survivors, "way": way}

    def in_passes(block: int | None, survivors: float) -> Callable[[], floc.Kept]:
        return partial(floc.compress, film.tokens, budget=budget, block=block, dedupe=survivors, detail=1)

    for block in ROUNDS_BLOCKS:
        add(block, None, "blocks", in_passes(block, 1))
        for survivors in SURVIVORS:
            if survivors > 1:
                add(block, survivors, "once", in_passes(block, survivors))
            add(block, survivors, "stream", partial(_streamed, film, budget, block, survivors))
    add(None, None, "whole", in_passes(None, 1))

    records = []
    # plain blocks of the baseline's length are the first contender
    for each in _measured(film, ROUNDS_RATIO, calls, rounds, baseline=next(iter(calls))):
        case = cases[each["contender"]]
        choices = {"blocks": 0, "once": 1, "whole": 0}.get(case["way"])
        if choices is None:
            choices = _choices(film, budget, case["block"], case["survivors"])
        records.append({**each, **case, "keep": ROUNDS_RATIO, "choices": choices})
        echo(f"{film.name}, {each['contender']}: {each['true']:.4f}, {choices} choices, {each['ms']:.0f} ms")
    return records


def _streamed(film: Film, budget: int, block: int, survivors: float) -> floc.Kept:
    stream = floc.Stream(budget=budget, block=block, dedupe=survivors, detail=1)
    stream.push(film.tokens)
    return stream.close()


def _choices(film: Film, budget: int, block: int, survivors: float) -> int:
    """How often a stream chooses from all its survivors: whenever they have become fewer, and at the end."""
    stream = floc.Stream(budget=budget, block=block, dedupe=survivors, detail=1)
    held, choices = 0, 1
    for start in range(0, len(film.tokens) // block * block, block):
        stream.push(film.tokens[start : start + block])
        now = len(stream._past.state()["index"])
        choices, held = choices + (now < held), now
    return choices


def _measured(
    film: Film, ratio: str, calls: Mapping[str, Callable[[], floc.Kept]], rounds: int, baseline: str = BASELINE
) -> list[dict[str, Any]]:
    """Time all calls by turns, and look at what they kept."""
    frames, height, width, _ = film.tokens.shape
    unit = unit_of(film.tokens)
    span = np.repeat(np.arange(frames) // SPAN, height * width)
    answers: dict[str, floc.Kept] = {}

    def answer(name: str) -> None:
        answers[name] = calls[name]()

    records = []
    for timing in compare([Contender(name, partial(answer, name)) for name in calls], baseline, rounds=rounds):
        picks = np.asarray(answers[timing.contender].indices)
        allowed = count_of(ratio, len(unit))
        if len(set(picks.tolist())) != allowed and not (timing.contender in FLOORS and len(picks) < allowed):
            raise AssertionError(f"{timing.contender} kept {len(picks)} tokens for {ratio} of {len(unit)}")
        seen = {**true_coverage(unit, picks), "redundancy": redundancy(unit, picks, span)}
        records.append({"film": film.name, "frames": frames, "n": len(unit), **seen, **asdict(timing)})
    return records


def _figure_view(document: dict[str, Any]) -> str:
    parts = []
    for film in dict.fromkeys(each["film"] for each in document["figure"]):
        records = [each for each in document["figure"] if each["film"] == film]
        by = {(each["contender"], each["keep"]): each for each in records}
        rows = []
        for way in (*FLOORS, *WAYS):
            kept = [by[way, ratio] for ratio in RATIOS]
            rows.append(
                [
                    way,
                    *(f"{each['true']:.4f} / {each['worst']:.3f}" for each in kept),
                    *(_cosine(each["redundancy"]) for each in kept),
                    *(f"{each['ms'] / 1e3:.3g}" for each in kept),
                ]
            )
        head = [f"{film}: {records[0]['frames']} frames, {records[0]['n']:,} tokens"]
        head += [f"{what}{ratio}" for what in ("coverage, ", "redundancy, ", "seconds, ") for ratio in RATIOS]
        parts.append(grid(head, rows))
    note = (
        "Rows: frames in a block, one pass (dedupe=1) where nothing else is said; detail=1. Coverage: mean best cosine "
        "of all tokens to what was kept, and its mean over the worst-covered 5%; keeping all tokens would be 1. "
        "Redundancy between blocks: for every kept token the highest cosine with a kept token that is in another "
        f"{SPAN} frames of the film (frames 0 to {SPAN - 1}, {SPAN} to {2 * SPAN - 1} and so on, whatever the blocks "
        "were), and the mean of that over all kept tokens. Seconds: of one call, after another to warm up. Uniform in "
        "time keeps whole frames, as many as fit."
    )
    return "\n\n".join([*parts, f"{note} {_where(document)}"])


def _rounds_view(document: dict[str, Any]) -> str:
    records = document["rounds"]
    first = records[0]
    words = {
        "blocks": "plain blocks",
        "once": "second pass, once",
        "stream": "stream, again and again",
        "whole": "whole video as one set",
    }
    rows = [
        [
            words[each["way"]],
            "-" if each["block"] is None else str(each["block"]),
            "-" if each["survivors"] is None else f"{each['survivors']:g}",
            str(each["choices"]),
            f"{each['true']:.4f} / {each['worst']:.3f}",
            _cosine(each["redundancy"]),
            f"{each['ms'] / 1e3:.3g}",
            times(each),
        ]
        for each in records
    ]
    head = [f"{first['film']}: {first['frames']} frames, {first['n']:,} tokens, {first['keep']}"]
    head += ["frames in a block", "c", "choices from survivors", "coverage", "redundancy", "seconds", "against blocks"]
    note = (
        "c: survivors for each token kept (`dedupe`). Choices from survivors: how often all survivors there were at "
        "the time were chosen from again. Coverage and redundancy as above. Against blocks: how many times as long as "
        f"plain blocks of {first['block']}, median and 20th to 80th percentile over rounds in one process. detail=1. "
    )
    return f"{grid(head, rows)}\n\n{note}{_where(document)}"


def _cosine(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _where(document: dict[str, Any]) -> str:
    tokens = f"Tokens by {document['encoder']}. " if document["encoder"] else "Made-up tokens. "
    return tokens + where(document, "numpy", "torch", "numba", "av")


TABLE = Table("blocks", run, views={"blocks": _figure_view, "blocks-rounds": _rounds_view})
