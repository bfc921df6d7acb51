"""`Store`: opening returns what was written, of any time range, and reads little else; videos are found by any name."""

from __future__ import annotations

import dataclasses
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("lance", reason="Lance is not installed: pip install 'floc-video[store]'")

import floc
from floc import Store
from floc.archive import StoreError, lance_tables
from floc.captured.identity import Identity
from tests.archive.builders import MODEL, add_video, make_piece, make_pieces, make_video
from tests.archive.test_token_rows import join_pieces, list_tokens, select_by_hand


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("layers", [0, 2])
def test_open_equals_capture(store: Store, dtype: torch.dtype, layers: int) -> None:
    pieces = make_pieces(dtype=dtype, layers=layers)
    video, expected = store.open(add_video(store, pieces).id), join_pieces(pieces)
    for name in ("features", "indices", "order", "gains"):
        assert torch.equal(getattr(video, name), getattr(expected, name)), name
        assert getattr(video, name).dtype == getattr(expected, name).dtype
    assert len(video.deep) == layers
    assert all(map(torch.equal, video.deep, expected.deep))
    assert (video.shape, video.model, video.nested) == (expected.shape, MODEL, True)
    assert (video.fps, video.duration_s, video.frames_per_slice) == (1.0, 75.0, 1)
    assert video.made["source"] == "/films/talk.mp4"
    assert video.made["coverage"] == pytest.approx(expected.made["coverage"])
    np.testing.assert_array_equal(video.times_s, np.arange(75.0))
    np.testing.assert_array_equal(video.last_s, np.arange(75.0))


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize(
    ("start_s", "end_s"), [(0, 75), (20, 60), (24, 26), (24.5, 24.75), (49.5, 50.25), (60, 900), (None, 12), (70, None)]
)
def test_open_range_returns_visible_tokens(store: Store, start_s: Any, end_s: Any, compacted: bool) -> None:
    pieces = make_pieces(kept=120)
    name = add_video(store, pieces).id
    if compacted:
        store.compact()
    start, end = 0.0 if start_s is None else start_s, 75.0 if end_s is None else end_s
    video = store.open(name, start_s=start_s, end_s=end_s)
    assert list_tokens(video) == select_by_hand(pieces, start, end)
    assert video.times_s is not None
    assert video.shape[0] == len(video.times_s) == len(video.last_s)  # type: ignore[arg-type]
    assert video.times_s[0] == math.floor(start)
    assert video.duration_s == min(end, 75) - start
    assert video.made["coverage"] is None or (start_s, end_s) == (None, None)


def test_slice_before_a_gap_is_visible_until_the_next_piece(store: Store) -> None:
    pieces = [make_piece(12, 0.0, kept=72), make_piece(12, 600.0, kept=72)]
    video = store.open(add_video(store, pieces).id, start_s=13, end_s=14)
    assert video.times_s.tolist() == [11.0]  # type: ignore[union-attr]
    assert list_tokens(video) == select_by_hand(pieces, 13, 14)


def test_open_slices_of_two_frames(store: Store) -> None:
    pieces = make_pieces(step_s=1.0, frames_per_slice=2)
    video = store.open(add_video(store, pieces).id, start_s=30, end_s=40)
    assert (video.frames_per_slice, video.fps) == (2, 2.0)
    np.testing.assert_allclose(video.last_s, video.times_s + 0.5)


@pytest.mark.parametrize("budget", [1, 7, 30])
def test_smaller_budget_is_a_prefix_of_the_order(store: Store, budget: int) -> None:
    name = add_video(store, make_pieces()).id
    whole, smaller = store.open(name, start_s=10, end_s=60), store.open(name, start_s=10, end_s=60, budget=budget)
    assert list_tokens(smaller) == list_tokens(whole)[:budget]
    assert len(store.open(name, ratio=1 / 8)) == round(75 * 6 / 8)


