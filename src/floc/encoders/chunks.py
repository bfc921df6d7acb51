"""How much of a video to encode at a time, and preparing the next part meanwhile."""

import math
import queue
import threading
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import torch

from floc._system import available_bytes
from floc.families.parts import find_device
from floc.tokens import Frames

T = TypeVar("T")
STEP = 16  # frames at a time on a CPU, where more are not faster; even, so that pairs stay together
MOST_PATCHES = 1 << 16  # at a time on a GPU: more are hardly faster, and take memory from the next part
MOST_PIXEL_BYTES = 1 << 28  # of decoded frames at a time
JOINED_BYTES = 64 << 20  # of frames that are compared before their new slices are encoded together
FREE_SHARE = 0.5  # of the free memory of a GPU


def count_patches(config: Any, pixels: tuple[int, ...]) -> int:
    """Return the rows of the vision encoder of a model for pixels of a shape, patches or frames."""
    vision = config.vision_config
    side, temporal = getattr(vision, "patch_size", None) or 16, getattr(vision, "temporal_patch_size", None) or 1
    sides = (side, side) if isinstance(side, int) else tuple(side)[-2:]
    return max(1, math.prod(pixels) // (3 * math.prod(sides) * temporal))


def limit_patches(base: Any) -> int | None:
    """Return the most patches to encode at a time on a GPU, by its free memory; None on other devices."""
    device = find_device(base)
    if device.type != "cuda":
        return None
    return fit_patches(base.config, base.dtype.itemsize, available_bytes(device) or 0)


def fit_patches(config: Any, itemsize: int, free_bytes: int) -> int:
    """Return the patches that fit a part of the free memory.

    A layer holds about 8 tensors of the encoder's width and 4 of its MLP's, and rotates queries and keys in float32.
    """
    vision = config.vision_config
    width = getattr(vision, "embed_dim", None) or getattr(vision, "hidden_size", None) or 1024
    width = max(width) if isinstance(width, list | tuple) else width
    mlp_width = getattr(vision, "intermediate_size", None) or 4 * width
    patch_bytes = itemsize * (8 * width + 4 * mlp_width) + 6 * 4 * width
    return max(1, min(MOST_PATCHES, int(free_bytes * FREE_SHARE) // patch_bytes))


def join_frames(batches: Iterable[Frames], count: int | None, most_bytes: int | None) -> Iterator[Frames]:
    """Join batches of frames into batches of at most `count` frames and `most_bytes` bytes; None is no limit."""
    held: list[Frames] = []
    frames = pixel_bytes = 0
    for batch in batches:
        is_full = count is not None and frames + len(batch.pixels) > count
        is_full |= most_bytes is not None and pixel_bytes + batch.pixels.nbytes > most_bytes
        if held and is_full:
            yield _concatenate(held)
            held, frames, pixel_bytes = [], 0, 0
        held.append(batch)
        frames += len(batch.pixels)
        pixel_bytes += batch.pixels.nbytes
    if held:
        yield _concatenate(held)


def cut_frames(batches: Iterable[Frames], count: int) -> Iterator[Frames]:
    """Cut batches of frames after every `count` of the video, so that `join_frames` can join exactly so many."""
    seen = 0
    for batch in batches:
        borders = [0, *range(count - seen % count, len(batch.pixels), count), len(batch.pixels)]
        for start, stop in pairwise(borders):
            yield Frames(batch.pixels[start:stop], batch.times_s[start:stop])
        seen += len(batch.pixels)


def _concatenate(batches: list[Frames]) -> Frames:
    if len(batches) == 1:
        return batches[0]
    pixels, times_s = zip(*((batch.pixels, batch.times_s) for batch in batches), strict=True)
    return Frames(np.concatenate(pixels), np.concatenate(times_s))


def runs_ahead(device: torch.device) -> bool:
    """Return whether to prepare the next frames while a device encodes; a CPU is busy with the encoder."""
    return device.type == "cuda"


def run_ahead(items: Iterable[T]) -> Iterator[T]:
    """Yield items while a thread makes the next one; at most three exist: one used, one waiting, one being made.

    An error of the thread is raised here. Closing the iterator ends the thread, after the item that it makes.
    """
    ready: queue.Queue[tuple[bool, Any]] = queue.Queue(maxsize=1)
    stop = threading.Event()

    def put(entry: tuple[bool, Any]) -> bool:
        while not stop.is_set():
            try:
                ready.put(entry, timeout=0.1)
                return True
            except queue.Full:
                pass
        return False

    def work() -> None:
        try:
            with torch.no_grad():
                for item in items:
                    if not put((True, item)):
                        return
        except BaseException as error:  # raised in the thread that reads
            put((False, error))
        else:
            put((False, None))
        finally:
            close = getattr(items, "close", None)
            if close is not None:  # a generator, whose files are then closed
                close()

    thread = threading.Thread(target=work, name="floc-prepare", daemon=True)
    thread.start()
    try:
        while True:
            is_item, value = ready.get()
            if is_item:
                yield value
                del value  # while the next is awaited
            elif value is None:
                return
            else:
                raise value
    finally:
        stop.set()
        thread.join()
