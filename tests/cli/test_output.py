"""What commands print."""

from __future__ import annotations

from floc.cli import output


def test_progress_is_printed_as_lines_without_a_terminal(monkeypatch, capsys) -> None:
    monkeypatch.setattr(output, "LINE_EVERY_S", 0.0)
    with output.show_progress("reading talk.mp4") as update:
        update(0.25)
        update(0.5, "encoding talk.mp4")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("reading talk.mp4: 25%, about")
    assert lines[1].startswith("encoding talk.mp4: 50%")
