"""The table "ingest": what it costs to take an archive into a store, by stage, workers and engine, and to open it.

Films of a minute are made up, 480 x 270 at ten frames a second, eight different ones, each packed many times under
another title, so that no two files are the same. Ingests run in processes of their own, as users run them, and a first
one, not counted, compiles. Times begin when the first encoder is loaded.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.tables import Echo, Table, number, where
from benchmarks.towers import has_mobilenet
from floc._format import format_bytes, markdown_table

FILMS, SCALED = 200, 24  # for engines, and for stages and workers
MINUTE = 60
SIZE, RATE = (480, 270), 10
ORIGINALS = 8
DECODED = {
    "480 x 270, 10 a second": ((480, 270), 10, 50),
    "1920 x 1080, 25 a second": ((1920, 1080), 25, 50),
    "1920 x 1080, 25 a second, a keyframe a second": ((1920, 1080), 25, 25),
}
LENGTHS = (1, 10, 60)  # minutes of one film whose memory is looked at
COUNTS = (4, 24)  # films whose memory is looked at
RATIO = "1/32"
HOURS, CELLS, DIM = 10, 60, 1024  # of the film that is opened
OPENINGS = 20


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Ingest, and open."""
    for package, extra in (("lance", "store"), ("av", "video")):
        if importlib.util.find_spec(package) is None:
            raise ImportError(f"this table needs {package}: pip install 'floc-video[{extra}]'", name=package)
    films, scaled, seconds = (6, 6, 5) if small else (FILMS, SCALED, MINUTE)
    with tempfile.TemporaryDirectory(prefix="floc-bench-") as folder:
        bench = _Bench(Path(folder), echo)
        bench.make_films("all", films, seconds)
        bench.make_films("some", scaled, seconds)
        bench.run("some", "warm", workers=2, encoder="pixels")
        names = ["pixels"] if small or not has_mobilenet() else ["pixels", "mobilenet"]
        return {
            "film_s": seconds,
            "decode": [bench.decoding(name, *about, 4 if small else MINUTE) for name, about in DECODED.items()],
            "stages": [bench.run("some", f"{name}-1", workers=1, encoder=name) for name in names],
            "workers": [bench.run("some", f"{name}-2", workers=2, encoder=name) for name in names],
            "one_core": [bench.run("some", f"{name}-0", workers=1, encoder=name, cores=1) for name in names],
            "engines": bench.engines("all"),
            "lengths": bench.lengths([1 / 12, 1 / 6] if small else LENGTHS),
            "counts": [
                bench.run("some", f"count-{each}", workers=1, first=each) for each in (COUNTS if not small else (1, 4))
            ],
            "open": _opened(Path(folder) / "long", 0.2 if small else HOURS, echo),
        }


