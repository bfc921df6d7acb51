"""Table "scenes": whether cuts are found. The table "blocks" shows the coverage of blocks along scenes.

Cuts are compared frame by frame: on synthetic videos and on the demo's film, whose cuts are known; on real videos,
whose cuts were marked by eye; and on montages of pieces of the real videos. Real videos are those in `$FLOC_DATA`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.markdown import show_environment, show_records
from benchmarks.registry import BenchTable, Echo
from benchmarks.synthetic import KINDS, QUICK_CUTS, Shape, VideoKind
from benchmarks.videos import find_videos
from floc import encoders, scenes

# seconds at which another shot begins, marked by eye
KNOWN_CUTS_S: dict[str, list[float]] = {
    "bbb480.mp4": [11.875, 15.75, 23.042],
    "bikes.mp4": [1.2, 3.04, 5.48, 7.48, 9.68],
    "intel_person.mp4": [],
    "vtest.avi": [],
}
DEMO = "demo"
ENCODERS = ("pixels", "mobilenet")
FPS = (1, 4)
SIZE = (320, 192)  # one size, so that pieces of different videos fit together; 60 tokens a frame
MONTAGES, PIECES, PIECE_FRAMES = 3, 24, (6, 40)


@dataclass(frozen=True)
class CutVideo:
    """Tokens, and the frames at which another scene begins."""

    name: str
    encoder: str
    fps: float | None
    tokens: np.ndarray  # [T, H, W, D]
    cuts: list[int]


Load = Callable[[str, str, float], CutVideo]  # (name, encoder, fps)


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Count the cuts found in all videos."""
    if small:
        video = _make_synthetic(QUICK_CUTS, Shape(80, 2, 5, 32))
        return {"cuts": [_count_cuts([video], echo)]}
    with tempfile.TemporaryDirectory() as folder:
        load, names = _make_loader(Path(folder))
        found = [_count_cuts([_make_synthetic(kind, Shape(400, 6, 10, 384))], echo) for kind in KINDS]
        for encoder in ENCODERS:
            for fps in FPS:
                found += [_count_cuts([load(name, encoder, fps)], echo) for name in (DEMO, *names)]
                if names:
                    montages = [_make_montage(load, names, encoder, fps, seed, PIECES) for seed in range(MONTAGES)]
                    found.append(_count_cuts(montages, echo))
    return {"cuts": found}


def _make_synthetic(kind: VideoKind, shape: Shape) -> CutVideo:
    return CutVideo(f"synthetic: {kind.name}", "", None, *kind.make_tokens_and_cuts(shape))


def _make_loader(folder: Path) -> tuple[Load, list[str]]:
    """Return a cached function that reads and encodes a video, and the names of the real videos."""
    from examples.demo.film import render
    from floc.video import read

    demo = render(folder / "demo.mp4", seconds=120)
    paths = {path.name: path for path in find_videos() if path.name in KNOWN_CUTS_S}
    cuts_s = {**KNOWN_CUTS_S, DEMO: demo.cuts_s}
    network = cache(encoders.get)

    @cache
    def load(name: str, encoder: str, fps: float) -> CutVideo:
        video = read(demo.path if name == DEMO else paths[name], fps=fps, size=lambda width, height: SIZE)
        encoded = encoders.encode(video, network(encoder), planned=video.planned)
        cuts = _find_first_frames(encoded.times_s, cuts_s[name])
        return CutVideo(name, encoder, fps, np.asarray(encoded.tokens), cuts)

    return load, sorted(paths)


def _find_first_frames(times_s: np.ndarray, cuts_s: Sequence[float]) -> list[int]:
    """Return the sampled frames that are the first after a cut. A shot without a sampled frame has none.

    >>> _find_first_frames(np.arange(10.0), [1.2, 3.04, 3.5, 9.68])
    [2, 4]
    """
    first = np.searchsorted(times_s, np.array(cuts_s) - scenes.ROUNDING_S)
    return np.unique(first[first < len(times_s)]).tolist()


def _make_montage(load: Load, names: Sequence[str], encoder: str, fps: float, seed: int, pieces: int) -> CutVideo:
    """Join pieces of real videos so that no video follows itself; cuts are those between pieces and inside them."""
    rng = np.random.default_rng(seed)
    tokens: list[np.ndarray] = []
    cuts: list[int] = []
    at, last = 0, ""
    for _ in range(pieces):
        last = str(rng.choice([name for name in names if name != last]))
        video = load(last, encoder, fps)
        length = min(len(video.tokens), int(rng.integers(PIECE_FRAMES[0], PIECE_FRAMES[1] + 1)))
        start = int(rng.integers(len(video.tokens) - length + 1))
        tokens.append(video.tokens[start : start + length])
        cuts += [at] * (at > 0) + [at + cut - start for cut in video.cuts if start < cut < start + length]
        at += length
    return CutVideo("montage of real videos", encoder, fps, np.concatenate(tokens), cuts)


def _count_cuts(videos: Sequence[CutVideo], echo: Echo) -> dict[str, Any]:
    """Count true, found and correct cuts over videos of one kind."""
    total = dict.fromkeys(("frames", "cuts", "found", "right", "long", "long_right"), 0)
    for video in videos:
        cuts, found = set(video.cuts), set(scenes.find_cuts(video.tokens))
        lengths = np.diff(np.array([0, *video.cuts, len(video.tokens)]))
        is_long = np.minimum(lengths[:-1], lengths[1:]) >= scenes.SHORTEST
        long = {cut for cut, both_long in zip(video.cuts, is_long, strict=True) if both_long}
        sizes = (len(video.tokens), len(cuts), len(found), len(found & cuts), len(long), len(found & long))
        total = {name: total[name] + size for name, size in zip(total, sizes, strict=True)}
    first = videos[0]
    echo(f"{first.name}, {first.encoder} {first.fps}: {total['right']} of {total['cuts']} cuts, {total['found']} found")
    return {"film": first.name, "encoder": first.encoder, "fps": first.fps, **total}


def _show_cuts(document: dict[str, Any]) -> str:
    columns = {
        "video": lambda record: record["film"],
        "encoder": lambda record: record["encoder"] or "-",
        "fps": lambda record: "-" if record["fps"] is None else f"{record['fps']:g}",
        "frames": lambda record: f"{record['frames']:,}",
        "cuts": lambda record: f"{record['cuts']}",
        "found": lambda record: f"{record['found']}",
        "correct": lambda record: f"{record['right']}",
        "precision": lambda record: _show_share(record["right"], record["found"]),
        "recall": lambda record: _show_share(record["right"], record["cuts"]),
        "recall, long scenes": lambda record: _show_share(record["long_right"], record["long"]),
    }
    note = (
        f"Correct: at the exact frame. Recall, long scenes: cuts between scenes of {scenes.SHORTEST} frames or more; "
        f"shorter scenes are not searched for. Montages: {MONTAGES} of {PIECES} pieces, added up."
    )
    return show_records(document["cuts"], columns, note, show_environment(document, "numpy", "torch", "av"))


def _show_share(part: int, whole: int) -> str:
    return f"{part / whole:.2f}" if whole else "-"


TABLE = BenchTable("scenes", run, {"scenes": _show_cuts})
