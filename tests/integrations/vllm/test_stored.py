"""Addresses of stored videos: what they find, what they must not find, and when a key changes."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import floc
from floc.captured.captured import Captured
from floc.captured.identity import Identity
from floc.integrations.vllm import stored
from floc.integrations.vllm.stored import MOST_CHARACTERS, Address, StoredVideos, name_stored_video

MODEL = Identity("qwen2_5_vl", "tiny", None, "abc", 8, [])


def create_video(seed: int = 0, kept: int = 16) -> Captured:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(kept, 8, generator=generator)
    order, gains = torch.arange(kept), torch.linspace(1, 0, kept, dtype=torch.float64)
    times = np.arange(4.0)
    arrays = (features, torch.arange(kept) * 2, order, gains, ())
    return Captured(*arrays, (4, 2, 4), MODEL, {"method": "floc"}, True, times, times, 1, 1.0, 4.0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of stored videos, with private files beside it."""
    root = tmp_path / "videos"
    (root / "talks").mkdir(parents=True)
    create_video().save(root / "talks" / "monday.floc")
    create_video(1).save(root / "söme file#1.floc")
    create_video(2).save(tmp_path / "private.floc")
    return root


def open_folders(*folders: Path, salt: str = "model") -> StoredVideos:
    return StoredVideos([str(folder) for folder in folders], lambda video: None, salt)


def load(videos: StoredVideos, url: str) -> Captured:
    return videos.find(Address.parse(url)).load()


def settle(path: Path) -> None:
    """Wait until the last change of a file is older than the resolution of file times."""
    while time.time_ns() - path.stat().st_ctime_ns <= stored.SETTLED_NS:
        time.sleep(0.05)


@pytest.mark.parametrize(
    "url",
    ["floc://talks/monday.floc", "FLOC://talks/monday.floc", "floc://t%61lks/monday.floc?", "floc://talks/link.floc"],
)
def test_finds_a_file(root: Path, url: str) -> None:
    (root / "talks" / "link.floc").symlink_to("monday.floc")  # a link that stays inside
    video = load(open_folders(root), url)
    assert torch.equal(video.features, create_video().features)


def test_finds_names_with_special_characters(root: Path) -> None:
    assert len(load(open_folders(root), "floc://s%C3%B6me%20file%231.floc")) == 16
    assert len(load(open_folders(root), "floc://söme file#1.floc")) == 16


def test_takes_a_smaller_ratio(root: Path) -> None:
    videos = open_folders(root)
    assert len(load(videos, "floc://talks/monday.floc?ratio=1/8")) == 4
    assert len(load(videos, "floc://talks/monday.floc?ratio=1%2F8")) == 4
    with pytest.raises(ValueError, match="only 16 were kept; capture again with a larger budget"):
        load(videos, "floc://talks/monday.floc?ratio=3/4")


def test_searches_several_folders(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    create_video(3).save(other / "late.floc")
    videos = open_folders(root, other)
    assert torch.equal(load(videos, "floc://late.floc").features, create_video(3).features)
    assert torch.equal(load(videos, "floc://talks/monday.floc").features, create_video().features)


ATTACKS = [
    "floc://../private.floc",
    "floc://talks/../../private.floc",
    "floc://%2e%2e/private.floc",
    "floc://%2E./private.floc",
    "floc://talks/%2e%2e/%2e%2e/private.floc",
    "floc://..%2fprivate.floc",
    "floc://%2e%2e%2fprivate.floc",
    "floc://%252e%252e/private.floc",
    "floc://..%5cprivate.floc",
    "floc://..\\private.floc",
    "floc:///etc/passwd",
    "floc:///{root}/../private.floc",
    "floc://{root}/../private.floc",
    "floc://%2f{root}%2f..%2fprivate.floc",
    "floc://talks//monday.floc",
    "floc://talks/./monday.floc",
    "floc://talks/monday.floc/",
    "floc://talks/monday.floc%00.mp4",
    "floc://talks/monday.floc%00",
    "floc://talks/monday.floc\x00",
    "floc://talks/monday.floc%0a",
    "floc://talks/mon%ffday.floc",
    "floc://talks/mon%c0%aeday.floc",
    "floc://%c0%ae%c0%ae/private.floc",
    "floc://talks",
    "floc://",
    "floc://?",
    "floc://outside.floc",
    "floc://outside/private.floc",
    "floc://outside/archive/talk.mp4",
    "floc://loop.floc",
    "floc://pipe.floc",
    "floc://notes.txt",
    "floc://talks/monday.floc/monday.floc",
    "floc://" + "a" * 300 + ".floc",
    "floc://" + "a/" * 900 + "b.floc",
    "floc://" + "a" * MOST_CHARACTERS,
    "floc://~/private.floc",
    "floc://$HOME/private.floc",
    "file:///etc/passwd",
]


@pytest.mark.parametrize("url", ATTACKS)
def test_reads_nothing_outside(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    (root / "outside.floc").symlink_to(tmp_path / "private.floc")
    (root / "outside").symlink_to(tmp_path)
    (root / "loop.floc").symlink_to("loop.floc")
    (root / "notes.txt").write_text("private")
    os.mkfifo(root / "pipe.floc")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ValueError) as error:
        load(open_folders(root), url.format(root=root))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300
    assert str(tmp_path) not in str(error.value).replace(url.format(root=root), "")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("ratio=0", r"ratio must be in \(0, 1\]"),
        ("ratio=nan", "ratio must be a number such as 0.125"),
        ("ratio=1/0", "ratio must be a number such as 0.125"),
        ("ratio=1e99999999", "ratio must be a number such as 0.125"),
        ("ratio=" + "9" * 1000, "ratio must be a number such as 0.125"),
        ("ratio=", "ratio must be a number such as 0.125"),
        ("ratio", "is malformed"),
        ("ratio=1/8&ratio=1/4", "given twice"),
        ("rato=1/8", "unknown parameter of a stored video 'rato'; did you mean 'ratio'"),
        ("ratio=1/8;from=0", "ratio must be a number such as 0.125"),
        ("&".join(["ratio=1/8"] * 400), "has more than 2048|is malformed"),
        ("&" * 1500, "is malformed"),
        ("ratio=%ff", "is malformed"),
        ("from=x", "a time must be seconds, or like 1:30"),
        ("from=" + "1:" * 900 + "1", "a time must be seconds, or like 1:30"),
        ("from=-1", "a time must be seconds, or like 1:30"),
        ("from=1e999", "a time must be seconds, or like 1:30"),
        ("from=0:10&to=0:20", "only videos in a store have parts"),
    ],
)
def test_rejects_queries(root: Path, query: str, message: str) -> None:
    started = time.perf_counter()
    with pytest.raises(ValueError, match=message) as error:
        load(open_folders(root), f"floc://talks/monday.floc?{query}")
    assert len(str(error.value)) < 300
    assert time.perf_counter() - started < 1


