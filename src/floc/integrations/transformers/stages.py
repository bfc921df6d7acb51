"""Seconds by stage, for people: where the time of an answer goes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")


class Stages:
    """Adds up what each stage takes; a GPU is waited for at its end."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time what happens inside."""
        started = time.perf_counter()
        try:
            yield
        finally:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started

    def each(self, name: str, items: Iterable[T]) -> Iterator[T]:
        """Time how long it takes to get each of them."""
        source = iter(items)
        while True:
            with self.stage(name):
                try:
                    item = next(source)
                except StopIteration:
                    return
            yield item
