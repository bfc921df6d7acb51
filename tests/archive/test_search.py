"""Search finds planted tokens and pictures at the right time and position, with an index and without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("lance", reason="Lance is not installed: pip install 'floc-video[store]'")

import floc
from floc import Captured, Store
from floc.archive import SearchResult, search
from floc.captured.identity import Identity
from floc.encoders.base import get
from floc.video.picture import read_picture
from tests.archive.builders import add_video, make_piece, make_pieces, make_video

PIXELS = Identity("pixels", "pixels", None, "1", 84, [])


def plant_token(piece: Captured, token: torch.Tensor, index: int) -> Captured:
    features = piece.features.clone()
    features[index] = token
    return replace(piece, features=features)


def score_by_hand(query: torch.Tensor, pieces: list[Captured]) -> list[tuple[float, float]]:
    """Return (score, start_s) of every ten seconds of a video, best first."""
    rows: dict[float, list[torch.Tensor]] = {}
    for piece in pieces:
        for t, feature in zip(piece.positions[:, 0].tolist(), piece.features, strict=True):
            seconds = float(piece.times_s[t])  # type: ignore[index]
            start = max(seconds // 10 * 10, float(piece.times_s[0]))  # type: ignore[index]
            rows.setdefault(start, []).append(feature.float())
    scores = [
        (float(np.mean([max(float(F.cosine_similarity(q, x, 0)) for x in tokens) for q in query])), start)
        for start, tokens in rows.items()
    ]
    return sorted(scores, reverse=True)


def test_removed_videos_are_not_found_through_a_stale_index(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with too many videos to filter the index by id."""
    monkeypatch.setattr(search, "MIN_INDEXED_VECTORS", 20)
    monkeypatch.setattr(search, "MAX_FILTERED_VIDEOS", 0)
    first, second = make_pieces(1, 40), make_pieces(2, 40)
    removed = add_video(store, first, uri="/films/first.mp4")
    add_video(store, second, uri="/films/second.mp4")
    store.index()
    store.remove(removed.id)
    results = store.search(first[0].features[0], k=3)
    assert [result.uri for result in results] == ["/films/second.mp4"] * 3


@pytest.mark.parametrize("indexed", [False, True, "partly"])
@pytest.mark.parametrize("tokens", [1, 3])
def test_score_is_the_mean_of_best_cosines(
    store: Store, monkeypatch: pytest.MonkeyPatch, indexed: Any, tokens: int
) -> None:
    monkeypatch.setattr(search, "MIN_INDEXED_VECTORS", 20)
    pieces, later = make_pieces(3, 40), make_pieces(2, 40, dtype=torch.bfloat16)
    add_video(store, pieces)
    if indexed:
        assert store.index() == {"tiny": sum(map(len, pieces))}
    if indexed == "partly":
        add_video(store, later, uri="/films/later.mp4")
    query = torch.randn(tokens, 8, generator=torch.manual_seed(1))
    results = store.search(query, 5)
    expected = score_by_hand(query, pieces) + (score_by_hand(query, later) if indexed == "partly" else [])
    assert [result.similarity for result in results] == pytest.approx(
        [score for score, _ in sorted(expected)[::-1][:5]], abs=1e-3
    )
    if indexed != "partly":
        assert [result.start_s for result in results] == [start for _, start in expected[:5]]


@pytest.mark.parametrize("indexed", [False, True])
def test_planted_token_is_found_at_its_time_and_position(store: Store, indexed: bool) -> None:
    token = torch.randn(8, generator=torch.manual_seed(5))
    pieces = make_pieces(4, 60, kept=200)
    pieces[2] = plant_token(pieces[2], token.half(), 77)
    add_video(store, make_pieces(2, 60), uri="/films/other.mp4")
    video = add_video(store, pieces)
    if indexed:
        store.index()
    results = store.search(token, 3)
    best = results[0]
    t, y, x = pieces[2].positions[77].tolist()
    assert best.video == video.id
    assert (best.uri, best.time_s, best.position) == (video.uri, 120.0 + t, (y, x))
    assert best.start_s <= best.time_s < best.end_s
    assert best.similarity == pytest.approx(1, abs=1e-3)
    assert len(results) == 3
    assert store.search(token.numpy(), 1, video="other.mp4")[0].uri == "/films/other.mp4"


def test_an_index_whose_creation_was_killed_is_no_index(store: Store) -> None:
    """`kill -9` may leave the folder of a table without a first version."""
    video = add_video(store, make_pieces(2))
    query = torch.as_tensor(store.open(video.id).features[:1]).float()
    expected = store.search(query, 3)
    store.index()
    (folder,) = Path(store.path).glob("vectors-*.lance")
    for version in (folder / "_versions").iterdir():
        version.unlink()
    again = Store(store.path)
    assert again.search(query, 3) == expected
    assert again.check() == []
    assert again.index() == {"tiny": video.kept}
    assert again.search(query, 3) == expected


