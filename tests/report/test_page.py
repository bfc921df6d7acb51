"""The report page in a browser: what a reader sees and can do."""

from __future__ import annotations

import io
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import floc
from floc.analysis.compare import Comparison, MethodResult, RatioStep
from floc.report.render import ReportData, Subject, render_page
from floc.tokens import Frames
from floc.video.thumbnails import Thumbnails
from tests.report.browser import Browser
from tests.report.conftest import NASTY, STEPS, shade

NONE = "\N{EN DASH}"  # the table's text for a missing value


@pytest.fixture
def opened(browser: Browser, url: str) -> Iterator[Browser]:
    """The report in a fresh tab. After each test: no console message, no request, no error on the page."""
    browser.open(url)
    wait_until_ready(browser)
    yield browser
    assert browser.messages == []
    assert {request.split(":")[0] for request in browser.requests} == {"file", "data"}
    assert [request for request in browser.requests if request.startswith("file:")] == [url]
    assert browser.eval("document.querySelector('#error').hidden")


def results(report: ReportData) -> list[MethodResult]:
    return report.comparison.results


def representatives(result: MethodResult, step: int) -> np.ndarray:
    kept = result.kept[step]
    return kept.indices[kept.represents]


def wait_until_ready(browser: Browser) -> None:
    browser.wait("document.querySelectorAll('.panel[data-kept]').length === 2")
    browser.settle()


def panel(browser, side: int, name: str) -> str:
    return browser.eval(f"document.querySelectorAll('.panel')[{side}].dataset.{name}")


def text(browser, selector: str) -> str:
    return browser.eval(f"document.querySelector({json.dumps(selector)}).innerText")


def click_cell(browser, side: int, cell: int) -> None:
    y, x = divmod(cell, 4)
    browser.click(f".panel:nth-of-type({side + 1}) .picture", (x + 0.5) / 4, (y + 0.5) / 3)


def go_to_frame(browser, frame: int) -> None:
    browser.set("#frame", frame, "input")


def go_to_step(browser, step: int) -> None:
    """Move the slider: all the way down, then up with its own arrow keys."""
    browser.click("#ratio", 0.001)
    for _ in range(len(STEPS) - 1 - step):
        browser.press("ArrowRight")


def count_cells(browser: Browser, side: int, brightness: int) -> tuple[int, int]:
    """Count, in a screenshot, the cells with a green left edge and those darker than the frame's brightness."""
    image = Image.open(io.BytesIO(browser.screenshot(f".panel:nth-of-type({side + 1}) .picture")))
    pixels = np.asarray(image.convert("RGB")).astype(int)
    height, width, _ = pixels.shape
    tops, lefts = np.arange(3) * height // 3, np.arange(4) * width // 4
    edges, insides = pixels[tops + 40][:, lefts + 3], pixels[tops + 40][:, lefts + 40]
    return int((edges[..., 1] > edges[..., 0] + 60).sum()), int((insides[..., 0] < brightness - 20).sum())


def test_page_shows_title_command_facts_and_notes(opened, report: ReportData) -> None:
    assert text(opened, "h1") == report.title
    assert text(opened, "#command") == report.command
    assert NASTY in text(opened, "#facts")
    assert NASTY in text(opened, "#notes")
    assert opened.eval("document.title") == report.title
    options = opened.eval("Array.from(document.querySelector('select').options, (option) => option.text)")
    assert [" ".join(name.split()) for name in options] == [" ".join(result.name.split()) for result in results(report)]


