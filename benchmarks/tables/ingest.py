"""Table "ingest": the cost of ingesting videos into an archive, by stage, workers and engine, and of opening a stretch.

Eight synthetic videos of a minute, 480 x 270 at ten frames a second, are copied under many titles, so that no two files
are equal. Each ingest runs in a process of its own; a first one, not counted, compiles. Times start when the first
encoder is loaded.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.archives import CELLS, DIM, RATIO, copy_video, write_long_video, write_video
from benchmarks.markdown import show_environment, show_number, show_records
from benchmarks.processes import run_module
from benchmarks.registry import BenchTable, Echo
from floc._text import format_bytes
from floc.encoders.mobilenet import weights_path

VIDEOS, SOME_VIDEOS = 200, 24  # for engines, and for stages and workers
MINUTE = 60
SIZE, RATE = (480, 270), 10
ORIGINALS = 8
DECODED = {  # label -> size, frames per second, frames between keyframes
    "480 x 270, 10 fps": ((480, 270), 10, 50),
    "1920 x 1080, 25 fps": ((1920, 1080), 25, 50),
    "1920 x 1080, 25 fps, one keyframe a second": ((1920, 1080), 25, 25),
}
LENGTHS = (1, 10, 60)  # minutes of one video, for memory
COUNTS = (4, 24)  # videos, for memory
HOURS = 10  # of the video that is opened
OPENINGS = 20


def run(small: bool, echo: Echo) -> dict[str, Any]:
    """Measure ingests, then opening."""
    for package, extra in (("lance", "store"), ("av", "video")):
        if importlib.util.find_spec(package) is None:
            raise ImportError(f"this table needs {package}: pip install 'floc-video[{extra}]'", name=package)
    videos, some, seconds = (6, 6, 5) if small else (VIDEOS, SOME_VIDEOS, MINUTE)
    with tempfile.TemporaryDirectory(prefix="floc-bench-") as folder:
        bench = _Bench(Path(folder), echo)
        bench.make_videos("all", videos, seconds)
        bench.make_videos("some", some, seconds)
        bench.ingest("some", "warm", workers=2)
        names = ["pixels"] if small or weights_path() is None else ["pixels", "mobilenet"]
        engines = ["local", "ray"] if importlib.util.find_spec("ray") is not None else ["local"]
        counts = (1, 4) if small else COUNTS
        return {
            "film_s": seconds,
            "decode": [bench.decode(name, *about, 4 if small else MINUTE) for name, about in DECODED.items()],
            "stages": [bench.ingest("some", f"{name}-1", workers=1, encoder=name) for name in names],
            "workers": [bench.ingest("some", f"{name}-2", workers=2, encoder=name) for name in names],
            "one_core": [bench.ingest("some", f"{name}-0", workers=1, encoder=name, cores=1) for name in names],
            "engines": [bench.ingest("all", f"engine-{name}", workers=2, engine=name) for name in engines],
            "lengths": bench.ingest_lengths([1 / 12, 1 / 6] if small else LENGTHS),
            "counts": [bench.ingest("some", f"count-{count}", workers=1, first=count) for count in counts],
            "open": _measure_opening(Path(folder) / "long", 0.2 if small else HOURS, echo),
        }


class _Bench:
    """A folder of videos, and ingests of them."""

    def __init__(self, folder: Path, echo: Echo) -> None:
        self.folder, self.echo = folder, echo

    def make_videos(self, name: str, count: int, seconds: float) -> None:
        originals = [
            write_video(self.folder / f"original-{seconds:g}-{i}.mkv", seconds, i, rate=RATE, size=SIZE)
            for i in range(ORIGINALS)
        ]
        (self.folder / name).mkdir()
        for i in range(count):
            copy_video(originals[i % ORIGINALS], self.folder / name / f"{i:03}.mkv", f"video {i}")

    def ingest(
        self,
        videos: str,
        name: str,
        *,
        workers: int,
        encoder: str = "pixels",
        engine: str = "local",
        first: int | None = None,
        cores: int | None = None,
    ) -> dict[str, Any]:
        """Ingest the first videos of a folder; return the summary and the peak memory of the processes."""
        archive = self.folder / f"store-{name}"
        sources = sorted(str(path) for path in (self.folder / videos).iterdir())[:first]
        options = {"encoder": encoder, "workers": workers, "engine": engine, "ratio": RATIO}
        arguments = {"sources": sources, "store": str(archive), "options": options, "cores": cores}
        started = time.perf_counter()
        record = run_module("benchmarks.tables.ingest", json.dumps(arguments))
        record |= {"workers": workers, "encoder": encoder, "engine": engine, "whole_s": time.perf_counter() - started}
        record["store_bytes"] = sum(path.stat().st_size for path in archive.rglob("*"))
        self.echo(
            f"{name}: {record['done']} videos in {record['elapsed_s']:.1f} s, {record['hours_per_hour']:.0f} hours an "
            f"hour, peak {format_bytes(record['peak_bytes'])}"
        )
        return record

    def decode(self, name: str, size: tuple[int, int], rate: int, group: int, seconds: float) -> dict[str, Any]:
        """Measure the CPU seconds of reading a video alone."""
        from floc.video import read

        path = self.folder / f"{size[0]}-{group}.mkv"
        write_video(path, seconds, 0, rate=rate, size=size, group=group)
        times = []
        for _ in range(2):
            started = time.process_time()
            for _ in read(path, fps=1, max_frames=None, size=lambda width, height: (512, 288)):
                pass
            times.append(time.process_time() - started)
        self.echo(f"decoding {name}: {min(times) * 3600 / seconds:.1f} s for an hour of video")
        return {"film": name, "seconds": min(times), "footage_s": seconds, "bytes": path.stat().st_size}

    def ingest_lengths(self, lengths: Sequence[float]) -> list[dict[str, Any]]:
        records = []
        for minutes in lengths:
            folder = self.folder / f"length-{minutes:g}"
            folder.mkdir()
            write_video(folder / "video.mkv", minutes * MINUTE, 0, rate=2, size=SIZE)
            records.append({"minutes": minutes, **self.ingest(folder.name, folder.name, workers=1)})
        return records


def _measure_opening(path: Path, hours: float, echo: Echo) -> dict[str, Any]:
    """Open random minutes of a long video."""
    from floc.archive import Store

    store, slices = write_long_video(path, hours)
    (video,) = store.videos()
    times, read, wanted = [], 0, 0
    for start_s in np.random.default_rng(0).integers(0, slices - MINUTE, OPENINGS):
        before, started = _count_read_bytes(), time.perf_counter()
        opened = Store(path).open(video.id, start_s=float(start_s), end_s=float(start_s) + MINUTE)
        times.append(time.perf_counter() - started)
        read += _count_read_bytes() - before
        wanted += opened.features.nbytes
    record = {
        "hours": hours,
        "video_bytes": video.kept * DIM * 2,
        "ms": sorted(1e3 * seconds for seconds in times),
        "read": read / OPENINGS,
        "wanted": wanted / OPENINGS,
    }
    echo(f"a minute of {hours:g} hours: {np.median(record['ms']):.1f} ms, {read / wanted:.2f}x its bytes")
    return record


def _count_read_bytes() -> int:
    """Return the bytes that this process has read so far."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["rchar"])


