"""The table "video": from a file to kept tokens, against the length of the film, and how much memory a long one takes.

Long films are one film over and over, copied packet by packet. Memory is the peak of a process of its own, less the
features, which are the result. Films are those in `$FLOC_DATA` (by default `../shared/data` beside the checkout), or
the demo's own where there are none.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.memory import status_bytes
from benchmarks.tables import Echo, Table, where
from floc._format import markdown_table

ENCODERS = ("pixels", "mobilenet")
RATIO = "1/8"
MINUTES = (1, 60)
STAGES = ("read and encode", "and compress to 1/32")


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Measure speed on every film there is, and memory on one of them."""
    with films(small) as paths:
        speed = [_speed(path, encoder, echo) for path in paths for encoder in ENCODERS[: 1 if small else None]]
        minutes = (0.05, 0.2) if small else MINUTES
        memory = []
        with tempfile.TemporaryDirectory() as folder:
            for length in minutes:
                film = Path(folder) / f"{length}.mkv"
                loop(paths[0], film, 60 * length)
                memory += [_memory(film, length, stage, echo) for stage in STAGES]
                film.unlink()
    return {"speed": speed, "memory": memory, "ratio": RATIO}


def real_films() -> list[Path]:
    """The films in `$FLOC_DATA`."""
    return sorted(films_folder().glob("*"), key=lambda path: path.name != "vtest.avi")


def films_folder() -> Path:
    """Where those are."""
    return Path(os.environ.get("FLOC_DATA", Path(__file__).parents[4] / "shared" / "data")) / "videos"


@contextmanager
def films(small: bool) -> Iterator[list[Path]]:
    """Real footage where it is there, else the demo's film."""
    found = real_films()
    if found and not small:
        yield found
        return
    from examples.demo.film import render

    with tempfile.TemporaryDirectory() as folder:
        yield [render(Path(folder) / "keys.mp4", seconds=5 if small else 120).path]


def loop(source: Path, target: Path, seconds: float) -> None:
    """A film of `seconds`, made of `source` as often as it takes; nothing is decoded."""
    import av

    with av.open(str(target), "w") as out:
        copy = None
        offset = 0
        while True:
            last = 0
            with av.open(str(source)) as container:
                stream = container.streams.video[0]
                if copy is None:
                    copy = out.add_stream_from_template(stream)
                base = stream.time_base
                assert base is not None, "a video has a clock"
                first = None
                for packet in container.demux(stream):
                    if packet.dts is None:
                        continue
                    first = packet.dts if first is None else first
                    shift = offset - first
                    last = max(last, packet.dts + shift + (packet.duration or 1))
                    if (packet.dts + shift) * base >= seconds:
                        return
                    packet.dts += shift
                    packet.pts = None if packet.pts is None else packet.pts + shift
                    packet.stream = copy
                    packet.time_base = base
                    out.mux(packet)
            offset = last


def _speed(path: Path, encoder: str, echo: Echo) -> dict[str, Any]:
    """Seconds for reading alone, for reading and encoding, and for choosing; the second of two runs."""
    import floc
    from floc import encoders
    from floc.encoders.load import load_tokens
    from floc.video import read

    network = encoders.get(encoder)
    for _ in range(2):  # the first run compiles and loads
        started = time.perf_counter()
        for _frames in read(path, size=network.frame_size):
            pass
        read_s = time.perf_counter() - started
        started = time.perf_counter()
        film = load_tokens(path, encoder=encoder)
        encode_s = time.perf_counter() - started
        started = time.perf_counter()
        kept = floc.compress(film.tokens, ratio=RATIO)
        choose_s = time.perf_counter() - started
    record = {
        "film": path.name,
        "duration_s": film.video.duration_s,
        "native_fps": film.video.native_fps,
        "encoder": encoder,
        "frames": film.video.frames,
        "tokens": kept.n,
        "read_s": read_s,
        "read_and_encode_s": encode_s,
        "choose_s": choose_s,
        "times_real_time": film.video.duration_s / (encode_s + choose_s),
    }
    echo(f"{path.name}, {encoder}: {record['times_real_time']:.0f}x real time")
    return record


def _memory(path: Path, minutes: float, stage: str, echo: Echo) -> dict[str, Any]:
    command = [sys.executable, "-m", __name__, str(path), stage]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"measuring memory failed:\n{done.stderr}")
    record = {"minutes": minutes, "stage": stage, **json.loads(done.stdout)}
    echo(f"{minutes} minutes, {stage}: {(record['peak_bytes'] - record['feature_bytes']) / 1e6:.0f} MB")
    return record


def _peak(path: str, stage: str) -> dict[str, int]:
    """In a process of its own: the most memory it held, and what of that the features are."""
    import floc
    from floc.encoders.load import load_tokens

    film = load_tokens(Path(path), encoder="pixels")
    if stage == STAGES[1]:
        floc.compress(film.tokens, ratio="1/32")
    features = np.asarray(film.tokens)
    return {"peak_bytes": status_bytes("VmHWM"), "feature_bytes": features.nbytes, "frames": len(features)}


def _speed_view(document: dict[str, Any]) -> str:
    rows = [
        (
            f"{record['film']}, {record['duration_s']:.0f} s at {record['native_fps']:.0f} fps",
            record["encoder"],
            f"{record['tokens']:,}",
            f"{record['read_s']:.2f}",
            f"{record['read_and_encode_s']:.2f}",
            f"{record['choose_s']:.2f}",
            f"{record['times_real_time']:.0f}x",
        )
        for record in document["speed"]
    ]
    head = ("film", "encoder", "tokens", "reading, s", "reading and encoding, s", "choosing, s", "real time")
    note = (
        f"One frame a second, kept {document['ratio']}. Reading: decoding and scaling alone. Real time: the film's "
        "length over encoding (with reading) and choosing. "
        f"{where(document, 'python', 'numpy', 'torch', 'numba', 'av')}"
    )
    return f"{markdown_table(head, rows)}\n\n{note}"


def _memory_view(document: dict[str, Any]) -> str:
    rows = []
    for stage in STAGES:
        here = [record for record in document["memory"] if record["stage"] == stage]
        net = [record["peak_bytes"] - record["feature_bytes"] for record in here]
        rows += [
            (
                f"{record['minutes']:g} min, {record['frames']:,} frames",
                stage,
                f"{record['peak_bytes'] / 1e6:.0f}",
                f"{record['feature_bytes'] / 1e6:.0f}",
                f"{each / 1e6:.0f}",
                f"{each / net[0]:.2f}x",
            )
            for record, each in zip(here, net, strict=True)
        ]
    head = ("film", "stage", "peak, MB", "features, MB", "peak less features, MB", "against the short film")
    note = (
        f"One frame a second, encoder pixels, each in a process of its own. {where(document, 'python', 'torch', 'av')}"
    )
    return f"{markdown_table(head, rows)}\n\n{note}"


TABLE = Table("video", run, {"video": _speed_view, "video-memory": _memory_view})

if __name__ == "__main__":
    print(json.dumps(_peak(sys.argv[1], sys.argv[2])))
