"""Opening video files: orientation, metadata, and errors for files that are not videos."""

from __future__ import annotations

import os
import socket
import sys
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

av = pytest.importorskip("av", reason="PyAV is not installed: pip install 'floc-video[video]'")

from floc import video  # noqa: E402
from floc.video.container import MAX_SECONDS, Orientation  # noqa: E402
from floc.video.picture import read_picture  # noqa: E402
from tests.video.conftest import list_times  # noqa: E402


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
        with av.open(path) as container:
            frame = next(container.decode(video=0))
        # PyAV refuses the side data if it does not know all kinds of it, such as EXIF
        unknown = SimpleNamespace(side_data=Mock(get=Mock(side_effect=ValueError)), rotation=frame.rotation)
        assert Orientation.from_frame(unknown) == Orientation.from_frame(frame)
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
    for address in ("rtsp://admin:secret@cam/main", "S3://KEY:secret@bucket/a.mp4?token=secret"):
        with pytest.raises(FileNotFoundError, match="no such file") as caught:
            video.read(address)
        assert "secret" not in str(caught.value)


def test_file_names_with_special_characters(film_with_sound, numbers, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a b#%03d?.mp4", "concat:x|y.mkv", "-ü[1].mp4"):
        assert numbers(video.read(film_with_sound(name, frames=20).name)) == [0, 10]


def test_missing_package_error_has_install_command(film, monkeypatch) -> None:
    path = film("a.mp4", 3)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImportError, match=r"pip install 'floc-video\[video\]'"):
        video.read(path)


@pytest.mark.parametrize(
    "tag",
    ["00:00:1e9999999999", "00:00:1/00000000000", "-0:00:03.000000000", "99:99:99.999999999", "9999999999:00:00.0"],
)
def test_absurd_duration_tags_are_ignored(film, numbers, tag: str) -> None:
    path = film("tagged.mkv", 30)
    data = path.read_bytes()
    place = data.index(b"00:00:03.000000000", data.index(b"DURATION"))
    path.write_bytes(data[:place] + tag[:18].ljust(18, "0").encode() + data[place + 18 :])
    opened = video.read(path, max_frames=3)
    assert 0 < opened.duration_s < 400_000
    assert numbers(opened)[0] == 0


@pytest.mark.parametrize(
    ("name", "mark", "offset", "stated"),
    [
        ("a.mp4", b"mdhd", 12, "timescale"),
        ("a.mp4", b"mdhd", 16, "duration"),
        ("a.mp4", b"mvhd", 12, "timescale of the file"),
        ("a.mp4", b"stts", 12, "ticks per frame"),
        ("a.mp4", b"tkhd", 40, "rotation"),
        ("a.mkv", b"\x2a\xd7\xb1", 0, "ticks per second"),
        ("a.mkv", b"\x44\x89", 1, "duration"),
        ("a.mkv", b"\x23\xe3\x83", 1, "seconds per frame"),
        ("a.avi", b"strh", 24, "seconds per frame"),
        ("a.avi", b"strh", 28, "frames per second"),
        ("a.avi", b"strh", 36, "frames"),
    ],
)
def test_absurd_numbers_are_bounded(film, name: str, mark: bytes, offset: int, stated: str) -> None:
    path = film(name, 12, codec="mpeg4" if name == "a.avi" else "libx264")
    data = path.read_bytes()
    place = data.index(mark) + len(mark) + offset
    for value in (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 0x7FEFFFFF, 0x7FF00000, 0xFF000000):
        path.write_bytes(data[:place] + value.to_bytes(4, "big") + data[place + 4 :])
        try:
            opened = video.read(path, fps=1e6, max_frames=None)
        except ValueError as error:
            assert str(error).startswith(f"{path}: "), stated  # noqa: PT017
            continue
        times = list_times(opened)
        assert 0 < opened.duration_s <= MAX_SECONDS
        assert 0 < opened.native_fps <= 1e6
        assert 1 <= opened.planned <= path.stat().st_size
        assert times == sorted(set(times)), f"{stated} {value}"
        assert all(0 <= time_s < 2 * MAX_SECONDS for time_s in times)


def test_a_timestamp_that_jumps_by_years(film, numbers) -> None:
    stamps = [*range(20), *range(10**12, 10**12 + 20)]
    opened = video.read(film("jump.nut", 40, stamps=stamps), fps=None)
    assert numbers(opened) == list(range(40))
    assert list_times(opened) == pytest.approx(np.arange(40) / 10)


@pytest.mark.parametrize("aspect", [Fraction(1, 60000), Fraction(60000, 1)])
def test_absurd_pixel_shapes_are_ignored(film, numbers, aspect: Fraction) -> None:
    opened = video.read(film("flat.mkv", 3, aspect=aspect), fps=None)
    assert (opened.width, opened.height) == (64, 48)
    assert numbers(opened) == [0, 1, 2]


