"""`floc store`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("lance", reason="Lance is not installed: pip install 'floc-video[store]'")
av = pytest.importorskip("av", reason="PyAV is not installed: pip install 'floc-video[video]'")

import floc  # noqa: E402
from tests.archive.builders import add_video, make_piece  # noqa: E402
from tests.cli.helpers import invoke  # noqa: E402


def test_list_and_check(ingested) -> None:
    _, store = ingested
    listed = invoke("store", "list", store)
    assert all(name in listed.stdout for name in ("film000.mkv", "film002.mkv", "none.mp4"))
    videos = json.loads(invoke("store", "list", store, "--json").stdout)
    assert sorted(video["status"] for video in videos) == ["done", "done", "done", "failed"]
    checked = invoke("store", "check", store)
    assert checked.exit_code == 0
    assert "3 videos, no problems found" in checked.stderr


def test_list_shows_names_with_brackets(store: floc.Store) -> None:
    video = add_video(store, [make_piece(30)], uri="/films/talk [dqw4w9].mp4")
    failed = replace(video, id="ff", uri="/films/other.mp4", status="failed", error="[mov] no index [/x]", pieces=())
    store.commit([], [failed])
    listed = invoke("store", "list", store.path)
    assert listed.exit_code == 0, listed.exception
    shown = " ".join(listed.stdout.split())
    assert "[dqw4w9]" in shown
    assert "[mov]" in shown


def test_search_finds_a_frame(ingested, tmp_path: Path) -> None:
    films, store = ingested
    with av.open(str(films / "film001.mkv")) as film:
        frames = [frame.to_ndarray(format="rgb24") for frame in film.decode(video=0)]
    picture = tmp_path / "frame.png"
    _write_picture(picture, frames[2 * 7])  # two frames a second
    (best, *_) = json.loads(invoke("store", "search", store, picture, "-k", 3, "--json").stdout)
    assert best["uri"].endswith("film001.mkv")
    assert best["start_s"] <= 7 < best["end_s"]
    assert "film001.mkv" in invoke("store", "search", store, picture).stdout


def _write_picture(path: Path, pixels: np.ndarray) -> None:
    with av.open(str(path), "w", format="image2") as output:
        stream = output.add_stream("png", rate=1)
        stream.width, stream.height, stream.pix_fmt = pixels.shape[1], pixels.shape[0], "rgb24"
        output.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
        output.mux(stream.encode())


def test_export_import_index_compact_remove(ingested, tmp_path: Path) -> None:
    _, store = ingested
    file = tmp_path / "film.floc"
    assert invoke("store", "export", store, "film002.mkv", "-o", file).exit_code == 0
    assert len(floc.load(file)) == len(floc.Store(store).open("film002.mkv"))
    other = tmp_path / "other"
    assert invoke("store", "import", other, file).exit_code == 0
    assert invoke("store", "index", other).exit_code == 0
    compacted = invoke("store", "compact", other)
    assert compacted.exit_code == 0
    assert "removed  0 superseded videos" in compacted.stderr
    assert len(floc.Store(other).videos()) == 1
    assert invoke("store", "remove", other, floc.Store(other).videos()[0].id).exit_code == 0
    assert floc.Store(other).videos() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("store", "list", "nowhere"), "no store here"),
    ],
)
def test_rejects_invalid_arguments(
    ingested, tmp_path: Path, monkeypatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    films, store = ingested
    done = invoke(*({"FILMS": films, "STORE": store}.get(argument, argument) for argument in arguments))
    assert message in f"{done.exception} {done.stderr}"
    assert not (tmp_path / "x" / "videos.lance").exists()
