"""A small report with known content, and a browser that shows it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("PIL", reason="thumbnails need Pillow: pip install 'floc-video[report]'")

import floc
from floc.analysis import Projection
from floc.analysis.compare import Comparison, Measures, MethodResult, RatioStep
from floc.report.render import ReportData, render_page
from floc.tokens import Frames
from floc.video.thumbnails import Thumbnails
from tests.report.browser import CHROMIUM, Browser

STEPS = [
    RatioStep("1/2", 420),
    RatioStep("1/4", 210),
    RatioStep("1/8", 105),
    RatioStep("1/20", 42),
]
NASTY = '</script><script>document.title="owned"</script><!-- <b>&amp;"\' {{data}} \\u003c'


def shade(frame: int) -> int:
    """Brightness of a frame of the small report."""
    return 100 + frame


def measures_of(kept: dict[int, floc.Kept], seconds: float, bound: float | None) -> dict[int, Measures]:
    return {
        step: Measures(
            tokens=len(selection),
            coverage=0.9 - step / 100 - seconds / 10,
            worst=0.7 - step / 100 - seconds / 10,
            bound=bound,
            averaged_sum_coverage=0.5,
            averaged_distance=None,
            redundancy=0.25 + seconds,
            seconds=seconds,
        )
        for step, selection in kept.items()
    }


@pytest.fixture(scope="session")
def report(tokens: np.ndarray) -> ReportData:
    """70 frames of 3 x 4 cells; floc at every step, and random at two of them."""
    largest = floc.compress(tokens, budget=420)
    nested = {step: largest.at(budget=STEPS[step].budget) for step in range(4)}
    random = {step: floc.compress(tokens, budget=STEPS[step].budget, method="random", seed=step) for step in (1, 3)}
    results = [
        MethodResult(
            "floc",
            "facility location",
            nested,
            measures_of(nested, 0.25, 0.97),
            {step: (1.0, 0.5 * step) for step in range(4)},
        ),
        MethodResult(
            f"random {NASTY}", NASTY, random, measures_of(random, 0.125, None), {1: (-1.0, -0.5), 3: (-1.0, -1.5)}
        ),
    ]
    thumbnails = Thumbnails(planned=70)
    pixels = np.stack([np.full((36, 48, 3), shade(t), np.uint8) for t in range(70)])
    list(thumbnails.watch([Frames(pixels, np.arange(70.0))]))
    rng = np.random.default_rng(3)
    sample = rng.choice(70 * 3 * 4, 50, replace=False)
    return ReportData(
        title=f"a video {NASTY}",
        facts=[("Frames", "70"), ("Encoder", NASTY)],
        command=f"floc compare '{NASTY}'",
        notes=["one frame was skipped", NASTY],
        times_s=np.arange(70) * 0.5,
        thumbnails=thumbnails,
        comparison=Comparison(STEPS, results, []),
        projection=Projection(sample, rng.uniform(-1, 1, (50, 2)).astype(np.float32)),
    )


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} does not exist: apt-get install chromium")
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def url(report: ReportData, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render_page(report), encoding="utf-8")
    return path.as_uri()
