"""Token files, kept-tokens files and atomic writes; damaged files are refused."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

import floc
from floc import Kept, files

TOKENS = np.random.default_rng(0).standard_normal((6, 2, 3, 8)).astype(np.float32)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "kept.safetensors"
    files.write_kept(floc.compress(TOKENS, budget=9), path, "tokens.npy", times_s=np.arange(6) / 2)
    return path


def change(path: Path, mutate: Callable[[dict[str, Any], dict[str, Any]], object]) -> None:
    """Rewrite a file after a function has changed its tensors and metadata."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - no mapping
        metadata = json.loads(file.metadata()["floc"])
    mutate(tensors, metadata)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, {"floc": json.dumps(metadata)})


def require_valid(kept: Kept) -> None:
    """Check everything that a result of `floc.compress` satisfies."""
    k, indices = len(kept), kept.indices.numpy()
    assert kept.features.shape[0] == kept.gains.shape[0] == len(kept.order) == k > 0
    assert (np.diff(indices) > 0).all()
    assert indices.min() >= 0
    assert indices.max() < kept.n
    np.testing.assert_array_equal(kept.positions, np.stack(np.unravel_index(indices, kept.shape), 1))
    np.testing.assert_array_equal(np.sort(kept.order), np.arange(k))
    assert kept.features.float().isfinite().all()
    assert kept.gains.isfinite().all()
    assert np.isfinite([kept.coverage, kept.seconds]).all()
    if kept.method != "stream":
        assert kept.represents.shape == (kept.n,)
        assert 0 <= kept.represents.min() <= kept.represents.max() < k
    if kept.times_s is not None:
        assert kept.times_s.isfinite().all()
        assert (kept.times_s.diff() >= 0).all()
    str(kept)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn])
def test_read_kept_returns_what_was_written(tmp_path: Path, dtype: torch.dtype) -> None:
    kept = floc.compress(torch.from_numpy(TOKENS).to(dtype), budget=9)
    files.write_kept(kept, tmp_path / "a", "tokens.npy")
    loaded = files.read_kept(tmp_path / "a")
    for name in ("indices", "positions", "order", "gains", "represents"):
        assert torch.equal(getattr(loaded, name), getattr(kept, name))
    assert torch.equal(loaded.features.float(), kept.features.float())
    for name in ("shape", "method", "settings", "seconds", "coverage", "bound"):
        assert getattr(loaded, name) == getattr(kept, name)
    require_valid(loaded)


BAD_TENSORS = {
    "descending": lambda t: t.update(indices=t["indices"].flip(0)),
    "repeated": lambda t: t["indices"].__setitem__(1, t["indices"][0]),
    "negative": lambda t: t["indices"].__setitem__(0, -1),
    "out of range": lambda t: t["indices"].__setitem__(-1, 36),
    "extreme": lambda t: t["indices"].__setitem__(4, 2**63 - 1),
    "int32": lambda t: t.update(indices=t["indices"].int()),
    "no indices": lambda t: t.pop("indices"),
    "positions": lambda t: t["positions"].__setitem__((3, 1), 1 - t["positions"][3, 1]),
    "order repeats": lambda t: t["order"].__setitem__(0, t["order"][1]),
    "order short": lambda t: t.update(order=t["order"][:-1]),
    "gains": lambda t: t["gains"].__setitem__(2, torch.inf),
    "gains short": lambda t: t.update(gains=t["gains"][:-1]),
    "features": lambda t: t["features"].__setitem__((2, 2), torch.nan),
    "features flat": lambda t: t.update(features=t["features"].flatten()),
    "features short": lambda t: t.update(features=t["features"][1:]),
    "features integer": lambda t: t.update(features=t["features"].long()),
    "no features": lambda t: t.update(features=t["features"][:, :0]),
    "represents": lambda t: t["represents"].__setitem__(0, 9),
    "represents negative": lambda t: t["represents"].__setitem__(0, -1),
    "represents float": lambda t: t.update(represents=t["represents"].double()),
    "represents short": lambda t: t.update(represents=t["represents"][1:]),
    "no represents": lambda t: t.pop("represents"),
    "times": lambda t: t["times_s"].__setitem__(-1, 0.1),
    "times nan": lambda t: t["times_s"].__setitem__(0, torch.nan),
    "no times": lambda t: t.pop("times_s"),
    "frame times": lambda t: t["frame_times_s"].__setitem__(0, 9),
    "frame times short": lambda t: t.update(frame_times_s=t["frame_times_s"][1:]),
    "only token times": lambda t: (t.pop("frame_times_s"), t["times_s"].__setitem__(slice(None), -torch.arange(9))),
}
BAD_METADATA = {
    "format": [2, 0, "1", None, True, 1.0],
    "shape": [[6, 6], [6, 2, 3, 1], [0, 2, 3], [6, 2, -3], [6.0, 2, 3], [True, 2, 18], "623", None, [2, 6, 3]],
    "coverage": [float("nan"), 2, "0.9", None, [0.9], True, 10**400],
    "bound": [float("nan"), 1.5, -1, "1"],
    "seconds": [-1, float("inf"), None, "1"],
    "method": [None, 3, "a" * 20_000],
    "settings": [None, [], "a"],
    "span_s": [[1], [2, 1], [0, float("inf")], "ab", 3],
    "tokens": [35, "36"],
    "kept": [8],
    "dim": [9],
    "ratio": [0.5],
}


