"""Opening video files: orientation, metadata, and errors for files that are not videos."""

from __future__ import annotations

import os
import sys
from fractions import Fraction
from pathlib import Path

import pytest

av = pytest.importorskip("av", reason="PyAV is not installed: pip install 'floc-video[video]'")

from floc import video  # noqa: E402


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("rotation", [0, 90, 180, -90])
def test_rotated_and_mirrored_videos_are_upright(film, numbers, rotation: int, mirrored: bool) -> None:
    path = film("turned.mp4", 12, size=(96, 48), rotation=rotation, mirrored=mirrored, first=40503)
    opened = video.read(path, fps=None)
    assert numbers(opened) == list(range(40503, 40515))
    assert (opened.width, opened.height) == ((48, 96) if rotation % 180 else (96, 48))
    assert next(iter(opened)).pixels.shape == (12, opened.height, opened.width, 3)
    if not mirrored:
        assert opened.rotation == -rotation % 360
    wide = video.read(path, fps=None, size=lambda width, height: (2 * width, height // 2))
    assert next(iter(wide)).pixels.shape == (12, opened.height // 2, 2 * opened.width, 3)
    assert numbers(wide) == numbers(opened)


def test_non_square_pixels(film, numbers) -> None:
    opened = video.read(film("dv.mkv", 5, size=(72, 56), aspect=Fraction(16, 11)), fps=None)
    assert (opened.source_width, opened.source_height) == (opened.width, opened.height) == (105, 56)
    assert numbers(opened) == list(range(5))


def test_longer_audio_is_not_damage(film_with_sound, numbers, monkeypatch) -> None:
    path = film_with_sound("talk.mkv", frames=20, sound_s=6)
    opened = video.read(path)
    assert (numbers(opened), opened.warnings, opened.duration_s) == ([0, 10], [], 2.0)
    # without a duration tag of the video stream, only the end of the longest stream is known
    monkeypatch.setattr("floc.video.container._parse_duration_tag", lambda metadata: None)
    opened = video.read(path)
    assert (numbers(opened), opened.warnings) == ([0, 10], [])
    assert opened.duration_s == pytest.approx(6, abs=0.1)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("folder.mp4", "this is a folder"),
        ("empty.mp4", "the file is empty"),
        ("notes.txt", "not a video file that floc reads"),
        ("notes.mp4", "not a video that ffmpeg can read (Invalid data"),
        ("pipe.mp4", "not a regular file"),
        ("subtitles.srt", "there is no video in it, only subtitle"),
        ("sound.m4a", "there is no video in it, only audio"),
        ("song.mp3", "there is no video in it, only audio, cover picture"),
        ("unfinished.mp4", "cut off or its recording was never finished: its index (moov)"),
        ("cut_index.mp4", "cut off or its recording was never finished: its index (moov)"),
        ("header.avi", "its mpeg4 video cannot be decoded (there is no frame in it)"),
    ],
)
def test_rejects_files_without_video(film, film_with_sound, tmp_path: Path, name: str, message: str, capfd) -> None:
    path = tmp_path / name
    if name == "folder.mp4":
        path.mkdir()
    elif name == "empty.mp4":
        path.touch()
    elif name.startswith("notes"):
        path.write_text("A line of text.\n" * 50)
    elif name == "pipe.mp4":
        os.mkfifo(path)
    elif name == "subtitles.srt":
        path.write_text("1\n00:00:00,000 --> 00:00:02,000\nA line of text.\n")
    elif name in ("sound.m4a", "song.mp3"):
        film_with_sound(name, cover=name == "song.mp3")
    elif name == "unfinished.mp4":
        film(name, 30)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif name == "cut_index.mp4":
        film(name, 30, container={"movflags": "faststart"})
        path.write_bytes(path.read_bytes()[:300])
    else:
        film(name, 30, codec="mpeg4")
        path.write_bytes(path.read_bytes()[: path.read_bytes().index(b"movi") + 4])
    with pytest.raises(ValueError) as caught:
        video.read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_rejects_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no\.mp4: no such file"):
        video.read(tmp_path / "no.mp4")


def test_file_names_with_special_characters(film_with_sound, numbers, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a b#%03d?.mp4", "concat:x|y.mkv", "-ü[1].mp4"):
        assert numbers(video.read(film_with_sound(name, frames=20).name)) == [0, 10]


def test_missing_package_error_has_install_command(film, monkeypatch) -> None:
    path = film("a.mp4", 3)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImportError, match=r"pip install 'floc-video\[video\]'"):
        video.read(path)
