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
TABLE, AFTER = TEXT.split("## What was tested")


def find_row(model_type: str) -> str:
    """Return the row of the table of families that names a model type."""
    rows = [line for line in TABLE.splitlines() if line.startswith("|") and f"`{model_type}`" in line]
    assert len(rows) == 1, f"docs/reference/models.md needs one row with {model_type}"
    return rows[0]


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_model_type_is_in_the_table(model_type: str) -> None:
    columns = [column.strip() for column in find_row(model_type).strip("|").split("|")]
    assert len(columns) == 7
    assert all(columns)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_model_type_was_tested(model_type: str) -> None:
    support = re.search(r"<!-- support -->(.*?)<!-- /support -->", TEXT, re.DOTALL)
    assert support is not None
    assert f"| {model_type} |" in support[1]


def test_types_without_capture_of_files_are_named() -> None:
    sentence = TABLE.split("do not support these types yet")[1]
    without = {
        model_type for model_type, family in FAMILIES.items() if family.frames is None or family.write_video is None
    }
    assert set(re.findall(r"`(\w+)`", sentence)) == without


def test_unsupported_types_are_not_in_the_table() -> None:
    listed = re.findall(r"`(\w+)`", AFTER.split("## Not supported yet")[1])
    assert len(listed) > 10
    assert not FAMILIES.keys() & set(listed)


def test_example_of_a_new_family_is_in_the_files_it_names() -> None:
    (example,) = read_snippets(PAGE)
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
    parameters = {name: inspect.signature(getattr(floc, name)).parameters for name in ("attach", "capture")}
    for page in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        for call, arguments in re.findall(r"floc\.(attach|capture)\(([^)]*)\)", page.read_text()):
            assert set(re.findall(r"(\w+)=", arguments)) <= parameters[call].keys(), arguments
