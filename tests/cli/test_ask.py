"""`floc ask` with a store; tests/integrations/transformers/test_ask.py asks videos and files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("lance", reason="Lance is not installed: pip install 'floc-video[store]'")

import floc
from floc.cli import ask
from tests.archive.builders import add_video, make_piece
from tests.archive.films import make_films
from tests.cli.helpers import invoke

TINY = Path(__file__).parents[2] / "examples" / "tiny_video_model" / "checkpoint"


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
    direct = invoke("ask", film, *question, "--ratio", "1/4", "--fps", 2)
    assert direct.exit_code == 0, direct.stderr
    done = invoke(
        *("ingest", film, "--store", tmp_path / "store", "--encoder", f"hf:{model}", "--ratio", "1/4", "--fps", 2),
        *("--workers", 1, "--device", "cpu"),
    )
    assert done.exit_code == 0, done.stderr
    film.unlink()
    stored = invoke("ask", tmp_path / "store", *question, "--video", film.name)
    assert stored.exit_code == 0, stored.stderr
    (expected,), (answer,) = json.loads(direct.stdout), json.loads(stored.stdout)
    assert all(answer[name] == expected[name] for name in ("answer", "tokens", "kept"))
    ranged = invoke(
        "ask", tmp_path / "store", *question, "--video", film.name, "--from", "0:04", "--to", "8", "--ratio", "1/8"
    )
    assert ranged.exit_code == 0, ranged.stderr
    (part,) = json.loads(ranged.stdout)
    assert part["tokens"] == expected["tokens"] // 3
    assert part["kept"] == round(part["tokens"] / 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ask", "STORE", "What?", "--model", "none"), "name one of its videos with --video"),
        (("ask", "STORE", "What?", "--model", "none", "--from", "1:00"), "name the video with --video"),
        (
            ("ask", "STORE", "What?", "--model", "none", "--video", "film000.mkv", "--from", "x"),
            "a time must be seconds",
        ),
        (("ask", "STORE", "What?", "--model", "none", "--video", "film009.mkv"), "no video 'film009.mkv'"),
        (
            ("ask", "STORE", "What?", "--model", "none", "--video", "film000.mkv", "--compare"),
            "--compare is for videos",
        ),
        (("ask", "STORE", "What?", "--model", "none", "--video", "film000.mkv", "--fps", "2"), "already captured"),
        (
            ("ask", "STORE", "What?", "--model", "TINY", "--video", "film000.mkv"),
            "of the encoder 'pixels', which no model",
        ),
    ],
)
def test_rejects_invalid_arguments(
    ingested, tmp_path: Path, monkeypatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    films, store = ingested
    done = invoke(*({"FILMS": films, "STORE": store, "TINY": TINY}.get(argument, argument) for argument in arguments))
    assert message in f"{done.exception} {done.stderr}"
    assert not (tmp_path / "x" / "videos.lance").exists()
