from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch


@pytest.fixture(scope="package")
def models() -> Any:
    """Tiny models by (kind, attention), created on first use."""
    from tests.integrations.transformers.zoo import model

    class LazyModels(dict):  # type: ignore[type-arg]
        def __missing__(self, key: tuple[str, str]) -> Any:
            self[key] = model(*key)
            return self[key]

    return LazyModels()


@pytest.fixture(autouse=True)
def _light(one_thread: None) -> Iterator[None]:
    """No gradients, and one thread."""
    with torch.no_grad():
        yield


@pytest.fixture(scope="package")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a video of three seconds, 64 x 40 pixels."""
    av = pytest.importorskip("av", reason="av is not installed: pip install 'floc-video[video]'")
    path = tmp_path_factory.mktemp("clip") / "clip.mp4"
    with av.open(path, "w") as out:
        stream = out.add_stream("mpeg4", rate=12)
        stream.width, stream.height = 64, 40
        for i in range(36):
            picture = np.full((40, 64, 3), i * 5, np.uint8)
            picture[:, i : i + 4] = 255 - i
            out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        out.mux(stream.encode())
    return path
