"""Render a report as one HTML page that needs no other file.

The page contains its images (WebP) and its arrays (deflated), both in base64. Most data are representatives: one for
every token, at every step of the ratio slider, for every method. For nested selections they take one or two bits per
token and step, because a prediction is nearly always right:

* At the next smaller step, a token's representative is predicted to be the representative of its current one: itself
  if it is still kept; if it was dropped, the tokens it represented mostly move together.
* At the first step, the prediction is the representative of the same cell in the previous frame.

So a step is one bit per token (whether the prediction is wrong) and, for the wrong ones, the place among the kept
tokens, split into byte planes. `page/data.js` decodes a method when it is first shown.
"""

import base64
import html
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from floc._arrays import to_numpy
from floc.analysis import Projection
from floc.analysis.compare import Comparison, MethodResult
from floc.video.thumbnails import MIME, Thumbnails

PAGE = Path(__file__).with_name("page")
# concatenated to one module: a file may use what an earlier one defines while it loads
SCRIPTS = ("data.js", "draw.js", "controls.js", "answer.js", "panels.js", "timeline.js", "charts.js", "table.js")
IMAGE_ELEMENT = '<script type="text/plain" id="frame-{}">{}</script>'


@dataclass(frozen=True)
class Subject:
    """A question about the video, and the tokens that show what it asks for."""

    question: str
    verdict: str  # one line, shown on top of the page
    tokens: np.ndarray  # flat indices, ascending
    answers: Mapping[
        tuple[str, str], tuple[str, bool]
    ]  # (method, label of the ratio) -> the answer, whether it is right


@dataclass(frozen=True)
class ReportData:
    """The content of a report."""

    title: str
    facts: Sequence[tuple[str, str]]  # label and value: duration, frames, tokens, encoder, date
    command: str  # the command that makes this report
    notes: Sequence[str]
    times_s: np.ndarray  # [T] float64
    thumbnails: Thumbnails  # of T frames
    comparison: Comparison
    projection: Projection | None
    opens_at: int = 0  # frame to show first
    subject: Subject | None = None