@pytest.mark.parametrize("mutate", BAD_TENSORS.values(), ids=BAD_TENSORS)
def test_read_kept_refuses_inconsistent_tensors(written: Path, mutate: Callable[[dict[str, Any]], object]) -> None:
    change(written, lambda tensors, _: mutate(tensors))
    with pytest.raises(
        ValueError, match=r"kept\.safetensors: not a kept-tokens file, or damaged: .*; write the file again"
    ):
        files.read_kept(written)


@pytest.mark.parametrize("name", BAD_METADATA)
def test_read_kept_refuses_bad_metadata(written: Path, name: str) -> None:
    for value in BAD_METADATA[name]:
        change(written, lambda _, metadata, value=value: metadata.update({name: value}))
        with pytest.raises(ValueError, match=f"or damaged: .*({name}|positions)"):
            files.read_kept(written)


def test_read_kept_takes_files_without_format(written: Path) -> None:
    change(written, lambda _, metadata: metadata.pop("format"))
    require_valid(files.read_kept(written))


def test_read_kept_refuses_products_above_64_bits(written: Path) -> None:
    change(
        written,
        lambda tensors, metadata: (tensors.pop("represents"), metadata.update(method="stream", shape=[2**40] * 3)),
    )
    with pytest.raises(ValueError, match=r"fewer than 2\^63 tokens"):
        files.read_kept(written)


def test_read_kept_refuses_bad_json(written: Path) -> None:
    for text in ("[" * 100_000, "{", "[]", '{"shape": ' + "9" * 5000 + "}"):
        save_file({"features": torch.zeros(1, 1)}, written, {"floc": text})
        with pytest.raises(ValueError, match="not a kept-tokens file, or damaged"):
            files.read_kept(written)


def test_mutated_bytes_are_refused_or_valid(written: Path) -> None:
    good, rng = written.read_bytes(), random.Random(0)
    refused = 0
    for _ in range(300):
        data = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.choice([rng.randrange(256), 0, 255, ord("9"), ord("-")])
        written.write_bytes(data[: rng.choice([len(data)] * 9 + [rng.randrange(len(data))])])
        try:
            kept = files.read_kept(written)
        except ValueError:
            refused += 1
        else:
            require_valid(kept)
    assert refused > 100


@pytest.mark.parametrize("name", ["a.npy", "a.safetensors"])
def test_read_tokens_refuses_pipes_and_folders(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        files.read_tokens(tmp_path / name)
    os.mkfifo(tmp_path / name)
    with pytest.raises(ValueError, match=r"not a regular file; give a .npy or .safetensors file"):
        files.read_tokens(tmp_path / name)
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match="not a regular file"):
        files.read_tokens(tmp_path / name)


def write_npy(path: Path, shape: str, dtype: str = "<f4", version: int = 1) -> None:
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}}}".encode().ljust(117) + b"\n"
    path.write_bytes(b"\x93NUMPY" + bytes([version, 0]) + len(header).to_bytes(2, "little") + header + bytes(64))


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ("(4294967296, 4294967296, 4)", {}),
        ("(1000000000000000000000000000000, 1, 4)", {}),
        ("(4, 2, 4)", {}),  # more than the file has
        ("(-1, 2, 2)", {}),
        ("(2, 2", {}),
        ("(2, 2, 2)", {"dtype": "|O"}),
        ("(2, 2, 4)", {"version": 9}),
    ],
)
def test_read_tokens_refuses_bad_npy_files(tmp_path: Path, shape: str, options: dict[str, Any]) -> None:
    write_npy(tmp_path / "a.npy", shape, **options)
    with pytest.raises(ValueError, match=r"a\.npy: not a readable \.npy file"):
        files.read_tokens(tmp_path / "a.npy")