class _Bench:
    """Films in a folder, and ingests of them."""

    def __init__(self, folder: Path, echo: Echo) -> None:
        self.folder, self.echo = folder, echo

    def make_films(self, name: str, count: int, seconds: float) -> None:
        originals = [_film(self.folder / f"original-{seconds:g}-{i}.mkv", seconds, i) for i in range(ORIGINALS)]
        (self.folder / name).mkdir()
        for i in range(count):
            _packed(originals[i % ORIGINALS], self.folder / name / f"{i:03}.mkv", f"film {i}")

    def run(
        self,
        films: str,
        store: str,
        *,
        workers: int,
        encoder: str = "pixels",
        engine: str = "local",
        first: int = 0,
        cores: int = 0,
    ) -> dict[str, Any]:
        """One ingest: its summary, and the peak memory of its processes."""
        sources = sorted(str(each) for each in (self.folder / films).iterdir())[: first or None]
        options = {"encoder": encoder, "workers": workers, "engine": engine, "ratio": RATIO}
        where_to = str(self.folder / f"store-{store}")
        given = json.dumps({"sources": sources, "store": where_to, "options": options, "cores": cores})
        started = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", __name__, given], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the ingest {store} failed:\n{done.stderr}")
        told = json.loads(done.stdout.splitlines()[-1])
        told |= {"workers": workers, "encoder": encoder, "engine": engine, "whole_s": time.perf_counter() - started}
        told["store_bytes"] = sum(each.stat().st_size for each in (self.folder / f"store-{store}").rglob("*"))
        self.echo(
            f"{store}: {told['done']} films in {told['elapsed_s']:.1f} s, {told['hours_per_hour']:.0f} hours an hour, "
            f"peak {format_bytes(told['peak_bytes'])}"
        )
        return told

    def decoding(self, name: str, size: tuple[int, int], rate: int, group: int, seconds: float) -> dict[str, Any]:
        """How long it takes to read a film alone, by one thread."""
        from floc.video import read

        path = _film(self.folder / f"{size[0]}-{group}.mkv", seconds, 0, rate, size, group)
        spent = []
        for _ in range(2):
            started = time.process_time()
            for _ in read(path, fps=1, max_frames=None, size=lambda width, height: (512, 288)):
                pass
            spent.append(time.process_time() - started)
        self.echo(f"decoding {name}: {min(spent) * 3600 / seconds:.1f} s an hour of film")
        return {"film": name, "seconds": min(spent), "footage_s": seconds, "bytes": path.stat().st_size}

    def engines(self, films: str) -> list[dict[str, Any]]:
        names = ["local"] + (["ray"] if importlib.util.find_spec("ray") is not None else [])
        return [self.run(films, f"engine-{name}", workers=2, engine=name) for name in names]

    def lengths(self, minutes: Any) -> list[dict[str, Any]]:
        found = []
        for each in minutes:
            folder = self.folder / f"length-{each:g}"
            folder.mkdir()
            _film(folder / "film.mkv", each * MINUTE, 0, rate=2)
            found.append({"minutes": each, **self.run(folder.name, folder.name, workers=1)})
        return found


