"""Collect small pictures of a video while its frames are read."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from floc.tokens import Frames

if TYPE_CHECKING:
    from PIL import Image

MIME = "image/webp"
MAX_BYTES = 20_000  # of one thumbnail: enough for a sharp 512 x 288
TOTAL_BYTES = 6_500_000  # of all; a third more in base64, which keeps a report well below 15 MB
BYTES_PER_PIXEL = 0.11  # of WebP at QUALITY on ordinary footage
QUALITY = 60


@dataclass
class Thumbnails:
    """One thumbnail for every slice of tokens."""

    planned: int  # expected number of thumbnails: the more there are, the smaller each is
    every: int = 1  # frames per slice; the first of them is kept
    crop: Callable[[np.ndarray], np.ndarray] = lambda pixels: pixels  # the part of the frames that becomes tokens
    images: list[bytes] = field(default_factory=list)
    width: int = 0
    height: int = 0
    _frames: int = 0

    def watch(self, frames: Iterable[Frames]) -> Iterator[Frames]:
        """Yield the batches unchanged, and collect their thumbnails."""
        for batch in frames:
            for pixels in self.crop(batch.pixels)[-self._frames % self.every :: self.every]:
                self.images.append(self._shrink(pixels))
            self._frames += len(batch.pixels)
            yield batch

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, t: int) -> np.ndarray:
        """Decode a thumbnail to [height, width, 3] uint8."""
        from PIL import Image

        return np.asarray(Image.open(io.BytesIO(self.images[t])).convert("RGB"))

    def within(self, limit_bytes: int) -> list[bytes]:
        """Return all images in at most `limit_bytes`, re-encoded smaller and coarser if necessary."""
        from PIL import Image

        images, scale, quality = self.images, 1.0, QUALITY
        while sum(map(len, images)) > limit_bytes and scale > 0.1:
            scale, quality = scale * 0.8, max(30, quality - 10)
            size = round(self.width * scale), round(self.height * scale)
            images = [_encode(Image.open(io.BytesIO(image)).resize(size), quality) for image in self.images]
        return images

    def _shrink(self, pixels: np.ndarray) -> bytes:
        from PIL import Image

        height, width, _ = pixels.shape
        if not self.width:
            image_bytes = min(MAX_BYTES, TOTAL_BYTES / max(1, self.planned))
            scale = min(1.0, math.sqrt(image_bytes / BYTES_PER_PIXEL / (width * height)))
            self.width, self.height = max(16, round(width * scale)), max(16, round(height * scale))
        image = Image.fromarray(pixels)
        if image.size != (self.width, self.height):
            image = image.resize((self.width, self.height), Image.Resampling.BOX)
        return _encode(image, QUALITY)


def _encode(image: Image.Image, quality: int) -> bytes:
    out = io.BytesIO()
    image.save(out, "WEBP", quality=quality, method=3)
    return out.getvalue()