def test_read_tokens_takes_fortran_order(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.asfortranarray(TOKENS))
    tokens = files.read_tokens(tmp_path / "a.npy")
    np.testing.assert_array_equal(tokens, TOKENS)
    assert floc.compress(tokens, budget=9).indices.tolist() == floc.compress(TOKENS, budget=9).indices.tolist()


def test_read_tokens_selects_a_tensor(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"only": torch.ones(2, 2, 2)}, path)
    assert files.read_tokens(path).shape == (2, 2, 2)
    save_file({"tokens": torch.ones(1), "other": torch.full((2,), torch.nan)}, path)
    assert len(files.read_tokens(path)) == 1
    assert len(files.read_tokens(path, "other")) == 2
    with pytest.raises(ValueError, match="no tensor called 'none'; choose one of: other, tokens"):
        files.read_tokens(path, "none")
    path.write_bytes(b"no")
    with pytest.raises(ValueError, match="not a safetensors file, or damaged"):
        files.read_tokens(path)


def test_write_atomic_replaces_a_file_completely_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "kept.safetensors"
    target.write_bytes(b"what was there")

    def fail_half_way(temporary: Path) -> None:
        temporary.write_bytes(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        files.write_atomic(target, fail_half_way)
    assert target.read_bytes() == b"what was there"
    assert list(tmp_path.iterdir()) == [target]
    files.write_atomic(target, lambda temporary: temporary.write_bytes(b"new"))
    assert target.read_bytes() == b"new"
    mask = os.umask(0)
    os.umask(mask)
    assert target.stat().st_mode & 0o777 == 0o666 & ~mask


def test_write_atomic_never_changes_the_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "umask", None)
    files.write_atomic(tmp_path / "a", lambda temporary: temporary.write_bytes(b"new"))


def test_write_atomic_takes_writers_that_replace_the_file(tmp_path: Path) -> None:
    """As `safetensors.torch.save_file` does, with a file that others cannot read."""

    def write(temporary: Path) -> None:
        other = temporary.with_name("other")
        other.touch(mode=0o600)
        other.replace(temporary)

    files.write_atomic(tmp_path / "a", write)
    (tmp_path / "b").touch()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_names_of_255_bytes_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("ä" * 127 + "a")
    files.write_atomic(path, lambda temporary: temporary.write_bytes(b"new"))
    assert path.read_bytes() == b"new"


def test_check_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.check_writable(tmp_path / "new")
    with pytest.raises(OSError, match="is too long; use at most 255 bytes"):
        files.check_writable(tmp_path / ("a" * 256))
    with pytest.raises(FileNotFoundError, match=r"the folder .*none does not exist; create it first"):
        files.check_writable(tmp_path / "none" / "a")
    with pytest.raises(IsADirectoryError, match="is a folder; give the name of a file"):
        files.check_writable(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="is not a regular file"):
        files.check_writable(tmp_path / "pipe")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(PermissionError, match="is not writable; choose another folder"):
        files.check_writable(tmp_path / "new")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "full"), r"\(No space left on device\); free space and run again"),
        (SafetensorError("I/O error: x (os error 28)"), r"\(No space left on device\); free space and run again"),
        (SafetensorError("I/O error: x (os error 27)"), r"\(File too large\); choose another folder and run again"),
        (SafetensorError("I/O error: x (os error 5)"), r"\(Input/output error\); choose another folder and run again"),
    ],
)
def test_a_full_disk_is_an_os_error(tmp_path: Path, error: Exception, message: str) -> None:
    def write(_: Path) -> None:
        raise error

    with pytest.raises(OSError, match=f"a: cannot be written {message}"):
        files.write_atomic(tmp_path / "a", write)
    assert list(tmp_path.iterdir()) == []


def test_the_next_write_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    script = """
import os, signal, sys
from pathlib import Path
from floc.files import write_atomic
def write(temporary):
    temporary.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
write_atomic(Path(sys.argv[1]), write)
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "a")], check=False)
    (leftover,) = tmp_path.iterdir()
    os.utime(leftover, (0, time.time() - 2))

    def write(temporary: Path) -> None:
        os.utime(temporary.parent, (0, 0))
        files.write_atomic(tmp_path / "a", lambda temporary: temporary.write_bytes(b"inner"))
        assert temporary.exists()  # in use, however old
        temporary.write_bytes(b"outer")

    files.write_atomic(tmp_path / "b", lambda temporary: temporary.write_bytes(b"other"))
    assert leftover.exists()  # of another file
    files.write_atomic(tmp_path / "a", write)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"outer", "b": b"other"}