@pytest.mark.parametrize("name", ["..", "%2e", "", "a%2fb", "a%5Cb", "a%00b", "a%0Ab", "a\x00b", "a\u2028b", "%C2%85"])
def test_refuses_names_before_looking_for_them(name: str) -> None:
    with pytest.raises(ValueError, match="or has a slash or a control character"):
        Address.parse(f"floc://talks/{name}/monday.floc")
    with pytest.raises(ValueError, match="has more than 2048 characters"):
        Address.parse("floc://" + "a/" * MOST_CHARACTERS)


def test_names_no_folder_of_the_server(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    (root / "bad.floc").write_bytes(b"x" * 100)
    with pytest.raises(ValueError, match=r"'floc://bad\.floc': not a \.floc file, or damaged: its header") as error:
        load(open_folders(root), "floc://bad.floc")
    assert str(root) not in str(error.value)
    assert str(root) in caplog.text  # for the operator


def test_a_key_follows_the_content(root: Path) -> None:
    path, videos = root / "talks" / "monday.floc", open_folders(root)

    def find(query: str = "") -> str:
        return videos.find(Address.parse(f"floc://talks/monday.floc{query}")).key

    first = find()
    assert find() == find("?") == first
    keys = {
        first,
        find("?ratio=1/8"),
        find("?ratio=1/4"),
        open_folders(root, salt="x").find(Address(" ", ("talks", "monday.floc"))).key,
    }
    assert len(keys) == 4
    assert find("?ratio=1/8") == find("?ratio=0.125")
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # the same name, size, inode and time
    assert find() != first
    create_video().save(path)  # replaced by the first content
    assert find() == first


def test_reads_an_unchanged_file_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, videos = root / "talks" / "monday.floc", open_folders(root)
    address, read = Address.parse("floc://talks/monday.floc"), []
    digest = stored.hashlib.file_digest
    monkeypatch.setattr(stored.hashlib, "file_digest", lambda *args: read.append(1) or digest(*args))
    keys = {videos.find(address).key, videos.find(address).key}
    assert len(read) == 2  # it may change again within the resolution of its time
    settle(path)
    keys |= {videos.find(address).key for _ in range(3)}
    assert (len(read), len(keys)) == (3, 1)


def test_rejects_a_file_that_changes_while_it_is_read(root: Path) -> None:
    video = open_folders(root).find(Address.parse("floc://talks/monday.floc"))
    create_video(5).save(root / "talks" / "monday.floc")
    with pytest.raises(ValueError, match="changed while it was read; ask again"):
        video.load()


def test_checks_every_video(root: Path) -> None:
    def refuse(video: Captured) -> None:
        raise ValueError(f"not of {video.model.kind}")

    with pytest.raises(ValueError, match=r"'floc://talks/monday.floc': not of qwen2_5_vl"):
        load(StoredVideos([str(root)], refuse, ""), "floc://talks/monday.floc")


def test_names_a_video_for_offline_use() -> None:
    address, metadata = name_stored_video("floc://talk.floc?ratio=1/32")
    assert (address.parts, address.ratio, metadata) == (("talk.floc",), "1/32", {})
    with pytest.raises(ValueError, match=r"must be like floc://talk\.floc"):
        name_stored_video("talk.floc")


class TestStores:
    """Videos in stores."""

    @pytest.fixture
    def archive(self, root: Path) -> floc.Store:
        pytest.importorskip("lance", reason="Lance is not installed: pip install 'floc-video[store]'")
        store = floc.Store(root / "archive", create=True)
        store.add(create_video(), uri="/home/alice/talk.mp4")
        return store

    def test_finds_a_video(self, root: Path, archive: floc.Store) -> None:
        (entry,) = archive.videos()
        videos = open_folders(root)
        for url in (f"floc://archive/{entry.id}", "floc://archive/talk.mp4"):
            assert torch.equal(load(videos, url).features, create_video().features)
        assert len(load(open_folders(root / "archive"), "floc://talk.mp4")) == 16  # the folder is a store itself

    def test_takes_a_part(self, root: Path, archive: floc.Store) -> None:
        videos = open_folders(root)
        part = load(videos, "floc://archive/talk.mp4?from=0:01&to=0:03")
        assert part.shape == (2, 2, 4)
        assert part.times_s.tolist() == [1, 2]
        assert len(load(videos, "floc://archive/talk.mp4?from=1&to=3&ratio=1/8")) == 2
        found = [f"floc://archive/talk.mp4{query}" for query in ("", "?from=1", "?from=1&to=3", "?to=3", "?ratio=1/8")]
        assert len({videos.find(Address.parse(url)).key for url in found}) == 5
        with pytest.raises(ValueError, match="start_s must be before end_s"):
            load(videos, "floc://archive/talk.mp4?from=3&to=1")

    def test_a_key_follows_the_content(self, root: Path, archive: floc.Store) -> None:
        videos, address = open_folders(root), Address.parse("floc://archive/talk.mp4")
        first = videos.find(address).key
        assert videos.find(address).key == first
        archive.remove("talk.mp4")
        with pytest.raises(ValueError, match="no such video, or several"):
            videos.find(address)
        archive.add(create_video(6), uri="/home/bob/talk.mp4")
        assert videos.find(address).key != first

    def test_names_no_other_video_and_no_folder(self, root: Path, archive: floc.Store) -> None:
        archive.add(create_video(7), uri="/home/alice/secret.mp4")
        videos = open_folders(root)
        for url in ("floc://archive/secre.mp4", "floc://archive/%2Fhome%2Falice", "floc://archive/' OR 1=1 --"):
            with pytest.raises(ValueError) as error:
                load(videos, url)
            assert "secret" not in str(error.value)
            assert str(root) not in str(error.value)

    def test_a_damaged_store(self, root: Path, archive: floc.Store) -> None:
        (data,) = (root / "archive" / "segments.lance" / "data").iterdir()
        damaged = bytearray(data.read_bytes())
        damaged[100:400] = bytes(300)
        data.write_bytes(damaged)
        with pytest.raises(
            ValueError, match=r"'floc://archive/talk\.mp4': .*(cannot be read|was changed|are missing)"
        ) as error:
            load(open_folders(root), "floc://archive/talk.mp4")
        assert str(root) not in str(error.value)
        assert "/home/alice" not in str(error.value)

    def test_tables_outside_are_not_read(self, root: Path, archive: floc.Store, tmp_path: Path) -> None:
        (root / "archive").rename(tmp_path / "archive")
        (root / "archive").symlink_to(tmp_path / "archive")
        (root / "half").mkdir()
        for table in ("videos.lance", "segments.lance"):
            (root / "half" / table).symlink_to(tmp_path / "archive" / table)
        for url in ("floc://archive/talk.mp4", "floc://half/talk.mp4"):
            with pytest.raises(ValueError, match="no such stored video"):
                load(open_folders(root), url)

    def test_a_store_that_was_replaced(self, root: Path, archive: floc.Store) -> None:
        videos = open_folders(root)
        first = load(videos, "floc://archive/talk.mp4")
        (root / "archive").rename(root / "old")
        floc.Store(root / "archive", create=True).add(create_video(8), uri="/home/alice/talk.mp4")
        assert not torch.equal(load(videos, "floc://archive/talk.mp4").features, first.features)

    def test_a_file_of_a_store_is_no_video(self, root: Path, archive: floc.Store) -> None:
        for url in ("floc://archive", "floc://archive/videos.lance", "floc://archive/segments.lance/data"):
            with pytest.raises(ValueError, match="no such"):
                load(open_folders(root), url)


def test_a_store_needs_lance(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for table in ("videos.lance", "segments.lance"):
        (root / "archive" / table).mkdir(parents=True)
    monkeypatch.setitem(__import__("sys").modules, "floc.archive.store", None)
    stored._open_store.cache_clear()
    with pytest.raises(ValueError, match=r"the server cannot read stores; install 'floc-video\[store\]' there"):
        load(open_folders(root), "floc://archive/talk.mp4")


def test_address_is_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Address.parse("floc://talk.floc").parts = ("..", "private.floc")