def _scale_to_hour(record: dict[str, Any], value: float) -> float:
    return value * 3600 / record["footage_s"]


def _show_stages(document: dict[str, Any]) -> str:
    def show_hour(value: Any) -> Any:
        return lambda row: show_number(_scale_to_hour(row, value(row)))

    stages = {"decode": "decode, s", "encode": "encode, s", "select": "select, s", "write": "write, s"}
    columns = {
        "encoder": lambda row: row["encoder"],
        **{head: show_hour(lambda row, stage=stage: row["seconds"][stage]) for stage, head in stages.items()},
        "total, s": show_hour(lambda row: sum(row["seconds"].values())),
        "hours an hour": lambda row: show_number(row["hours_per_hour"]),
        "tokens kept": show_hour(lambda row: row["kept"]),
        "archive, MB": show_hour(lambda row: row["store_bytes"] / 1e6),
        "ratio to features": lambda row: f"{row['store_bytes'] / row['bytes']:.2f}x",
    }
    note = (
        f"For an hour of video, one worker: {document['stages'][0]['done']} videos of {document['film_s']} s, "
        f"{SIZE[0]} x {SIZE[1]}, one frame a second, {RATIO} kept. Archive: all of its files, and their size relative "
        "to the features."
    )
    environment = show_environment(document, "python", "torch", "av", "numba")
    return show_records(document["stages"], columns, note, environment)