def _film(
    path: Path, seconds: float, seed: int, rate: int = RATE, size: tuple[int, int] = SIZE, group: int = 50
) -> Path:
    """A picture that drifts under noise, and another one every ten seconds; a keyframe every `group` frames."""
    import av

    if path.exists():
        return path
    rng = np.random.default_rng(seed)
    width, height = size
    grain = rng.integers(0, 12, (8, height, width, 3), np.uint8)
    with av.open(str(path), "w") as output:
        stream = output.add_stream("libx264", rate=rate, options={"preset": "ultrafast", "g": str(group)})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for i in range(round(seconds * rate)):
            if i % (10 * rate) == 0:
                squares = rng.integers(0, 240, (9, 16, 3), np.uint8).repeat(height // 9, 0).repeat(width // 16, 1)
            picture = np.roll(squares, i * 20 // rate, 1) + grain[i % 8]
            output.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
        output.mux(stream.encode())
    return path


def _packed(source: Path, path: Path, title: str) -> None:
    """The same film in a file of its own."""
    import av

    with av.open(str(source)) as given, av.open(str(path), "w") as output:
        output.metadata["title"] = title
        stream = output.add_stream_from_template(given.streams.video[0])
        for packet in given.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                output.mux(packet)


def _opened(path: Path, hours: float, echo: Echo) -> dict[str, Any]:
    """Open minutes of a long film that was taken in with random tokens."""
    from floc.archive import Store

    store, slices = _long_film(path, hours)
    rng = np.random.default_rng(0)
    (video,) = store.videos()
    spent, read, wanted = [], 0, 0
    for start_s in rng.integers(0, slices - MINUTE, OPENINGS):
        before, started = _read_bytes(), time.perf_counter()
        opened = Store(path).open(video.id, start_s=float(start_s), end_s=float(start_s) + MINUTE)
        spent.append(time.perf_counter() - started)
        read += _read_bytes() - before
        wanted += opened.features.nbytes
    record = {
        "hours": hours,
        "video_bytes": video.kept * DIM * 2,
        "ms": sorted(1e3 * each for each in spent),
        "read": read / OPENINGS,
        "wanted": wanted / OPENINGS,
    }
    echo(f"a minute of {hours:g} hours: {np.median(record['ms']):.1f} ms, {read / wanted:.2f}x its bytes")
    return record


def _read_bytes() -> int:
    """That this process asked the system for."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["rchar"])


def _long_film(path: Path, hours: float) -> tuple[Any, int]:
    from floc.archive import Store
    from floc.archive.ingest.job import IngestJob, IngestOptions, VideoFile, VideoPlan
    from floc.archive.ingest.ledger import build_stored_video
    from floc.captured.captured import Captured
    from floc.captured.identity import Identity

    model = Identity("none", "made up", None, "none", DIM, [])
    job = IngestJob(IngestOptions("pixels", ratio=RATIO), str(path), model)
    store, length, pieces = Store(path, create=True), 512, []
    slices = round(hours * 3600)
    rng = np.random.default_rng(0)
    for place, first in enumerate(range(0, slices, length)):
        here = min(length, slices - first)
        k = here * CELLS // 32
        times = first + np.arange(here, dtype=np.float64)
        captured = Captured(
            torch.from_numpy(rng.standard_normal((k, DIM)).astype(np.float16)),
            torch.from_numpy(np.sort(rng.choice(here * CELLS, k, replace=False))),
            torch.from_numpy(rng.permutation(k)),
            torch.from_numpy(np.sort(rng.random(k))[::-1].copy()),
            (),
            (here, 6, CELLS // 6),
            model,
            {"method": "floc", "settings": {}, "coverage": None},
            True,
            times,
            times,
            1,
            1.0,
            float(here),
        )
        pieces.append(store.write_piece("long", place, captured))
    plan = VideoPlan(VideoFile("long.mkv", 0, 0.0), "long", "made up", (), float(slices), 1.0, 1, {})
    store.commit(pieces, [build_stored_video(job, plan, pieces, True, {}, {})])
    return store, slices


def _hour(told: dict[str, Any], seconds: float) -> float:
    """What that makes for an hour of film."""
    return seconds * 3600 / told["footage_s"]


def _stages_view(document: dict[str, Any]) -> str:
    stages = ("decode", "encode", "choose", "write")
    rows = [
        [
            each["encoder"],
            *(number(_hour(each, each["seconds"][stage])) for stage in stages),
            number(_hour(each, sum(each["seconds"].values()))),
            number(each["hours_per_hour"]),
            number(_hour(each, each["kept"])),
            number(_hour(each, each["store_bytes"]) / 1e6),
            f"{each['store_bytes'] / each['bytes']:.2f}x",
        ]
        for each in document["stages"]
    ]
    head = [
        "encoder",
        *(f"{stage}, s" for stage in stages),
        "all, s",
        "hours an hour",
        "kept",
        "store, MB",
        "over features",
    ]
    note = (
        f"For an hour of film, by one worker: {document['stages'][0]['done']} films of {document['film_s']} s, "
        f"{SIZE[0]} x {SIZE[1]}, a frame a second, {RATIO} kept. Store: all files of it, and how many times as many "
        f"bytes as the features. {where(document, 'python', 'torch', 'av', 'numba')}"
    )
    return f"{markdown_table(head, rows)}\n\n{note}"


def _decode_view(document: dict[str, Any]) -> str:
    rows = [
        [each["film"], number(each["bytes"] * 8 / each["footage_s"] / 1e6), number(_hour(each, each["seconds"]))]
        for each in document["decode"]
    ]
    note = (
        "A frame a second, scaled to 512 x 288, in processor time of all threads. Without a keyframe nearer, all "
        f"since the last one is decoded. H.264, made up. {where(document, 'python', 'av')}"
    )
    return f"{markdown_table(['film', 'Mbit/s', 'decoding an hour, s of a core'], rows)}\n\n{note}"


def _workers_view(document: dict[str, Any]) -> str:
    rows = []
    for alone, one, two in zip(document["one_core"], document["stages"], document["workers"], strict=True):
        runs = {"1, held to one core": alone, "1": one, "2": two}
        rows += [_speed(name, each, alone) for name, each in runs.items()]
    rows += [_speed("2", each, document["engines"][0]) for each in document["engines"]]
    head = ["engine", "films", "workers", "seconds", "hours an hour", "as fast as the first of its kind"]
    missing = "" if len(document["engines"]) > 1 else " Ray was not installed."
    note = (
        f"Films of {document['film_s']} s, two cores. Seconds: since the first encoder was ready, to the last commit. "
        "A worker alone uses both cores where it can: to choose, to decode, and for convolutions; of two each has one."
        f"{missing} {where(document, 'python', 'torch', 'av')}"
    )
    return f"{markdown_table([*head, 'with all starting, s'], rows)}\n\n{note}"


def _speed(workers: str, told: dict[str, Any], first: dict[str, Any]) -> list[str]:
    return [
        f"{told['engine']}, {told['encoder']}",
        str(told["done"]),
        workers,
        number(told["elapsed_s"]),
        number(told["hours_per_hour"]),
        f"{first['elapsed_s'] / told['elapsed_s']:.2f}x",
        number(told["whole_s"]),
    ]


def _memory_view(document: dict[str, Any]) -> str:
    lengths, counts = document["lengths"], document["counts"]
    rows = [
        [
            f"one of {each['minutes']:g} min",
            f"{each['frames']:,}",
            number(each["peak_bytes"] / 1e6),
            f"{each['peak_bytes'] / lengths[0]['peak_bytes']:.2f}x",
        ]
        for each in lengths
    ]
    rows += [
        [
            f"{each['done']} of {document['film_s']} s",
            f"{each['frames']:,}",
            number(each["peak_bytes"] / 1e6),
            f"{each['peak_bytes'] / counts[0]['peak_bytes']:.2f}x",
        ]
        for each in counts
    ]
    note = (
        f"Peak resident memory of the worker, encoder pixels, one worker; most of it is torch. "
        f"{where(document, 'python', 'torch', 'av')}"
    )
    return f"{markdown_table(['films', 'frames', 'peak, MB', 'against the first'], rows)}\n\n{note}"


def _open_view(document: dict[str, Any]) -> str:
    told = document["open"]
    row = [
        f"a minute of {told['hours']:g} hours",
        number(told["video_bytes"] / 1e6),
        number(told["wanted"] / 1e6),
        f"{told['read'] / told['wanted']:.2f}x",
        number(float(np.median(told["ms"]))),
        number(told["ms"][-1]),
    ]
    head = ["opened", "whole video, MB", "its features, MB", "read", "ms, median", "ms, slowest"]
    note = (
        f"{len(told['ms'])} minutes at random, the store opened anew for each; {CELLS} tokens a slice, {DIM} features "
        f"in float16, {RATIO} kept. Read: all bytes that the process asked the system for, over those of the features. "
        f"{where(document, 'python')}"
    )
    return f"{markdown_table(head, [row])}\n\n{note}"


TABLE = Table(
    "ingest",
    run,
    {
        "ingest": _stages_view,
        "ingest-decode": _decode_view,
        "ingest-workers": _workers_view,
        "ingest-memory": _memory_view,
        "ingest-open": _open_view,
    },
)


def _ingested(given: dict[str, Any]) -> dict[str, Any]:
    import resource

    from floc.archive.ingest.ingest import ingest

    if given["cores"]:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given["cores"]])
    status = ingest(given["sources"], given["store"], **given["options"])
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    return {**status.summary(), "peak_bytes": peak}


if __name__ == "__main__":
    print(json.dumps(_ingested(json.loads(sys.argv[1]))))
