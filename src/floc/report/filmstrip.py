"""The film in small pictures, gathered as it is read."""

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
LARGEST_BYTES = 20_000  # of one picture: a sharp one of 512 x 288
TOTAL_BYTES = 6_500_000  # of all: in base64 they are a third larger, and the page stays well below 15 MB
BYTES_A_PIXEL = 0.11  # of WebP at QUALITY on ordinary footage
QUALITY = 60


@dataclass
class Filmstrip:
    """One picture for every slice of tokens."""

    planned: int  # how many pictures are to come: the more, the smaller
    every: int = 1  # of so many frames take the first
    seen: Callable[[np.ndarray], np.ndarray] = lambda pixels: pixels  # the part of the frames that tokens are made of
    images: list[bytes] = field(default_factory=list)
    width: int = 0
    height: int = 0
    _seen: int = 0

    def watch(self, frames: Iterable[Frames]) -> Iterator[Frames]:
        """Hand the frames on, and keep small pictures of them."""
        for batch in frames:
            for pixels in self.seen(batch.pixels)[-self._seen % self.every :: self.every]:
                self.images.append(self._picture(pixels))
            self._seen += len(batch.pixels)
            yield batch

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, t: int) -> np.ndarray:
        """[height, width, 3] uint8, one picture."""
        from PIL import Image

        return np.asarray(Image.open(io.BytesIO(self.images[t])).convert("RGB"))

    def within(self, limit_bytes: int) -> list[bytes]:
        """All pictures, in at most so many bytes; smaller and coarser ones where that takes it."""
        images, scale, quality = self.images, 1.0, QUALITY
        while sum(map(len, images)) > limit_bytes and scale > 0.1:
            scale, quality = scale * 0.8, max(30, quality - 10)
            images = [_again(image, scale, quality) for image in self.images]
        return images

    def _picture(self, pixels: np.ndarray) -> bytes:
        from PIL import Image

        height, width, _ = pixels.shape
        if not self.width:
            bytes_each = min(LARGEST_BYTES, TOTAL_BYTES / max(1, self.planned))
            scale = min(1.0, math.sqrt(bytes_each / BYTES_A_PIXEL / (width * height)))
            self.width, self.height = max(16, round(width * scale)), max(16, round(height * scale))
        image = Image.fromarray(pixels)
        if image.size != (self.width, self.height):
            image = image.resize((self.width, self.height), Image.Resampling.BOX)
        return _encoded(image, QUALITY)


def _again(picture: bytes, scale: float, quality: int) -> bytes:
    from PIL import Image

    image = Image.open(io.BytesIO(picture))
    return _encoded(image.resize((round(image.width * scale), round(image.height * scale))), quality)


def _encoded(image: Image.Image, quality: int) -> bytes:
    out = io.BytesIO()
    image.save(out, "WEBP", quality=quality, method=3)
    return out.getvalue()
