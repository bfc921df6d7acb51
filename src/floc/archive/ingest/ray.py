"""The engine of many machines: Ray Data. A few actors look at videos, CPU tasks decode them, actors hold encoders.

Every step is a row that goes from one stage to the next: a source, a span of film, a piece with its pixels, and at last
what happened, which is all that comes back here. A row of pixels is a block of its own, so that a long film is shared
out among all encoders, and a slow one holds nobody up. Ray runs again what was lost with a machine; a piece that was
written twice so is committed once, since only one of the two is told of.
"""

from __future__ import annotations

import logging
import pickle
import re
import warnings
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from floc.archive.ingest.order import Brief, Event, Failed, Order, Planned, Source, Span
from floc.tokens import Frames

if TYPE_CHECKING:
    from floc.archive.ingest.ledger import Ledger

Columns = dict[str, Any]  # of a batch of rows
LIGHT = 0.5  # of a core: what decodes waits for others half of the time
LONG_BYTES = 128 << 20  # a file of more may be so long that its spans should be shared out
PLANNED_BY = 8  # cores for every actor that looks at videos


class Cluster:
    """See `Engine`."""

    def __init__(self, order: Order, store: str, workers: int | None = None, address: str | None = None) -> None:
        try:
            import ray.data
        except ImportError as error:
            raise ImportError("the engine 'ray' needs Ray: pip install 'floc-video[ray]'") from error
        self.ray: Any = ray  # its types want arrays where rows are made of lists
        self.order, self.store, self.workers, self.address = order, store, workers, address
        self.owned = False

    def __enter__(self) -> Cluster:
        if not self.ray.is_initialized():
            self.owned = True
            alone: dict[str, Any] = {"address": "local", "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
            given = alone if self.address is None else {"address": self.address}
            with warnings.catch_warnings():
                # Lance warns of forks, and every process that Ray forks becomes another program at once
                warnings.filterwarnings("ignore", "lance is not fork-safe")
                self.ray.init(logging_level=logging.ERROR, log_to_driver=False, **given)
        return self

    def __exit__(self, *_: object) -> None:
        if self.owned:
            self.ray.shutdown()

    def brief(self) -> Brief:
        """What workers are told: a task of its own loads the encoder once, to see what it is."""
        look = self.ray.remote(num_gpus=self._gpus(), max_retries=3)(_brief)
        try:
            return self.ray.get(look.remote(self.order, self.store))
        except self.ray.exceptions.RayError as error:
            raise _cause(error) from None

    def run(self, sources: Sequence[Source], ledger: Ledger) -> Iterator[Event]:
        """Take in videos."""
        if not sources:
            return
        from ray.data import ActorPoolStrategy, DataContext

        context = DataContext.get_current()
        context.enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        brief = pickle.dumps(ledger.brief)
        rows = [{"kind": "source", "what": pickle.dumps(source), "pixels": b""} for source in sources]
        spans: Any = self.ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            _Plan,
            batch_size=1,
            fn_constructor_args=(brief,),
            compute=ActorPoolStrategy(size=max(1, int(self._resource("CPU")) // PLANNED_BY)),
            num_cpus=LIGHT / 2,
        )
        if any(source.size > LONG_BYTES for source in sources):
            spans = spans.repartition(target_num_rows_per_block=1)  # the spans of a video to several machines
        events = spans.map_batches(_decode, batch_size=1, fn_args=(brief,), num_cpus=LIGHT).map_batches(
            _Keep,
            batch_size=1,
            fn_constructor_args=(brief,),
            compute=ActorPoolStrategy(size=self.workers or self._encoders()),
            num_gpus=self._gpus() or None,
            num_cpus=None if self._gpus() else LIGHT,
        )
        try:
            for row in events.iter_rows():
                yield pickle.loads(row["what"])
        except self.ray.exceptions.RayError as error:
            raise _cause(error) from None

    def _gpus(self) -> int:
        """Of each encoder."""
        wanted = self.order.device or ("cpu" if self.order.encoder == "pixels" else "cuda")
        return int(wanted.startswith("cuda") and self._resource("GPU") > 0)

    def _encoders(self) -> int:
        """As many as there are GPUs, or cores."""
        return max(1, int(self._resource("GPU" if self._gpus() else "CPU")))

    def _resource(self, name: str) -> float:
        return self.ray.cluster_resources().get(name, 0)


def _brief(order: Order, store: str) -> Brief:
    from floc.archive.ingest.pipeline import Worker

    return Worker(order, store).brief


class _Plan:
    """Sources to spans, each after what was found of its video."""

    def __init__(self, brief: bytes) -> None:
        self.brief = pickle.loads(brief)

    def __call__(self, batch: Columns) -> Iterator[Columns]:
        from floc.archive.ingest.pipeline import plan

        for what in batch["what"]:
            event = plan(self.brief, pickle.loads(what))
            yield _row("event", event)
            if isinstance(event, Planned):
                about = {"fps": event.fps, "duration_s": event.duration_s}
                for span in event.spans:
                    yield _row("span", (span, about, frozenset(event.pieces)))


def _decode(batch: Columns, brief: bytes) -> Iterator[Columns]:
    """Spans to pieces with their pixels."""
    for kind, what in zip(batch["kind"], batch["what"], strict=True):
        if kind != "span":
            yield _passed(kind, what)
            continue
        span, about, have = pickle.loads(what)
        yield from _decoded(pickle.loads(brief), span, about, have)


def _decoded(brief: Brief, span: Span, about: dict[str, Any], have: frozenset[int]) -> Iterator[Columns]:
    from floc.archive.ingest.pipeline import STORES_OWN, in_words, pieces_of

    for each in pieces_of(brief, span):
        if not isinstance(each, tuple):
            yield _row("event", each)
            return
        number, frames = each
        try:
            batches = list(frames)
        except STORES_OWN:
            raise
        except Exception as error:
            yield _row("event", Failed(span.source, in_words(error)))
            return
        if number not in have:
            pixels = np.concatenate([batch.pixels for batch in batches])
            times_s = np.concatenate([batch.times_s for batch in batches])
            yield _row("piece", (span, about, number, pixels.shape, times_s), pixels.tobytes())


class _Keep:
    """Pieces to what happened."""

    def __init__(self, brief: bytes) -> None:
        import torch

        from floc.archive.ingest.pipeline import Keeper

        torch.set_num_threads(1)  # as many actors as cores
        self.keeper = Keeper(pickle.loads(brief))

    def __call__(self, batch: Columns) -> Iterator[Columns]:
        for kind, what, pixels in zip(batch["kind"], batch["what"], batch["pixels"], strict=True):
            if kind != "piece":
                yield _passed(kind, what)
                continue
            span, about, number, shape, times_s = pickle.loads(what)
            frames = Frames(np.frombuffer(pixels, np.uint8).reshape(shape), times_s)
            yield _row("event", self.keeper.try_to_keep(span, number, chain([frames]), about))


def _row(kind: str, what: object, pixels: bytes = b"") -> Columns:
    return {"kind": [kind], "what": [pickle.dumps(what)], "pixels": [pixels]}


def _passed(kind: str, what: bytes) -> Columns:
    return {"kind": [kind], "what": [what], "pixels": [b""]}


def _cause(error: BaseException) -> BaseException:
    """What really went wrong, in a task or an actor; where only words are left of it, those."""
    chain = [error]
    while (inner := getattr(chain[-1], "cause", None) or chain[-1].__cause__) is not None:
        chain.append(inner)
    for each in reversed(chain):
        if not type(each).__module__.startswith("ray."):
            return each
    lines = [line for each in chain for line in str(each).splitlines() if line.strip()]
    told = [line for line in lines if _NAMED.match(line)]
    return RuntimeError((told or lines or [type(error).__name__])[-1].strip())


_NAMED = re.compile(r"[\w.]+(Error|Damaged|Exception): ")  # how Python ends a traceback
