"""Planted pictures are found, when and where they are, with an index and without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("lance", reason="a store needs pip install 'floc-video[store]'")

import floc
from floc import Captured, Store
from floc.archive import Moment, search
from floc.captured.identity import Identity
from floc.encoders.base import get
from floc.video.picture import read_picture
from tests.archive.making import film, piece, put, row

PIXELS = Identity("pixels", "pixels", None, "1", 84, [])


def planted(part: Captured, token: torch.Tensor, place: int) -> Captured:
    features = part.features.clone()
    features[place] = token
    return replace(part, features=features)


def by_hand(query: torch.Tensor, parts: list[Captured]) -> list[tuple[float, float]]:
    """(score, start_s) of each ten seconds of a film, best first, token by token."""
    rows: dict[float, list[torch.Tensor]] = {}
    for part in parts:
        for t, feature in zip(part.positions[:, 0].tolist(), part.features, strict=True):
            seconds = float(part.times_s[t])  # type: ignore[index]
            start = max(seconds // 10 * 10, float(part.times_s[0]))  # type: ignore[index]
            rows.setdefault(start, []).append(feature.float())
    scores = [
        (float(np.mean([max(float(F.cosine_similarity(q, x, 0)) for x in tokens) for q in query])), start)
        for start, tokens in rows.items()
    ]
    return sorted(scores, reverse=True)


def test_what_was_removed_since_the_index_is_not_found(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there are too many videos to name them to the index."""
    monkeypatch.setattr(search, "TRAINED", 20)
    monkeypatch.setattr(search, "FEW_VIDEOS", 0)
    first, second = film(1, 40), film(2, 40)
    gone = put(store, first, uri="/films/first.mp4")
    put(store, second, uri="/films/second.mp4")
    store.index()
    store.remove(gone.id)
    moments = store.search(first[0].features[0], k=3)
    assert [moment.uri for moment in moments] == ["/films/second.mp4"] * 3


@pytest.mark.parametrize("indexed", [False, True, "with more since"])
@pytest.mark.parametrize("tokens", [1, 3])
def test_search_is_the_mean_of_best_cosines(
    store: Store, monkeypatch: pytest.MonkeyPatch, indexed: Any, tokens: int
) -> None:
    monkeypatch.setattr(search, "TRAINED", 20)
    parts, later = film(3, 40), film(2, 40, dtype=torch.bfloat16)
    put(store, parts)
    if indexed:
        assert store.index() == {"tiny": sum(map(len, parts))}
    if indexed == "with more since":
        put(store, later, uri="/films/later.mp4")
    query = torch.randn(tokens, 8, generator=torch.manual_seed(1))
    found = store.search(query, 5)
    expected = by_hand(query, parts) + (by_hand(query, later) if indexed == "with more since" else [])
    assert [each.similarity for each in found] == pytest.approx(
        [each for each, _ in sorted(expected)[::-1][:5]], abs=1e-3
    )
    if indexed != "with more since":
        assert [each.start_s for each in found] == [start for _, start in expected[:5]]


@pytest.mark.parametrize("indexed", [False, True])
def test_a_planted_token_is_found_when_and_where_it_is(store: Store, indexed: bool) -> None:
    token = torch.randn(8, generator=torch.manual_seed(5))
    parts = film(4, 60, kept=200)
    parts[2] = planted(parts[2], token.half(), 77)
    put(store, film(2, 60), uri="/films/other.mp4")
    video = put(store, parts)
    if indexed:
        store.index()
    found = store.search(token, 3)
    t, y, x = parts[2].positions[77].tolist()
    assert found[0].video == video.id
    assert (found[0].uri, found[0].time_s, found[0].position) == (video.uri, 120.0 + t, (y, x))
    assert found[0].start_s <= found[0].time_s < found[0].end_s
    assert found[0].similarity == pytest.approx(1, abs=1e-3)
    assert len(found) == 3
    assert store.search(token.numpy(), 1, video="other.mp4")[0].uri == "/films/other.mp4"


def test_an_index_follows_the_store(store: Store) -> None:
    first, second = put(store, film(2, 60)), put(store, film(2, 60), uri="/films/other.mp4")
    token = store.open(first.id).features[3]
    both = store.index()["tiny"]
    assert store.search(token, 1)[0].similarity == pytest.approx(1, abs=1e-3)
    store.remove(second.id)
    store.compact(older_than_s=0)
    assert {each.video for each in store.search(token, 50)} == {first.id}
    assert store.index()["tiny"] == first.kept < both
    third = put(store, film(1, 60, kept=11), uri="/films/third.mp4")
    assert store.index()["tiny"] == first.kept + third.kept
    assert store.index()["tiny"] == first.kept + third.kept