def _show_decoding(document: dict[str, Any]) -> str:
    columns = {
        "video": lambda row: row["film"],
        "Mbit/s": lambda row: show_number(row["bytes"] * 8 / row["footage_s"] / 1e6),
        "CPU seconds for an hour": lambda row: show_number(_scale_to_hour(row, row["seconds"])),
    }
    note = (
        "One frame a second, scaled to 512 x 288, CPU time of all threads. All frames since the last keyframe are "
        "decoded. Synthetic H.264 videos."
    )
    return show_records(document["decode"], columns, note, show_environment(document, "python", "av"))


def _show_workers(document: dict[str, Any]) -> str:
    records = []
    for alone, one, two in zip(document["one_core"], document["stages"], document["workers"], strict=True):
        for workers, record in {"1, limited to one core": alone, "1": one, "2": two}.items():
            records.append({**record, "workers": workers, "first_s": alone["elapsed_s"]})
    first_s = document["engines"][0]["elapsed_s"]
    records += [{**record, "workers": "2", "first_s": first_s} for record in document["engines"]]
    columns = {
        "engine": lambda row: f"{row['engine']}, {row['encoder']}",
        "videos": lambda row: str(row["done"]),
        "workers": lambda row: row["workers"],
        "seconds": lambda row: show_number(row["elapsed_s"]),
        "hours an hour": lambda row: show_number(row["hours_per_hour"]),
        "speedup over the first of its kind": lambda row: f"{row['first_s'] / row['elapsed_s']:.2f}x",
        "with startup, s": lambda row: show_number(row["whole_s"]),
    }
    note = (
        f"Videos of {document['film_s']} s, two cores. Seconds: from the first encoder being ready to the last commit. "
        "A single worker uses both cores to select, to decode and for convolutions; of two workers each has one."
    )
    missing = "" if len(document["engines"]) > 1 else "Ray was not installed."
    return show_records(records, columns, note, missing, show_environment(document, "python", "torch", "av"))


def _show_memory(document: dict[str, Any]) -> str:
    records = []
    for group in (document["lengths"], document["counts"]):
        records += [{**record, "first": group[0]["peak_bytes"]} for record in group]
    columns = {
        "videos": lambda row: (
            f"one of {row['minutes']:g} min" if "minutes" in row else f"{row['done']} of {document['film_s']} s"
        ),
        "frames": lambda row: f"{row['frames']:,}",
        "peak, MB": lambda row: show_number(row["peak_bytes"] / 1e6),
        "ratio to the first": lambda row: f"{row['peak_bytes'] / row['first']:.2f}x",
    }
    note = "Peak resident memory of the worker, encoder pixels, one worker; most of it is torch."
    return show_records(records, columns, note, show_environment(document, "python", "torch", "av"))


def _show_opening(document: dict[str, Any]) -> str:
    columns = {
        "opened": lambda row: f"one minute of {row['hours']:g} hours",
        "whole video, MB": lambda row: show_number(row["video_bytes"] / 1e6),
        "features, MB": lambda row: show_number(row["wanted"] / 1e6),
        "read": lambda row: f"{row['read'] / row['wanted']:.2f}x",
        "ms, median": lambda row: show_number(float(np.median(row["ms"]))),
        "ms, slowest": lambda row: show_number(row["ms"][-1]),
    }
    note = (
        f"{len(document['open']['ms'])} random minutes, the archive reopened each time; {CELLS} tokens a slice, {DIM} "
        f"features in float16, {RATIO} kept. Features: of the opened minute. Read: all bytes that the process read, "
        "relative to the features."
    )
    return show_records([document["open"]], columns, note, show_environment(document, "python"))


TABLE = BenchTable(
    "ingest",
    run,
    {
        "ingest": _show_stages,
        "ingest-decode": _show_decoding,
        "ingest-workers": _show_workers,
        "ingest-memory": _show_memory,
        "ingest-open": _show_opening,
    },
)


def _ingest(arguments: dict[str, Any]) -> dict[str, Any]:
    """Ingest in this process; return the summary and the peak memory of its workers."""
    import resource

    from floc.archive.ingest.ingest import ingest

    if arguments["cores"]:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments["cores"]])
    status = ingest(arguments["sources"], arguments["store"], **arguments["options"])
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    return {**status.summary(), "peak_bytes": peak}


if __name__ == "__main__":
    print(json.dumps(_ingest(json.loads(sys.argv[1]))))
