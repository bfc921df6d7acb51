"""The table "scenes": are cuts found, and what blocks that follow scenes do to coverage at equal budget.

Cuts are judged to the frame, on made-up films and on the demo's, which know theirs; on real films, whose cuts were
marked by eye; and on montages: pieces of the real films end to end, in an order in which no film follows itself.
Coverage is true, every token's best cosine over all that was kept. Real films are those in `$FLOC_DATA`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import floc
from benchmarks.harness import Contender, compare
from benchmarks.second_pass import KINDS, Kind, count_of, true_coverage, unit_of
from benchmarks.tables import Echo, Table, where
from benchmarks.video import ENCODERS, real_films
from floc import encoders, scenes
from floc._format import markdown_table
from floc.synthetic import film_and_cuts

ROUNDING_S = 0.0005  # containers round times to milliseconds
# seconds at which another shot begins, by eye; PySceneDetect 0.7 finds the same
KNOWN_CUTS_S: dict[str, list[float]] = {
    "bbb480.mp4": [11.875, 15.75, 23.042],
    "bikes.mp4": [1.2, 3.04, 5.48, 7.48, 9.68],
    "intel_person.mp4": [],
    "vtest.avi": [],
}
DEMO = "demo"
FPS = (1, 4)
# the same for all films, so that their pieces fit together; 60 tokens a frame, so that whole films are soon chosen from
SIZE = (320, 192)
MONTAGES, PIECES, PIECE_FRAMES = 3, 24, (6, 40)
COMPARED_PIECES = 6  # about 140 frames: more than the longest blocks, and few enough for one set
RATIOS = ("1/8", "1/32")
METHODS = ("floc-paper", "floc")
BLOCKS: dict[str, Any] = {"8": 8, "32": 32, "128": 128, "whole video": None, "scene": "scene"}
BASELINE = "32"
FLOORS = {"random": "random", "uniform in time": "frame_uniform"}


@dataclass(frozen=True)
class Film:
    """Tokens, and the frames at which another scene begins."""

    name: str
    encoder: str
    fps: float | None
    tokens: np.ndarray  # [T, H, W, D]
    cuts: list[int]


Load = Callable[[str, str, float], Film]


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Both parts of the table."""
    if small:
        film = _made_up(KINDS[2], frames=80, shape=(2, 5, 32))
        return {"cuts": [_judged([film], echo)], "coverage": _coverage(film, echo)}
    with tempfile.TemporaryDirectory() as folder:
        load, names = _loader(Path(folder))
        found = [_judged([_made_up(kind, frames=400, shape=(6, 10, 384))], echo) for kind in KINDS]
        for encoder in ENCODERS:
            for fps in FPS:
                found += [_judged([load(name, encoder, fps)], echo) for name in (DEMO, *names)]
                if names:
                    found.append(
                        _judged([_montage(load, names, encoder, fps, seed, PIECES) for seed in range(MONTAGES)], echo)
                    )
        coverage = []
        for encoder in ENCODERS:
            films = [load(DEMO, encoder, 1)]
            if names:
                films.append(_montage(load, names, encoder, 4, 0, COMPARED_PIECES))
            films += [load(name, encoder, 1) for name in names if name == "vtest.avi"]
            coverage += [record for film in films for record in _coverage(film, echo)]
    return {"cuts": found, "coverage": coverage}


def _made_up(kind: Kind, frames: int, shape: tuple[int, int, int]) -> Film:
    options = dict(seed=kind.seed, noise=kind.noise, shot_frames=kind.shot_frames, scenes=kind.scenes)
    return Film(f"made up: {kind.name}", "", None, *film_and_cuts(frames, *shape, **options))  # type: ignore[arg-type]


