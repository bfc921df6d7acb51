"""`floc demo`: a film in which keys lie on a table for a second, and which methods keep them.

The film is made here, so the truth is known: every frame that shows the keys, and where. It is then read, encoded and
compressed like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from examples.demo.film import Sighting, render
from floc import methods
from floc._arrays import to_numpy, to_tensor
from floc._format import format_time
from floc.analysis.compare import Comparison
from floc.budget import Budget
from floc.encoders.base import Encoder, VideoTokens
from floc.kept import Kept
from floc.representatives import find_nearest

ALSO = "1/64"  # a ratio to look at beside the one asked for
# methods that stay above 1/32, and those that need minutes for so many tokens
LEFT_OUT = ("dycoke", "longvu", "kmeans", "kmedoids", "scissor", "spectral")
SEEN = 0.25  # of a patch must be the keys, or of the keys in the patch, for it to show them

Bar = Callable[[str], AbstractContextManager[Callable[..., None]]]


class Verdict(NamedTuple):
    """What became of the keys."""

    patches: int  # that show them
    kept: int  # of those
    closest: float  # their mean cosine with the kept token most like each


def show(
    screen: Console, folder: Path, *, seed: int, seconds: float, ratio: str, encoder: Encoder, progress: Bar
) -> None:
    """Render, compress in every way there is, print which kept the keys, write the report."""
    from floc import report
    from floc.encoders.load import load_tokens

    asked = Budget.parse(ratio, None, None)
    folder.mkdir(parents=True, exist_ok=True)
    with progress("rendering a film") as bar:
        made = render(folder / "keys.mp4", seconds=seconds, seed=seed, progress=bar)
    first, last = made.sightings[0].time_s, made.sightings[-1].time_s
    screen.print(
        f"A film of {format_time(made.duration_s)}: scenes of a home, and keys that lie on a table "
        f"from {first:.1f} s to {last:.1f} s."
    )
    with progress("reading it") as bar:
        film = load_tokens(made.path, fps=None, encoder=encoder, with_thumbnails=True, progress=bar)
    t, h, w, _ = film.tokens.shape
    truth = patches_with_keys(film, made.sightings)
    screen.print(f"Encoder {film.encoder.name}: {t * h * w:,} tokens; {len(truth)} of them show the keys.\n")
    with progress("comparing") as bar:
        result = report.make(
            film,
            sorted(set(methods.names()) - set(LEFT_OUT), key=lambda name: (not name.startswith("floc"), name)),
            [ALSO, ratio],
            folder / "report.html",
            command=f"floc demo --seed {seed} --seconds {seconds:g} --ratio {ratio} --encoder {encoder.name}",
            opens_at=int(truth[0]) // (h * w) if len(truth) else None,
            notes=[f"The keys lie on the table from {first:.1f} s to {last:.1f} s: {len(truth)} patches show them."],
            progress=lambda what, share: bar(share, what),
        )
    _show_verdicts(screen, result.comparison, film, truth, asked.count(t * h * w))
    screen.print(
        f"Left out, as they cannot keep so few or need minutes: {', '.join(LEFT_OUT)}. `floc compare` runs them.\n",
        style="dim",
    )
    screen.print(f"[bold]{escape(str(result.path))}[/]  the report; open it in a browser", soft_wrap=True)
    screen.print(f"[bold]{escape(str(made.path))}[/]  the film", soft_wrap=True)


def _show_verdicts(
    screen: Console, comparison: Comparison, footage: VideoTokens, truth: np.ndarray, budget: int
) -> None:
    main = next(place for place, stop in enumerate(comparison.stops) if stop.budget == budget)
    asked = [place for place, stop in enumerate(comparison.stops) if stop.asked]
    table = Table(
        padding=(0, 1),
        title=f"Who kept the keys? Of {len(truth)} patches that show them, kept at",
        box=None,
        header_style="bold",
    )
    table.add_column("method", no_wrap=True)
    for place in asked:
        table.add_column(comparison.stops[place].label, justify="right", no_wrap=True)
    for name in ("likeness", "coverage", "worst 5%", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for contender in comparison.contenders:
        verdicts = {place: judge(footage, contender.kept[place], truth) for place in asked if place in contender.kept}
        counts = [_count(verdicts[place]) if place in verdicts else "-" for place in asked]
        numbers = ["-"] * 3
        if main in verdicts:
            measures = contender.measures[main]
            numbers = [f"{each:.3f}" for each in (verdicts[main].closest, measures.coverage, measures.worst)]
        table.add_row(escape(contender.name), *counts, *numbers, f"{contender.kept[min(verdicts)].seconds:.2f}")
    screen.print(table)
    for note in comparison.notes:
        screen.print(note, style="yellow", markup=False, soft_wrap=True)
    label = comparison.stops[main].label
    screen.print(
        f"\nLikeness: mean cosine of those patches with the kept token most like each, at {label}. Coverage: the same "
        "of all patches; worst 5%: of those that are covered worst.\n",
        style="dim",
    )


def _count(verdict: Verdict) -> str:
    return f"[green]{verdict.kept}[/]" if verdict.kept else "[red]none[/]"


def patches_with_keys(footage: VideoTokens, sightings: list[Sighting]) -> np.ndarray:
    """[M] int64, the flat indices of tokens whose patch shows the keys.

    A patch shows them when a good part of it is keys, or a good part of the keys is in it.
    """
    _, h, w, _ = footage.tokens.shape
    found = []
    for t, time_s in enumerate(footage.times_s):
        seen = min(sightings, key=lambda each: abs(each.time_s - time_s))
        if abs(seen.time_s - time_s) > 1e-3:
            continue
        left, top, right, bottom = (share * cells for share, cells in zip(seen.box, (w, h, w, h), strict=True))
        down = np.clip(np.minimum(bottom, np.arange(h) + 1) - np.maximum(top, np.arange(h)), 0, None)
        across = np.clip(np.minimum(right, np.arange(w) + 1) - np.maximum(left, np.arange(w)), 0, None)
        shared = down[:, None] * across  # [H, W] in patches
        shows = shared > SEEN * min(1, (right - left) * (bottom - top))
        found.append(t * h * w + np.flatnonzero(shows))
    return np.concatenate(found) if found else np.empty(0, np.int64)


def judge(footage: VideoTokens, kept: Kept, truth: np.ndarray) -> Verdict:
    """What a method kept of the patches in `truth`."""
    tokens = to_tensor(footage.tokens).reshape(-1, footage.tokens.shape[-1])
    cosines, _ = find_nearest(tokens[truth], to_tensor(kept.features))
    return Verdict(len(truth), int(np.isin(truth, to_numpy(kept.indices)).sum()), float(cosines.mean()))
