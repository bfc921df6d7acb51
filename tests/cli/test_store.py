"""`floc ingest`, `floc store`, and `floc ask` with a store."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("lance", reason="Lance is not installed: pip install 'floc-video[store]'")
av = pytest.importorskip("av", reason="PyAV is not installed: pip install 'floc-video[video]'")

import floc  # noqa: E402
from floc.cli import app, ask  # noqa: E402
from tests.archive.builders import add_video, make_piece  # noqa: E402
from tests.archive.films import make_films  # noqa: E402


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [*map(str, arguments)])


@pytest.fixture(scope="module")
def ingested(tmp_path_factory) -> tuple[Path, Path]:
    """A folder of three videos and a text file named as one, and the store they were ingested into."""
    folder = tmp_path_factory.mktemp("commands")
    make_films(folder / "films", 3, seconds=12)
    (folder / "films" / "none.mp4").write_text("not a video")
    done = run(
        "ingest", folder / "films", "--store", folder / "store", "--encoder", "pixels", "--ratio", "1/4", "--json"
    )
    assert done.exit_code == 1, done.stderr  # one failed
    summary = json.loads(done.stdout)
    assert (summary["done"], summary["failed"], summary["videos"]) == (3, 1, 4)
    assert "none.mp4: ValueError" in done.stderr
    assert "3 of 4 ingested" in done.stderr
    return folder / "films", folder / "store"


def test_second_ingest_skips_everything(ingested) -> None:
    films, store = ingested
    done = run(
        "ingest", films / "film000.mkv", "--store", store, "--encoder", "pixels", "--ratio", "0.25", "--workers", 1
    )
    assert done.exit_code == 0, done.stderr
    assert "0 of 1 ingested, 1 in the store already" in done.stderr


def test_list_and_check(ingested) -> None:
    _, store = ingested
    listed = run("store", "list", store)
    assert all(name in listed.stdout for name in ("film000.mkv", "film002.mkv", "none.mp4"))
    videos = json.loads(run("store", "list", store, "--json").stdout)
    assert sorted(video["status"] for video in videos) == ["done", "done", "done", "failed"]
    checked = run("store", "check", store)
    assert checked.exit_code == 0
    assert "3 videos, no problems found" in checked.stderr


def test_list_shows_names_with_brackets(store: floc.Store) -> None:
    video = add_video(store, [make_piece(30)], uri="/films/talk [dqw4w9].mp4")
    failed = replace(video, id="ff", uri="/films/other.mp4", status="failed", error="[mov] no index [/x]", pieces=())
    store.commit([], [failed])
    listed = run("store", "list", store.path)
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
    (best, *_) = json.loads(run("store", "search", store, picture, "-k", 3, "--json").stdout)
    assert best["uri"].endswith("film001.mkv")
    assert best["start_s"] <= 7 < best["end_s"]
    assert "film001.mkv" in run("store", "search", store, picture).stdout


def _write_picture(path: Path, pixels: np.ndarray) -> None:
    with av.open(str(path), "w", format="image2") as output:
        stream = output.add_stream("png", rate=1)
        stream.width, stream.height, stream.pix_fmt = pixels.shape[1], pixels.shape[0], "rgb24"
        output.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
        output.mux(stream.encode())


def test_export_import_index_compact_remove(ingested, tmp_path: Path) -> None:
    _, store = ingested
    file = tmp_path / "film.floc"
    assert run("store", "export", store, "film002.mkv", "-o", file).exit_code == 0
    assert len(floc.load(file)) == len(floc.Store(store).open("film002.mkv"))
    other = tmp_path / "other"
    assert run("store", "import", other, file).exit_code == 0
    assert run("store", "index", other).exit_code == 0
    compacted = run("store", "compact", other)
    assert compacted.exit_code == 0
    assert "removed  0 superseded videos" in compacted.stderr
    assert len(floc.Store(other).videos()) == 1
    assert run("store", "remove", other, floc.Store(other).videos()[0].id).exit_code == 0
    assert floc.Store(other).videos() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("store", "list", "nowhere"), "no store here"),
        (("ingest", "nowhere", "--store", "x"), "no such file or folder"),
        (("ingest", "FILMS", "--store", "x", "--ratio", "3"), "ratio"),
        (("ingest", "FILMS", "--store", "x", "--block", "some"), "--block must be"),
        (("ingest", "FILMS", "--store", "x", "--engine", "spark"), "'spark' is not"),
        (("ask", "STORE", "What?", "--model", "none"), "name one of its videos with --video"),
        (("ask", "STORE", "What?", "--model", "none", "--from", "1:00"), "name the video with --video"),
        (
            ("ask", "STORE", "What?", "--model", "none", "--video", "film000.mkv", "--from", "x"),
            "a time must be seconds",
        ),
        (("ask", "STORE", "What?", "--model", "none", "--video", "film009.mkv"), "no video 'film009.mkv'"),
        (
            ("ask", "STORE", "What?", "--model", "none", "--video", "film000.mkv", "--compare"),
            "--compare needs the video",
        ),
        (("ask", "STORE", "What?", "--model", "none", "--video", "film000.mkv", "--fps", "2"), "already captured"),
    ],
)
def test_rejects_invalid_arguments(
    ingested, tmp_path: Path, monkeypatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    films, store = ingested
    done = run(*({"FILMS": films, "STORE": store}.get(argument, argument) for argument in arguments))
    assert message in f"{done.exception} {done.stderr}"
    assert not (tmp_path / "x" / "videos.lance").exists()


def test_ask_a_sparse_range_uses_what_was_kept(store: floc.Store) -> None:
    """As `Store.open` does: a ratio refers to the whole video."""
    name = add_video(store, [make_piece(100, 0.0, kept=200), make_piece(100, 100.0, kept=2)]).id
    captured = ask._load_captured(store.path, name, "1:40", "3:20", "1/8", None)
    assert len(captured) == 2


def test_ask_a_store_equals_asking_the_video(tmp_path: Path) -> None:
    """An ingest with a model's vision tower stores what `floc ask` captures, and the file is not needed any more."""
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'floc-video[hf]'")
    from tests.integrations.transformers.checkpoints import save

    (film,) = make_films(tmp_path / "films", 1, seconds=12)
    (tmp_path / "model").mkdir()
    model = save("qwen2_5_vl", tmp_path / "model")
    question = ("What is on the table?", "--model", model, "--max-new-tokens", 5, "--json", "--device", "cpu")
    direct = run("ask", film, *question, "--ratio", "1/4", "--fps", 2)
    assert direct.exit_code == 0, direct.stderr
    done = run(
        *("ingest", film, "--store", tmp_path / "store", "--encoder", f"hf:{model}", "--ratio", "1/4", "--fps", 2),
        *("--workers", 1, "--device", "cpu"),
    )
    assert done.exit_code == 0, done.stderr
    film.unlink()
    stored = run("ask", tmp_path / "store", *question, "--video", film.name)
    assert stored.exit_code == 0, stored.stderr
    (expected,), (answer,) = json.loads(direct.stdout), json.loads(stored.stdout)
    assert all(answer[name] == expected[name] for name in ("answer", "tokens", "kept"))
    ranged = run(
        "ask", tmp_path / "store", *question, "--video", film.name, "--from", "0:04", "--to", "8", "--ratio", "1/8"
    )
    assert ranged.exit_code == 0, ranged.stderr
    (part,) = json.loads(ranged.stdout)
    assert part["tokens"] == expected["tokens"] // 3
    assert part["kept"] == round(part["tokens"] / 8)