def test_ratio_of_a_sparse_range_returns_what_was_kept(store: Store) -> None:
    dense = make_piece(100, 0.0, kept=200)
    sparse = make_piece(100, 100.0, kept=2)
    name = add_video(store, [dense, sparse]).id
    assert len(store.open(name, start_s=100, end_s=200, ratio=1 / 8)) == 2
    with pytest.raises(ValueError, match="needs 300 tokens, but only 2 were kept"):
        store.open(name, start_s=100, end_s=200, ratio=1 / 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(start_s=75, end_s=80), "start_s must be within the video.*which lasts 75 s"),
        (dict(start_s=-1, end_s=80), "start_s must be within the video"),
        (dict(start_s=20, end_s=20), "start_s must be before end_s"),
        (dict(start_s=20, end_s=10), "start_s must be before end_s"),
        (dict(end_s=0), "start_s must be before end_s"),
        (dict(start_s=10**400), "must be numbers of seconds"),
        (dict(end_s="10"), "must be numbers of seconds"),
        (dict(start_s=math.nan, end_s=10), "must be numbers of seconds"),
        (dict(start_s=1, end_s=math.nan), "must be numbers of seconds"),
        (dict(start_s=math.inf), "must be numbers of seconds"),
        (dict(ratio=1 / 8, budget=3), "exactly one"),
        (dict(ratio=2), "ratio must be"),
        (dict(budget=10**6), "were kept"),
    ],
)
def test_open_rejects_invalid_options(store: Store, options: dict[str, Any], message: str) -> None:
    add_video(store, make_pieces())
    with pytest.raises(ValueError, match=message):
        store.open("talk.mp4", **options)


