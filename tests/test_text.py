"""Numbers as text."""

from __future__ import annotations

import pytest

from floc._text import format_bytes, format_time


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (3 << 20, "3.0 MiB"), (2**50, "1024.0 TiB")],
)
def test_format_bytes(size: int, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.4, "0:59"), (3599.6, "1:00:00"), (360_000, "100:00:00")]
)
def test_format_time(seconds: float, text: str) -> None:
    assert format_time(seconds) == text
