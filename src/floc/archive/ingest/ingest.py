"""Take many videos into a store: find them, leave out what is there, and let an engine do the rest."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, Protocol

from floc._checks import is_positive_int
from floc.archive.ingest import ledger as ledgers
from floc.archive.ingest import sources as places
from floc.archive.ingest.ledger import Ledger, Status
from floc.archive.ingest.order import Brief, Event, Order, Source
from floc.archive.store import Store
from floc.archive.tables import Video
from floc.captured.identity import Identity

EngineName = Literal["local", "ray"]


class Engine(AbstractContextManager["Engine"], Protocol):
    """What runs the pipeline, on one machine or many."""

    def brief(self) -> Brief:
        """What workers are told, once the encoder is known."""
        ...

    def run(self, sources: Sequence[Source], ledger: Ledger) -> Iterator[Event]:
        """Take in videos, and tell what happens as it does; a ledger notes it before the next is asked for."""
        ...


def ingest(
    sources: Sequence[str | Path],
    store: str | Path,
    *,
    encoder: str = "auto",
    ratio: float | str | None = None,
    coverage: float | None = None,
    method: str = "floc",
    fps: float | None = 1.0,
    device: str | None = None,
    engine: EngineName = "local",
    workers: int | None = None,
    address: str | None = None,
    show: Callable[[Status], object] = lambda status: None,
    **options: Any,
) -> Status:
    """Compress videos once, into a store. What is in it already is left out, and what was begun is gone on with.

        ingest(["footage/"], "archive", encoder="hf:Qwen/Qwen2.5-VL-7B-Instruct", ratio="1/32")

    Args:
        sources: files, folders, and addresses such as s3://bucket/folder.
        store: a folder, or an address that Lance takes; made where there is none.
        encoder: as in `floc.encoders.get`.
        ratio, coverage: exactly one, as in `floc.compress`; every few minutes of film for themselves.
        method, **options: as in `floc.compress`.
        fps: frames a second to take; None takes every frame.
        device: where encoders run, such as "cuda:1"; all GPUs, else the CPU, where not given.
        engine: "local" for processes on this machine, "ray" for Ray Data.
        workers: how many encoders; where not given, one for each core, or for GPUs two each (local) or one each (ray).
        address: of the Ray cluster, "auto" for the one this machine is part of; a cluster of its own where not given.
        show: called now and then with where it stands.
    """
    _require_engine(engine, workers, address)
    told = None if ratio is None else str(ratio)
    order = Order(encoder, told, coverage, method, options, fps, device)
    found = places.find(sources)
    archive = Store(store, create=True)
    with _engine(engine, order, archive.path, workers, address) as running:
        brief = running.brief()
        ledger = Ledger(archive, brief, len(found))
        done = archive.videos("done")
        _require_same_weights(brief, done)
        there = set(ledgers.known(done, brief, found))
        ledger.status.skipped = len(there)
        # in an order of its own: of two ingests into one store, each then finds done what the other did
        to_do = [source for source in found if source not in there]
        random.shuffle(to_do)
        try:
            for event in running.run(to_do, ledger):
                ledger.add(event)
                show(ledger.status)
            ledger.end()
        finally:
            ledger.flush()
        show(ledger.status)
    return ledger.status


def _require_same_weights(brief: Brief, videos: Sequence[Video]) -> None:
    """Complain where a store has tokens of a model of this name that was another one."""
    models = {_named(video.model): video.model for video in videos}
    if (model := models.get(_named(brief.model))) is not None:
        try:
            model.require(brief.model)
        except ValueError as error:
            raise ValueError(
                f"the weights of {model.name} are not those that the store was made with ({error}); "
                "ingest into another store"
            ) from None


def _named(model: Identity) -> tuple[str, str, str]:
    return model.kind, model.name, model.config


def _require_engine(name: str, workers: int | None, address: str | None) -> None:
    if name not in ("local", "ray"):
        raise ValueError(f"engine must be 'local' or 'ray', got {name!r}")
    if workers is not None and not is_positive_int(workers):
        raise ValueError(f"workers must be a whole number, at least 1; got {workers!r}")
    if name == "local" and address is not None:
        raise ValueError(f"address {address!r} is of a Ray cluster; pass engine='ray' with it")


def _engine(name: EngineName, order: Order, store: str, workers: int | None, address: str | None) -> Engine:
    if name == "ray":
        from floc.archive.ingest.ray import Cluster

        return Cluster(order, store, workers, address)
    from floc.archive.ingest.local import Local

    return Local(order, store, workers)