def test_large_indices_find_the_same(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "FLAT", 100)
    put(store, film(4, 100, kept=300))
    query = store.open("talk.mp4").features[[5, 500]]
    scanned = store.search(query, 1)
    store.index()
    assert store.search(query, 1) == scanned


def pictures() -> np.ndarray:
    """[12, 64, 96, 3] frames that differ."""
    rng = np.random.default_rng(3)
    return rng.integers(0, 256, (12, 2, 3, 3), np.uint8).repeat(32, 1).repeat(32, 2)


def encoded(frames: np.ndarray, start_s: float = 0.0) -> Captured:
    encoder = get("pixels")
    tokens = torch.as_tensor(encoder(np.stack([read_picture(frame, encoder.frame_size) for frame in frames])))
    kept = floc.compress(tokens, ratio=1)
    times = start_s + 7.0 * np.arange(len(frames))
    return Captured(
        torch.as_tensor(kept.features),
        torch.as_tensor(kept.indices),
        torch.as_tensor(kept.order),
        torch.as_tensor(kept.gains).double(),
        (),
        kept.shape,
        PIXELS,
        {"method": "floc", "coverage": 1.0},
        True,
        times,
        times,
        1,
        1 / 7,
        7.0 * len(frames),
    )


def put_pixels(store: Store) -> np.ndarray:
    frames = pictures()
    part = encoded(frames)
    entry = row([part], ())
    written = store.write_piece(entry.id, 0, part)
    store.commit([written], [replace(row([part], [written]), encoder="pixels")])
    return frames


@pytest.mark.parametrize("as_file", [False, True])
def test_a_picture_is_found(store: Store, tmp_path: Path, as_file: bool) -> None:
    frames = put_pixels(store)
    put(store, film(1), uri="/films/of-another-encoder.mp4")
    picture: Any = frames[8]
    if as_file:
        images = pytest.importorskip("PIL.Image", reason="writes the picture; pip install 'floc-video[video]'")
        picture = tmp_path / "picture.png"
        images.fromarray(frames[8]).save(picture)
    found = store.search(picture, 2, encoder="pixels")
    assert (found[0].time_s, found[0].uri) == (56.0, "/films/talk.mp4")
    assert found[0].similarity > 0.99 > found[1].similarity


def test_videos_of_another_encoder_are_left_out(store: Store) -> None:
    frames = put_pixels(store)
    other = put(store, film(1), uri="/films/of-another-encoder.mp4")
    assert {each.video for each in store.search(torch.ones(8), 50)} == {other.id}
    assert store.index() == {"pixels": store.find("talk.mp4").kept, "tiny": other.kept}
    assert {each.video for each in store.search(torch.ones(8), 50)} == {other.id}
    with pytest.raises(ValueError, match="videos of several encoders: name one by encoder="):
        store.search(frames[0])
    with pytest.raises(ValueError, match="unknown encoder of videos in this store 'mobilenet'"):
        store.search(frames[0], encoder="mobilenet")
    with pytest.raises(ValueError, match=r"tokens of 9 values were given, those of the videos have \[8, 84\]"):
        store.search(torch.ones(9))


@pytest.mark.parametrize(
    ("query", "k", "said"),
    [
        (torch.ones(8), 0, "k must be a whole number"),
        (torch.ones(8), True, "k must be a whole number"),
        (torch.full((8,), torch.nan), 3, "not finite"),
        (torch.ones(2, 2, 8), 3, r"query must be \[D\] or \[Q, D\] tokens"),
        (torch.ones(0, 8), 3, r"query must be \[D\] or \[Q, D\] tokens"),
    ],
)
def test_what_cannot_be_searched_for_is_told(store: Store, query: Any, k: Any, said: str) -> None:
    put(store, film(1))
    with pytest.raises(ValueError, match=said):
        store.search(query, k)


def test_bad_pictures_are_told(store: Store, tmp_path: Path) -> None:
    put_pixels(store)
    with pytest.raises(FileNotFoundError, match="no such file"):
        store.search(tmp_path / "none.png")
    (tmp_path / "text.png").write_text("not a picture")
    with pytest.raises(ValueError, match=r"text\.png"):
        store.search(tmp_path / "text.png")
    with pytest.raises(ValueError, match=r"a picture must be \[h, w, 3\] uint8"):
        store.search(np.zeros((4, 4), np.uint8))


def test_an_empty_store_has_no_moments(store: Store) -> None:
    assert store.search(torch.ones(8)) == []
    assert store.index() == {}


def test_a_row_without_tokens_is_no_moment(store: Store) -> None:
    put(store, [piece(60, 0.0, kept=1)])
    found = store.search(torch.ones(8), 10)
    assert len(found) == 1
    assert isinstance(found[0], Moment)
