"""`floc ingest`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.helpers import invoke


def test_second_ingest_skips_everything(ingested) -> None:
    films, store = ingested
    done = invoke(
        "ingest", films / "film000.mkv", "--store", store, "--encoder", "pixels", "--ratio", "0.25", "--workers", 1
    )
    assert done.exit_code == 0, done.stderr
    assert "0 of 1 ingested, 1 in the store already" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ingest", "nowhere", "--store", "x"), "no such file or folder"),
        (("ingest", "FILMS", "--store", "x", "--ratio", "3"), "ratio"),
        (("ingest", "FILMS", "--store", "x", "--block", "some"), "--block must be"),
        (("ingest", "FILMS", "--store", "x", "--engine", "spark"), "'spark' is not"),
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