@pytest.mark.parametrize("step", [0, 3])
def test_slider_shows_the_selection_at_its_ratio(opened, report: ReportData, step: int) -> None:
    go_to_step(opened, step)
    assert text(opened, "#ratio-text") == f"{STEPS[step].label} · {STEPS[step].budget} tokens"
    for frame in (0, 33, 69):
        go_to_frame(opened, frame)
        here = int((results(report)[0].kept[step].indices // 12 == frame).sum())
        assert panel(opened, 0, "kept") == str(STEPS[step].budget)
        assert panel(opened, 0, "keptHere") == str(here)
        assert text(opened, ".counts").startswith(f"{here} of 12 patches kept in this frame")
        assert count_cells(opened, 0, shade(frame)) == (here, 12 - here)


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("token", [5, 12 * 20 + 3, 839])
def test_click_shows_the_representative(opened, report: ReportData, step: int, token: int) -> None:
    go_to_step(opened, step)
    go_to_frame(opened, token // 12)
    click_cell(opened, 0, token % 12)
    for side, result in enumerate(results(report)):
        kept, represents = result.kept[step].indices, representatives(result, step)
        by = int(represents[token])
        shown = text(opened, f".panel:nth-of-type({side + 1}) .patch")
        where = f"row {token % 12 // 4}, column {token % 4} at"
        if token in kept:
            others = int((represents == token).sum()) - 1
            assert shown.startswith(f"Kept: {where}")
            assert (f"represents {others} other patch" if others else "represents no other patch") in shown
        else:
            time = f"0:{by // 12 / 2:04.1f}".removesuffix(".0")
            assert shown.startswith(f"Dropped: {where}")
            assert f"represented by row {by % 12 // 4}, column {by % 4} at {time}" in shown
    assert opened.eval(
        "Array.from(document.querySelectorAll('.patch'), (patch) => Number(patch.dataset.representative))"
    ) == [int(representatives(result, step)[token]) for result in results(report)]


def test_go_there_and_back(opened, report: ReportData) -> None:
    go_to_step(opened, 3)
    represents = representatives(results(report)[0], 3)
    token = next(token for token in range(840) if represents[token] // 12 != token // 12)
    by = int(represents[token])
    go_to_frame(opened, token // 12)
    click_cell(opened, 0, token % 12)
    opened.click(".patch .go")
    assert panel(opened, 0, "frame") == str(by // 12)
    others = int((represents == by).sum()) - 1
    assert opened.eval("document.querySelector('.patch').dataset.represented") == str(others)
    assert opened.eval("document.querySelector('.patch').querySelectorAll('.gallery button').length") == min(12, others)
    opened.click(".gallery button")
    assert opened.eval("Number(document.querySelector('.patch').dataset.representative)") == by
    opened.press("Escape")
    assert text(opened, ".patch") == ""


def test_method_is_shown_at_its_nearest_ratio(opened, report: ReportData) -> None:
    go_to_step(opened, 0)
    assert panel(opened, 1, "step") == "1/4"
    assert "was not run at 1/2; this is its result at 1/4" in text(opened, ".panel:nth-of-type(2) .other-step")
    assert opened.eval("document.querySelector('.panel .other-step').hidden")
    go_to_step(opened, 3)
    assert panel(opened, 1, "step") == "1/20"
    assert opened.eval("document.querySelector('.panel:nth-of-type(2) .other-step').hidden")
    assert panel(opened, 1, "keptHere") == str(int((results(report)[1].kept[3].indices // 12 == 0).sum()))


def test_method_can_be_changed_in_each_panel(opened, report: ReportData) -> None:
    opened.set("select", 1, "change")
    assert panel(opened, 0, "method") == results(report)[1].name
    assert text(opened, ".panel .description") == NASTY
    opened.eval("document.querySelectorAll('.picture')[1].focus()")
    opened.press("1")
    assert panel(opened, 1, "method") == "floc"
    assert panel(opened, 0, "method") == results(report)[1].name


def test_keyboard(opened, report: ReportData) -> None:
    go_to_step(opened, 3)
    opened.eval("document.querySelector('.picture').focus()")
    opened.press("ArrowRight")
    opened.press("ArrowRight")
    opened.press("ArrowLeft")
    assert panel(opened, 0, "frame") == "1"
    opened.press("ArrowUp")
    assert panel(opened, 0, "step") == "1/8"
    opened.press("-")
    assert panel(opened, 0, "step") == "1/20"
    frames = np.unique(results(report)[0].kept[3].indices // 12)
    gap = int(np.diff(frames).argmax())  # frames without a kept patch, to be skipped
    assert frames[gap + 1] - frames[gap] > 1
    go_to_frame(opened, int(frames[gap]))
    opened.press(".")
    assert panel(opened, 0, "frame") == str(frames[gap + 1])
    opened.press(",")
    assert panel(opened, 0, "frame") == str(frames[gap])
    go_to_frame(opened, 40)
    opened.eval("document.querySelector('.picture').focus()")
    opened.press("ArrowDown", shift=True)
    opened.press("ArrowLeft", shift=True)
    opened.press("Enter")
    token = 40 * 12 + 2 * 4 + 1  # one down and one left of the middle cell (1, 2)
    assert opened.eval("Number(document.querySelector('.patch').dataset.token)") == token
    word = "kept" if token in results(report)[0].kept[3].indices else "dropped"
    assert text(opened, "#cursor-text") == f"row 2, column 1: {word}"
    opened.press("p")
    opened.wait("document.querySelector('.panel').dataset.frame > 41")
    opened.press("p")
    assert opened.eval("document.querySelector('#play').ariaPressed") == "false"


def test_click_on_the_timeline_goes_there(opened) -> None:
    opened.click("#timeline", 0.5)
    assert 30 <= int(panel(opened, 0, "frame")) <= 40


def test_plots_follow_the_slider(opened, report: ReportData) -> None:
    assert report.projection is not None
    for step in (1, 3):
        go_to_step(opened, step)
        for side, result in enumerate(results(report)):
            kept = int(np.isin(report.projection.indices, result.kept[step].indices).sum())
            assert f"{kept} of 50 sampled tokens kept" in text(opened, f"#tsne figure:nth-of-type({side + 1}) h3")
        label = opened.eval("document.querySelector('#scatter svg').getAttribute('aria-label')")
        assert label.startswith(f"floc: 1.00, {0.5 * step:.2f}; random")
        assert opened.eval("document.querySelectorAll('#scatter circle').length") == 2
    assert "50 of 840 tokens, sampled uniformly at random" in text(opened, "#tsne")
    opened.click("#tsne circle:last-of-type")  # the last kept point is on top of the others
    sample = report.projection.indices
    token = int(sample[np.isin(sample, results(report)[0].kept[3].indices)][-1])
    assert opened.eval("Number(document.querySelector('.patch').dataset.token)") == token
    assert panel(opened, 0, "frame") == str(token // 12)


def test_table_sorts_and_marks_the_best_value(opened) -> None:
    def column(number: int) -> list[str]:
        return opened.eval(
            f"Array.from(document.querySelectorAll('#table tbody tr'), (row) => row.children[{number}].textContent)"
        )

    assert len(column(0)) == 6
    opened.click("#table thead th:nth-of-type(4) button")
    assert column(3) == sorted(column(3), key=float)
    opened.click("#table thead th:nth-of-type(4) button")
    assert column(3) == sorted(column(3), key=float, reverse=True)
    assert opened.eval("document.querySelector('#table th:nth-of-type(4)').ariaSort") == "descending"
    opened.click("#table thead th:nth-of-type(6) button")
    assert column(5) == ["0.9700"] * 4 + [NONE] * 2
    assert column(7) == [NONE] * 6
    # only 1/4 and 1/20 have two methods to compare
    best = opened.eval(
        "Array.from(document.querySelectorAll('#table td.best'),"
        " (cell) => [cell.parentElement.firstChild.textContent.slice(0, 6), cell.cellIndex])"
    )
    expected = [["random", 3], ["random", 4], ["floc", 6], ["random", 6], ["random", 8], ["random", 9]]
    assert sorted(best) == sorted(expected * 2)


def test_narrow_screen_has_one_column(browser, url: str) -> None:
    browser.open(url, width=360, height=740)
    wait_until_ready(browser)
    click_cell(browser, 0, 5)
    assert browser.eval("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    lefts = browser.eval(
        "Array.from(document.querySelectorAll('.panel'), (panel) => panel.getBoundingClientRect().left)"
    )
    assert lefts[0] == lefts[1]
    assert browser.messages == []


def test_dark_theme_follows_the_system(browser, url: str) -> None:
    def lightness() -> int:
        return sum(map(int, re.findall(r"\d+", browser.eval("getComputedStyle(document.body).backgroundColor"))[:3]))

    browser.open(url, dark=True)
    wait_until_ready(browser)
    assert lightness() < 150
    browser.open(url)
    wait_until_ready(browser)
    assert lightness() > 600
    assert browser.messages == []


def test_a_question_opens_the_report(browser, report: ReportData, tmp_path: Path) -> None:
    step = next(iter(sorted(report.comparison.results[0].measures)))
    label = report.comparison.steps[step].label
    tokens = np.array([12, 13, 25])
    subject = Subject(f"Where is it? {NASTY}", "On the table.", tokens, {("floc", label): (NASTY, True)})
    path = tmp_path / "report.html"
    path.write_text(render_page(replace(report, subject=subject, opens_at=1)), encoding="utf-8")
    browser.open(path.as_uri())
    wait_until_ready(browser)
    assert text(browser, "#answer-title") == subject.question
    assert text(browser, "#verdict") == subject.verdict
    kept = int(np.isin(tokens, report.comparison.results[0].kept[step].indices).sum())
    shown = browser.eval("document.querySelector('#answers tbody td').innerText")
    assert shown == f"✓ {NASTY}\n{kept} of 3 patches kept"
    outlines = "document.querySelector('.panel .subject').getAttribute('d').split('M').length - 1"
    assert browser.eval(outlines) == 2  # a frame has 12 tokens
    assert browser.messages == []


def test_empty_sections_are_hidden(browser, report: ReportData, tmp_path: Path) -> None:
    tokens = np.ones((1, 3, 4, 2), np.float32)
    result = MethodResult("random", "", {0: floc.compress(tokens, budget=1, method="random")})
    thumbnails = Thumbnails(planned=1)
    list(thumbnails.watch([Frames(np.zeros((1, 36, 48, 3), np.uint8), np.zeros(1))]))
    one = replace(
        report,
        times_s=np.zeros(1),
        thumbnails=thumbnails,
        comparison=Comparison([RatioStep("1/12", 1)], [result], []),
        projection=None,
        notes=[],
    )
    (tmp_path / "one.html").write_text(render_page(one), encoding="utf-8")
    browser.open((tmp_path / "one.html").as_uri())
    wait_until_ready(browser)
    assert browser.eval("['tsne', 'scatter', 'notes'].every((id) => document.getElementById(id).hidden)")
    click_cell(browser, 0, int(result.kept[0].indices[0]))
    assert "represents 11 other patches in 1 frame" in text(browser, ".patch")
    assert browser.messages == []


def test_names_of_points_do_not_overlap(report: ReportData, browser: Browser, tmp_path: Path) -> None:
    """Of 30 methods at nearly one place, only the names that fit are written; each point still tells its own."""
    first = results(report)[0]
    crowd = [replace(first, name=f"method{n}", scatter=dict.fromkeys(range(4), (n / 1000, 0.0))) for n in range(30)]
    page = render_page(replace(report, comparison=replace(report.comparison, results=crowd)))
    (tmp_path / "crowd.html").write_text(page, encoding="utf-8")
    browser.open((tmp_path / "crowd.html").as_uri())
    wait_until_ready(browser)

    def count(selector: str) -> int:
        return browser.eval(f"document.querySelectorAll('#scatter {selector}').length")

    assert count("circle") == count("circle title") == 30
    assert 0 < count(".name") < 30
    rectangles = (
        "Array.from(document.querySelectorAll('#scatter .name'), (name) => name.getBoundingClientRect().toJSON())"
    )
    for a, b in itertools.combinations(browser.eval(rectangles), 2):
        is_beside = a["right"] <= b["left"] + 2 or b["right"] <= a["left"] + 2
        assert is_beside or a["bottom"] <= b["top"] + 4 or b["bottom"] <= a["top"] + 4
    assert "Some names do not fit" in text(browser, "#scatter-text")
