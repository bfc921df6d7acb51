"""Chunks of a video: frames joined in order, memory, and preparing the next chunk in a thread."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from floc.encoders import chunks
from floc.encoders.chunks import count_patches, fit_patches, join_frames, run_ahead
from floc.tokens import Frames


def create_batches(*sizes: int) -> list[Frames]:
    counts = np.cumsum([0, *sizes])
    numbers = [np.arange(start, stop) for start, stop in itertools.pairwise(counts)]
    return [Frames(np.tile(part.astype(np.uint8)[:, None, None, None], (1, 2, 2, 3)), part * 1.0) for part in numbers]


@pytest.mark.parametrize(
    ("sizes", "count", "joined"),
    [((4, 4, 4, 2), 8, [8, 6]), ((16,) * 3, 16, [16] * 3), ((20, 3), 8, [20, 3]), ((5, 5, 5), None, [15]), ((), 4, [])],
)
def test_joins_batches(sizes: Any, count: int | None, joined: list[int]) -> None:
    found = list(join_frames(create_batches(*sizes), count, None))
    assert [len(batch.pixels) for batch in found] == joined
    times = [time_s for batch in found for time_s in batch.times_s]
    assert times == list(range(sum(sizes)))
    assert all((batch.pixels[:, 0, 0, 0] == batch.times_s).all() for batch in found)


@pytest.mark.parametrize("count", [100, None])
def test_limits_the_pixels_of_a_chunk(count: int | None) -> None:
    assert [len(batch.pixels) for batch in join_frames(create_batches(2, 2, 2, 2), count, 12 * 6)] == [6, 2]


def test_patches() -> None:
    vision = SimpleNamespace(patch_size=14, temporal_patch_size=2, hidden_size=1280, intermediate_size=3420)
    config = SimpleNamespace(vision_config=vision)
    assert count_patches(config, (784 * 240, 1176)) == 784 * 240
    frames = SimpleNamespace(vision_config=SimpleNamespace(patch_size=[14, 14]))
    assert count_patches(frames, (1, 8, 3, 336, 336)) == 8 * 24 * 24
    # half of 10 GiB, at about 80 kB a patch
    assert fit_patches(config, 2, 10 << 30) == pytest.approx(65_536, rel=0.1)
    assert fit_patches(config, 2, 100 << 30) == chunks.MOST_PATCHES
    assert fit_patches(config, 4, 1 << 30) < fit_patches(config, 2, 1 << 30) < 8000
    assert fit_patches(config, 2, 0) == 1


# ---- the thread


def test_makes_the_next_item_meanwhile() -> None:
    made: list[int] = []
    threads: set[int] = set()

    def make() -> Iterator[int]:
        for number in range(5):
            made.append(number)
            threads.add(threading.get_ident())
            yield number

    found = []
    for number in run_ahead(make()):
        found.append(number)
        deadline = time.monotonic() + 10
        while len(made) < min(5, number + 3) and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.02)
        assert len(made) <= number + 3  # this one, one that waits, one that is made
        assert len(made) > number + 1 or number == 4
    assert found == list(range(5))
    assert threading.get_ident() not in threads


def test_raises_the_error_of_the_thread() -> None:
    def make() -> Iterator[int]:
        yield 1
        raise ValueError("a damaged file")

    items = run_ahead(make())
    assert next(items) == 1
    with pytest.raises(ValueError, match="a damaged file"):
        next(items)


def test_closing_ends_the_thread_and_closes_what_it_reads() -> None:
    closed = []

    def make() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.append(True)

    items = run_ahead(make())
    next(items)
    items.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name == "floc-prepare"]
    assert closed == [True]
