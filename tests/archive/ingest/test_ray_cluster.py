"""Ingests on Ray: on one machine, and on a cluster of three that loses one."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

pytest.importorskip("lance", reason="Lance is not installed: pip install 'floc-video[store]'")
pytest.importorskip("av", reason="PyAV is not installed: pip install 'floc-video[video]'")
ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'floc-video[ray]'")

from floc.archive import Store  # noqa: E402
from floc.archive.ingest.ingest import ingest  # noqa: E402
from floc.archive.ingest.ledger import IngestStatus  # noqa: E402
from tests.archive.films import FILMS, OPTIONS, assert_ingested_once, make_films  # noqa: E402

pytestmark = [
    pytest.mark.corpus,
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]


@pytest.fixture(autouse=True)
def isolated(monkeypatch):
    """Start a new cluster for each test, whose processes import the same floc as this one."""
    import floc

    folders = [str(Path(package.__file__).parents[1]) for package in (ray, floc)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(folders))
    yield
    ray.shutdown()


def test_ray_equals_local(tmp_path: Path) -> None:
    make_films(tmp_path / "films", 6)
    (tmp_path / "films" / "none.mp4").write_bytes(b"not a video")
    kept = []
    for engine in ("local", "ray"):
        status = ingest([tmp_path / "films"], tmp_path / engine, engine=engine, workers=2, **OPTIONS)
        assert (status.done, status.failed, status.left) == (6, 1, 0)
        store = Store(tmp_path / engine)
        assert store.check() == []
        kept.append({video.id: store.open(video.id).indices.tolist() for video in store.videos("done")})
    assert kept[0] == kept[1]
    again = ingest([tmp_path / "films"], tmp_path / "ray", engine="ray", workers=1, **OPTIONS)
    assert (again.done, again.skipped) == (0, 6)


def test_ingest_survives_a_lost_machine(archive: Path, tmp_path: Path) -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    others = [cluster.add_node(num_cpus=1) for _ in range(2)]
    lost: list[int] = []

    def lose_one(status: IngestStatus) -> None:
        if status.done >= 40 and not lost:
            cluster.remove_node(others[0], allow_graceful=False)
            lost.append(status.done)

    try:
        ray.init(address=cluster.address, logging_level=logging.ERROR, log_to_driver=False)
        status = ingest([archive], tmp_path / "store", engine="ray", workers=2, show=lose_one, **OPTIONS)
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert [done < FILMS for done in lost] == [True]
    assert (status.done, status.skipped, status.failed) == (FILMS, 1, 2)
    assert_ingested_once(tmp_path / "store")


def test_missing_table_stops_the_ingest(tmp_path: Path) -> None:
    make_films(tmp_path / "films", 2)
    store = tmp_path / "store"

    def move_table(job):
        (store / "segments.lance").rename(tmp_path / "elsewhere")
        return job

    from floc.archive.ingest.ray_cluster import RayCluster

    start = RayCluster.start
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RayCluster, "start", lambda cluster: move_table(start(cluster)))
        with pytest.raises((OSError, ValueError, RuntimeError), match=r"segments\.lance: this table cannot be read"):
            ingest([tmp_path / "films"], store, engine="ray", workers=1, **OPTIONS)
