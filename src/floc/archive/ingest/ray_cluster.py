"""The Ray engine: an ingest on many machines with Ray Data. Actors plan videos, tasks decode, actors hold encoders.

Each stage passes rows to the next one: a file, a span, a piece with its pixels, and at last an event, which is all that
returns to this process. A row with pixels is a block of its own, so that a long video is shared among all encoders and
a slow one delays no other. Ray repeats what was lost with a machine; a piece that is written twice is reported once.
"""

import logging
import pickle
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np

from floc.archive.ingest.job import IngestEvent, IngestJob, IngestOptions, VideoFile, VideoPlan
from floc.archive.ingest.ledger import Ledger
from floc.archive.ingest.worker import Worker, decode_span, plan_video, report_failure
from floc.tokens import Frames

Columns = dict[str, Any]  # a batch of rows
DECODER_CORES = 0.5  # a decoder waits for other stages half of the time
LONG_FILE_BYTES = 128 << 20  # a larger file may be so long that its spans should go to several machines
CORES_PER_PLANNER = 8


class RayCluster:
    """Runs an ingest on a Ray cluster."""

    def __init__(self, options: IngestOptions, store: str, workers: int | None, address: str | None) -> None:
        try:
            import ray.data
        except ImportError as error:
            raise ImportError("engine 'ray' needs Ray: pip install 'floc-video[ray]'") from error
        self.ray: Any = ray  # its type stubs demand arrays where rows are made of lists
        self.options, self.store, self.workers, self.address = options, store, workers, address
        self.owns_cluster = False

    def __enter__(self) -> Self:
        if not self.ray.is_initialized():
            self.owns_cluster = True
            local: dict[str, Any] = {"address": "local", "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
            with warnings.catch_warnings():
                # Lance warns about forks, but every process that Ray forks runs another program at once
                warnings.filterwarnings("ignore", "lance is not fork-safe")
                cluster = local if self.address is None else {"address": self.address}
                self.ray.init(logging_level=logging.ERROR, log_to_driver=False, **cluster)
        return self

    def __exit__(self, *_: object) -> None:
        if self.owns_cluster:
            self.ray.shutdown()

    def start(self) -> IngestJob:
        """Load the encoder once, in a task, and return the job."""
        create_job = self.ray.remote(num_gpus=self._gpus_per_encoder(), max_retries=3)(_create_job)
        try:
            return self.ray.get(create_job.remote(self.options, self.store))
        except self.ray.exceptions.RayError as error:
            raise _find_cause(error) from None

    def run(self, files: Sequence[VideoFile], ledger: Ledger) -> Iterator[IngestEvent]:
        """Ingest videos and yield events."""
        if not files:
            return
        from ray.data import ActorPoolStrategy, DataContext

        DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        job, gpus = pickle.dumps(ledger.job), self._gpus_per_encoder()
        encoders = self.workers or max(1, int(self._count_resource("GPU" if gpus else "CPU")))
        rows = [{"kind": "file", "data": pickle.dumps(file), "pixels": b""} for file in files]
        actor = dict(batch_size=1, fn_constructor_args=(job,))
        planners = ActorPoolStrategy(size=max(1, int(self._count_resource("CPU")) // CORES_PER_PLANNER))
        videos: Any = self.ray.data.from_items(rows, override_num_blocks=len(rows))
        spans = videos.map_batches(_Planner, compute=planners, num_cpus=DECODER_CORES / 2, **actor)
        if any(file.size > LONG_FILE_BYTES for file in files):
            spans = spans.repartition(target_num_rows_per_block=1)
        pieces = spans.map_batches(_decode, batch_size=1, fn_args=(job,), num_cpus=DECODER_CORES)
        resources = dict(num_gpus=gpus or None, num_cpus=None if gpus else DECODER_CORES)
        events = pieces.map_batches(_PieceWriter, compute=ActorPoolStrategy(size=encoders), **resources, **actor)
        try:
            for row in events.iter_rows():
                yield pickle.loads(row["data"])
        except self.ray.exceptions.RayError as error:
            raise _find_cause(error) from None

    def _gpus_per_encoder(self) -> int:
        device = self.options.device or ("cpu" if self.options.encoder == "pixels" else "cuda")
        return int(device.startswith("cuda") and self._count_resource("GPU") > 0)

    def _count_resource(self, name: str) -> float:
        return self.ray.cluster_resources().get(name, 0)


def _create_job(options: IngestOptions, store: str) -> IngestJob:
    return Worker(options, store).job


class _Planner:
    """Turns files into spans, after an event for each video."""

    def __init__(self, job: bytes) -> None:
        self.job = pickle.loads(job)

    def __call__(self, batch: Columns) -> Iterator[Columns]:
        for data in batch["data"]:
            event = plan_video(self.job, pickle.loads(data))
            yield _make_row("event", event)
            if isinstance(event, VideoPlan):
                for span in event.spans:
                    yield _make_row("span", (span, frozenset(event.pieces)))


def _decode(batch: Columns, job: bytes) -> Iterator[Columns]:
    """Turn spans into pieces with their pixels."""
    for kind, data in zip(batch["kind"], batch["data"], strict=True):
        if kind != "span":
            yield {"kind": [kind], "data": [data], "pixels": [b""]}
            continue
        span, existing = pickle.loads(data)
        try:
            for item in decode_span(pickle.loads(job), span):
                if not isinstance(item, tuple):
                    yield _make_row("event", item)
                    continue
                number, frames = item
                batches = list(frames)
                if number not in existing:
                    pixels = np.concatenate([part.pixels for part in batches])
                    times_s = np.concatenate([part.times_s for part in batches])
                    yield _make_row("piece", (span, number, pixels.shape, times_s), pixels.tobytes())
        except Exception as error:
            yield _make_row("event", report_failure(span.file, error))


class _PieceWriter:
    """Turns pieces into events."""

    def __init__(self, job: bytes) -> None:
        import torch

        torch.set_num_threads(1)  # there are as many actors as cores
        self.job: IngestJob = pickle.loads(job)
        self.worker = Worker(self.job.options, self.job.store)

    def __call__(self, batch: Columns) -> Iterator[Columns]:
        for kind, data, pixels in zip(batch["kind"], batch["data"], batch["pixels"], strict=True):
            if kind != "piece":
                yield {"kind": [kind], "data": [data], "pixels": [b""]}
                continue
            span, number, shape, times_s = pickle.loads(data)
            frames = Frames(np.frombuffer(pixels, np.uint8).reshape(shape), times_s)
            try:
                event: IngestEvent = self.worker.write_piece(span, number, [frames])
            except Exception as error:
                event = report_failure(span.file, error)
            yield _make_row("event", event)


def _make_row(kind: str, data: object, pixels: bytes = b"") -> Columns:
    return {"kind": [kind], "data": [pickle.dumps(data)], "pixels": [pixels]}


def _find_cause(error: BaseException) -> BaseException:
    """Return the original error of a task or an actor, or one with its message if only the text is left."""
    chain = [error]
    while (inner := getattr(chain[-1], "cause", None) or chain[-1].__cause__) is not None:
        chain.append(inner)
    for cause in reversed(chain):
        if not type(cause).__module__.startswith("ray."):
            return cause
    lines = [line for cause in chain for line in str(cause).splitlines() if line.strip()]
    # how Python ends a traceback
    messages = [line for line in lines if re.match(r"[\w.]+(Error|Exception): ", line)]
    return RuntimeError((messages or lines or [type(error).__name__])[-1].strip())
