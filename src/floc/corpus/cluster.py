"""The engine of many machines: Ray Data. CPU tasks look at videos and decode them, actors hold encoders.

Every step is a row that goes from one stage to the next: a source, a span of film, a piece with its pixels, and at last
what happened, which is all that comes back here. A row of pixels is a block of its own, so that a long film is shared
out among all encoders, and a slow one holds nobody up. Ray runs again what was lost with a machine; a piece that was
written twice so is committed once, since only one of the two is told of.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from ..types import Frames
from .order import Brief, Event, Failed, Order, Planned, Source, Span

if TYPE_CHECKING:
    from .ledger import Ledger

Columns = dict[str, Any]  # of a batch of rows
LIGHT = 0.5  # of a core: what looks at files or decodes them waits for others half of the time


class Cluster:
    """See `Engine`."""

    def __init__(self, order: Order, store: str, workers: int | None = None, address: str | None = None) -> None:
        try:
            import ray.data
        except ImportError as error:
            raise ImportError("the engine 'ray' needs Ray: pip install 'floc[ray]'") from error
        self.ray: Any = ray  # its types want arrays where rows are made of lists
        self.order, self.store, self.workers, self.address = order, store, workers, address
        self.owned = False

    def __enter__(self) -> Cluster:
        if not self.ray.is_initialized():
            self.owned = True
            alone: dict[str, Any] = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
            given = alone if self.address is None else {"address": self.address}
            self.ray.init(logging_level="error", log_to_driver=False, **given)
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
        brief = pickle.dumps(ledger.brief)
        rows = [{"kind": "source", "what": pickle.dumps(source), "pixels": b""} for source in sources]
        stages = (
            self.ray.data.from_items(rows, override_num_blocks=len(rows))
            .map_batches(_plan, batch_size=1, fn_args=(brief,), num_cpus=LIGHT)
            .repartition(target_num_rows_per_block=1)
            .map_batches(_decode, batch_size=1, fn_args=(brief,), num_cpus=LIGHT)
            .map_batches(
                _Keep,
                batch_size=1,
                fn_constructor_args=(brief,),
                compute=ActorPoolStrategy(size=self.workers or self._encoders()),
                num_gpus=self._gpus() or None,
                num_cpus=None if self._gpus() else 1 - LIGHT,
            )
        )
        try:
            for row in stages.iter_rows():
                yield pickle.loads(row["what"])
        except self.ray.exceptions.RayError as error:
            raise _cause(error) from None

    def _gpus(self) -> int:
        """Of each encoder."""
        wanted = self.order.device or ("cpu" if self.order.encoder == "pixels" else "cuda")
        return int(wanted.startswith("cuda") and self.ray.cluster_resources().get("GPU", 0) > 0)

    def _encoders(self) -> int:
        """As many as there are GPUs, or cores."""
        return max(1, int(self.ray.cluster_resources().get("GPU" if self._gpus() else "CPU", 1)))


def _brief(order: Order, store: str) -> Brief:
    from .pipeline import Worker

    return Worker(order, store).brief


def _plan(batch: Columns, brief: bytes) -> Iterator[Columns]:
    """Sources to spans, each after what was found of its video."""
    from .pipeline import plan

    for what in batch["what"]:
        event = plan(pickle.loads(brief), pickle.loads(what))
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
    from .pipeline import STORES_OWN, in_words, pieces_of

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

        from .pipeline import Keeper

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


def _cause(error: Any) -> BaseException:
    """What really went wrong, in a task or an actor."""
    while (inner := getattr(error, "cause", None) or error.__cause__) is not None:
        error = inner
    if type(error).__module__.startswith("ray."):  # of an actor that could not start only words are left
        return RuntimeError(str(error).strip().splitlines()[-1])
    return error
