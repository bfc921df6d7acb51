"""The table "blocks": how long blocks should be, and what choosing across them gains, on real footage.

The paper's figure of block lengths, with all that looks beyond a block beside it: one share of the budget for all
blocks, the second pass, blocks along scenes, the whole video as one set. Coverage is true, every token's best cosine
over all that was kept. Films are those in `$FLOC_DATA`, and made up where there are none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import floc
from benchmarks.blocks import Shape
from benchmarks.harness import Contender, compare
from benchmarks.second_pass import KINDS, Kind, count_of, true_coverage, unit_of
from benchmarks.tables import Echo, Table, where
from benchmarks.video import real_films
from floc import encoders
from floc._format import markdown_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
BASELINE = "32"
WAYS: dict[str, dict[str, Any]] = {
    **{str(length): {"block": length} for length in LENGTHS},
    "32, dedupe=2": {"block": 32, "dedupe": 2},
    "32, dedupe=4": {"block": 32, "dedupe": 4},
    "scene": {"block": "scene"},
    "whole video": {"block": None},
}
ACROSS = {"whole video": "--", "32, dedupe=2": ":"}  # lines of the plot
FLOORS = {"random": "random", "uniform in time": "frame_uniform"}
RATIOS = ("1/8", "1/16", "1/32")
SPAN = 32  # frames: tokens of different spans count as those of different blocks, whatever the blocks were
FILMS = {"intel_person.mp4": 2.0, "bbb480.mp4": 9.0}  # frames a second: 279 of a fixed camera, 270 with cuts
SIZE = (256, 160)  # pixels, 40 tokens a frame: the whole of it must still be chosen from as one set
ENCODER = "mobilenet"


@dataclass(frozen=True)
class Film:
    """Tokens with a name."""

    name: str
    tokens: np.ndarray  # [T, H, W, D]


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """The figure, for each film."""
    if small:
        films, encoder = [Film("made up", KINDS[2].tokens(Shape(80, 2, 5, 32)))], ""
    else:
        films, encoder = footage(FILMS, (KINDS[4], KINDS[2]), frames=280)
    return {"encoder": encoder, "figure": [record for film in films for record in _figure(film, 1, echo)]}


def footage(wanted: Mapping[str, float], made_up: Sequence[Kind], frames: int) -> tuple[list[Film], str]:
    """Films by their names, at so many frames a second, and who made the tokens; made up where they are not there."""
    from floc.video import read

    paths = {path.name: path for path in real_films()}
    if not {*wanted} <= {*paths}:
        return [Film(f"made up: {kind.name}", kind.tokens(Shape(frames, 5, 8, 384))) for kind in made_up], ""
    network = encoders.get(ENCODER)
    films = []
    for name, fps in wanted.items():
        video = read(paths[name], fps=fps, size=lambda width, height: SIZE)
        tokens = np.asarray(encoders.encode(video, network, planned=video.planned).tokens)
        films.append(Film(f"{name}, {fps:g} fps", tokens))
    return films, ENCODER


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
        found = measured(film, ratio, floors | calls, rounds)
        records += [{**each, "keep": ratio} for each in found]
        shown = ", ".join(f"{each['contender']} {each['true']:.4f}" for each in found)
        echo(f"{film.name}, {ratio}: {shown}")
    return records


def measured(
    film: Film,
    ratio: str,
    calls: Mapping[str, Callable[[], floc.Kept]],
    rounds: int,
    baseline: str = BASELINE,
    clock: Callable[[], float] = time.perf_counter,
) -> list[dict[str, Any]]:
    """Time all calls by turns, and look at what they kept."""
    frames, height, width, _ = film.tokens.shape
    unit = unit_of(film.tokens)
    span = np.repeat(np.arange(frames) // SPAN, height * width)
    answers: dict[str, floc.Kept] = {}

    def answer(name: str) -> None:
        answers[name] = calls[name]()

    records = []
    for timing in compare(
        [Contender(name, partial(answer, name)) for name in calls], baseline, rounds=rounds, clock=clock
    ):
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
                    *(cosine(each["redundancy"]) for each in kept),
                    *(f"{each['ms'] / 1e3:.3g}" for each in kept),
                ]
            )
        head = [f"{film}: {records[0]['frames']} frames, {records[0]['n']:,} tokens"]
        head += [f"{what}{ratio}" for what in ("coverage, ", "redundancy, ", "seconds, ") for ratio in RATIOS]
        parts.append(markdown_table(head, rows))
    note = (
        "Rows: frames in a block, one pass (dedupe=1) where nothing else is said; detail=1. Coverage: mean best cosine "
        "of all tokens to what was kept, and its mean over the worst-covered 5%; keeping all tokens would be 1. "
        "Redundancy between blocks: for every kept token the highest cosine with a kept token that is in another "
        f"{SPAN} frames of the film (frames 0 to {SPAN - 1}, {SPAN} to {2 * SPAN - 1} and so on, whatever the blocks "
        "were), and the mean of that over all kept tokens. Seconds: of one call, after another to warm up. Uniform in "
        "time keeps whole frames, as many as fit."
    )
    return "\n\n".join([*parts, f"{note} {made_by(document)}"])


def cosine(value: float | None) -> str:
    """A cosine for people, where there is one."""
    return "-" if value is None else f"{value:.3f}"


def made_by(document: dict[str, Any]) -> str:
    """One line under a table: who made the tokens, and where it was measured."""
    tokens = f"Tokens by {document['encoder']}. " if document["encoder"] else "Made-up tokens. "
    return tokens + where(document, "numpy", "torch", "numba", "av")


def _plot(document: dict[str, Any]) -> Figure:
    """Coverage against the length of blocks, a panel for a film; across it, what looks beyond a block."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(each["film"] for each in document["figure"]))
    figure = Figure(figsize=(5 * len(names) + 2, 4), layout="constrained")
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    for axes, name in zip(panels, names, strict=True):
        by = {(each["contender"], each["keep"]): each["true"] for each in document["figure"] if each["film"] == name}
        for color, ratio in enumerate(RATIOS):
            axes.plot(LENGTHS, [by[str(length), ratio] for length in LENGTHS], f"C{color}o-", label=ratio)
            for way, line in ACROSS.items():
                label = way if color == 0 else None
                axes.axhline(by[way, ratio], color=f"C{color}", linestyle=line, linewidth=1, label=label)
        axes.set(xscale="log", xlabel="frames in a block", title=name)
        axes.set_xticks(LENGTHS, [str(length) for length in LENGTHS])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("coverage: mean best cosine")
    panels[-1].legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


TABLE = Table("blocks", run, views={"blocks": _figure_view}, plots={"blocks": _plot})
