"""Select the tokens of a video to keep: those of `floc.compress`, exactly as many as vLLM has placeholders for."""

import json
import time
from contextlib import nullcontext
from dataclasses import replace

import torch

from floc._system import use_one_thread
from floc.integrations.vllm.settings import LOG, Settings
from floc.tokens import is_finite

# Multiply-adds up to which one thread is as fast as several: starting the others takes as long as they save. Measured
# in an engine on two cores; 4,096 tokens with 64 channels are a quarter of it.
ONE_THREAD_WORK = 1 << 32


def select_indices(
    embeds: torch.Tensor, shape: tuple[int, int, int], settings: Settings, count: int | None = None
) -> torch.Tensor:
    """Select tokens: [T*H*W, D] embeddings in grid order and their shape (T, H, W) -> [K] int64 indices, ascending.

    `count` is the number of tokens to keep, by default what the settings keep of a video.
    """
    started = time.perf_counter()
    count = settings.count(len(embeds)) if count is None else count
    if count == len(embeds):
        return torch.arange(count, device=embeds.device)
    # all tokens are equal in the dummy video of vLLM's memory profiling
    is_dummy = torch.equal(embeds[0], embeds[-1]) and bool((embeds == embeds[0]).all())
    if is_dummy or not is_finite(embeds):
        if is_dummy:
            if embeds.device.type == "cpu":
                warm_up(settings, embeds.shape[1], embeds.dtype, embeds.device)
            else:  # select from noise of the same size, so that vLLM counts the memory
                generator = torch.Generator(embeds.device).manual_seed(0)
                noise = torch.randn(embeds.shape, generator=generator, dtype=embeds.dtype, device=embeds.device)
                settings.recipe.select_indices(noise.view(*shape, -1), count)
        else:
            LOG.warning("a video has embeddings that are not finite: floc keeps evenly spaced tokens of it")
        indices = torch.arange(count, device=embeds.device) * len(embeds) // count
    else:
        is_short = len(embeds) ** 2 * embeds.shape[1] <= ONE_THREAD_WORK
        with use_one_thread() if is_short else nullcontext():
            indices = settings.recipe.select_indices(embeds.view(*shape, -1), count, check_finite=False)
    if len(indices) != count:
        raise RuntimeError(f"method {settings.method!r} kept {len(indices)} of {shape} tokens instead of {count}")
    if settings.record is not None:
        _write_record(settings.record, shape, indices, time.perf_counter() - started)
    return indices


def warm_up(settings: Settings, dim: int, dtype: torch.dtype, device: torch.device) -> None:
    """Select once from noise, so that everything is compiled before the first video."""
    noise = torch.randn(64 * 4, dim, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    replace(settings, ratio="1/8", budget=None, record=None).recipe.select_indices(noise.view(64, 2, 2, dim))


def _write_record(path: str, shape: tuple[int, int, int], indices: torch.Tensor, seconds: float) -> None:
    """Append a line on one video in a single write, since processes share the file. Failure is only a warning."""
    line = json.dumps({"shape": list(shape), "kept": indices.tolist(), "seconds": round(seconds, 6)}) + "\n"
    try:
        with open(path, "ab", buffering=0) as file:
            file.write(line.encode())
    except OSError as error:
        LOG.warning("floc could not write its record to %s: %s", path, error.strerror)
