"""An ingest that reuses slices or encodes a share: pieces do not depend on each other, and settings do not mix."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("lance", reason="Lance is not installed: pip install 'floc-video[store]'")
pytest.importorskip("torchvision", reason="processors need torchvision: pip install 'floc-video[hf]'")
pytest.importorskip("av", reason="PyAV is not installed: pip install 'floc-video[video]'")

import av

import floc
from floc.archive import Store
from floc.archive.ingest import ingest
from floc.archive.ingest.job import IngestOptions, PieceWritten
from floc.archive.ingest.sources import find_videos
from floc.archive.ingest.worker import Worker
from floc.encoders.slice_choice import SliceOptions
from tests.archive.ingest.running import collect_events, ingest_files, record_events
from tests.integrations.transformers.checkpoints import save


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"hf:{save('qwen2_5_vl', tmp_path_factory.mktemp('model'))}"


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a minute without losses, whose picture changes every 12 seconds."""
    path = tmp_path_factory.mktemp("films") / "still.mkv"
    rng = np.random.default_rng(0)
    with av.open(path, "w") as output:
        stream = output.add_stream("ffv1", rate=2)
        stream.width, stream.height, stream.pix_fmt = 64, 40, "bgr0"
        for _ in range(5):
            picture = rng.integers(0, 256, (40, 64, 3), np.uint8)
            for _ in range(24):
                output.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
        output.mux(stream.encode())
    return path


def load(store: Path, name: str) -> floc.Captured:
    return Store(store).open(name)


def test_tokens_and_ids_of_an_ingest(film: Path, model: str, tmp_path: Path) -> None:
    settings = dict(encoder=model, ratio="1", fps=2, max_frames="all", device="cpu")
    store = tmp_path / "store"
    assert ingest([film], store, **settings, workers=1, reuse=0).done == 1
    again = ingest([film], store, **settings, workers=1, reuse=0.0)
    assert (again.done, again.skipped) == (0, 1)
    for reuse in (None, 9.0):  # other video ids
        worker = Worker(IngestOptions(**settings, slices=SliceOptions(reuse)), str(store))
        assert ingest_files(worker, *find_videos([film])).status.done == 1
    videos = {video.made.get("reuse"): video for video in Store(store).videos("done")}
    assert videos.keys() == {None, 0.0, 9.0}
    assert len({video.id for video in videos.values()}) == 3
    whole, *others = (load(store, videos[value].id) for value in (None, 0.0, 9.0))
    for other in others:
        assert other.shape == whole.shape
        torch.testing.assert_close(torch.as_tensor(other.features), torch.as_tensor(whole.features))
    cells = whole.shape[1] * whole.shape[2]
    first = torch.as_tensor(others[0].features)[: 12 * cells].view(12, cells, -1)
    assert torch.equal(first, first[:1].expand_as(first))


def test_an_ingest_encodes_a_share_of_every_piece(small_pieces, film: Path, model: str, tmp_path: Path) -> None:
    """The film has five pictures, so half of its slices are enough."""
    options = IngestOptions(model, ratio="1", fps=2, max_frames="all", device="cpu")
    videos = []
    for share in (1, 0.5):
        store = tmp_path / f"store{share}"
        Store(store, create=True)
        worker = Worker(replace(options, slices=SliceOptions(encode=share)), str(store))
        ingest_files(worker, *find_videos([film]))
        videos.append(Store(store).videos("done")[0])
    assert videos[0].id != videos[1].id
    assert [video.made.get("encode") for video in videos] == [None, "1/2"]
    assert dict(videos[1].options) == replace(options, slices=SliceOptions(encode="2/4")).as_dict()
    assert dict(videos[0].options) == options.as_dict()
    whole, some = (load(tmp_path / f"store{share}", video.id) for share, video in zip((1, 0.5), videos, strict=True))
    assert some.shape == whole.shape
    np.testing.assert_array_equal(some.times_s, whole.times_s)
    torch.testing.assert_close(torch.as_tensor(some.features), torch.as_tensor(whole.features))


def test_a_piece_does_not_depend_on_the_one_before(small_pieces, film: Path, model: str, tmp_path: Path) -> None:
    """The last picture of a piece is the first of the next: a resumed ingest must write the same piece."""
    options = IngestOptions(model, ratio="1", fps=2, max_frames="all", device="cpu", slices=SliceOptions(reuse=0))
    counts: list[list[int]] = []
    stores = []
    for existing in ((), (0,)):
        store = tmp_path / f"store{len(existing)}"
        Store(store, create=True)
        worker = Worker(options, str(store))
        passed: list[int] = []
        worker.encoder.model.visual.register_forward_pre_hook(  # type: ignore[attr-defined]
            lambda tower, args, passed=passed: passed.append(len(args[0]))
        )
        events = collect_events(worker, *find_videos([film]), existing)
        assert len(events) > 2, events
        written = [event.piece.piece for event in events if isinstance(event, PieceWritten)]
        assert written == [0, 1][len(existing) :]
        counts.append(passed)
        stores.append((worker, events))
    slices = [sum(passed) // min(counts[0] + counts[1]) for passed in counts]
    ledger = record_events(*stores[0])
    assert ledger.store.check() == []
    assert slices[0] > slices[1] > 0
    assert sum(counts[0][-len(counts[1]) :]) == sum(counts[1])  # the second piece encodes as much as alone


def test_other_encoders_are_refused(film: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="reuse is for the vision encoders of models, hf:<model>, not 'pixels'"):
        ingest([film], tmp_path / "store", encoder="pixels", ratio="1/4", reuse=8)
    with pytest.raises(ValueError, match="reuse must be a number of levels"):
        ingest([film], tmp_path / "store", encoder="pixels", ratio="1/4", reuse=-8)
    with pytest.raises(ValueError, match="encode is for the vision encoders of models, hf:<model>, not 'pixels'"):
        ingest([film], tmp_path / "store", encoder="pixels", ratio="1/4", encode="1/2")
