"""Run a worker in this process, and record its events."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from floc.archive import Store
from floc.archive.ingest.job import IngestEvent, IngestOptions, VideoFile, VideoPlan
from floc.archive.ingest.ledger import Ledger
from floc.archive.ingest.worker import Worker, plan_video

OPTIONS = IngestOptions("pixels", ratio="1/4", method_options={"block": 8})


def make_plan(worker: Worker, file: VideoFile) -> VideoPlan:
    plan = plan_video(worker.job, file)
    assert isinstance(plan, VideoPlan)
    return plan


def collect_events(worker: Worker, file: VideoFile, existing: Collection[int] = ()) -> list[IngestEvent]:
    """Return all events of a video."""
    plan = make_plan(worker, file)
    return [plan, *(event for span in plan.spans for event in worker.write_span(span, existing))]


def make_ledger(worker: Worker, videos: int = 1) -> Ledger:
    return Ledger(Store(worker.job.store), worker.job, videos)


def record_events(worker: Worker, events: Iterable[IngestEvent], videos: int = 1) -> Ledger:
    """Add events to a new ledger and commit them."""
    ledger = make_ledger(worker, videos)
    for event in events:
        ledger.add(event)
    ledger.flush()
    return ledger


def ingest_files(worker: Worker, *files: VideoFile) -> Ledger:
    """Ingest files one after another, as one process would."""
    ledger = make_ledger(worker, len(files))
    for file in files:
        plan = plan_video(worker.job, file)
        ledger.add(plan)
        if isinstance(plan, VideoPlan):
            for span in plan.spans:
                if span.video in ledger.open:
                    for event in worker.write_span(span, frozenset(ledger.open[span.video].pieces)):
                        ledger.add(event)
    ledger.finish()
    ledger.flush()
    return ledger
