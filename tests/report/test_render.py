"""Rendering a report: packed selections, escaped text, and the size limit."""

from __future__ import annotations

import base64
import html
import json
import re
import zlib
from dataclasses import replace

import numpy as np
import pytest

import floc
from examples.synthetic import make_tokens
from floc.report.render import ReportData, pack_selections, render_page
from tests.report.conftest import NASTY


def unpack(packed: dict, steps: int, n: int, cells: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Decode kept tokens and representatives, one token at a time."""

    def inflate(text: str) -> bytes:
        return zlib.decompress(base64.b64decode(text))

    def bits(text: str) -> np.ndarray:
        rows = np.frombuffer(inflate(text), np.uint8).reshape(steps, -1)
        return np.unpackbits(rows, axis=1, bitorder="little")[:, :n].astype(bool)

    member, wrong = bits(packed["kept"]), bits(packed["wrong"])
    low, *higher = (inflate(plane) for plane in packed["places"])
    places = iter([int.from_bytes(four, "little") for four in zip(low, *higher, strict=True)])
    kept, represents = [], []
    for s in range(steps):
        kept.append(np.flatnonzero(member[s]))
        decoded = np.full(n, -1)
        earlier = [] if s == 0 else kept[s - 1].tolist()
        for token in earlier + [token for token in range(n) if s == 0 or not member[s - 1][token]]:
            if wrong[s][token]:
                decoded[token] = kept[s][next(places)]
            elif s == 0:
                decoded[token] = token if token < cells else decoded[token - cells]
            else:
                decoded[token] = token if member[s - 1][token] else decoded[represents[s - 1][token]]
        represents.append(decoded)
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
def test_unpacking_inverts_packing(shape: tuple[int, int, int], budgets: list[int], nested: bool) -> None:
    rng = np.random.default_rng(0)
    n, cells = shape[0] * shape[1] * shape[2], shape[1] * shape[2]
    order = rng.permutation(n)
    kept = [np.sort((order if nested else rng.permutation(n))[:budget]) for budget in budgets]
    represents = [rng.choice(indices, n) for indices in kept]
    packed = pack_selections(kept, represents, n, cells)
    decoded = unpack(packed, len(budgets), n, cells)
    for actual, expected in zip([*decoded[0], *decoded[1]], [*kept, *represents], strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_video_packs_into_a_few_bits_per_token_and_step() -> None:
    tokens = make_tokens(90, 9, 16, dim=48)
    kept = floc.compress(tokens, ratio=1 / 8)
    selections = [kept.at(budget=len(kept) * 2 // (2 + s)) for s in range(9)]
    represents = [selection.indices[selection.represents] for selection in selections]
    packed = pack_selections([selection.indices for selection in selections], represents, kept.n, 9 * 16)
    assert len(json.dumps(packed)) < 0.3 * kept.n * len(selections)
    for actual, expected in zip(unpack(packed, 9, kept.n, 9 * 16)[1], represents, strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_user_text_is_escaped(report: ReportData) -> None:
    text = render_page(report)
    assert NASTY not in text
    assert f"<title>a video {html.escape(NASTY)}</title>" in text
    scripts = re.findall(r"<script(?: type=\"([a-z/]+)\" id=\"([\w-]+)\"| type=\"module\")?>(.*?)</script>", text, re.S)
    assert len(scripts) == 1 + 2 + 70 + 1  # data, methods, frames, the page's script
    page_data = json.loads(next(body for _, name, body in scripts if name == "data"))
    assert page_data["title"] == report.title
    assert page_data["notes"][1] == page_data["methods"][1]["description"] == NASTY
    assert page_data["methods"][0]["rows"][0]["averaged_distance"] is None
    images = [base64.b64decode(body) for _, name, body in scripts if name.startswith("frame-")]
    assert images == report.thumbnails.images
    assert "http" not in re.sub(
        r'<script type="[a-z]+/[a-z]+".*?</script>|http-equiv|http://www.w3.org/2000/svg', "", text
    )


def test_images_use_the_space_that_is_left(report: ReportData, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []

    def within(thumbnails, limit: int) -> list[bytes]:
        limits.append(limit)
        return [bytes(limit // 70)] * 70

    limit_bytes = len(render_page(report).encode()) + 100_000
    monkeypatch.setattr("floc.video.thumbnails.Thumbnails.within", within)
    page = render_page(report, limit_bytes)
    assert limit_bytes * 0.98 <= len(page.encode()) <= limit_bytes
    assert len(limits) == 1


def test_rejects_wrong_number_of_times_or_thumbnails(report: ReportData) -> None:
    with pytest.raises(ValueError, match="70 frames needs as many times; got 3"):
        render_page(replace(report, times_s=np.arange(3)))
    with pytest.raises(ValueError, match="70 frames needs as many thumbnails; got 1"):
        render_page(replace(report, thumbnails=replace(report.thumbnails, images=[b""])))
