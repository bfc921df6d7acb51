"""The report: one HTML file that shows what each method kept of a film, and what stands in for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, cast

from floc._arrays import to_numpy
from floc._version import __version__
from floc.analysis import Projection, per_frame, plots, tsne
from floc.analysis.compare import Comparison, Contender, Progress, compare
from floc.encoders.load import EncodedVideo
from floc.files import write_atomic
from floc.report.filmstrip import MIME
from floc.report.pack import MethodData, ReportData, Row, Tsne, page

LIMIT_BYTES = 14_500_000  # of the whole page; pictures are made smaller to stay below


class Report(NamedTuple):
    """What was made."""

    comparison: Comparison
    path: Path
    size_bytes: int
    figures: list[Path]  # PNG files, where they were asked for


def require_packages(figures: bool = False) -> None:
    """Complain now of what would be missing after minutes of work."""
    for package, name in (
        ("sklearn", "scikit-learn"),
        ("PIL", "pillow"),
        *([("matplotlib", "matplotlib")] if figures else []),
    ):
        if find_spec(package) is None:
            raise ImportError(f"a report needs {name}: pip install 'floc-video[report]'")


def make(
    film: EncodedVideo,
    methods: Sequence[str],
    ratios: Sequence[float | str],
    path: Path,
    *,
    figures: Path | None = None,
    command: str = "",
    notes: Sequence[str] = (),
    opens_at: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Compare methods on a film, and write the page, whole or not at all.

    Args:
        film: from `floc.encoders.load.load_tokens`, with its thumbnails.
        methods: their names, with options where wanted: "floc", "floc:detail=1".
        ratios: kept / total.
        path: the .html file.
        figures: a folder for the figures as PNG files.
        command: what to type to make it again.
        notes: what a reader has to know.
        opens_at: the frame to show first; by default the one of which the first method keeps most.
        progress: called with what is being done and the share that is done.
    """
    if film.thumbnails is None:
        raise ValueError("a report needs the film's pictures; load it with with_thumbnails=True")
    show = progress or (lambda _, __: None)
    tokens, times_s = film.tokens, film.times_s
    comparison = compare(tokens, methods, ratios, progress=lambda what, share: show(what, 0.8 * share))
    show("t-SNE", 0.8)
    projection = tsne(tokens)
    show("writing", 0.9)
    t, h, w, _ = tokens.shape
    data = ReportData(
        title=film.video.path.name,
        facts=[*film.facts(), ("made", f"{date.today():%Y-%m-%d} by floc {__version__}")],
        command=command,
        notes=[*film.video.warnings, *notes, *comparison.notes],
        grid=(t, h, w),
        times_s=times_s,
        frames=film.thumbnails.within,
        image_mime=MIME,
        image_width=film.thumbnails.width,
        image_height=film.thumbnails.height,
        stops=[(stop.label, stop.ratio, stop.budget) for stop in comparison.stops],
        methods=[_method(contender) for contender in comparison.contenders],
        opens_at=(_busiest(comparison.contenders[0]) if opens_at is None else opens_at, 0),
        tsne=Tsne(projection.indices, projection.xy, _caption(projection, t * h * w)),
    )
    text = page(data, LIMIT_BYTES).encode()
    write_atomic(path, lambda temporary: temporary.write_bytes(text))
    written = [] if figures is None else plots.save(figures, comparison, times_s, film.thumbnails, projection)
    return Report(comparison, path, len(text), written)


def _method(contender: Contender) -> MethodData:
    places = sorted(contender.kept)
    answers = [contender.kept[place] for place in places]
    indices = [to_numpy(kept.indices) for kept in answers]
    return MethodData(
        name=contender.name,
        description=contender.description,
        stops_run=places,
        kept=indices,
        represents=[at[to_numpy(kept.represents)] for at, kept in zip(indices, answers, strict=True)],
        rows=[
            cast(Row, {"stop": place, **measures._asdict()}) for place, measures in sorted(contender.measures.items())
        ],
        scatter=contender.scatter,
    )


def _busiest(contender: Contender) -> int:
    return int(per_frame(contender.kept[min(contender.kept)]).argmax())


def _caption(projection: Projection, n: int) -> str:
    return f"{len(projection.indices):,} of {n:,} tokens, drawn evenly at random; the same layout for every method."
