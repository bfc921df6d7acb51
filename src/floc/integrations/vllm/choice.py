"""Which tokens of a video stay: what `floc.compress` keeps, as many as vLLM has placeholders for."""

from __future__ import annotations

import json
import os
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch

from floc._system import use_one_thread
from floc.integrations.vllm.settings import LOG, Settings

# Multiply-adds: 4,096 tokens of 64 channels are a quarter of it. In an engine on two cores one thread chose from them
# as soon as two did, by turns.
SHORT = 1 << 32


def kept_indices(embeds: torch.Tensor, shape: tuple[int, int, int], settings: Settings) -> torch.Tensor:
    """[T*H*W, D] embeddings in the order of the grid -> [K] int64 ascending, those to keep."""
    started = time.perf_counter()
    due = settings.count(len(embeds))
    if due == len(embeds):
        return torch.arange(due, device=embeds.device)
    if _are_all_the_same(embeds):
        _rehearse(embeds, shape, settings)
        indices = _spread(due, embeds)
    elif not embeds.isfinite().all():
        LOG.warning("a video has tokens that are not finite: floc keeps some at regular distances, and none is chosen")
        indices = _spread(due, embeds)
    else:
        with use_one_thread() if _is_short(embeds) else nullcontext():
            indices = settings.recipe.indices(embeds.view(*shape, -1))
    if len(indices) != due:
        raise RuntimeError(f"method {settings.method!r} kept {len(indices)} of {shape} tokens instead of {due}")
    if settings.record is not None:
        record(Path(settings.record), shape, indices, time.perf_counter() - started)
    return indices


def _rehearse(embeds: torch.Tensor, shape: tuple[int, int, int], settings: Settings) -> None:
    """For the video that vLLM measures its memory with: on a GPU let it see what a choice takes."""
    if embeds.device.type == "cpu":
        warm_up(settings, embeds.shape[1], embeds.dtype, embeds.device)
    else:
        noise = torch.Generator(embeds.device).manual_seed(0)
        like_it = torch.randn(embeds.shape, generator=noise, dtype=embeds.dtype, device=embeds.device)
        settings.recipe.indices(like_it.view(*shape, -1))


def _spread(count: int, embeds: torch.Tensor) -> torch.Tensor:
    return torch.arange(count, device=embeds.device) * len(embeds) // count


def warm_up(settings: Settings, dim: int, dtype: torch.dtype, device: torch.device) -> None:
    """Choose once from noise, so that no video waits for what is compiled at first."""
    noise = torch.randn(64 * 4, dim, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    replace(settings, ratio="1/8", tokens=None, record=None).recipe.indices(noise.view(64, 2, 2, dim))


def _is_short(embeds: torch.Tensor) -> bool:
    """Whether other threads would take as long to start as they save."""
    return len(embeds) ** 2 * embeds.shape[1] <= SHORT


def _are_all_the_same(embeds: torch.Tensor) -> bool:
    """Whether any choice is as good as any other: so is the video that vLLM measures its memory with, a large one."""
    return torch.equal(embeds[0], embeds[-1]) and bool((embeds == embeds[0]).all())


def record(path: Path, shape: tuple[int, int, int], indices: torch.Tensor, seconds: float) -> None:
    """Add a line on one video to a file, whole also where others write to it; a full disk ends no engine."""
    line = json.dumps({"shape": list(shape), "kept": indices.tolist(), "seconds": round(seconds, 6)}) + "\n"
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)
    except OSError as error:
        LOG.warning("floc could not write to %s what it kept of a video: %s", path, error.strerror)
