"""Decoding of videos in processors."""

from __future__ import annotations

from typing import Any

import pytest


def read_with_pyav(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processors read files with PyAV: they prefer torchcodec, which is not in the development environment."""
    from transformers.video_processing_utils import BaseVideoProcessor
    from transformers.video_utils import load_video

    def fetch(self: Any, urls: Any, sample_indices_fn: Any = None) -> Any:
        if isinstance(urls, list):
            return list(zip(*[fetch(self, url, sample_indices_fn) for url in urls], strict=True))
        return load_video(urls, backend="pyav", sample_indices_fn=sample_indices_fn)

    monkeypatch.setattr(BaseVideoProcessor, "fetch_videos", fetch)
