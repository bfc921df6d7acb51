"""What `python -m benchmarks vllm` changes in each of vLLM's workers, which import this before anything is loaded.

vLLM's own pruning works on CPUs then, and is timed. And weights are noise of the size that a network starts training
with: vLLM's is so small that all tokens of a video come out alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

from floc.integrations.vllm.plugin import work_around_cpu_faults


@torch.no_grad()
def put_noise(loader: DummyModelLoader, model: nn.Module, model_config: Any) -> None:
    """Give every token a direction of its own."""
    for name, weight in model.named_parameters():
        noise = torch.Generator(weight.device).manual_seed(weight.numel())
        if weight.dim() > 1:
            weight.normal_(0, weight[0].numel() ** -0.5, generator=noise)
        else:
            weight.fill_(not name.endswith("bias"))


DummyModelLoader.load_weights = put_noise
work_around_cpu_faults()


class Benched:
    """What vLLM adds to a worker, for the engine to call by name."""

    model_runner: Any

    def watch(self, names: list[str]) -> None:
        """Time some methods of the model from now on."""
        model = self.model_runner.get_model()
        self.seconds: dict[str, list[float]] = {}
        for name in names:
            self.seconds[name] = []
            setattr(model, name, _timed(getattr(model, name), self.seconds[name]))

    def watched(self) -> dict[str, list[float]]:
        """What each call took since this was last asked."""
        told = {name: [*each] for name, each in self.seconds.items()}
        for each in self.seconds.values():
            each.clear()
        return told


def _timed(method: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        returned = method(*args, **kwargs)
        seconds.append(time.perf_counter() - started)
        return returned

    return timed
