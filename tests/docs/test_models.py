"""The pages on models: what they show runs, on tiny models that are saved like any other and a film made here."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import floc
from floc.integrations.transformers import FAMILIES
from floc.integrations.transformers.hooks import is_attached

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "models"
INDEX = (FOLDER / "README.md").read_text()
PAGES = {page.stem: page.read_text() for page in sorted(FOLDER.glob("*.md")) if page.stem != "README"}
ALL = pytest.mark.parametrize("kind", PAGES)  # a page has the name of the kind that its snippets are about


def _snippets(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def _on(snippet: str, model: Path, video: Path) -> str:
    """The snippet about another model and film."""
    for name, value in (("MODEL", model), ("VIDEO", video)):
        snippet, count = re.subn(rf"^{name} = .*$", f"{name} = {str(value)!r}", snippet, flags=re.MULTILINE)
        assert count == 1, f"{name} is set once, at the top"
    return snippet


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("av", "PIL"):
        pytest.importorskip(package, reason="films need pip install 'floc-video[video]'")
    from examples.demo.film import render

    path = tmp_path_factory.mktemp("film") / "talk.mp4"
    render(path, seconds=8, fps=4, width=128, height=72)
    return path


@pytest.fixture(autouse=True)
def _light(set_threads: Callable[[int], None]) -> None:
    set_threads(1)  # with models as small as these, threads only wait for one another


@ALL
def test_the_first_snippet_gives_two_answers(kind: str, film: Path, tmp_path: Path) -> None:
    from tests.integrations.transformers.checkpoints import save

    said: list[str] = []
    names: dict[str, Any] = {"print": said.append}
    exec(_on(_snippets(PAGES[kind])[0], save(kind, tmp_path), film), names)
    assert len(said) == 2
    assert all(said)
    assert len(names["video"]) == max(1, round(names["video"].n / 8))
    assert names["video"].shape[0] == (4 if names["video"].frames_per_slice == 2 else 8)


class Stand:
    """In place of a model's processor, which needs torchvision: what it would have made of a film of 8 slices."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.asked: dict[str, Any] = {}

    def apply_chat_template(self, conversation: list[dict[str, Any]], **given: Any) -> Any:
        from transformers.feature_extraction_utils import BatchFeature
        from transformers.processing_utils import ProcessorMixin, VideosKwargs

        from tests.integrations.transformers import zoo

        assert given.keys() <= inspect.signature(ProcessorMixin.apply_chat_template).parameters.keys()
        options = given["processor_kwargs"]
        assert options.keys() <= VideosKwargs.__annotations__.keys() | {"use_token_compression"}
        (turn,) = conversation
        self.asked = {part["type"]: part for part in turn["content"]}
        made = zoo.prompt(self.kind, [[zoo.Text(4), zoo.Video(8, *zoo.side(self.kind)), zoo.Text(9)]])
        if options.get("use_token_compression", True) and "video_compression_mask" in made.inputs:
            made.inputs["video_compression_mask"][-1] = False
        return BatchFeature(made.inputs)

    def decode(self, ids: torch.Tensor, skip_special_tokens: bool) -> str:
        return " ".join(map(str, ids.tolist()))


@ALL
def test_the_second_snippet_attaches_and_tells_what_was_kept(
    kind: str, film: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.integrations.transformers import zoo

    processor = Stand(kind)
    zoo.model(kind).save_pretrained(tmp_path)
    monkeypatch.setattr(zoo.transformers.AutoProcessor, "from_pretrained", lambda source: processor)
    said: list[tuple[Any, ...]] = []
    names: dict[str, Any] = {"print": lambda *told: said.append(told)}
    exec(_on(_snippets(PAGES[kind])[1], tmp_path, film), names)
    assert processor.asked["video"]["path"] == str(film)
    answer, told = said
    assert len(answer[0].split()) == 64
    (kept,) = names["handle"].last
    assert (len(kept), kept.n) == (max(1, round(kept.n / 8)), told[2])
    assert not is_attached(names["model"].base_model)


@ALL
def test_how_to_fit_a_short_context_is_said_where_it_can_be_done(kind: str) -> None:
    if not FAMILIES[kind].has_grid_positions:
        assert 'positions="compact"' in PAGES[kind]


@ALL
def test_a_page_is_short_and_linked(kind: str) -> None:
    assert len(PAGES[kind].splitlines()) < 80
    assert f"]({kind}.md)" in INDEX
    assert len(_snippets(PAGES[kind])) == 2
    # both snippets and the text are about one model
    assert len(set(re.findall(r'^MODEL = "(.*)"$', PAGES[kind], re.MULTILINE))) == 1
    assert f"`{re.findall(r'^MODEL = .(.*).$', PAGES[kind], re.MULTILINE)[0]}`" in PAGES[kind]


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_kind_is_on_a_page(kind: str) -> None:
    page = next((page for page, text in PAGES.items() if f"`{kind}`" in text.split("\n## ")[0]), None)
    assert page is not None, f"no page in docs/models begins with models of type {kind}"
    row = next(line for line in INDEX.splitlines() if f"]({page}.md)" in line)
    assert f"`{kind}`" in row


def test_kinds_that_take_no_files_are_named() -> None:
    (line,) = re.findall(r"^Without files yet.*$", INDEX, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", line)) == {
        kind for kind, family in FAMILIES.items() if family.write_video is None
    }


def test_kinds_that_are_not_in_the_table_are_not() -> None:
    listed = re.findall(r"`(\w+)`", INDEX.split("## Looked at")[1])
    assert len(listed) > 10
    assert not FAMILIES.keys() & set(listed)


@pytest.mark.parametrize("page", sorted(FOLDER.glob("*.md")), ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_a_family_is_added_as_the_page_says() -> None:
    (example,) = _snippets(INDEX)
    read = cache(lambda path: (ROOT / path).read_text().splitlines())
    lines, found = [], 0
    for line in example.splitlines():
        if line.startswith("# "):
            lines = [each.strip() for each in read(line.removeprefix("# ").split(":")[0])]
        else:
            assert line.strip() in lines
            found += 1
    assert found == 9


def test_there_is_room_for_the_table_of_what_was_tested() -> None:
    assert re.search(r"^<!-- support -->\n(.*\n)?<!-- /support -->$", INDEX, re.MULTILINE | re.DOTALL)


def test_names_in_the_text_exist() -> None:
    parameters = {name: inspect.signature(getattr(floc, name)).parameters for name in ("attach", "capture")}
    for text in (INDEX, *PAGES.values()):
        for call, given in re.findall(r"floc\.(attach|capture)\(([^)]*)\)", text):
            assert set(re.findall(r"(\w+)=", given)) <= parameters[call].keys(), given
        for name in re.findall(r"floc\.(\w+)[(`]", text):
            assert name in floc.__all__, name
