"""How far a training is, and what it has printed."""

from __future__ import annotations

import time
from typing import Any

import torch

PRINT_SECONDS = 15


class Log:
    """Print running means every few seconds and keep them."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self._started = self._printed = time.monotonic()
        self._means: dict[str, Any] = {}

    def add(self, part: str, step: int, **values: torch.Tensor) -> None:
        """Add a step's values, without waiting for the device except to print."""
        for name, value in values.items():
            self._means[name] = 0.95 * self._means.get(name, value.detach()) + 0.05 * value.detach()
        if time.monotonic() - self._printed > PRINT_SECONDS:
            self._printed = time.monotonic()
            self.note(f"{part}, step {step}", **{name: float(self._means[name]) for name in values})

    def note(self, part: str, /, **values: float) -> None:
        """Print values and keep them."""
        minutes = (time.monotonic() - self._started) / 60
        self.lines.append({"minutes": round(minutes, 2), "part": part} | {k: round(v, 4) for k, v in values.items()})
        print(f"{minutes:5.2f} min, {part}: {', '.join(f'{k} {v:.3f}' for k, v in values.items())}", flush=True)


class Progress:
    """The share of a part of the training that is done.

    Args:
        minutes: Time of the part.
        steps: Of the part, in place of its time: a training that counts steps can be repeated.
    """

    def __init__(self, minutes: float, steps: float | None = None) -> None:
        self._minutes, self._steps, self._started = minutes, steps, time.monotonic()

    def compute(self, step: int) -> float:
        """Return the share that is done after a number of steps; 1 and more: all."""
        if self._steps is not None:
            return step / self._steps
        return (time.monotonic() - self._started) / (60 * self._minutes)
