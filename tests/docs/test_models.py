"""The page on models covers every family, and its example of a new family is real."""

from __future__ import annotations

import inspect
import re
from functools import cache

import pytest

import floc
from floc.integrations.transformers import FAMILIES
from tests.docs.pages import DOCS, ROOT, read_snippets

PAGE = DOCS / "reference" / "models.md"
TEXT = PAGE.read_text()
TABLE, _ = TEXT.split("## What was tested")


def test_rows_of_the_table_are_complete() -> None:
    rows = [line for line in TABLE.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 9
    for row in rows:
        columns = [column.strip() for column in row.strip("|").split("|")]
        assert len(columns) == 7
        assert all(columns)
        assert set(re.findall(r"`(\w+)`", columns[1])) <= FAMILIES.keys()


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_model_type_was_tested(model_type: str) -> None:
    support = re.search(r"<!-- support -->(.*?)<!-- /support -->", TEXT, re.DOTALL)
    assert support is not None
    row = re.search(rf"^\| {model_type.removesuffix('_thinker')} \| (.*?) \|", support[1], re.MULTILINE)
    assert row is not None
    assert row[1] in ("yes", "5.22.2")


def test_example_of_a_new_family_is_in_the_files_it_names() -> None:
    example = "".join(read_snippets(PAGE))
    read = cache(lambda path: (ROOT / path).read_text().splitlines())
    lines: list[str] = []
    found = 0
    for line in example.splitlines():
        if line.startswith("# "):
            lines = [text.strip() for text in read(line.removeprefix("# ").split(":")[0])]
        else:
            assert line.strip() in lines, line
            found += 1
    assert found >= 3


def test_arguments_in_the_text_exist() -> None:
    parameters = {name: set(inspect.signature(getattr(floc, name)).parameters) for name in ("attach", "capture")}
    options = {"merge", *floc.methods.list_options("floc")}  # passed on to `floc.compress`
    for page in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        for call, arguments in re.findall(r"floc\.(attach|capture)\(([^)]*)\)", page.read_text()):
            assert set(re.findall(r"(\w+)=", arguments)) <= parameters[call] | options, arguments
