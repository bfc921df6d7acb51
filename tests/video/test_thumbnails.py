from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("PIL", reason="thumbnails need Pillow: pip install 'floc-video[report]'")

from floc.tokens import Frames
from floc.video import thumbnails
from floc.video.thumbnails import Thumbnails


def batches(count: int, size: int, height: int = 72, width: int = 128):
    """Yield frames of one grey level each, which identifies the frame."""
    for start in range(0, count, size):
        numbers = np.arange(start, min(start + size, count))
        pixels = np.broadcast_to(numbers[:, None, None, None] * 5, (len(numbers), height, width, 3))
        yield Frames(pixels.astype(np.uint8), numbers.astype(float))


@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 4, 7, 50])
def test_one_thumbnail_per_slice_and_frames_unchanged(every: int, size: int) -> None:
    thumbs = Thumbnails(planned=41, every=every)
    passed = list(thumbs.watch(batches(41, size)))
    assert np.concatenate([batch.times_s for batch in passed]).tolist() == list(range(41))
    levels = [round(thumbs[t].mean() / 5) for t in range(len(thumbs))]
    assert levels == list(range(0, 41, every))
    assert thumbs[0].shape == (72, 128, 3)


def test_thumbnails_shrink_with_their_number() -> None:
    few, many = Thumbnails(planned=100), Thumbnails(planned=3600)
    for thumbs in (few, many):
        list(thumbs.watch(batches(1, 1, 288, 512)))
    assert (few.width, few.height) == (512, 288)
    assert many.width * many.height <= thumbnails.TOTAL_BYTES / 3600 / thumbnails.BYTES_PER_PIXEL * 1.05
    assert many.width / many.height == pytest.approx(16 / 9, rel=0.02)


def test_limit_is_met_by_smaller_images() -> None:
    thumbs = Thumbnails(planned=8)
    noise = np.random.default_rng(0).integers(0, 255, (8, 144, 256, 3), dtype=np.uint8)
    list(thumbs.watch([Frames(noise, np.arange(8.0))]))
    size = sum(map(len, thumbs.images))
    assert thumbs.within(size) == thumbs.images
    smaller = thumbs.within(size // 4)
    assert len(smaller) == 8
    assert sum(map(len, smaller)) <= size // 4
