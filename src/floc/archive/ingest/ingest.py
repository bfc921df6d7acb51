"""Ingest many videos into a store: find them, skip those that are done, and run an engine on the others."""

import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from floc._checks import is_positive_int, require
from floc._text import redact_source
from floc.archive.ingest.job import IngestJob, IngestOptions, VideoFile
from floc.archive.ingest.ledger import IngestStatus, Ledger, name_file
from floc.archive.ingest.local import LocalWorkers
from floc.archive.ingest.sources import fetch_file, find_videos
from floc.archive.locks import FolderLock
from floc.archive.schema import StoredVideo
from floc.archive.store import Store
from floc.budget import Budget
from floc.encoders.base import choose_device
from floc.encoders.slice_choice import SliceOptions
from floc.families.processing import Limit, Rate
from floc.planning import check_plan, describe_plan
from floc.planning.planner import load_planner
from floc.video import read_facts


def ingest(
    sources: Sequence[str | Path],
    store: str | Path,
    *,
    encoder: str = "auto",
    ratio: float | str | None = None,
    coverage: float | None = None,
    method: str = "floc",
    fps: Rate = None,
    max_frames: Limit = None,
    device: str | None = None,
    reuse: float | None = None,
    encode: float | str | None = None,
    fast_vision: bool = True,
    engine: Literal["local", "ray"] = "local",
    workers: int | None = None,
    address: str | None = None,
    show: Callable[[IngestStatus], object] = lambda status: None,
    **options: Any,
) -> IngestStatus:
    """Compress videos into a store. Skips videos that are in it, and resumes an ingest that was interrupted.

        ingest(["footage/"], "archive", encoder="hf:Qwen/Qwen2.5-VL-7B-Instruct", ratio="1/32")

    Args:
        sources: files, folders, and URIs such as s3://bucket/folder.
        store: a folder, or a URI that Lance supports; created if it does not exist.
        encoder: as in `floc.encoders.get`.
        ratio, coverage: exactly one, as in `floc.compress`; applied to each piece of a few minutes.
        method, **options: as in `floc.compress`; a horizon ends at the borders of pieces.
        fps, max_frames: frames per second and limit on the frames, or "all". Default: 1 and all; for the encoder of a
            model, those of its processor.
        device: device of the encoders, such as "cuda:1"; None for all GPUs, or the CPU if there are none.
        reuse, encode: as in `floc.capture`, for the encoder of a model, within each piece.
        fast_vision: as in `floc.encoders.get`.
        engine: "local" for processes on this machine, "ray" for Ray Data.
        workers: number of encoders; None for one per CPU core, or for GPUs two (local) or one (ray) per GPU.
        address: of the Ray cluster, "auto" for the cluster of this machine; None starts a new one.
        show: called repeatedly with the status.
    """
    require(engine in ("local", "ray"), f"engine must be 'local' or 'ray', got {engine!r}")
    if workers is not None and not is_positive_int(workers):
        raise ValueError(f"workers must be a whole number, at least 1; got {workers!r}")
    if engine == "local" and address is not None:
        raise ValueError(f"address {address!r} is for a Ray cluster; pass engine='ray' with it")
    text = None if ratio is None else str(ratio)
    reading = fps, max_frames, device, SliceOptions(reuse, encode), fast_vision
    ingest_options = IngestOptions(encoder, text, coverage, method, options, *reading)
    warnings: list[tuple[str, str]] = []
    files = find_videos(sources, lambda uri, warning: warnings.append((name_file(uri), warning)))
    target = Store(store, create=True)
    if engine == "ray":
        from floc.archive.ingest.ray_cluster import RayCluster

        running: LocalWorkers | RayCluster = RayCluster(ingest_options, target.path, workers, address)
    else:
        running = LocalWorkers(ingest_options, target.path, workers)
    with running, FolderLock(target.path):  # `compact` must not delete what workers have written
        job = running.start()
        ledger = Ledger(target, job, len(files))
        done = target.videos("done")
        _require_same_weights(job, done)
        skipped = set(find_ingested(done, job, files))
        ledger.status.skipped, ledger.status.warnings = len(skipped), warnings
        # in random order, so that two ingests into one store mostly find each other's videos done
        remaining = [file for file in files if file not in skipped]
        if ingest_options.encoder.startswith("hf:") and remaining:
            warnings += check_first(ingest_options, remaining[0])
            show(ledger.status)
        random.shuffle(remaining)
        try:
            for event in running.run(remaining, ledger):
                ledger.add(event)
                show(ledger.status)
            ledger.finish()
        finally:
            ledger.flush()
        show(ledger.status)
    return ledger.status


def check_first(options: IngestOptions, file: VideoFile) -> list[tuple[str, str]]:
    """Return warnings, before the work, if a video needs more memory than there is or exceeds the model's context."""
    preparer, costs = load_planner(options.encoder.removeprefix("hf:"))
    try:
        with fetch_file(file) as path:
            plan = preparer.plan(read_facts(path), fps=options.fps, max_frames=options.max_frames)
    except (OSError, ValueError):  # its ingest will report it
        return []
    device = choose_device(options.device)
    budget = Budget.parse(options.ratio, None, options.coverage)
    texts = check_plan(describe_plan(preparer, plan, costs, budget, device))
    return [(name_file(file.uri), warning) for warning in texts]


def find_ingested(done: Iterable[StoredVideo], job: IngestJob, files: Iterable[VideoFile]) -> list[VideoFile]:
    """Return the files whose name, size and modification time are those of a video that is done for the same job."""
    wanted = job.options.encoder, job.options.as_dict(), job.model
    same = [video for video in done if (video.encoder, dict(video.options), video.model) == wanted]
    known = {(redact_source(video.uri), video.size, video.modified_s) for video in same}
    return [file for file in files if (name_file(file.uri), file.size, file.modified_s) in known]


def _require_same_weights(job: IngestJob, videos: Iterable[StoredVideo]) -> None:
    """Raise ValueError if the store has tokens of a model with the same name but other weights."""
    models = {(video.model.kind, video.model.name, video.model.config): video.model for video in videos}
    if model := models.get((job.model.kind, job.model.name, job.model.config)):
        try:
            model.require(job.model)
        except ValueError as error:
            problem = f"the weights of {model.name} are not those that the store was made with ({error})"
            raise ValueError(f"{problem}; ingest into another store") from None
