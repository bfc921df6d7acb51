"""`floc demo`: a made-up film, compressed, and a look at what was kept."""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.table import Table

import floc
from floc.synthetic import film

RATIOS = (8, 16, 32)
SHADES = " ▁▂▃▄▅▆▇█"


def show(screen: Console, frames: int, seed: int) -> None:
    """Compress a film of `frames` frames in several ways, and print what came out."""
    tokens = film(frames, 6, 10, dim=1024, seed=seed)
    screen.print(f"A made-up film: {frames} frames of 6 x 10 tokens, 1024 features each (fp16).\n")
    table = Table(
        "kept", "floc", "floc-paper", "random", "seconds (floc)", title="Mean cosine of all tokens to those kept"
    )
    floc.compress(tokens[:40], ratio=1 / 8)  # the first call compiles
    best = floc.compress(tokens, ratio=f"1/{RATIOS[0]}")
    for ratio in RATIOS:
        kept = floc.compress(tokens, ratio=f"1/{ratio}")
        paper = floc.compress(tokens, ratio=f"1/{ratio}", method="floc-paper")
        random = np.sort(np.random.default_rng(0).choice(kept.n, len(kept), replace=False))
        covers = [f"{_coverage(tokens, np.asarray(picks)):.4f}" for picks in (kept.indices, paper.indices, random)]
        table.add_row(f"1/{ratio}: {len(kept)}", *covers, f"{kept.seconds:.2f}")
    screen.print(table)

    few = best.at(ratio="1/32")
    per_frame = np.bincount(np.asarray(few.positions)[:, 0], minlength=frames)
    screen.print("\nTokens kept along the film at 1/32, from the same run as 1/8 (`kept.at`):")
    screen.print("  " + _bars(per_frame, width=min(72, frames)))
    t = int(per_frame.argmax())
    screen.print(f"\nFrame {t}, the one that keeps most; what was kept is marked:")
    kept_here = {(y, x) for at, y, x in np.asarray(few.positions).tolist() if at == t}
    for y in range(6):
        screen.print("  " + " ".join("[green]■[/]" if (y, x) in kept_here else "[dim]·[/]" for x in range(10)))
    screen.print(f"\n{best!r}\n{few!r}")


def _coverage(tokens: np.ndarray, picks: np.ndarray) -> float:
    """The mean, over all tokens, of the best cosine with any of those kept."""
    rows = tokens.reshape(-1, tokens.shape[-1]).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    kept = rows[picks]
    return float(np.concatenate([(part @ kept.T).max(1) for part in np.array_split(rows, 16)]).mean())


def _bars(counts: np.ndarray, width: int) -> str:
    """A line of bars, one for each of `width` stretches of the film."""
    sums = np.array([part.mean() for part in np.array_split(counts, width)])
    return "".join(SHADES[round(level)] for level in sums / max(sums.max(), 1e-9) * (len(SHADES) - 1))
