"""Pictures: files and arrays, and errors for what is neither."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("av", reason="PyAV is not installed: pip install 'floc-video[video]'")
images = pytest.importorskip("PIL.Image", reason="writes the pictures; pip install 'floc-video[report]'")

from floc.video.picture import read_picture  # noqa: E402
from tests.video.conftest import number_on, picture  # noqa: E402


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.webp", "a.bmp", "a.gif", "a.tiff", "a.ppm", "wrong.txt"])
def test_reads_pictures_by_content(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    images.fromarray(picture(40503, 96, 64)).save(path, "png" if name == "wrong.txt" else None)
    pixels = read_picture(path)
    assert (pixels.shape, pixels.dtype, number_on(pixels)) == ((64, 96, 3), np.uint8, 40503)
    assert read_picture(path, lambda width, height: (2 * width, height)).shape == (64, 192, 3)
    np.testing.assert_array_equal(read_picture(str(path)), pixels)


def test_reads_the_first_frame_of_a_video(film) -> None:
    assert number_on(read_picture(film("a.mp4", 5, first=9))) == 9


def test_reads_arrays() -> None:
    pixels = picture(7, 32, 16)
    np.testing.assert_array_equal(read_picture(pixels), pixels)
    assert read_picture(pixels[::2, ::-1], lambda *_: (1, 1)).shape == (1, 1, 3)


@pytest.mark.parametrize(("shape", "dtype"), [((4, 4), "u1"), ((4, 4, 4), "u1"), ((4, 4, 3), "f4"), ((0, 4, 3), "u1")])
def test_rejects_other_arrays(shape: tuple[int, ...], dtype: str) -> None:
    with pytest.raises(ValueError, match=r"a picture must be \[h, w, 3\] uint8 RGB, got"):
        read_picture(np.zeros(shape, dtype))


def test_rejects_files_without_a_picture(film_with_sound, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"sound\.m4a: there is no picture in it"):
        read_picture(film_with_sound("sound.m4a"))
    (tmp_path / "empty.png").touch()
    with pytest.raises(ValueError, match="the file is empty"):
        read_picture(tmp_path / "empty.png")
    path = tmp_path / "cut.png"
    images.fromarray(picture(1, 96, 64)).save(path)
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(ValueError, match=r"cut\.png: the picture cannot be decoded|cut\.png: not a video"):
        read_picture(path)


def test_rejects_a_picture_that_is_too_large(tmp_path: Path) -> None:
    images.new("1", (16384, 8192)).save(tmp_path / "large.png")
    with pytest.raises(ValueError, match=r"large\.png: the picture cannot be decoded .*too large"):
        read_picture(tmp_path / "large.png")
