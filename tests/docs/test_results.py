"""The page of the paper's results is what the results say, and has every table of the paper."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.pages import fill
from floc.evaluation import paper

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results.md"


def test_the_page_is_filled_from_the_results(tmp_path: Path) -> None:
    again = tmp_path / "results.md"
    again.write_text(PAGE.read_text())
    fill(again, ROOT / "benchmarks" / "results")
    assert again.read_text() == PAGE.read_text(), "run: python -m benchmarks --fill docs/results.md"


@pytest.mark.parametrize("name", paper.tables())
def test_every_table_of_the_paper_has_its_place(name: str) -> None:
    view = {"table3": "time", "table7": "profile"}.get(name, f"paper-{name}")
    page = PAGE.read_text()
    assert f"<!-- bench:{view} -->" in page
    assert f"### {paper.table(name).title}:" in page


@pytest.mark.parametrize("name", paper.tables())
def test_what_does_not_add_up_in_the_paper_is_told(name: str) -> None:
    page = PAGE.read_text()
    assert [note for note in paper.table(name).notes if note not in page] == []


def test_links_within_the_page_lead_to_a_heading() -> None:
    page = PAGE.read_text()
    headings = {
        re.sub(r"[^\w -]", "", line).strip().lower().replace(" ", "-") for line in page.splitlines() if line[:1] == "#"
    }
    wanted = set(re.findall(r"\]\(#([^)]+)\)", page))
    assert wanted
    assert wanted <= headings