def test_index_follows_added_and_removed_videos(store: Store) -> None:
    first, second = add_video(store, make_pieces(2, 60)), add_video(store, make_pieces(2, 60), uri="/films/other.mp4")
    token = store.open(first.id).features[3]
    both = store.index()["tiny"]
    assert store.search(token, 1)[0].similarity == pytest.approx(1, abs=1e-3)
    store.remove(second.id)
    store.compact(older_than_s=0)
    assert {result.video for result in store.search(token, 50)} == {first.id}
    assert store.index()["tiny"] == first.kept < both
    third = add_video(store, make_pieces(1, 60, kept=11), uri="/films/third.mp4")
    assert store.index()["tiny"] == first.kept + third.kept
    assert store.index()["tiny"] == first.kept + third.kept


def test_quantised_index_finds_the_same(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MAX_EXACT_VECTORS", 100)
    add_video(store, make_pieces(4, 100, kept=300))
    query = store.open("talk.mp4").features[[5, 500]]
    scanned = store.search(query, 1)
    store.index()
    assert store.search(query, 1) == scanned


def make_frames() -> np.ndarray:
    """Return [12, 64, 96, 3] different frames."""
    rng = np.random.default_rng(3)
    return rng.integers(0, 256, (12, 2, 3, 3), np.uint8).repeat(32, 1).repeat(32, 2)


def encode_frames(frames: np.ndarray, start_s: float = 0.0) -> Captured:
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


def add_pixel_video(store: Store) -> np.ndarray:
    """Add a video encoded with pixels, and return its frames."""
    frames = make_frames()
    piece = encode_frames(frames)
    written = store.write_piece(make_video([piece], ()).id, 0, piece)
    store.commit([written], [replace(make_video([piece], [written]), encoder="pixels")])
    return frames


@pytest.mark.parametrize("as_file", [False, True])
def test_picture_is_found(store: Store, tmp_path: Path, as_file: bool) -> None:
    frames = add_pixel_video(store)
    add_video(store, make_pieces(1), uri="/films/of-another-encoder.mp4")
    picture: Any = frames[8]
    if as_file:
        images = pytest.importorskip("PIL.Image", reason="writes the picture; pip install 'floc-video[video]'")
        picture = tmp_path / "picture.png"
        images.fromarray(frames[8]).save(picture)
    first, second = store.search(picture, 2, encoder="pixels")
    assert (first.time_s, first.uri) == (56.0, "/films/talk.mp4")
    assert first.similarity > 0.99 > second.similarity


def test_videos_of_other_encoders_are_left_out(store: Store) -> None:
    frames = add_pixel_video(store)
    other = add_video(store, make_pieces(1), uri="/films/of-another-encoder.mp4")
    assert {result.video for result in store.search(torch.ones(8), 50)} == {other.id}
    assert store.index() == {"pixels": store.find("talk.mp4").kept, "tiny": other.kept}
    assert {result.video for result in store.search(torch.ones(8), 50)} == {other.id}
    with pytest.raises(ValueError, match=r"videos of several encoders, .*; select one with encoder="):
        store.search(frames[0])
    with pytest.raises(ValueError, match="unknown encoder of videos in this store 'mobilenet'"):
        store.search(frames[0], encoder="mobilenet")
    with pytest.raises(ValueError, match=r"query has tokens of 9 values, but those of the videos have \[8, 84\]"):
        store.search(torch.ones(9))


@pytest.mark.parametrize(
    ("query", "k", "message"),
    [
        (torch.ones(8), 0, "k must be a whole number"),
        (torch.ones(8), True, "k must be a whole number"),
        (torch.full((8,), torch.nan), 3, "not finite"),
        (torch.ones(2, 2, 8), 3, r"query must be \[D\] or \[Q, D\] tokens"),
        (torch.ones(0, 8), 3, r"query must be \[D\] or \[Q, D\] tokens"),
    ],
)
def test_rejects_invalid_queries(store: Store, query: Any, k: Any, message: str) -> None:
    add_video(store, make_pieces(1))
    with pytest.raises(ValueError, match=message):
        store.search(query, k)


def test_rejects_unreadable_pictures(store: Store, tmp_path: Path) -> None:
    add_pixel_video(store)
    with pytest.raises(FileNotFoundError, match="no such file"):
        store.search(tmp_path / "none.png")
    (tmp_path / "text.png").write_text("not a picture")
    with pytest.raises(ValueError, match=r"text\.png"):
        store.search(tmp_path / "text.png")
    with pytest.raises(ValueError, match=r"a picture must be \[h, w, 3\] uint8"):
        store.search(np.zeros((4, 4), np.uint8))


def test_empty_store_has_no_results(store: Store) -> None:
    assert store.search(torch.ones(8)) == []
    assert store.index() == {}


def test_row_without_tokens_is_not_a_result(store: Store) -> None:
    add_video(store, [make_piece(60, 0.0, kept=1)])
    (result,) = store.search(torch.ones(8), 10)
    assert isinstance(result, SearchResult)


@pytest.mark.parametrize(
    "query", [np.array(["a"]), [[1, 2], [3]], torch.empty(2, 8, device="meta"), None, {"a": 1}, np.array([None])]
)
def test_rejects_what_is_not_a_query(store: Store, query: Any) -> None:
    add_video(store, make_pieces(1))
    with pytest.raises(ValueError, match=r"query must be|not finite"):
        store.search(query)


def test_query_may_have_any_strides(store: Store) -> None:
    add_video(store, make_pieces(1))
    tokens = np.random.default_rng(0).standard_normal((3, 8))
    assert store.search(tokens[::-1], 1) == store.search(tokens[::-1].copy(), 1)
