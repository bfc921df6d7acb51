"""Find out which methods keep the keys of the rendered film.

The frames that show the keys, and their place, are known. The film is read and compressed like any other video.
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

from examples.demo.film import Film, Sighting, render
from floc import methods, report
from floc._arrays import to_numpy, to_tensor
from floc._text import format_time
from floc.analysis.compare import Comparison
from floc.budget import Budget
from floc.encoders.base import Encoder, VideoTokens
from floc.encoders.load import load_tokens
from floc.kept import Kept
from floc.representatives import find_nearest

SECOND_RATIO = "1/64"  # shown in addition to the requested ratio
# methods that cannot keep as few as 1/32, or need minutes for so many tokens
SKIPPED = ("dycoke", "longvu", "kmeans", "kmedoids", "scissor", "spectral")
VISIBLE = 0.25  # a patch shows the keys if they fill this share of it, or if it contains this share of them

Bar = Callable[[str], AbstractContextManager[Callable[..., None]]]


class KeyScore(NamedTuple):
    """How well the keys are kept."""

    patches: int  # that show the keys
    kept: int  # of those
    similarity: float  # their mean cosine with the closest kept token


def run_demo(
    screen: Console, folder: Path, *, seed: int, seconds: float, ratio: str, encoder: Encoder, progress: Bar
) -> None:
    """Render the film, compress it with all methods, print which ones keep the keys, and write the report."""
    budget = Budget.parse(ratio, None, None)
    folder.mkdir(parents=True, exist_ok=True)
    with progress("rendering the film") as bar:
        film = render(folder / "keys.mp4", seconds=seconds, seed=seed, progress=bar)
    when = f"from {film.sightings[0].time_s:.1f} s to {film.sightings[-1].time_s:.1f} s"
    screen.print(f"A film of {format_time(film.duration_s)}: scenes of a home, and keys on a table {when}.")
    with progress("reading it") as bar:
        loaded = load_tokens(film.path, fps=None, encoder=encoder, with_thumbnails=True, progress=bar)
    t, h, w, _ = loaded.tokens.shape
    key_patches = find_key_patches(loaded, film.sightings)
    screen.print(f"Encoder {loaded.encoder.name}: {t * h * w:,} tokens; {len(key_patches)} of them show the keys.\n")
    report_path = folder / "report.html"
    with progress("comparing") as bar:
        comparison, _ = report.make(
            loaded,
            sorted(set(methods.list_methods()) - set(SKIPPED), key=lambda name: (not name.startswith("floc"), name)),
            [SECOND_RATIO, ratio],
            report_path,
            command=f"python -m examples.demo --seed {seed} --seconds {seconds:g} --ratio {ratio} "
            f"--encoder {encoder.name}",
            opens_at=int(key_patches[0]) // (h * w) if len(key_patches) else None,
            notes=[f"The keys lie on the table {when}: {len(key_patches)} patches show them."],
            progress=lambda what, share: bar(share, what),
        )
    _print_scores(screen, comparison, loaded, key_patches, budget.count(t * h * w))
    _print_files(screen, report_path, film)


def _print_scores(
    screen: Console, comparison: Comparison, footage: VideoTokens, key_patches: np.ndarray, budget: int
) -> None:
    main = next(place for place, stop in enumerate(comparison.steps) if stop.budget == budget)
    asked = [place for place, stop in enumerate(comparison.steps) if stop.requested]
    title = f"Who kept the keys? Of {len(key_patches)} patches that show them, kept at"
    table = Table(padding=(0, 1), title=title, box=None, header_style="bold")
    table.add_column("method", no_wrap=True)
    for place in asked:
        table.add_column(comparison.steps[place].label, justify="right", no_wrap=True)
    for name in ("similarity", "coverage", "worst 5%", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for contender in comparison.results:
        scores = {
            place: score(footage, contender.kept[place], key_patches) for place in asked if place in contender.kept
        }
        counts = [_show_count(scores[place]) if place in scores else "-" for place in asked]
        numbers = ["-"] * 3
        if main in scores:
            measures = contender.measures[main]
            numbers = [f"{value:.3f}" for value in (scores[main].similarity, measures.coverage, measures.worst)]
        table.add_row(escape(contender.name), *counts, *numbers, f"{contender.kept[min(scores)].seconds:.2f}")
    screen.print(table)
    for note in comparison.notes:
        screen.print(note, style="yellow", markup=False, soft_wrap=True)
    screen.print(
        "\nSimilarity: mean cosine of those patches with the closest kept token, at "
        f"{comparison.steps[main].label}. Coverage: the same for all patches; worst 5%: for the worst-covered ones.\n",
        style="dim",
    )


def _print_files(screen: Console, report_path: Path, film: Film) -> None:
    skipped = ", ".join(SKIPPED)
    note = f"Skipped, as they cannot keep so few tokens or need minutes: {skipped}. `floc compare` runs them.\n"
    screen.print(note, style="dim")
    screen.print(f"[bold]{escape(str(report_path))}[/]  the report; open it in a browser", soft_wrap=True)
    screen.print(f"[bold]{escape(str(film.path))}[/]  the film", soft_wrap=True)


def _show_count(key_score: KeyScore) -> str:
    return f"[green]{key_score.kept}[/]" if key_score.kept else "[red]none[/]"


def find_key_patches(footage: VideoTokens, sightings: list[Sighting]) -> np.ndarray:
    """Return [M] int64, the flat indices of tokens whose patch shows the keys (see VISIBLE)."""
    _, h, w, _ = footage.tokens.shape
    patches = []
    for t, time_s in enumerate(footage.times_s):
        sighting = min(sightings, key=lambda sighting: abs(sighting.time_s - time_s))
        if abs(sighting.time_s - time_s) > 1e-3:
            continue
        left, top, right, bottom = (share * cells for share, cells in zip(sighting.box, (w, h, w, h), strict=True))
        down = np.clip(np.minimum(bottom, np.arange(h) + 1) - np.maximum(top, np.arange(h)), 0, None)
        across = np.clip(np.minimum(right, np.arange(w) + 1) - np.maximum(left, np.arange(w)), 0, None)
        overlap = down[:, None] * across  # [H, W], in patches
        is_visible = overlap > VISIBLE * min(1, (right - left) * (bottom - top))
        patches.append(t * h * w + np.flatnonzero(is_visible))
    return np.concatenate(patches) if patches else np.empty(0, np.int64)


def score(footage: VideoTokens, kept: Kept, key_patches: np.ndarray) -> KeyScore:
    """Score how well a method keeps the key patches."""
    tokens = to_tensor(footage.tokens).reshape(-1, footage.tokens.shape[-1])
    cosines, _ = find_nearest(tokens[key_patches], to_tensor(kept.features))
    count = int(np.isin(key_patches, to_numpy(kept.indices)).sum())
    return KeyScore(len(key_patches), count, float(cosines.mean()))
