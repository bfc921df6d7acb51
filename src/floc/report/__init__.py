"""Write a report: one HTML file that shows what each method kept of a video, and what represents the rest."""

from collections.abc import Sequence
from datetime import date
from importlib.util import find_spec
from pathlib import Path

from floc._atomic import write_atomic
from floc._version import __version__
from floc.analysis import count_per_frame, plots, tsne
from floc.analysis.compare import Comparison, Progress, compare
from floc.encoders.load import EncodedVideo
from floc.report.render import ReportData, Subject, render_page

LIMIT_BYTES = 14_500_000  # of the whole page; images are made smaller to stay below


def require_packages(figures: bool = False) -> None:
    """Raise ImportError if a package is missing that a report needs, before minutes of work."""
    packages = {"sklearn": "scikit-learn", "PIL": "pillow", **({"matplotlib": "matplotlib"} if figures else {})}
    for module, package in packages.items():
        if find_spec(module) is None:
            raise ImportError(f"a report needs {package}: pip install 'floc-video[report]'")


def make(
    encoded: EncodedVideo,
    methods: Sequence[str],
    ratios: Sequence[float | str],
    path: Path,
    *,
    figures: Path | None = None,
    command: str = "",
    notes: Sequence[str] = (),
    opens_at: int | None = None,
    subject: Subject | None = None,
    progress: Progress = lambda task, share: None,
) -> tuple[Comparison, list[Path]]:
    """Compare methods on a video and write the HTML page, atomically; return the results and the PNG files written.

    Args:
        encoded: from `floc.encoders.load.load_tokens` with `with_thumbnails=True`.
        methods: names, optionally with options: "floc", "floc:detail=1".
        ratios: kept / total.
        path: the .html file; its folder is created if necessary.
        figures: a folder for the figures as PNG files.
        command: the command that makes this report.
        notes: remarks to show.
        opens_at: frame to show first, from 0; by default the one of which the first method keeps most.
        subject: a question to open with; its tokens are outlined.
        progress: see `Progress`.
    """
    require_packages(figures is not None)
    if encoded.thumbnails is None:
        raise ValueError("a report needs the video's thumbnails; load the video with with_thumbnails=True")
    comparison = compare(encoded.tokens, methods, ratios, progress=lambda task, share: progress(task, 0.8 * share))
    progress("t-SNE", 0.8)
    projection = tsne(encoded.tokens)
    progress("writing", 0.9)
    if opens_at is None:
        kept = comparison.results[0].kept
        opens_at = int(count_per_frame(kept[min(kept)]).argmax())
    facts = [*encoded.facts(), ("made", f"{date.today():%Y-%m-%d} by floc {__version__}")]
    all_notes = [*encoded.video.warnings, *notes, *comparison.notes]
    results = (encoded.times_s, encoded.thumbnails, comparison, projection)
    data = ReportData(encoded.video.path.name, facts, command, all_notes, *results, opens_at, subject)
    text = render_page(data, LIMIT_BYTES).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, lambda temporary: temporary.write_bytes(text))
    if figures is None:
        return comparison, []
    return comparison, plots.save_plots(figures, comparison, encoded.times_s, encoded.thumbnails, projection)
