"""Live sources: short and growing files, addresses, devices; secrets and interrupts."""

from __future__ import annotations

import http.server
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

av = pytest.importorskip("av", reason="PyAV is not installed: pip install 'floc-video[video]'")

from floc.video import live  # noqa: E402
from tests.video.conftest import number_on  # noqa: E402


def read_numbers(source: Path | str, **options: object) -> list[int]:
    options = {"fps": None, "size": lambda width, height: (width, height), **options}
    frames = list(live.read_frames(str(source), **options))
    times = [time_s for _, time_s in frames]
    assert times == sorted(set(times))
    return [number_on(pixels) for pixels, _ in frames]


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 40])
@pytest.mark.parametrize("name", ["a.ts", "a.mkv"])
def test_follow_reads_short_files(film, name: str, count: int) -> None:
    """The first 16 frames are read twice: to probe the stream, and to return them."""
    assert read_numbers(film(name, count), follow=True, patience_s=0.1) == list(range(count))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(tmp_path))

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("count", [1, 16, 17])
def test_reads_short_addresses(film, served: str, count: int) -> None:
    film("a.ts", count)
    assert read_numbers(f"{served}/a.ts") == list(range(count))


@pytest.mark.parametrize("kind", ["served", "absolute", "relative", "file"])
def test_a_remote_playlist_reads_no_local_file(film, served: str, tmp_path: Path, kind: str) -> None:
    other = film("other.ts", 20)
    target = {"served": "other.ts", "absolute": str(other), "relative": f"..{other}", "file": f"file://{other}"}[kind]
    head = "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXT-X-MEDIA-SEQUENCE:0\n"
    (tmp_path / "list.m3u8").write_text(f"{head}#EXTINF:2.0,\n{target}\n#EXT-X-ENDLIST\n")
    if kind == "served":
        assert read_numbers(f"{served}/list.m3u8") == list(range(20))
    else:
        with pytest.raises((OSError, ValueError), match=r"^http://127.0.0.1:\d+/list.m3u8: "):
            read_numbers(f"{served}/list.m3u8")


@pytest.mark.parametrize(
    "text",
    ["#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2.0,\n{}\n#EXT-X-ENDLIST\n", "ffconcat version 1.0\nfile '{}'\n"],
)
def test_followed_lists_are_rejected(film, tmp_path: Path, text: str) -> None:
    (tmp_path / "list.ts").write_text(text.format(film("other.ts", 20)))
    with pytest.raises(OSError, match=r"list\.ts: cannot be opened"):
        read_numbers(tmp_path / "list.ts", follow=True, patience_s=0.1)


@pytest.mark.parametrize("follow", [False, True])
def test_special_files_are_rejected_at_once(tmp_path: Path, follow: bool) -> None:
    os.mkfifo(tmp_path / "pipe.ts")
    with pytest.raises(ValueError, match="not a regular file"):
        read_numbers(tmp_path / "pipe.ts", follow=follow)
    with pytest.raises(ValueError, match="this is a folder"):
        read_numbers(tmp_path, follow=follow)
    with pytest.raises((OSError, ValueError), match="/dev/zero: "):
        read_numbers("/dev/zero", follow=follow)


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("rtsp://admin:secret@10.0.0.7:554/main?token=secret", "rtsp://10.0.0.7:554/main"),
        ("RTSP://admin:secret@cam/main", "rtsp://cam/main"),
        ("rtsp://admin:sec@ret@cam/main", "rtsp://cam/main"),
        ("rtsp://admin:sec/ret@cam/main", "rtsp://cam/main"),
        ("rtsp://admin:sec?ret@cam/main", "rtsp://cam/main"),
        ("rtsp://admin:sec#ret@cam/main", "rtsp://cam/main"),
        ("rtsp://admin:sec@re/ret@cam/main", "rtsp://cam/main"),
        ("rtsp://secret@[fe80::1]:554/main", "rtsp://[fe80::1]:554/main"),
        ("rtsp://[fe80::1]:554/main", "rtsp://[fe80::1]:554/main"),
        ("rtsp://[fe80::1/main", "rtsp://[fe80::1/main"),
        ("rtsp://cam:554/user=admin_password=secret_channel=1.sdp", "rtsp://cam:554/user=admin_password=***"),
        ("s3://KEY:secret@bucket/a.mp4?versionId=secret", "s3://bucket/a.mp4"),
        ("https://a.org/v.mp4?X-Amz-Signature=secret&mail=a@b.org", "https://a.org/v.mp4"),
        ("https://u:secret@a.org:80/v.mp4?mail=a@b.org#secret", "https://a.org:80/v.mp4"),
        ("https://a.org/@user/v.mp4", "https://a.org/@user/v.mp4"),
        ("talk@home?.mp4", "talk@home?.mp4"),
    ],
)
def test_secrets_are_removed(source: str, shown: str) -> None:
    assert live.redact_source(source) == shown
    assert "secret" not in shown
    if "://" in source:
        with pytest.raises(ValueError) as caught:
            read_numbers(source, follow=True)
        assert "sec" not in str(caught.value)


def test_errors_hide_secrets(served: str) -> None:
    address = served.replace("://", "://admin:sec@ret@")
    with pytest.raises(OSError, match="cannot be opened") as caught:
        read_numbers(f"{address}/missing.ts?token=secret")
    assert "sec" not in str(caught.value)


@pytest.mark.parametrize("delay_s", [0.05, 0.5])
def test_interrupt_while_waiting_for_a_file_to_grow(film, delay_s: float) -> None:
    """ffmpeg calls a Python function to read, and would ignore an exception in it."""
    path = film("a.ts", 20)
    descriptors = len(os.listdir("/proc/self/fd"))
    timer = threading.Timer(delay_s, signal.raise_signal, [signal.SIGINT])
    timer.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        read_numbers(path, follow=True, patience_s=30)
    assert time.monotonic() - start < 5
    timer.join()
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_a_source_without_frames_ends(tmp_path: Path) -> None:
    """A source that sends data which cannot be decoded must not be read for ever."""
    (tmp_path / "noise.ts").write_bytes(b"\x47" + bytes(187 * 500))
    with pytest.raises((OSError, ValueError), match=r"noise\.ts: "):
        read_numbers(tmp_path / "noise.ts", follow=True, patience_s=0.1)