def test_open_rejects_a_range_without_tokens(store: Store) -> None:
    add_video(store, [make_piece(60, 0.0, kept=1)])
    time_s = store.open("talk.mp4").times_s[store.open("talk.mp4").positions[0, 0]]  # type: ignore[index]
    empty = 0 if time_s > 30 else 40
    with pytest.raises(ValueError, match="no tokens were kept between"):
        store.open("talk.mp4", start_s=empty, end_s=empty + 10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(times_s=None, last_s=None), "times of this video are not known"),
        (dict(times_s=np.zeros(25)), "times_s must be strictly ascending"),
        (dict(indices=torch.zeros(37, dtype=torch.int64)), "ascending"),
        (dict(features=torch.full((37, 8), torch.nan)), "not finite"),
        (dict(features=torch.zeros(37, 9)), "the model takes 8"),
    ],
)
def test_write_rejects_invalid_pieces(store: Store, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        store.write_piece("v", 0, dataclasses.replace(make_piece(), **change))


def test_add_and_export_round_trip(store: Store, tmp_path: Path) -> None:
    video = join_pieces(make_pieces(layers=1))
    video = floc.Captured(**{**vars(video), "duration_s": 75.0, "made": {"method": "floc", "coverage": 0.5}})
    video.save(tmp_path / "talk.floc")
    entry = store.add(tmp_path / "talk.floc")
    assert store.add(tmp_path / "talk.floc") == entry
    assert len(store.videos()) == 1
    assert (entry.kept, entry.tokens, entry.uri) == (len(video), video.n, str(tmp_path / "talk.floc"))
    store.export(entry.id, tmp_path / "again.floc")
    again = floc.load(tmp_path / "again.floc")
    for name in ("features", "indices", "order", "gains"):
        assert torch.equal(getattr(video, name), getattr(again, name)), name
    assert torch.equal(video.deep[0], again.deep[0])
    assert (again.shape, again.model, again.made["coverage"]) == (video.shape, video.model, 0.5)
    assert store.add(video, uri="in memory").uri == "in memory"
    assert not store.check()


def count_read_bytes() -> int:
    """Return the bytes that this process has read, from any file."""
    return int(Path("/proc/self/io").read_text().split()[1])


def measure_open(store: Store, name: str, start_s: float) -> tuple[float, float, float]:
    """Open one minute; return milliseconds, and bytes read per byte of features as the system and Lance count them."""
    table = store._tables.token_rows.latest()
    table.io_stats_incremental()
    before, started = count_read_bytes(), time.perf_counter()
    size = store.open(name, start_s=start_s, end_s=start_s + 60).features.nbytes
    seconds = time.perf_counter() - started
    return 1000 * seconds, (count_read_bytes() - before) / size, table.io_stats_incremental().read_bytes / size


@pytest.mark.parametrize("compacted", [False, True])
def test_open_minute_of_ten_hours_reads_little_more_than_its_bytes(store: Store, compacted: bool, capsys: Any) -> None:
    model = Identity("wide", "", None, "0", 1024, [])
    pieces = [
        make_piece(300, 300.0 * number, seed=number, kept=562, grid=(6, 10), model=model) for number in range(120)
    ]
    name = add_video(store, pieces).id
    if compacted:
        store.compact()
    minutes = (0, 3600, 7205, 20010.5, 35940)
    cold = [measure_open(Store(store.path), name, minute) for minute in minutes]  # with an empty cache
    measure_open(store, name, 12345)
    warm = [measure_open(store, name, minute) for minute in minutes]
    assert all(0.9 < read <= 1.5 for _, *both in warm for read in both), warm
    # the first read of a large file also reads its metadata, about 100 kB
    assert all(read <= 1.5 + compacted * 0.5 for _, *both in cold for read in both), cold
    with capsys.disabled():
        for state, measured in (("first", cold), ("later", warm)):
            ms, read, _ = np.median(measured, axis=0)
            print(
                f"\n{'compacted' if compacted else 'as written'}, {state}: {ms:.1f} ms, {read:.2f}x its bytes", end=""
            )


def test_find_accepts_any_name(store: Store) -> None:
    uris = ("/films/talk.mp4", "/films/walk.mp4", "/other/walk.mp4", "it's")
    videos = [add_video(store, make_pieces(1), uri=uri) for uri in uris]
    for video in videos:
        assert store.find(video.id) == store.find(video.uri) == video
    assert store.find("talk.mp4") == store.find(videos[0].id[:10]) == videos[0]
    with pytest.raises(ValueError, match=r"'walk.mp4' matches 2 videos; give an id: .*/films/walk.*/other/walk"):
        store.find("walk.mp4")
    with pytest.raises(ValueError, match=rf"did you mean {videos[0].id} \(/films/talk.mp4\)"):
        store.find("tlak.mp4")
    with pytest.raises(ValueError, match="the store has 4"):
        store.find("zzzzzzzzzzzz")
    with pytest.raises(ValueError, match="no video ''"):
        store.find("")


def test_video_rows_round_trip(store: Store) -> None:
    video = add_video(store, make_pieces())
    assert video.model == make_video(make_pieces(), ()).model
    assert store.videos() == [video]
    assert (video.starts_s, len(video.fragments)) == ((0.0, 25.0, 50.0), 3)
    with pytest.raises(ValueError, match="must have pieces"):
        store.commit([], [dataclasses.replace(video, pieces=())])


def test_rejects_a_path_that_is_not_a_store(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no store here; create one with .floc ingest."):
        Store(tmp_path / "none")
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileNotFoundError, match="no store here"):
        Store(tmp_path / "file")
    with pytest.raises(StoreError, match="cannot be written to"):
        Store(tmp_path / "file", create=True)


def test_rejects_another_format(store: Store) -> None:
    store._tables.videos.latest().update_schema_metadata({"floc.format": "7"})
    with pytest.raises(ValueError, match="format 7, but this version of floc reads format 1"):
        Store(store.path)


def test_store_at_a_uri(tmp_path: Path) -> None:
    uri = f"file-object-store://{tmp_path}/bucket"
    with pytest.raises(FileNotFoundError, match="no store here"):
        Store(uri)
    video = add_video(Store(uri, create=True), make_pieces())
    store = Store(f"{uri}/")
    assert len(store.open(video.id, start_s=10, end_s=60)) < len(store.open(video.id)) == video.kept
    token = store.open(video.id).features[0]
    results = store.search(token, 1)
    store.index()
    assert store.search(token, 1) == results
    with pytest.raises(StoreError, match="cannot be locked; wait for them, or set older_than_s to at least 3600"):
        store.compact(older_than_s=0)
    store.compact()
    assert store.check() == []
    assert store.search(token, 1) == results
    store.remove(video.id)
    assert store.videos() == []


def make_capture(tmp_path: Path, name: str, **changes: Any) -> Path:
    """Write a .floc file of one piece."""
    dataclasses.replace(make_piece(), **changes).save(tmp_path / name)
    return tmp_path / name


def test_export_and_import_keep_the_encoder(store: Store, tmp_path: Path) -> None:
    pixels = Identity("pixels", "pixels", None, "pixels", 8, [])
    entry = store.add(make_capture(tmp_path, "a.floc", model=pixels))
    assert entry.encoder == "pixels"
    store.export(entry.id, tmp_path / "b.floc")
    assert floc.load(tmp_path / "b.floc").made["encoder"] == "pixels"
    other = Store(tmp_path / "other", create=True)
    assert other.add(tmp_path / "b.floc").encoder == "pixels"


@pytest.mark.parametrize("made", [{}, {"encoder": "hf:other/model"}, {"encoder": "pixels"}, {"encoder": ["pixels"]}])
def test_imported_file_never_names_a_model_to_load(store: Store, tmp_path: Path, made: dict[str, Any]) -> None:
    entry = store.add(make_capture(tmp_path, "a.floc", made=made))
    assert entry.encoder == "hf:somewhere/tiny"
    picture = np.zeros((32, 32, 3), np.uint8)
    with pytest.raises(ValueError, match=r"A model is code: if you trust it, name it with encoder='hf:somewhere/tiny'"):
        store.search(picture)
    assert store.search(store.open(entry.id).features[0], 1)[0].video == entry.id  # tokens need no encoder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fps": 1e-320}, "fps"),
        ({"made": {"coverage": "all"}}, "coverage"),
        ({"made": {"coverage": math.nan}}, "coverage"),
        ({"times_s": np.arange(25.0) + 1e300, "last_s": np.arange(25.0) + 1e300}, "times_s|last_s|start_s"),
    ],
)
def test_import_rejects_values_out_of_range(
    store: Store, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        store.add(make_capture(tmp_path, "bad.floc", **changes))
    with pytest.raises(ValueError, match=message):
        store.add(dataclasses.replace(make_piece(), **changes))
    assert store.videos() == []
    assert store.add(make_capture(tmp_path, "good.floc")).status == "done"


def test_names_that_are_not_utf_8(store: Store, tmp_path: Path) -> None:
    entry = store.add(make_piece(), uri="/films/caf\udce9\x1b[31m.floc")
    assert entry.uri.endswith("caf\\udce9\x1b[31m.floc")
    assert store.find("caf\udce9\x1b[31m.floc") == entry
    with pytest.raises(ValueError, match="must be valid UTF-8"):
        Store(tmp_path / "caf\udce9", create=True)


def test_secrets_of_an_address_are_not_shown(monkeypatch) -> None:
    address = "s3://KEY:SECRET@bucket/archive"
    monkeypatch.setattr(lance_tables.lance, "dataset", lambda *_, **__: (_ for _ in ()).throw(OSError(f"no {address}")))
    with pytest.raises(ValueError, match="s3://bucket/archive") as caught:
        Store(address)
    assert "SECRET" not in str(caught.value)
    monkeypatch.setattr(lance_tables.LanceTable, "exists", lambda table: True)
    monkeypatch.setattr(Store, "_require_format", lambda store: None)
    assert repr(Store(address)) == "Store('s3://bucket/archive')"
    assert Store(address).path == address
