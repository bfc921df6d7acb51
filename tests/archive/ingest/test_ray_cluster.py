"""Ingests on Ray: one machine, and a cluster of three that loses one."""

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
from floc.archive.ingest.ledger import Status  # noqa: E402
from tests.archive.films import FILMS, OPTIONS, make_films, require_all_once  # noqa: E402

pytestmark = [
    pytest.mark.corpus,
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """A cluster of its own, whose processes find this package where this one did."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(ray.__file__).parents[1]), *_sources()]))
    yield
    ray.shutdown()


def _sources() -> list[str]:
    import floc

    return [str(Path(floc.__file__).parents[1])]


def test_ray_keeps_what_processes_keep(tmp_path: Path) -> None:
    make_films(tmp_path / "films", 6)
    (tmp_path / "films" / "none.mp4").write_bytes(b"no film")
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


def test_a_machine_is_lost_in_the_middle(archive: Path, tmp_path: Path) -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    others = [cluster.add_node(num_cpus=1) for _ in range(2)]
    lost: list[int] = []

    def lose_one(status: Status) -> None:
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
    require_all_once(tmp_path / "store")


def test_a_store_that_is_gone_stops_it(tmp_path: Path) -> None:
    make_films(tmp_path / "films", 2)
    store = tmp_path / "store"

    def take_away(brief):
        (store / "segments.lance").rename(tmp_path / "elsewhere")
        return brief

    from floc.archive.ingest.ray import Cluster

    found = Cluster.brief
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cluster, "brief", lambda cluster: take_away(found(cluster)))
        with pytest.raises((OSError, ValueError, RuntimeError), match=r"segments\.lance: this table cannot be read"):
            ingest([tmp_path / "films"], store, engine="ray", workers=1, **OPTIONS)
