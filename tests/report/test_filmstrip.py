from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("PIL", reason="pictures need Pillow: pip install 'floc-video[report]'")

from floc.report import filmstrip
from floc.report.filmstrip import Filmstrip
from floc.tokens import Frames


def batches(count: int, size: int, height: int = 72, width: int = 128):
    """Frames of one grey level each, so that a picture says which frame it is of."""
    for start in range(0, count, size):
        numbers = np.arange(start, min(start + size, count))
        pixels = np.broadcast_to(numbers[:, None, None, None] * 5, (len(numbers), height, width, 3))
        yield Frames(pixels.astype(np.uint8), numbers.astype(float))


@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 4, 7, 50])
def test_one_picture_for_every_slice_and_frames_pass_through(every: int, size: int) -> None:
    strip = Filmstrip(planned=41, every=every)
    passed = list(strip.watch(batches(41, size)))
    assert np.concatenate([batch.times_s for batch in passed]).tolist() == list(range(41))
    levels = [round(strip[t].mean() / 5) for t in range(len(strip))]
    assert levels == list(range(0, 41, every))
    assert strip[0].shape == (72, 128, 3)


def test_the_more_there_are_the_smaller_they_get() -> None:
    few, many = Filmstrip(planned=100), Filmstrip(planned=3600)
    for strip in (few, many):
        list(strip.watch(batches(1, 1, 288, 512)))
    assert (few.width, few.height) == (512, 288)
    assert many.width * many.height <= filmstrip.TOTAL_BYTES / 3600 / filmstrip.BYTES_A_PIXEL * 1.05
    assert many.width / many.height == pytest.approx(16 / 9, rel=0.02)


def test_a_limit_is_kept_by_smaller_pictures() -> None:
    strip = Filmstrip(planned=8)
    noise = np.random.default_rng(0).integers(0, 255, (8, 144, 256, 3), dtype=np.uint8)
    list(strip.watch([Frames(noise, np.arange(8.0))]))
    size = sum(map(len, strip.images))
    assert strip.within(size) == strip.images
    smaller = strip.within(size // 4)
    assert len(smaller) == 8
    assert sum(map(len, smaller)) <= size // 4