def render_page(data: ReportData, limit_bytes: int = 1 << 30) -> str:
    """Return the report as HTML. The images are shrunk to keep the page below `limit_bytes`."""
    results = data.comparison.results
    t, h, w = next(iter(results[0].kept.values())).shape
    for count, name in ((len(data.times_s), "times"), (len(data.thumbnails), "thumbnails")):
        if count != t:
            raise ValueError(f"a report of {t} frames needs as many {name}; got {count}")
    page_data = {
        **{name: getattr(data, name) for name in ("title", "facts", "command", "notes", "opens_at")},
        "grid": [t, h, w],
        "times_s": np.round(np.asarray(data.times_s, np.float64), 3).tolist(),
        "image": {"mime": MIME, "width": data.thumbnails.width, "height": data.thumbnails.height},
        "steps": [{"label": step.label, "budget": step.budget} for step in data.comparison.steps],
        "methods": [
            {
                **{name: getattr(result, name) for name in ("name", "description", "scatter")},
                "steps": sorted(result.kept),
                "rows": [{"step": step, **row._asdict()} for step, row in sorted(result.measures.items())],
            }
            for result in results
        ],
        "tsne": None,
        "subject": None if data.subject is None else _pack_subject(data.subject, data.comparison),
    }
    if data.projection is not None:
        indices, xy = data.projection.indices.astype("<u4"), data.projection.xy.astype("<f4")
        page_data["tsne"] = {"indices": deflate(indices), "xy": deflate(xy)}
    fields = {
        "title": html.escape(data.title.encode("utf-8", "replace").decode()),  # a file name may be invalid unicode
        "style": _read("page.css"),
        "script": "\n".join(map(_read, SCRIPTS)),
        "data": _to_json(page_data),
        "methods": "\n".join(
            f'<script type="application/json" id="method-{i}">{_to_json(_pack_result(result))}</script>'
            for i, result in enumerate(results)
        ),
    }

    def fill(template: str) -> str:
        # one pass, so that a {{field}} in user text is not replaced
        return re.sub(r"\{\{(\w+)\}\}", lambda match: fields[match[1]], template)

    head, tail = map(fill, _read("page.html").split("{{frames}}"))
    # base64 turns 3 bytes into 4 characters, and pads each image
    free = limit_bytes - len(head.encode()) - len(tail.encode()) - t * len(IMAGE_ELEMENT.format(t, ""))
    images = data.thumbnails.within(free * 3 // 4 - 3 * t)
    # script elements: a browser does not decode the images before they are needed
    elements = [IMAGE_ELEMENT.format(i, base64.b64encode(image).decode()) for i, image in enumerate(images)]
    return head + "\n".join(elements) + tail


def _pack_subject(subject: Subject, comparison: Comparison) -> dict[str, object]:
    """Return the question, and for each method and requested ratio its answer and how many of the tokens it keeps."""
    rows: list[dict[str, object]] = []
    for result in comparison.results:
        for step in sorted(result.measures):
            answer, right = subject.answers.get((result.name, comparison.steps[step].label), (None, False))
            kept = int(np.isin(subject.tokens, to_numpy(result.kept[step].indices)).sum())
            rows.append({"method": result.name, "step": step, "answer": answer, "right": right, "kept": kept})
    return {**vars(subject), "tokens": subject.tokens.tolist(), "answers": None, "rows": rows}


def _pack_result(result: MethodResult) -> dict[str, str | list[str]]:
    selections = [result.kept[step] for step in sorted(result.kept)]
    indices = [to_numpy(kept.indices) for kept in selections]
    represents = [flat[to_numpy(kept.represents)] for flat, kept in zip(indices, selections, strict=True)]
    _, h, w = selections[0].shape
    return pack_selections(indices, represents, selections[0].n, h * w)


def pack_selections(
    kept: Sequence[np.ndarray], represents: Sequence[np.ndarray], n: int, cells: int
) -> dict[str, str | list[str]]:
    """Encode one method's selections, from most tokens to fewest, for `page/data.js`.

    Args:
        kept: for each step [K] flat indices, ascending.
        represents: for each step [n] the flat index of each token's representative.
        n, cells: number of tokens, and of tokens per frame.

    Returns:
        `kept`: [steps, n] bits, whether a token is kept. `wrong`: [steps, n] bits, whether the prediction is wrong.
        `places`: four byte planes of the correct values, as places in `kept`. In a step, tokens kept at the previous
        step come first, because the predictions of the others depend on them.
    """
    everyone = np.arange(n)
    member = np.stack([np.isin(everyone, indices) for indices in kept])
    wrong = np.zeros_like(member)
    places = []
    for s, (indices, current) in enumerate(zip(kept, represents, strict=True)):
        if s == 0:
            prediction = np.concatenate([everyone[:cells], current[:-cells]])
            order = everyone
        else:
            prediction = np.where(member[s - 1], everyone, current[represents[s - 1]])
            order = np.argsort(~member[s - 1], kind="stable")
        wrong[s] = prediction != current
        places.append(np.searchsorted(indices, current[order][wrong[s][order]]))
    planes = np.concatenate(places).astype("<u4").view(np.uint8).reshape(-1, 4).T  # [4, wrong predictions]
    kept_bits, wrong_bits = (deflate(np.packbits(flags, axis=1, bitorder="little")) for flags in (member, wrong))
    return {"kept": kept_bits, "wrong": wrong_bits, "places": [deflate(plane) for plane in planes]}


def deflate(array: np.ndarray) -> str:
    """Compress an array's bytes and encode them in base64."""
    return base64.b64encode(zlib.compress(array.tobytes(), 9)).decode()


def _to_json(value: object) -> str:
    """Return JSON that cannot close its script element: "<" occurs only in strings, where it can be escaped."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _read(name: str) -> str:
    return (PAGE / name).read_text(encoding="utf-8")
