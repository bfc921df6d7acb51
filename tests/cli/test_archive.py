"""`floc ingest`, `floc store`, and `floc ask` of a store, from the command line."""

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
from floc.cli import app  # noqa: E402
from tests.archive.films import make_films  # noqa: E402
from tests.archive.making import piece, put  # noqa: E402


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [*map(str, arguments)])


@pytest.fixture(scope="module")
def taken(tmp_path_factory) -> tuple[Path, Path]:
    """A folder of three films and a text that calls itself one, and the store they were taken into."""
    folder = tmp_path_factory.mktemp("commands")
    make_films(folder / "films", 3, seconds=12)
    (folder / "films" / "none.mp4").write_text("no film")
    done = run(
        "ingest", folder / "films", "--store", folder / "store", "--encoder", "pixels", "--ratio", "1/4", "--json"
    )
    assert done.exit_code == 1, done.stderr  # one failed
    told = json.loads(done.stdout)
    assert (told["done"], told["failed"], told["videos"]) == (3, 1, 4)
    assert "none.mp4: ValueError" in done.stderr
    assert "3 of 4 taken in" in done.stderr
    return folder / "films", folder / "store"


def test_a_second_ingest_has_nothing_to_do(taken) -> None:
    films, store = taken
    done = run(
        "ingest", films / "film000.mkv", "--store", store, "--encoder", "pixels", "--ratio", "0.25", "--workers", 1
    )
    assert done.exit_code == 0, done.stderr
    assert "0 of 1 taken in, 1 there already" in done.stderr


def test_list_check_and_what_is_in_it(taken) -> None:
    _, store = taken
    listed = run("store", "list", store)
    assert all(name in listed.stdout for name in ("film000.mkv", "film002.mkv", "none.mp4"))
    videos = json.loads(run("store", "list", store, "--json").stdout)
    assert sorted(each["status"] for each in videos) == ["done", "done", "done", "failed"]
    checked = run("store", "check", store)
    assert checked.exit_code == 0
    assert "3 videos" in checked.stderr


def test_names_with_brackets_are_listed_as_they_are(store: floc.Store) -> None:
    found = put(store, [piece(30)], uri="/films/talk [dqw4w9].mp4")
    failed = replace(found, id="ff", uri="/films/other.mp4", status="failed", error="[mov] no index [/x]", pieces=())
    store.commit([], [failed])
    listed = run("store", "list", store.path)
    assert listed.exit_code == 0, listed.exception
    shown = " ".join(listed.stdout.split())
    assert "[dqw4w9]" in shown
    assert "[mov]" in shown


def test_a_frame_is_found_where_it_is_shown(taken, tmp_path: Path) -> None:
    films, store = taken
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


def test_export_import_remove_compact_index(taken, tmp_path: Path) -> None:
    _, store = taken
    file = tmp_path / "film.floc"
    assert run("store", "export", store, "film002.mkv", "-o", file).exit_code == 0
    assert len(floc.load(file)) == len(floc.Store(store).open("film002.mkv"))
    other = tmp_path / "other"
    assert run("store", "import", other, file).exit_code == 0
    assert run("store", "index", other).exit_code == 0
    assert run("store", "compact", other).exit_code == 0
    assert len(floc.Store(other).videos()) == 1
    assert run("store", "remove", other, floc.Store(other).videos()[0].id).exit_code == 0
    assert floc.Store(other).videos() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("store", "list", "nowhere"), "there is no store here"),
        (("ingest", "nowhere", "--store", "x"), "no such file or folder"),
        (("ingest", "FILMS", "--store", "x", "--ratio", "3"), "ratio"),
        (("ingest", "FILMS", "--store", "x", "--block", "some"), "--block must be"),
        (("ingest", "FILMS", "--store", "x", "--engine", "spark"), "engine must be"),
        (("ask", "STORE", "What?", "--model", "none"), "name one of its videos with --video"),
        (("ask", "STORE", "What?", "--model", "none", "--from", "1:00"), "name it with --video"),
        (
            ("ask", "STORE", "What?", "--model", "none", "--video", "film000.mkv", "--from", "x"),
            "a time must be seconds",
        ),
        (("ask", "STORE", "What?", "--model", "none", "--video", "film009.mkv"), "no video 'film009.mkv'"),
        (
            ("ask", "STORE", "What?", "--model", "none", "--video", "film000.mkv", "--compare"),
            "--compare needs the video",
        ),
        (("ask", "STORE", "What?", "--model", "none", "--video", "film000.mkv", "--fps", "2"), "captured already"),
    ],
)
def test_what_cannot_be(taken, tmp_path: Path, monkeypatch, arguments: tuple[str, ...], message: str) -> None:
    monkeypatch.chdir(tmp_path)
    films, store = taken
    done = run(*(str(films) if each == "FILMS" else str(store) if each == "STORE" else each for each in arguments))
    assert message in str(done.exception)
    assert not (tmp_path / "x" / "videos.lance").exists()


def test_a_quiet_stretch_is_asked_with_what_it_has(store: floc.Store) -> None:
    """As `Store.open` has it: a ratio is of the whole video."""
    name = put(store, [piece(100, 0.0, kept=200), piece(100, 100.0, kept=2)]).id
    asked = floc.cli.ask._kept(store.path, name, "1:40", "3:20", "1/8", None)
    assert len(asked) == 2


def test_a_store_answers_as_the_video_does(tmp_path: Path) -> None:
    """What is ingested with a model's tower is what `floc ask` would have captured, and replayed without the film."""
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'floc-video[hf]'")
    from tests.integrations.transformers.checkpoints import save

    (film,) = make_films(tmp_path / "films", 1, seconds=12)
    (tmp_path / "model").mkdir()
    model = save("qwen2_5_vl", tmp_path / "model")
    asked = ("What is on the table?", "--model", model, "--max-new-tokens", 5, "--json", "--device", "cpu")
    direct = run("ask", film, *asked, "--ratio", "1/4", "--fps", 2)
    assert direct.exit_code == 0, direct.stderr
    done = run(
        *("ingest", film, "--store", tmp_path / "store", "--encoder", f"hf:{model}", "--ratio", "1/4", "--fps", 2),
        *("--workers", 1, "--device", "cpu"),
    )
    assert done.exit_code == 0, done.stderr
    film.unlink()
    stored = run("ask", tmp_path / "store", *asked, "--video", film.name)
    assert stored.exit_code == 0, stored.stderr
    (want,), (got,) = json.loads(direct.stdout), json.loads(stored.stdout)
    assert [got[name] for name in ("answer", "tokens", "kept")] == [want[name] for name in ("answer", "tokens", "kept")]
    stretch = run(
        "ask", tmp_path / "store", *asked, "--video", film.name, "--from", "0:04", "--to", "8", "--ratio", "1/8"
    )
    assert stretch.exit_code == 0, stretch.stderr
    (few,) = json.loads(stretch.stdout)
    assert few["tokens"] == want["tokens"] // 3
    assert few["kept"] == round(few["tokens"] / 8)
