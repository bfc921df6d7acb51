"""Measure where the time goes, by stage."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")


class StageTimer:
    """Adds up the seconds of each stage; waits for the GPU at the end of a stage."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - started

    def measure_items(self, stage: str, items: Iterable[T]) -> Iterator[T]:
        """Yield the items; time how long it takes to get them, not how long they are used."""
        source, end = iter(items), object()
        while True:
            with self.measure(stage):
                item = next(source, end)
            if item is end:
                return
            yield item  # type: ignore[misc]  # an item, not `end`
