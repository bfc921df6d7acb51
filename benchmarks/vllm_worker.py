"""Extend each vLLM worker for `python -m benchmarks vllm`. Workers import this module before they load a model.

It makes vLLM's own pruning run on CPUs and times it. It also replaces the dummy weights: vLLM's are so small that all
tokens of a video come out alike.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

from floc.integrations.vllm.plugin import work_around_cpu_faults


@torch.no_grad()
def load_noise(loader: DummyModelLoader, model: nn.Module, model_config: Any) -> None:
    """Fill the weights with noise of the size used to initialise training, so that tokens differ."""
    for name, weight in model.named_parameters():
        generator = torch.Generator(weight.device).manual_seed(weight.numel())
        if weight.dim() > 1:
            weight.normal_(0, weight[0].numel() ** -0.5, generator=generator)
        else:
            weight.fill_(not name.endswith("bias"))


DummyModelLoader.load_weights = load_noise
work_around_cpu_faults()


class WorkerExtension:
    """Methods that vLLM adds to a worker; the engine calls them by name."""

    model_runner: Any

    def start_timing(self, names: list[str]) -> None:
        """Time these methods of the model, or functions of its module, from now on."""
        model = self.model_runner.get_model()
        self.seconds: dict[str, list[float]] = {}
        for name in names:
            owner = model if hasattr(model, name) else sys.modules[type(model).__module__]
            self.seconds[name] = []
            setattr(owner, name, _time_calls(getattr(owner, name), self.seconds[name]))

    def measure_cpu_seconds(self) -> float:
        """Return the CPU time of this process so far."""
        return time.process_time()

    def pop_timings(self) -> dict[str, list[float]]:
        """Return the seconds of each call since the last time this was called."""
        timings = {name: [*seconds] for name, seconds in self.seconds.items()}
        for seconds in self.seconds.values():
            seconds.clear()
        return timings


def _time_calls(method: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        returned = method(*args, **kwargs)
        seconds.append(time.perf_counter() - started)
        return returned

    return timed
