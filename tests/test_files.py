"""Token files and kept-tokens files; damaged files are refused."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
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


def test_read_kept_refuses_products_above_2_to_53(written: Path) -> None:
    change(
        written,
        lambda tensors, metadata: (tensors.pop("represents"), metadata.update(method="stream", shape=[2**40] * 3)),
    )
    with pytest.raises(ValueError, match=f"of at most {2**53} tokens"):
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