def _loader(folder: Path) -> tuple[Load, list[str]]:
    """A function that reads and encodes a film, once, and the names of the real films there are."""
    from examples.demo.film import render
    from floc.video import read

    demo = render(folder / "demo.mp4", seconds=120)
    paths = {path.name: path for path in real_films() if path.name in KNOWN_CUTS_S}
    cuts_s = {**KNOWN_CUTS_S, DEMO: demo.cuts_s}
    network = cache(encoders.get)

    @cache
    def load(name: str, encoder: str, fps: float) -> Film:
        video = read(demo.path if name == DEMO else paths[name], fps=fps, size=lambda width, height: SIZE)
        footage = encoders.encode(video, network(encoder), planned=video.planned)
        return Film(name, encoder, fps, np.asarray(footage.tokens), _first_frames(footage.times_s, cuts_s[name]))

    return load, sorted(paths)


def _first_frames(times_s: np.ndarray, cuts_s: Sequence[float]) -> list[int]:
    """The sampled frames that are the first after a cut; a shot of which none was sampled has none.

    >>> _first_frames(np.arange(10.0), [1.2, 3.04, 3.5, 9.68])
    [2, 4]
    """
    first = np.searchsorted(times_s, np.array(cuts_s) - ROUNDING_S)
    return np.unique(first[first < len(times_s)]).tolist()


def _montage(load: Load, names: Sequence[str], encoder: str, fps: float, seed: int, pieces: int) -> Film:
    """Pieces of real films end to end, with the cuts between them and those inside."""
    rng = np.random.default_rng(seed)
    tokens: list[np.ndarray] = []
    cuts: list[int] = []
    at, last = 0, ""
    for _ in range(pieces):
        last = str(rng.choice([name for name in names if name != last]))
        film = load(last, encoder, fps)
        length = min(len(film.tokens), int(rng.integers(PIECE_FRAMES[0], PIECE_FRAMES[1] + 1)))
        start = int(rng.integers(len(film.tokens) - length + 1))
        tokens.append(film.tokens[start : start + length])
        cuts += [at] * (at > 0) + [at + cut - start for cut in film.cuts if start < cut < start + length]
        at += length
    return Film("montage of real films", encoder, fps, np.concatenate(tokens), cuts)


def _judged(films: Sequence[Film], echo: Echo) -> dict[str, Any]:
    """How many cuts were found, over some films of one kind."""
    total = dict.fromkeys(("frames", "cuts", "found", "right", "long", "long_right"), 0)
    for film in films:
        found = set(scenes.find_cuts(film.tokens))
        ends = np.array([0, *film.cuts, len(film.tokens)])
        between = np.diff(ends)
        has_room = np.minimum(between[:-1], between[1:]) >= scenes.SHORTEST
        long = {cut for cut, room in zip(film.cuts, has_room, strict=True) if room}
        counts = (
            len(film.tokens),
            len(film.cuts),
            len(found),
            len(found & set(film.cuts)),
            len(long),
            len(found & long),
        )
        total = {name: total[name] + count for name, count in zip(total, counts, strict=True)}
    first = films[0]
    record = {"film": first.name, "encoder": first.encoder, "fps": first.fps, **total}
    echo(f"{first.name}, {first.encoder} {first.fps}: {total['right']} of {total['cuts']} cuts, {total['found']} found")
    return record


def _coverage(film: Film, echo: Echo) -> list[dict[str, Any]]:
    """Records of coverage and time, for every way to cut one film into blocks."""
    tokens = film.tokens
    unit = unit_of(tokens)
    n = len(unit)
    case = {"film": film.name, "encoder": film.encoder, "fps": film.fps, "frames": len(tokens), "n": n}
    case["scene_blocks"] = len(scenes.split_scenes(tokens))
    records = []
    for ratio in RATIOS:
        for name, method in FLOORS.items():
            kept = floc.compress(tokens, ratio=ratio, method=method)
            covered = true_coverage(unit, np.asarray(kept.indices))
            records.append({**case, "keep": ratio, "method": method, "block": name, **covered})
        for method in METHODS:
            answers: dict[str, floc.Kept] = {}

            def answer(block: str, method: str = method, ratio: str = ratio, answers: dict = answers) -> None:
                answers[block] = floc.compress(tokens, ratio=ratio, method=method, block=BLOCKS[block])

            contenders = [Contender(block, lambda block=block: answer(block)) for block in BLOCKS]  # type: ignore[misc]
            for timing in compare(contenders, BASELINE, rounds=1):
                kept = answers[timing.contender]
                if len(kept) != count_of(ratio, n):
                    raise AssertionError(f"{len(kept)} tokens for {ratio} of {n}")
                record = {**case, "keep": ratio, "method": method, "block": timing.contender}
                records.append(record | true_coverage(unit, np.asarray(kept.indices)) | asdict(timing))
            shown = ", ".join(f"{each['block']} {each['true']:.4f}" for each in records[-len(BLOCKS) :])
            echo(f"{film.name}, {film.encoder}, {ratio}, {method}: {shown}")
    return records


