"""What `floc bench vllm` changes in each of vLLM's workers, which import this before anything is loaded.

vLLM's own pruning works on CPUs then, and is timed. And weights are noise of the size that a network starts training
with: vLLM's is so small that all tokens of a video come out alike.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

from .plugin import note_pruning_on_cpus


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
note_pruning_on_cpus()


class Benched:
    """What vLLM adds to a worker, for the engine to call by name."""

    model_runner: Any

    def watch_pruning(self) -> None:
        """Time how vLLM itself chooses, for every video from now on."""
        model = self.model_runner.get_model()
        prune = model._postprocess_video_embeds_evs
        self.seconds: list[float] = []

        def timed(*args: Any) -> Any:
            started = time.perf_counter()
            pruned = prune(*args)
            self.seconds.append(time.perf_counter() - started)
            return pruned

        model._postprocess_video_embeds_evs = timed

    def pruning_seconds(self) -> list[float]:
        """What each video took since this was last asked."""
        told, self.seconds = self.seconds, []
        return told
