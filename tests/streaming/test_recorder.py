"""`floc stream` keeps what `floc.Stream` keeps of the same frames, from any source and after any interruption."""

from __future__ import annotations

import functools
import http.server
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

av = pytest.importorskip("av", reason="video needs PyAV: pip install 'floc-video[video]'")

import floc  # noqa: E402
from floc import (  # noqa: E402
    cli,
    encoders,
    files,
    video,
)
from floc.budget import Budget  # noqa: E402
from floc.encoders.pixels import PixelEncoder  # noqa: E402
from floc.streaming.recorder import StreamRecorder, StreamStatus, open_recorder  # noqa: E402
from floc.video import live  # noqa: E402
from tests.video.conftest import make_film  # noqa: E402

SECONDS = 40  # more than one block of 32 frames


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["floc", "stream", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return int(stopped.value.code or 0)


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_film(tmp_path_factory.mktemp("film") / "a.ts", SECONDS * 4, rate=4, size=(96, 64), options={"g": "8"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "segments").mkdir()
    return tmp_path / "segments"


def run_stream(film: Path, until_s: float = np.inf, *, fps: float = 1, **options: object) -> floc.Kept:
    encoder, stream = encoders.get("pixels"), floc.Stream(**options)
    for batch in video.read(film, fps=fps, max_frames=None, size=encoder.frame_size):
        for pixels, time_s in zip(batch.pixels, batch.times_s, strict=True):
            if time_s < until_s:
                stream.push(encoder(pixels[None]), time_s=[time_s])
    return stream.kept()


def assert_same(path: Path, kept: floc.Kept) -> None:
    written = files.read_kept(path)
    for name in ("indices", "features", "order", "gains", "times_s"):
        np.testing.assert_array_equal(np.asarray(getattr(written, name)), np.asarray(getattr(kept, name)), name)
    assert written.span_s == kept.span_s
    assert written.shape == kept.shape
    assert written.coverage == kept.coverage


@pytest.mark.parametrize("options", [{"budget": 20}, {"ratio": "1/8"}], ids=str)
def test_segments_equal_a_stream(film: Path, folder: Path, options, monkeypatch, capsys) -> None:
    (name, value), *_ = options.items()
    command = (film, f"--{name}", value, "--encoder", "pixels", "--segment", 15, "-o", folder, "--json")
    assert run(monkeypatch, *command) == 0
    said = capsys.readouterr()
    names = [f"segment-00000{i}.safetensors" for i in (0, 1, 2)]
    assert sorted(each.name for each in folder.iterdir()) == ["latest.safetensors", *names]
    for each, until_s in zip(names, (15, 30, 45), strict=True):
        assert_same(folder / each, run_stream(film, until_s, **options))
    assert files.read_kept(folder / names[0]).span_s == (0.0, 14.0)
    assert (folder / "latest.safetensors").read_bytes() == (folder / names[-1]).read_bytes()
    assert json.loads(said.out)["span_s"] == [0.0, SECONDS - 1.0]
    assert json.loads(said.out)["segments"] == [str(folder / each) for each in names]
    assert f"the last is {names[-1]}" in said.err
    with safe_open(folder / names[0], framework="np") as file:
        assert ("represents" in file.keys()) == (name == "ratio")  # noqa: SIM118 - no mapping
        assert json.loads(file.metadata()["floc"])["encoder"] == "pixels"


def test_scene_blocks_and_half_life(film: Path, folder: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    command = (film, "--budget", 20, "--encoder", "pixels", "-o", folder, "--state", tmp_path / "a.state")
    options = ("--block", "scene", "--half-life", 9)
    assert run(monkeypatch, *command, *options) == 0
    assert_same(folder / "latest.safetensors", run_stream(film, budget=20, block="scene", half_life_s=9))
    assert run(monkeypatch, *command, "--block", "scene") == 2
    assert "saved with --half-life 9.0, and cannot resume with no --half-life" in capsys.readouterr().err
    assert run(monkeypatch, *command, "--half-life", 9) == 2
    assert "saved with --block scene, and cannot resume with --block 32" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [("--budget", 20), ("--ratio", "1/8"), ("--ratio", "1/8", "--block", "scene")], ids=str
)
def test_stopped_and_resumed_equals_one_run(film: Path, tmp_path: Path, options, monkeypatch, capsys) -> None:
    folders = [tmp_path / "once", tmp_path / "twice"]
    for each in folders:
        each.mkdir()
    command = (film, *options, "--encoder", "pixels", "--fps", 2)
    assert run(monkeypatch, *command, "-o", folders[0]) == 0
    twice = (*command, "-o", folders[1], "--state", tmp_path / "a.state")
    assert run(monkeypatch, *twice, "--seconds", 17) == 0
    assert files.read_kept(folders[1] / "latest.safetensors").span_s == (0.0, 16.5)
    assert "resuming" not in capsys.readouterr().err
    assert run(monkeypatch, *twice) == 0
    assert "resuming" in (said := capsys.readouterr().err)
    assert "34 frames until 0:16" in said
    one, two = (files.read_kept(each / "latest.safetensors") for each in folders)
    np.testing.assert_array_equal(one.indices, two.indices)
    np.testing.assert_array_equal(one.features, two.features)
    assert one.span_s == two.span_s == (0.0, SECONDS - 0.5)
    assert sorted(each.name for each in folders[1].glob("seg*")) == [f"segment-00000{i}.safetensors" for i in (0, 1)]
    assert run(monkeypatch, *twice) == 0
    assert "no new frame; nothing was written" in capsys.readouterr().err


def test_resume_with_a_default_given_or_not(film: Path, folder: Path, monkeypatch, capsys) -> None:
    command = (film, "--encoder", "pixels", "-o", folder, "--state", folder.with_name("a.state"))
    assert run(monkeypatch, *command, "--ratio", "1/8", "--seconds", 5) == 0
    assert run(monkeypatch, *command, "--ratio", "0.125", "--horizon", 4) == 0
    assert "resuming" in capsys.readouterr().err


def test_another_file_continues_where_the_first_ended(film: Path, folder: Path, monkeypatch) -> None:
    again = folder.with_name("b.ts")
    again.write_bytes(film.read_bytes())
    options = ("--budget", 20, "--encoder", "pixels", "-o", folder, "--state", folder.with_name("a.state"))
    assert run(monkeypatch, film, *options) == 0
    assert run(monkeypatch, again, *options) == 0
    kept = files.read_kept(folder / "latest.safetensors")
    assert kept.span_s == (0.0, 2 * SECONDS - 1.0)
    assert kept.shape[0] == 2 * SECONDS


def test_a_stop_does_not_split_groups_of_frames(film: Path, tmp_path: Path) -> None:
    class Pairs(PixelEncoder):
        frames_per_token = 2

        def __call__(self, pixels: np.ndarray) -> np.ndarray:
            tokens = super().__call__(pixels)
            return (tokens[::2] + tokens[1::2]) / 2

    pairs = Pairs("pairs")
    for name, stops in (("once", [1e9]), ("twice", [7, 1e9])):
        for seconds in stops:
            (tmp_path / name).mkdir(exist_ok=True)
            state = tmp_path / f"{name}.state"
            recorder = open_recorder(
                str(film), pairs, Budget.parse(None, 20, None), folder=tmp_path / name, state=state
            )
            recorder.run(seconds=seconds)
    one, two = (files.read_kept(tmp_path / name / "latest.safetensors") for name in ("once", "twice"))
    assert one.shape[0] == SECONDS // 2
    np.testing.assert_array_equal(one.features, two.features)
    np.testing.assert_array_equal(one.times_s, two.times_s)


def test_power_failure_writes_no_segment_twice(film: Path, tmp_path: Path) -> None:
    def open_named(name: str) -> StreamRecorder:
        (tmp_path / name).mkdir(exist_ok=True)
        places = {"folder": tmp_path / name, "state": tmp_path / f"{name}.state"}
        return open_recorder(str(film), encoders.get("pixels"), Budget.parse(None, 20, None), segment_s=10, **places)

    def fail(status: StreamStatus) -> None:
        if status.time_s == 27:
            raise OSError("power")

    open_named("once").run()
    with pytest.raises(OSError, match="power"):
        open_named("twice").run(show=fail)
    open_named("twice").run()
    once, twice = (sorted((tmp_path / name).iterdir()) for name in ("once", "twice"))
    assert [each.name for each in once] == [each.name for each in twice]
    for one, two in zip(once, twice, strict=True):
        assert_same(two, files.read_kept(one))


@pytest.mark.parametrize("failing", [1, 2])
def test_power_failure_between_a_segment_and_its_state(
    film: Path, tmp_path: Path, failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for the first segment, before which there is no state to resume from."""

    def open_named(name: str) -> StreamRecorder:
        (tmp_path / name).mkdir(exist_ok=True)
        places = {"folder": tmp_path / name, "state": tmp_path / f"{name}.state"}
        return open_recorder(str(film), encoders.get("pixels"), Budget.parse(None, 20, None), segment_s=10, **places)

    save = floc.Stream.save

    def fail(stream: floc.Stream, path: Path) -> None:
        if stream.note["segments"] == failing:
            raise OSError("power")
        save(stream, path)

    open_named("once").run()
    with monkeypatch.context() as without_power:
        without_power.setattr(floc.Stream, "save", fail)
        with pytest.raises(OSError, match="power"):
            open_named("twice").run()
    assert (tmp_path / "twice" / f"segment-00000{failing - 1}.safetensors").exists()
    open_named("twice").run()
    once, twice = (sorted((tmp_path / name).iterdir()) for name in ("once", "twice"))
    assert [each.name for each in once] == [each.name for each in twice]
    for one, two in zip(once, twice, strict=True):
        assert_same(two, files.read_kept(one))


@pytest.fixture
def growing(film: Path, tmp_path: Path) -> Iterator[Path]:
    """A file that grows a little at a time, from nothing."""
    path, data = tmp_path / "growing.ts", film.read_bytes()
    path.touch()

    def write() -> None:
        with path.open("ab", buffering=0) as file:
            for start in range(0, len(data), part := len(data) // 6):
                time.sleep(0.25)
                file.write(data[start : start + part])

    writer = threading.Thread(target=write)
    writer.start()
    yield path
    writer.join()


def test_follow_reads_a_growing_file(growing: Path, film: Path, folder: Path, monkeypatch) -> None:
    command = (growing, "--follow", "--patience", 1.5, "--budget", 20, "--encoder", "pixels", "-o", folder)
    assert run(monkeypatch, *command) == 0
    assert_same(folder / "latest.safetensors", run_stream(film, budget=20))


def test_damaged_part_is_skipped_with_a_warning(film: Path, folder: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    data = bytearray(film.read_bytes())
    middle = len(data) // 2 // 188 * 188
    noise = np.random.default_rng(0).integers(0, 256, (60, 184), np.uint8)
    for i, each in enumerate(noise):  # the headers stay, so that packets are found and decoding fails
        data[middle + i * 188 + 4 : middle + (i + 1) * 188] = each.tobytes()
    damaged = tmp_path / "damaged.ts"
    damaged.write_bytes(data)
    command = (damaged, "--follow", "--patience", 0.2, "--budget", 20, "--encoder", "pixels", "-o", folder)
    assert run(monkeypatch, *command, "--segment", 30) == 0
    said = capsys.readouterr().err
    assert said.index("damaged and skipped so far") < said.index("segment-000000"), "the warning comes when it happens"
    kept = files.read_kept(folder / "latest.safetensors")
    assert kept.span_s == (0.0, SECONDS - 1.0)
    assert kept.shape[0] <= SECONDS


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_writes_the_last_segment(film: Path, folder: Path, tmp_path: Path, number) -> None:
    state = tmp_path / "a.state"
    options = ["--follow", "--patience", "60", "--budget", "20", "--encoder", "pixels", "--segment", "10"]
    command = [sys.executable, "-m", "floc", "stream", str(film), *options, "-o", str(folder), "--state", str(state)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ})
    try:
        for _ in range(600):
            if (folder / "segment-000002.safetensors").exists() or process.poll() is not None:
                break
            time.sleep(0.1)
        time.sleep(3)  # a few more frames
        process.send_signal(number)
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert f"and the state {state}" in said
    latest = files.read_kept(folder / "latest.safetensors")
    assert latest.span_s is not None
    assert latest.span_s[1] > 30
    assert floc.Stream.load(state).frames == latest.shape[0]


@pytest.fixture
def served(film: Path, monkeypatch) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            pass

    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    handler = functools.partial(Quiet, directory=str(film.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}/{film.name}"
        server.shutdown()


def test_reads_an_address_and_stores_no_password(
    served: str, film: Path, folder: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    state = tmp_path / "a.state"
    address = f"http://user:secret@{served}?token=secret"
    command = (address, "--budget", 20, "--encoder", "pixels", "-o", folder, "--state", state)
    assert run(monkeypatch, *command) == 0
    assert_same(folder / "latest.safetensors", run_stream(film, budget=20))
    said = capsys.readouterr()
    assert "secret" not in said.out + said.err
    for each in (state, folder / "latest.safetensors"):
        assert b"secret" not in each.read_bytes()
        assert served.encode() in each.read_bytes()


@pytest.mark.parametrize("answers", [True, False])
def test_a_silent_address_ends_the_recording(film: Path, folder: Path, answers: bool, monkeypatch, capsys) -> None:
    monkeypatch.setattr(live, "TIMEOUT_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            caller, _ = server.accept()
            with caller:
                if answers:
                    caller.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + film.read_bytes())
                while caller.recv(4096):  # until the other side disconnects
                    pass

        thread = threading.Thread(target=answer)
        thread.start()
        address = f"http://127.0.0.1:{server.getsockname()[1]}/a.ts"
        status = run(monkeypatch, address, "--budget", 20, "--encoder", "pixels", "-o", folder)
        thread.join()
    assert "(no answer in 1 s)" in capsys.readouterr().err
    assert status == (0 if answers else 2)
    if answers:
        assert_same(folder / "latest.safetensors", run_stream(film, budget=20))


def test_devices_and_addresses_are_opened_with_their_options() -> None:
    camera = live.build_open_options("/dev/video2")
    assert (camera["file"], camera["format"]) == ("/dev/video2", "v4l2")
    rtsp = live.build_open_options("rtsp://user:secret@10.0.0.7/main")
    assert rtsp["file"] == "rtsp://user:secret@10.0.0.7/main"
    assert rtsp["container_options"]["rtsp_transport"] == "tcp"
    web = live.build_open_options("https://example.org/live.m3u8")
    assert "rtsp_transport" not in web["container_options"]
    for each in (camera, rtsp, web):
        assert each["timeout"] == (10.0, 10.0)
    for each in (rtsp, web):
        assert "file" not in each["container_options"]["protocol_whitelist"].split(",")
    with pytest.raises(ValueError, match=r"unknown address 'gopher'.*rtsp"):
        live.build_open_options("gopher://camera")


def test_errors_are_one_line_and_write_nothing(film: Path, folder: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    budget = ("--budget", 20, "--encoder", "pixels")
    for arguments, says in [
        ((film,), "give --ratio or --budget"),
        ((film, *budget, "--ratio", "1/8"), "give --ratio or --budget, only one of them"),
        ((film, "--budget", 0), "budget must be a whole number of tokens, at least 1"),
        ((film, "--ratio", "3"), "ratio must be in (0, 1]"),
        ((film, *budget, "--segment", 0), "--segment must be a number of seconds, 0.001 to 1e+09; got 0"),
        ((film, *budget, "--seconds", -1), "--seconds must be"),
        ((film, *budget, "--fps", "fast"), "--fps must be a number"),
        ((film, *budget, "--fps", 0), "fps must be a number above 0"),
        ((film, *budget, "-o", film), "is a file; name a folder"),
        ((film, *budget, "--state", film), "would overwrite the input"),
        ((film, "--budget", 20, "--encoder", "pixel"), "did you mean 'pixels'?"),
        (("nothing.mp4", *budget), "nothing.mp4: no such file"),
        (("/dev/video77", *budget), "/dev/video77: no such device; list the devices with ls /dev/video*"),
        (("/dev/null", *budget), "/dev/null: cannot be opened ("),
        (("rtsp://u:secret@127.0.0.1:9/a", *budget), "rtsp://127.0.0.1:9/a: cannot be opened (Connection refused)"),
        (("http://127.0.0.1:9/a", *budget), "http://127.0.0.1:9/a: cannot be opened (Connection refused)"),
        (("http://127.0.0.1:9/a", *budget, "--follow"), "--follow is for files"),
    ]:
        assert run(monkeypatch, *arguments) == 2, arguments
        said = capsys.readouterr().err
        assert says in said, arguments
        assert len(said.strip().splitlines()) == 1, said
        assert "secret" not in said
    assert sorted(tmp_path.iterdir()) == before


def test_files_of_another_stream_are_not_touched(film: Path, folder: Path, monkeypatch, capsys) -> None:
    state = folder.with_name("a.state")
    command = (film, "--encoder", "pixels", "-o", folder)
    assert run(monkeypatch, *command, "--budget", 20, "--state", state, "--seconds", 3) == 0
    before = {each: each.read_bytes() for each in (state, *folder.iterdir())}
    assert run(monkeypatch, *command, "--budget", 20) == 2
    assert "has segments already, such as segment-000000.safetensors" in capsys.readouterr().err
    assert run(monkeypatch, *command, "--budget", 20, "--state", folder.with_name("none")) == 2
    assert "none, the state to resume from, does not exist" in capsys.readouterr().err
    assert run(monkeypatch, *command, "--budget", 30, "--state", state) == 2
    assert "saved with --budget 20, and cannot resume with --budget 30" in capsys.readouterr().err
    foreign = folder.with_name("b.state")
    floc.Stream(budget=20).save(foreign)
    assert run(monkeypatch, *command, "--budget", 20, "--state", foreign) == 2
    assert "a stream that `floc stream` did not save" in capsys.readouterr().err
    assert {each: each.read_bytes() for each in (state, *folder.iterdir())} == before


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("encoder", 3),
        ("source", None),
        ("segments", -1),
        ("segments", 0.5),
        ("segments", 10**30),
        ("first_segment", "x"),
        ("start_s", math.inf),
        ("start_s", [0]),
        ("read_s", "x"),
        ("read_s", 1.5),  # before the last frame
        ("read_s", math.nan),
    ],
)
def test_a_changed_note_is_refused(film: Path, tmp_path: Path, name: str, value: object) -> None:
    state, options = tmp_path / "a.state", {"folder": tmp_path / "segments", "state": tmp_path / "a.state"}
    arguments = str(film), encoders.get("pixels"), Budget.parse(None, 20, None)
    open_recorder(*arguments, **options).run(seconds=3)
    stream = floc.Stream.load(state)
    stream.note[name] = value
    stream.save(state)
    with pytest.raises(ValueError, match=f"that `floc stream` did not save .note.{name} must be"):
        open_recorder(*arguments, **options)


@pytest.mark.parametrize("segment_s", [0, -1, 1e-310, 0.0009, math.nan])
def test_segments_have_a_minimum_length(film: Path, tmp_path: Path, segment_s: float) -> None:
    with pytest.raises(ValueError, match=r"a segment must have at least 0.001 seconds"):
        open_recorder(
            str(film), encoders.get("pixels"), Budget.parse(None, 20, None), folder=tmp_path, segment_s=segment_s
        )


def test_a_full_disk_leaves_earlier_files_and_the_next_run_continues(film: Path, tmp_path: Path, monkeypatch) -> None:
    def open_named(name: str) -> StreamRecorder:
        places = {"folder": tmp_path / name, "state": tmp_path / f"{name}.state"}
        return open_recorder(str(film), encoders.get("pixels"), Budget.parse(None, 20, None), segment_s=10, **places)

    import safetensors.torch

    save, saved = safetensors.torch.save_file, []

    def fill_disk(*arguments: object) -> None:
        saved.append(arguments)
        if len(saved) > 6:
            raise safetensors.SafetensorError("Error: I/O error: No space left on device (os error 28)")
        save(*arguments)

    open_named("once").run()
    with monkeypatch.context() as full:
        full.setattr(safetensors.torch, "save_file", fill_disk)
        with pytest.raises(OSError, match=r"cannot be written .No space left on device.; free space and run again"):
            open_named("twice").run()
    for path in (tmp_path / "twice").iterdir():
        files.read_kept(path)
    assert floc.Stream.load(tmp_path / "twice.state").note["segments"] > 0
    open_named("twice").run()
    once, twice = (sorted((tmp_path / name).iterdir()) for name in ("once", "twice"))
    assert [path.name for path in once] == [path.name for path in twice]
    for one, two in zip(once, twice, strict=True):
        assert_same(two, files.read_kept(one))


def test_default_folder_is_created(film: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, film, "--ratio", "1/8", "--encoder", "pixels", "--seconds", 2) == 0
    assert files.read_kept(tmp_path / "floc-stream" / "latest.safetensors").shape[0] == 2


def test_help_has_examples(monkeypatch, capsys) -> None:
    assert run(monkeypatch, "--help") == 0
    said = capsys.readouterr().out
    assert "floc stream rtsp://" in said
    assert "floc stream recording.ts --follow" in said