@pytest.mark.parametrize("name", ["large.mkv", "large.ts", "large.avi"])
def test_rejects_frames_that_are_too_large(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with av.open(path, "w") as output:
        stream = output.add_stream("libx264", rate=1, options={"preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = 8192, 4098, "yuv420p"
        output.mux(stream.encode(av.VideoFrame(8192, 4098, "yuv420p")))
        output.mux(stream.encode())
    with pytest.raises(ValueError, match=r"frames of 8192 x 4098 pixels are too large; the limit is 33,554,432 pixels"):
        video.read(path)


def test_frames_that_become_too_large_are_damage(film, numbers, tmp_path: Path, monkeypatch) -> None:
    """The header states the size of the first frames only."""
    monkeypatch.setattr("floc.video.container.MAX_PIXELS", 64 * 64)
    parts = [film("small.h264", 20), film("large.h264", 6, size=(640, 480))]
    both = tmp_path / "both.h264"
    both.write_bytes(b"".join(part.read_bytes() for part in parts))
    opened = video.read(both, fps=None)
    assert numbers(opened) == list(range(20))
    assert "could not be decoded completely" in opened.warnings[0]


@pytest.mark.parametrize("reference", ["absolute", "relative", "file"])
@pytest.mark.parametrize("name", ["list.m3u8", "list.ffconcat", "list.mp4", "list.sdp", "list.mpd", "list.txt"])
def test_rejects_files_that_refer_to_others(film, tmp_path: Path, name: str, reference: str) -> None:
    other = film("other.ts", 20)
    (tmp_path / "folder").mkdir()
    path = tmp_path / "folder" / name
    target = {"absolute": str(other), "relative": "../other.ts", "file": f"file://{other}"}[reference]
    path.write_text(
        {
            "m3u8": f"#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2.0,\n{target}\n#EXT-X-ENDLIST\n",
            "mp4": f"#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2.0,\n{target}\n#EXT-X-ENDLIST\n",
            "ffconcat": f"ffconcat version 1.0\nfile '{target}'\n",
            "sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=a\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n",
            "mpd": f'<MPD xmlns="urn:mpeg:dash:schema:mpd:2011"><BaseURL>{target}</BaseURL></MPD>\n',
            "txt": f"{target}\n",
        }[name.rpartition(".")[2]]
    )
    for read in (video.read, read_picture):
        with pytest.raises(ValueError, match="not a video") as caught:
            read(path)
        assert str(caught.value).startswith(f"{path}: ")


def test_a_picture_name_is_not_a_pattern(film_with_sound, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="writes the pictures; pip install 'floc-video[report]'")
    for name in ("a001.png", "a002.png", "a%03d.png"):
        image.new("RGB", (64, 64)).save(tmp_path / name)
    with pytest.raises(ValueError, match="not a video file that floc reads"):
        video.read(tmp_path / "a%03d.png")


def test_external_references_of_a_mov_are_not_opened(film) -> None:
    """The frames of a QuickTime file may be in another file, which a `dref` box names."""
    path, other = film("a.mov", 20), film("other.mov", 20, first=500)
    data, name = path.read_bytes(), str(other).encode()
    lengths = b"\0\0" + len(name).to_bytes(2, "big")
    alias = bytes(10) + b"\1v" + bytes(26 + 12) + b"\5other" + bytes(58 + 16) + lengths[:2] * 2 + bytes(16)
    alias += b"\0\2" + lengths[2:] + name + bytes(len(name) % 2) + b"\xff\xff\0\0"
    entry = (12 + len(alias)).to_bytes(4, "big") + b"alis" + bytes(4) + alias
    place = data.index(b"url \0\0\0\1") - 4
    changed = bytearray(data[:place] + entry + data[place + 12 :])
    for box in (b"moov", b"trak", b"mdia", b"minf", b"dinf", b"dref"):
        start = changed.rindex(box, 0, place) - 4
        size = int.from_bytes(changed[start : start + 4], "big") + len(entry) - 12
        changed[start : start + 4] = size.to_bytes(4, "big")
    path.write_bytes(changed)
    # ffmpeg would open the other file and find other frames there
    options = {"enable_drefs": "1", "use_absolute_path": "1"}
    with pytest.raises(av.FFmpegError), av.open(path, container_options=options) as container:
        list(container.decode(video=0))
    with pytest.raises(ValueError, match=r"a\.mov: its h264 video cannot be decoded \(there is no frame in it\)"):
        video.read(path)


@pytest.mark.parametrize("read", [video.read, read_picture])
def test_special_files_are_rejected_at_once(tmp_path: Path, read) -> None:
    os.mkfifo(tmp_path / "pipe.mp4")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket.mp4"))
        for path in (tmp_path / "pipe.mp4", tmp_path / "socket.mp4", Path("/dev/zero"), Path("/dev/null")):
            with pytest.raises(ValueError, match="not a regular file"):
                read(path)
    with pytest.raises(ValueError, match="this is a folder"):
        read(tmp_path)
    (tmp_path / "loop.mp4").symlink_to(tmp_path / "loop.mp4")
    with pytest.raises(OSError, match=r"loop\.mp4"):
        read(tmp_path / "loop.mp4")