def _cuts_view(document: dict[str, Any]) -> str:
    head = ("film", "encoder", "fps", "frames", "cuts", "found", "right", "precision", "recall", "recall, long scenes")
    rows = [
        (
            each["film"],
            each["encoder"] or "-",
            "-" if each["fps"] is None else f"{each['fps']:g}",
            f"{each['frames']:,}",
            *(f"{each[name]}" for name in ("cuts", "found", "right")),
            _share(each["right"], each["found"]),
            _share(each["right"], each["cuts"]),
            _share(each["long_right"], each["long"]),
        )
        for each in document["cuts"]
    ]
    note = (
        f"Right: at the very frame. Recall, long scenes: of the cuts between scenes of at least {scenes.SHORTEST} "
        f"frames; shorter ones are not looked for. Montages: {MONTAGES} of {PIECES} pieces, added up. "
    )
    return f"{markdown_table(head, rows)}\n\n{note}{where(document, 'numpy', 'torch', 'av')}"


def _coverage_view(document: dict[str, Any]) -> str:
    choices = (*FLOORS, *BLOCKS)
    rows = []
    for case, row in _by_case(document["coverage"]):
        cells = [f"{row[choice]['true']:.4f} / {row[choice]['worst']:.3f}" for choice in choices]
        rows.append([*case, f"{row['scene']['frames'] / row['scene']['scene_blocks']:.0f}", *cells])
    head = ["film", "encoder", "kept", "method", "frames a scene block", *choices]
    note = (
        "Cells: mean best cosine of all tokens to what was kept, and its mean over the worst-covered 5%; keeping all "
        f"tokens would be 1. {where(document, 'numpy', 'torch', 'numba')}"
    )
    return f"{markdown_table(head, rows)}\n\n{note}"


def _time_view(document: dict[str, Any]) -> str:
    rows = []
    for case, row in _by_case(document["coverage"]):
        cells = [f"{row[block]['ratio']:.2f}x" for block in BLOCKS if block != BASELINE]
        rows.append([*case, f"{row[BASELINE]['n']:,}", f"{row[BASELINE]['ms'] / 1e3:.2f}", *cells])
    others = [block for block in BLOCKS if block != BASELINE]
    head = ["film", "encoder", "kept", "method", "tokens", f"blocks of {BASELINE}, s", *others]
    note = (
        f"How many times as long as blocks of {BASELINE}, by one call of each in one process after another to warm up, "
        f"so a rough measure; finding the scenes is part of it. {where(document, 'numpy', 'torch', 'numba')}"
    )
    return f"{markdown_table(head, rows)}\n\n{note}"


def _by_case(records: Sequence[dict[str, Any]]) -> list[tuple[tuple[str, str, str, str], dict[str, dict[str, Any]]]]:
    """What was measured of each film, encoder, ratio and method, by block; the floors know no method's blocks."""
    found: dict[tuple[str, str, str, str], dict[str, dict[str, Any]]] = {}
    for each in records:
        for method in METHODS if each["block"] in FLOORS else (each["method"],):
            found.setdefault((each["film"], each["encoder"] or "-", each["keep"], method), {})[each["block"]] = each
    return list(found.items())


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.2f}" if whole else "-"


TABLE = Table("scenes", run, views={"scenes": _cuts_view, "scenes-coverage": _coverage_view, "scenes-time": _time_view})
