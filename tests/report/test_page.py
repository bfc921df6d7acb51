"""The report page: what is packed into it, and what a person in front of it sees."""

from __future__ import annotations

import base64
import html
import importlib.util
import json
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import floc
from floc.report.pack import MethodData, ReportData, Row, Stop, Tsne, pack_answers, page
from floc.synthetic import film

# tests have no packages to import from: each file stands for itself
_spec = importlib.util.spec_from_file_location("floc_tests_browser", Path(__file__).with_name("browser.py"))
assert _spec is not None
assert _spec.loader is not None
browsing = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(browsing)

STOPS = [Stop("1/2", 1 / 2, 420), Stop("1/4", 1 / 4, 210), Stop("1/8", 1 / 8, 105), Stop("1/20", 1 / 20, 42)]
NONE = "\N{EN DASH}"  # how the table says that there is no number
NASTY = '</script><script>document.title="owned"</script><!-- <b>&amp;"\' {{data}} \\u003c'


# ---- packing


def unpack(packed: dict, stops: int, n: int, cells: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Kept tokens and representatives, read back a token at a time."""

    def inflate(text: str) -> bytes:
        return zlib.decompress(base64.b64decode(text))

    def bits(text: str) -> np.ndarray:
        rows = np.frombuffer(inflate(text), np.uint8).reshape(stops, -1)
        return np.unpackbits(rows, axis=1, bitorder="little")[:, :n].astype(bool)

    if "depth" in packed:
        member = np.frombuffer(inflate(packed["depth"]), np.uint8) > np.arange(stops)[:, None]
    else:
        member = bits(packed["bits"])
    wrong = bits(packed["wrong"])
    low, *higher = (inflate(plane) for plane in packed["places"])
    places = iter([int.from_bytes(four, "little") for four in zip(low, *higher, strict=True)])
    kept, represents = [], []
    for s in range(stops):
        kept.append(np.flatnonzero(member[s]))
        found = np.full(n, -1)
        earlier = [] if s == 0 else kept[s - 1].tolist()
        for token in earlier + [token for token in range(n) if s == 0 or not member[s - 1][token]]:
            if wrong[s][token]:
                found[token] = kept[s][next(places)]
            elif s == 0:
                found[token] = token if token < cells else found[token - cells]
            else:
                found[token] = token if member[s - 1][token] else found[represents[s - 1][token]]
        represents.append(found)
    assert next(places, None) is None
    return kept, represents


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize(
    ("shape", "budgets"),
    [
        ((1, 1, 1), [1]),
        ((1, 3, 5), [4]),
        ((1, 3, 5), [15, 1]),
        ((9, 1, 1), [8, 5, 2]),
        ((300, 2, 3), [900, 90, 9]),
        ((3, 17, 19), [600, 200, 60, 20]),
        ((70, 30, 32), [67_200, 66_000, 10]),
    ],
)
def test_what_is_packed_comes_back(shape: tuple[int, int, int], budgets: list[int], nested: bool) -> None:
    rng = np.random.default_rng(0)
    n, cells = shape[0] * shape[1] * shape[2], shape[1] * shape[2]
    order = rng.permutation(n)
    kept = [np.sort((order if nested else rng.permutation(n))[:budget]) for budget in budgets]
    represents = [rng.choice(indices, n) for indices in kept]
    packed = pack_answers(kept, represents, n, cells)
    again = unpack(packed, len(budgets), n, cells)
    for given, got in zip([*kept, *represents], [*again[0], *again[1]], strict=True):
        np.testing.assert_array_equal(got, given)


def test_a_film_packs_into_a_few_bits_a_token_and_stop() -> None:
    tokens = film(90, 9, 16, dim=48)
    kept = floc.compress(tokens, ratio=1 / 8)
    answers = [kept.at(budget=len(kept) * 2 // (2 + s)) for s in range(9)]
    flat = [each.indices[each.represents] for each in answers]
    packed = pack_answers([each.indices for each in answers], flat, kept.n, 9 * 16)
    assert "depth" in packed
    assert len(json.dumps(packed)) < 0.3 * kept.n * len(answers)
    for given, got in zip(flat, unpack(packed, 9, kept.n, 9 * 16)[1], strict=True):
        np.testing.assert_array_equal(got, given)


# ---- a small report with known answers


def png(pixels: np.ndarray) -> bytes:
    """[height, width, 3] uint8 as a PNG file."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    height, width = pixels.shape[:2]
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


def shade(frame: int) -> int:
    """How bright a frame of the small report is, all over."""
    return 100 + frame


def rows_of(stops: list[int], kept: list[np.ndarray], seconds: float, bound: float | None) -> list[Row]:
    return [
        Row(
            stop=stop,
            tokens=len(indices),
            coverage=0.9 - stop / 100 - seconds / 10,
            worst=0.7 - stop / 100 - seconds / 10,
            bound=bound,
            averaged_sum_coverage=0.5,
            averaged_distance=float("nan"),
            redundancy=0.25 + seconds,
            seconds=seconds,
        )
        for stop, indices in zip(stops, kept, strict=True)
    ]


@pytest.fixture(scope="module")
def report(tokens: np.ndarray) -> ReportData:
    """70 frames of 3 x 4 cells; floc at every stop, and a random choice at two of them."""
    n = 70 * 3 * 4
    rng = np.random.default_rng(3)
    largest = floc.compress(tokens, budget=420)
    answers = [largest.at(budget=stop.budget) for stop in STOPS]
    unit = tokens.reshape(n, -1) / np.linalg.norm(tokens.reshape(n, -1), axis=1, keepdims=True)
    drawn = [np.sort(rng.choice(n, STOPS[stop].budget, replace=False)) for stop in (1, 3)]
    nested = [each.indices for each in answers]
    methods = [
        MethodData(
            "floc",
            "facility location",
            [0, 1, 2, 3],
            nested,
            [each.indices[each.represents] for each in answers],
            rows_of([0, 1, 2, 3], nested, 0.25, 0.97),
            {stop: (1.0, 0.5 * stop) for stop in range(4)},
        ),
        MethodData(
            f"random {NASTY}",
            NASTY,
            [1, 3],
            drawn,
            [indices[(unit @ unit[indices].T).argmax(1)] for indices in drawn],
            rows_of([1, 3], drawn, 0.125, None),
            {1: (-1.0, -0.5), 3: (-1.0, -1.5)},
        ),
    ]
    sample = rng.choice(n, 50, replace=False)
    return ReportData(
        title=f"a film {NASTY}",
        facts=[("Frames", "70"), ("Encoder", NASTY)],
        command=f"floc compare '{NASTY}'",
        notes=["one frame was skipped", NASTY],
        grid=(70, 3, 4),
        times_s=np.arange(70) * 0.5,
        frames=[png(np.full((36, 48, 3), shade(t), np.uint8)) for t in range(70)],
        image_mime="image/png",
        image_width=48,
        image_height=36,
        stops=STOPS,
        methods=methods,
        tsne=Tsne(sample, rng.standard_normal((50, 2)).astype(np.float32), "50 tokens, drawn at random"),
    )


def test_user_text_stays_text(report: ReportData) -> None:
    text = page(report)
    assert NASTY not in text
    assert f"<title>a film {html.escape(NASTY)}</title>" in text
    scripts = re.findall(r"<script(?: type=\"([a-z/]+)\" id=\"([\w-]+)\"| type=\"module\")?>(.*?)</script>", text, re.S)
    assert len(scripts) == 1 + 1 + 2 + 70 + 1  # theme, data, methods, frames, the script itself
    main = json.loads(next(body for _, name, body in scripts if name == "data"))
    assert main["title"] == report.title
    assert main["notes"][1] == main["methods"][1]["description"] == NASTY
    assert main["methods"][0]["rows"][0]["averaged_distance"] is None
    images = [base64.b64decode(body) for _, name, body in scripts if name.startswith("frame-")]
    assert images == report.frames
    assert "http" not in re.sub(
        r'<script type="[a-z]+/[a-z]+".*?</script>|http-equiv|http://www.w3.org/2000/svg', "", text
    )


def test_images_get_the_room_that_is_left(report: ReportData) -> None:
    plain = page(report)
    asked = []

    def within(limit: int) -> list[bytes]:
        asked.append(limit)
        return [bytes(limit // 70)] * 70

    limit = len(plain.encode()) + 100_000
    filled = page(replace(report, frames=within), limit)
    assert limit * 0.98 <= len(filled.encode()) <= limit
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (dict(grid=(0, 3, 4)), r"at least one frame, row and column; got \(0, 3, 4\)"),
        (dict(frames=[b""]), "70 frames needs as many images; got 1"),
        (dict(times_s=np.arange(3)), "70 frames needs as many times; got 3"),
        (dict(methods=[]), "needs a method and a stop; got 0 and 4"),
        (dict(stops=STOPS[::-1]), r"from most tokens to fewest; got budgets \[42, 105, 210, 420\]"),
        (dict(tsne=Tsne(np.array([840]), np.zeros((1, 2)), "")), "indices below 840"),
        (dict(tsne=Tsne(np.array([1]), np.zeros((2, 2)), "")), r"got \(1,\) and \(2, 2\)"),
    ],
)
def test_bad_report_is_refused(report: ReportData, change: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        page(replace(report, **change))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (dict(stops_run=[0, 1, 2]), "floc: 3 stops need as many answers; got 4"),
        (dict(stops_run=[0, 2, 1, 3]), r"floc: stops_run must ascend within 0..3; got \[0, 2, 1, 3\]"),
        (dict(stops_run=[1, 2, 3, 4]), "within 0..3"),
        (dict(kept=[np.array([], int)] * 4), "floc at 1/2: kept must be ascending flat indices below 840"),
        (dict(kept=[np.array([3, 3])] * 4), "kept must be ascending"),
        (dict(kept=[np.array([3, 840])] * 4), "below 840"),
        (dict(represents=[np.zeros(5, int)] * 4), r"represents must have shape \(840,\).*got \(5,\)"),
        (
            dict(kept=[np.array([1, 3])] * 4, represents=[np.full(840, 2)] * 4),
            "token 0 is represented by 2, which is not",
        ),
    ],
)
def test_bad_method_is_refused(report: ReportData, change: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        page(replace(report, methods=[replace(report.methods[0], **change)]))


# ---- in the browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    if not browsing.CHROMIUM.exists():
        pytest.skip(f"{browsing.CHROMIUM} is not there: apt-get install chromium")
    opened = browsing.Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def url(report: ReportData, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page(report), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def opened(browser, url: str) -> Iterator:
    """The report, just opened; whatever a test does to it, it may not complain or ask for anything."""
    browser.open(url)
    ready(browser)
    yield browser
    assert browser.complaints == []
    assert {asked.split(":")[0] for asked in browser.requests} == {"file", "data"}
    assert [asked for asked in browser.requests if asked.startswith("file:")] == [url]
    assert browser.eval("document.querySelector('#trouble').hidden")


def ready(browser) -> None:
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


def go_to_stop(browser, stop: int) -> None:
    """Move the slider itself: all the way down, then up with its own arrow keys."""
    browser.click("#ratio", 0.001)
    for _ in range(len(STOPS) - 1 - stop):
        browser.press("ArrowRight")


def painted(side: int, shade: int) -> str:
    """JavaScript that counts the cells whose left edge is green, and those that are darker than the frame's shade."""
    return (
        f"(() => {{ const it = document.querySelectorAll('.picture')[{side}];"
        " const copy = new OffscreenCanvas(it.width, it.height).getContext('2d', {willReadFrequently: true});"
        " copy.drawImage(it, 0, 0); let green = 0, dark = 0;"
        " for (let y = 0; y < 3; y++) for (let x = 0; x < 4; x++) {"
        " const [left, top] = [Math.round((x * it.width) / 4), Math.round((y * it.height) / 3)];"
        " const [r, g] = copy.getImageData(left + 1, top + 40, 1, 1).data; green += g > r + 60;"
        f" dark += copy.getImageData(left + 40, top + 40, 1, 1).data[0] < {shade} - 20; }}"
        " return `${green} ${dark}`; })()"
    )


def test_page_says_what_it_shows(opened, report: ReportData) -> None:
    assert text(opened, "h1") == report.title
    assert text(opened, "#command") == report.command
    assert NASTY in text(opened, "#facts")
    assert NASTY in text(opened, "#notes")
    assert opened.eval("document.title") == report.title
    options = opened.eval("Array.from(document.querySelector('select').options, (each) => each.text)")
    assert [" ".join(each.split()) for each in options] == [" ".join(each.name.split()) for each in report.methods]


@pytest.mark.parametrize("stop", [0, 3])
def test_slider_shows_the_answer_of_its_ratio(opened, report: ReportData, stop: int) -> None:
    go_to_stop(opened, stop)
    assert text(opened, "#ratio-says") == f"{STOPS[stop].label} · {STOPS[stop].budget} tokens"
    for frame in (0, 33, 69):
        go_to_frame(opened, frame)
        here = int((report.methods[0].kept[stop] // 12 == frame).sum())
        assert panel(opened, 0, "kept") == str(STOPS[stop].budget)
        assert panel(opened, 0, "keptHere") == str(here)
        assert text(opened, ".says").startswith(f"{here} of 12 patches kept in this frame")
        opened.wait(f"{painted(0, shade(frame))} === '{here} {12 - here}'")


@pytest.mark.parametrize("stop", [1, 3])
@pytest.mark.parametrize("token", [5, 12 * 20 + 3, 839])
def test_click_tells_who_stands_for_whom(opened, report: ReportData, stop: int, token: int) -> None:
    go_to_stop(opened, stop)
    go_to_frame(opened, token // 12)
    click_cell(opened, 0, token % 12)
    for side, place in ((0, stop), (1, [1, 3].index(stop))):
        method = report.methods[side]
        kept, by = method.kept[place], int(method.represents[place][token])
        said = text(opened, f".panel:nth-of-type({side + 1}) .patch")
        where = f"row {token % 12 // 4 + 1}, column {token % 4 + 1} at"
        if token in kept:
            stands_for = int((method.represents[place] == token).sum() - (by == token))
            assert said.startswith(f"Kept: {where}")
            assert (f"stands for {stands_for} other patch" if stands_for else "stands for no other patch") in said
        else:
            seconds = by // 12 / 2
            assert said.startswith(f"Dropped: {where}")
            assert (
                f"represented by row {by % 12 // 4 + 1}, column {by % 4 + 1} at 0:{seconds:04.1f}".removesuffix(".0")
                in said
            )
    assert opened.eval(
        "Array.from(document.querySelectorAll('.patch'), (each) => Number(each.dataset.representative))"
    ) == [
        int(report.methods[0].represents[stop][token]),
        int(report.methods[1].represents[[1, 3].index(stop)][token]),
    ]


def test_go_there_and_back(opened, report: ReportData) -> None:
    go_to_stop(opened, 3)
    represents = report.methods[0].represents[3]
    token = next(token for token in range(840) if represents[token] // 12 != token // 12)
    by = int(represents[token])
    go_to_frame(opened, token // 12)
    click_cell(opened, 0, token % 12)
    opened.click(".patch .go")
    assert panel(opened, 0, "frame") == str(by // 12)
    others = int((represents == by).sum()) - 1
    assert opened.eval("document.querySelector('.patch').dataset.standsFor") == str(others)
    assert opened.eval("document.querySelector('.patch').querySelectorAll('.gallery button').length") == min(12, others)
    opened.click(".gallery button")
    assert opened.eval("Number(document.querySelector('.patch').dataset.representative)") == by
    opened.press("Escape")
    assert text(opened, ".patch") == ""


def test_a_method_shows_the_nearest_ratio_it_has(opened, report: ReportData) -> None:
    go_to_stop(opened, 0)
    assert panel(opened, 1, "stop") == "1/4"
    assert "was not run at 1/2; this is its answer at 1/4" in text(opened, ".panel:nth-of-type(2) .elsewhere")
    assert opened.eval("document.querySelector('.panel .elsewhere').hidden")
    go_to_stop(opened, 3)
    assert panel(opened, 1, "stop") == "1/20"
    assert opened.eval("document.querySelector('.panel:nth-of-type(2) .elsewhere').hidden")
    assert panel(opened, 1, "keptHere") == str(int((report.methods[1].kept[1] // 12 == 0).sum()))


def test_methods_are_switched_in_either_panel(opened, report: ReportData) -> None:
    opened.set("select", 1, "change")
    assert panel(opened, 0, "method") == report.methods[1].name
    assert text(opened, ".panel .description") == NASTY
    opened.eval("document.querySelectorAll('.picture')[1].focus()")
    opened.press("1")
    assert panel(opened, 1, "method") == "floc"
    assert panel(opened, 0, "method") == report.methods[1].name


def test_everything_by_keyboard(opened, report: ReportData) -> None:
    go_to_stop(opened, 3)
    opened.eval("document.querySelector('.picture').focus()")
    opened.press("ArrowRight")
    opened.press("ArrowRight")
    opened.press("ArrowLeft")
    assert panel(opened, 0, "frame") == "1"
    opened.press("ArrowUp")
    assert panel(opened, 0, "stop") == "1/8"
    opened.press("-")
    assert panel(opened, 0, "stop") == "1/20"
    frames = np.unique(report.methods[0].kept[3] // 12)
    gap = int(np.diff(frames).argmax())  # frames that keep nothing, to be jumped over
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
    token = 40 * 12 + 2 * 4 + 1  # one down and one left of the middle cell, row 1 and column 2
    assert opened.eval("Number(document.querySelector('.patch').dataset.token)") == token
    word = "kept" if token in report.methods[0].kept[3] else "dropped"
    assert text(opened, "#cursor-says") == f"row 3, column 2: {word}"
    opened.press("p")
    opened.wait("document.querySelector('.panel').dataset.frame > 41")
    opened.press("p")
    assert opened.eval("document.querySelector('#play').ariaPressed") == "false"


def test_timeline_and_strip_lead_to_frames(opened, report: ReportData) -> None:
    go_to_stop(opened, 1)
    opened.click("#timeline", 0.5)
    assert 30 <= int(panel(opened, 0, "frame")) <= 40
    counts = np.bincount(report.methods[0].kept[1] // 12, minlength=70)
    first = int(counts.argmax())
    assert opened.eval("document.querySelectorAll('#busiest button').length") == 8
    assert text(opened, "#busiest button").endswith(f"{counts[first]} kept")
    opened.click("#busiest button")
    assert panel(opened, 0, "frame") == str(first)


def test_plots_follow_the_slider(opened, report: ReportData) -> None:
    assert report.tsne is not None
    for stop in (1, 3):
        go_to_stop(opened, stop)
        for side, place in ((0, stop), (1, [1, 3].index(stop))):
            kept = int(np.isin(report.tsne.indices, report.methods[side].kept[place]).sum())
            assert f"{kept} of 50 sampled tokens kept" in text(opened, f"#tsne figure:nth-of-type({side + 1}) h3")
        label = opened.eval("document.querySelector('#scatter svg').getAttribute('aria-label')")
        assert label.startswith(f"floc: 1.00, {0.5 * stop:.2f}; random")
        assert opened.eval("document.querySelectorAll('#scatter circle').length") == 2
    assert "50 tokens, drawn at random" in text(opened, "#tsne")
    opened.eval("document.querySelector('#tsne canvas').focus()")
    opened.press("ArrowRight")
    assert panel(opened, 0, "frame") == "0"  # here arrows walk over points
    opened.press("Enter")
    assert opened.eval("Number(document.querySelector('.patch').dataset.token)") == int(report.tsne.indices[0])


def test_table_sorts_and_marks_the_best(opened) -> None:
    def column(place: int) -> list[str]:
        return opened.eval(
            f"Array.from(document.querySelectorAll('#table tbody tr'), (row) => row.children[{place}].textContent)"
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
    # 1/4 and 1/20 have two rivals; where there is one there is nothing to be best of
    best = opened.eval(
        "Array.from(document.querySelectorAll('#table td.best'),"
        " (cell) => [cell.parentElement.firstChild.textContent.slice(0, 6), cell.cellIndex])"
    )
    expected = [["random", 3], ["random", 4], ["floc", 6], ["random", 6], ["random", 8], ["random", 9]]
    assert sorted(best) == sorted(expected * 2)
    go_to_stop(opened, 3)
    opened.click("#only")
    assert column(1) == ["1/20", "1/20"]


def test_phone(browser, url: str) -> None:
    browser.open(url, width=360, height=740)
    ready(browser)
    click_cell(browser, 0, 5)
    assert browser.eval("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    lefts = browser.eval("Array.from(document.querySelectorAll('.panel'), (each) => each.getBoundingClientRect().left)")
    assert lefts[0] == lefts[1]
    assert browser.complaints == []


def test_dark_as_the_system_is_and_by_hand(browser, url: str) -> None:
    def lightness() -> int:
        return sum(map(int, re.findall(r"\d+", browser.eval("getComputedStyle(document.body).backgroundColor"))[:3]))

    browser.open(url, dark=True)
    ready(browser)
    assert lightness() < 150
    browser.click("#theme")
    assert lightness() > 600
    browser.open(url)
    ready(browser)
    assert lightness() > 600
    assert browser.complaints == []


def test_without_tsne_scatter_and_notes(browser, report: ReportData, tmp_path: Path) -> None:
    bare = replace(
        report.methods[1], rows=[], scatter={}, stops_run=[0], kept=[np.array([7])], represents=[np.full(12, 7)]
    )
    one = replace(
        report,
        grid=(1, 3, 4),
        times_s=np.zeros(1),
        frames=report.frames[:1],
        stops=STOPS[:1],
        methods=[bare],
        tsne=None,
        notes=[],
    )
    (tmp_path / "one.html").write_text(page(one), encoding="utf-8")
    browser.open((tmp_path / "one.html").as_uri())
    ready(browser)
    assert browser.eval("['tsne', 'scatter', 'notes'].every((id) => document.getElementById(id).hidden)")
    click_cell(browser, 0, 7)
    assert "stands for 11 other patches in 1 frame" in text(browser, ".patch")
    assert browser.complaints == []
