"""The table "methods": every method on the paper's profile case, beside the seconds that the paper gives for it.

784 frames of 60 tokens, 3584 features, kept 1/8, on a GPU where there is one; on a CPU an eighth of the frames. The
paper's seconds are of an H100, so on another device only the order of magnitude says something. Methods differ in what
they return: the time is that of the whole call, search for the budget included, without the representatives that some
find only when asked.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

import floc

from .. import analysis
from ..synthetic import film
from .harness import Contender, compare
from .tables import Echo, Table, grid, times, where

RATIO = "1/8"
# seconds in the FLoC paper's profile table, 784 x 60 tokens at 1/8 on an H100
PAPER_S = {
    "floc-paper": 0.99,
    "dycoke": 0.13,
    "prunevid": 0.19,
    "sttm": 0.07,
    "scissor": 1.24,
    "fastvid": 0.44,
    "divprune": 2.37,
    "longvu": 0.38,
    "kmedoids": 2.41,
    "kmeans": 12.3,
    "spectral": 8.1,
}


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Time every method, the median of a few runs after one to warm up."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    frames, dim = (24, 64) if small else (784 if device == "cuda" else 98, 3584)
    tokens = torch.from_numpy(film(frames, 6, 10, dim, seed=0)).to(device)
    # a second film, so that nothing remembered of the first can help
    other = torch.from_numpy(film(frames, 6, 10, dim, seed=1)).to(device)
    records = []
    for name in floc.methods.names():
        record = {
            "method": name,
            "paper_s": PAPER_S.get(name),
            **_measure(name, tokens, other, rounds=1 if small else 5),
        }
        echo(f"{name}: {record.get('seconds', record.get('failed'))}")
        records.append(record)
    textbook = _textbook(480 if small else 1920, dim, device, rounds=1 if small else 3)
    where_run = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    echo(f"divprune against the textbook loop: {textbook['ratio']:.0f}x")
    return {"methods": records, "textbook": textbook, "ran_on": where_run, "frames": frames, "dim": dim, "ratio": RATIO}


def _measure(name: str, tokens: torch.Tensor, other: torch.Tensor, rounds: int) -> dict[str, Any]:
    options = {"nearest": True} if "nearest" in floc.methods.options(name) else {}
    try:
        floc.compress(other, ratio=RATIO, method=name, **options)
    except (ImportError, MemoryError) as error:
        return {"failed": str(error)}
    seconds = []
    for _ in range(rounds):
        _finish(tokens)
        started = time.perf_counter()
        kept = floc.compress(tokens, ratio=RATIO, method=name, **options)
        _finish(tokens)
        seconds.append(time.perf_counter() - started)
    return {
        "seconds": float(np.median(seconds)),
        "slowest_s": max(seconds),
        "asked": kept.n // 8,
        "kept": len(kept),
        "coverage": analysis.coverage(tokens, kept),
    }


def _textbook(n: int, dim: int, device: str, rounds: int) -> dict[str, Any]:
    """DivPrune on one block, and as it is told: every step looks at all distances to all that is kept."""
    tokens = torch.from_numpy(film(n // 60, 6, 10, dim, seed=2)).to(device)
    k = n // 8

    def plainly() -> list[int]:
        x = torch.nn.functional.normalize(tokens.float().flatten(0, 2), dim=-1)
        picks = [int((1 - x @ x.T).fill_diagonal_(torch.inf).min(1).values.argmax())]
        while len(picks) < k:
            nearest = (1 - x @ x.T)[picks].min(0).values
            nearest[picks] = -torch.inf
            picks.append(int(nearest.argmax()))
        return picks

    def here() -> list[int]:
        kept = floc.compress(tokens, budget=k, method="divprune", block=None)
        return kept.indices[kept.order].tolist()

    if plainly() != here():
        raise AssertionError("divprune differs from the textbook loop")
    contenders = [Contender("floc", here), Contender("textbook", plainly)]
    return asdict(compare(contenders, "floc", rounds=rounds)[1])


def _finish(tokens: torch.Tensor) -> None:
    if tokens.device.type == "cuda":
        torch.cuda.synchronize(tokens.device)


def _view(document: dict[str, Any]) -> str:
    rows = []
    for record in document["methods"]:
        paper = "" if record["paper_s"] is None else f"{record['paper_s']:g}"
        if "failed" in record:
            rows.append((record["method"], "not run", paper, "", "", record["failed"]))
            continue
        seconds = f"{record['seconds']:.3g} ({record['slowest_s']:.3g})"
        ratio = "" if record["paper_s"] is None else f"{record['paper_s'] / record['seconds']:.3g}x"
        kept = f"{record['kept']:,}"
        rows.append((record["method"], seconds, paper, ratio, kept, f"{record['coverage']:.4f}"))
    head = ("method", "seconds (slowest)", "paper, 784 frames", "paper / here", "tokens kept", "coverage")
    note = (
        f"{document['frames']} frames of 60 tokens, {document['dim']} features, float16, kept {document['ratio']} "
        f"({document['methods'][0]['asked']:,} tokens), on {document['ran_on']}; median of five runs. dycoke and "
        "longvu cannot go down to 1/8 here and keep their fewest. Coverage: mean of the highest cosine with a kept "
        "token, on made-up tokens: no verdict on any method. DivPrune of 1920 tokens as it is told, with all distances "
        f"at every step, takes {times(document['textbook'])} as long. "
        f"{where(document, 'python', 'torch', 'scikit-learn', 'kmedoids')}"
    )
    return f"{grid(head, rows)}\n\n{note}"


TABLE = Table("methods", run, {"methods": _view})
