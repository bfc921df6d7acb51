"""`.floc` files: what is saved is loaded, and damaged files are rejected."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import floc
from floc import Captured
from floc.captured.identity import Identity

K, N, DIM = 15, 30, 64


@pytest.fixture
def video() -> Captured:
    rng = torch.Generator().manual_seed(0)
    features, *deep = torch.randn(3, K, DIM, generator=rng)
    indices = torch.randperm(N, generator=rng)[:K].sort().values
    gains = torch.rand(K, generator=rng, dtype=torch.float64).sort(descending=True).values
    model = Identity("qwen3_vl", "some/model", None, "0123456789abcdef", DIM, [0.5, -1.0])
    order = torch.randperm(K, generator=rng)
    made = {"method": "floc", "settings": {}, "coverage": 0.9}
    return Captured(features, indices, order, gains, tuple(deep), (5, 2, 3), model, made, nested=True)


@pytest.fixture
def saved(video: Captured, tmp_path: Path) -> Path:
    path = tmp_path / "a.floc"
    video.save(path)
    return path


def test_load_returns_what_was_saved(video: Captured, saved: Path) -> None:
    loaded = floc.load(saved)
    for name in ("features", "indices", "order", "gains"):
        assert torch.equal(getattr(loaded, name), getattr(video, name))
    assert all(torch.equal(actual, expected) for actual, expected in zip(loaded.deep, video.deep, strict=True))
    for name in ("shape", "model", "made", "nested", "times_s", "last_s", "frames_per_slice", "fps", "duration_s"):
        assert getattr(loaded, name) == getattr(video, name)


def test_file_format_does_not_change(saved: Path) -> None:
    """Files of earlier versions have these keys."""
    from safetensors import safe_open

    with safe_open(saved, framework="pt") as file:
        assert sorted(file.keys()) == ["deep.0", "deep.1", "features", "gains", "indices", "order"]
        metadata = json.loads(file.metadata()["floc"])
    assert metadata.keys() == {
        "format",
        "version",
        "shape",
        "model",
        "layers",
        "made",
        "nested",
        "frames_per_slice",
        "fps",
        "duration_s",
    }
    assert metadata["format"] == 1
    assert metadata["model"].keys() == {"kind", "name", "revision", "config", "hidden_size", "weights"}


def test_at_takes_a_prefix_of_the_order(video: Captured) -> None:
    smaller = video.at(budget=4)
    assert sorted(smaller.indices.tolist()) == sorted(video.indices[video.order[:4]].tolist())
    assert smaller.indices[smaller.order].tolist() == video.indices[video.order[:4]].tolist()
    assert torch.equal(smaller.gains, video.gains[:4])
    assert video.at(budget=K) is video
    with pytest.raises(ValueError, match="capture again with a larger budget"):
        video.at(ratio=1)


@pytest.mark.parametrize("size", [0, 7, 100, 0.5, 0.99])
def test_rejects_truncated_files(saved: Path, size: float) -> None:
    whole = saved.read_bytes()
    saved.write_bytes(whole[: int(size if size >= 1 else size * len(whole))])
    with pytest.raises(ValueError, match=r"a\.floc: not a \.floc file, or damaged"):
        floc.load(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda tensors, metadata: tensors.update(features=tensors["features"][:-1]),
            "tensor indices must have shape 14, got 15",
        ),
        (lambda tensors, metadata: tensors.update(indices=tensors["indices"].flip(0)), "ascending"),
        (lambda tensors, metadata: tensors.update(indices=tensors["indices"] + 1000), "must be ascending, within"),
        (lambda tensors, metadata: tensors.update(indices=tensors["indices"] - 1000), "must be ascending, within"),
        (lambda tensors, metadata: tensors.update(order=tensors["order"] * 0), "order must be a permutation"),
        (
            lambda tensors, metadata: tensors.update(gains=tensors["gains"][:3]),
            "tensor gains must have shape 15, got 3",
        ),
        (
            lambda tensors, metadata: tensors.update({"deep.1": tensors["deep.1"][:, :-1]}),
            r"deep\.1 must have shape 15x64",
        ),
        (lambda tensors, metadata: tensors.pop("features"), "features"),
        (lambda tensors, metadata: tensors.pop("deep.0"), "deep features of 2 layers"),
        (lambda tensors, metadata: tensors.pop("deep.1"), "deep features of 2 layers"),
        (lambda tensors, metadata: tensors.update({"deep.2": tensors["deep.1"].clone()}), "deep features of 2 layers"),
        (lambda tensors, metadata: tensors["features"].fill_(torch.nan), "not finite"),
        (lambda tensors, metadata: tensors["deep.1"].fill_(torch.inf), "not finite"),
        (
            lambda tensors, metadata: tensors.update(features=tensors["features"].long()),
            "features must have a floating-point dtype",
        ),
        (
            lambda tensors, metadata: tensors.update(indices=tensors["indices"].double()),
            "indices must have dtype torch.int64",
        ),
        (
            lambda tensors, metadata: tensors.update(
                features=tensors["features"][:, :-1], **{f"deep.{i}": tensors[f"deep.{i}"][:, :-1] for i in (0, 1)}
            ),
            "the model takes 64",
        ),
        (lambda tensors, metadata: metadata.update(shape=[30, True, True]), r"shape\.1 must be a whole number"),
        (lambda tensors, metadata: metadata.update(shape=[1 << 60, 1, 1]), r"shape\.0 must be a whole number"),
        (lambda tensors, metadata: metadata.update(fps="x"), "fps must be a number from 1e-09 to 1e\\+09, got 'x'"),
        (lambda tensors, metadata: metadata.update(nested="no"), "nested must be true or false"),
        (lambda tensors, metadata: metadata.update(made=[1]), "made must be a JSON object"),
        (lambda tensors, metadata: metadata.update(shape=[0, 1, 2]), r"shape\.0 must be a whole number"),
        (lambda tensors, metadata: metadata.update(shape=[5, 2]), "shape must be a list of 3 values"),
        (lambda tensors, metadata: metadata.update(shape=[1, 1, 2]), "must be ascending, within"),
        (
            lambda tensors, metadata: metadata.update(format=99),
            "format 99, but this version of floc reads 1; update floc",
        ),
        (lambda tensors, metadata: metadata.pop("format"), "format nothing"),
        (lambda tensors, metadata: metadata.update(layers=10**10), "layers must be a whole number from 0 to 1000"),
        (lambda tensors, metadata: metadata.update(layers=3), "deep features of 3 layers"),
        (lambda tensors, metadata: metadata.update(fps=1e-320), "fps must be"),
        (lambda tensors, metadata: metadata.update(fps=0), "fps must be"),
        (lambda tensors, metadata: metadata.update(duration_s=float("inf")), "duration_s must be"),
        (lambda tensors, metadata: metadata.update(frames_per_slice=0), "frames_per_slice must be"),
        (lambda tensors, metadata: metadata["made"].update(coverage="0.9"), r"made\.coverage must be"),
        (lambda tensors, metadata: metadata["made"].update(method=3), r"made\.method must be"),
        (lambda tensors, metadata: metadata["made"].update(seconds={"total": "1"}), r"made\.seconds\.total must be"),
        (lambda tensors, metadata: metadata["made"].update(settings=[]), r"made\.settings must be a JSON object"),
        (lambda tensors, metadata: tensors.update(members=torch.ones(3, dtype=torch.int64)), "members must have shape"),
        (lambda tensors, metadata: tensors.update(members=torch.ones(K)), "members must have dtype"),
        (
            lambda tensors, metadata: tensors.update(members=torch.full((K,), 3)),
            "members must be how many of 30 tokens",
        ),
        (lambda tensors, metadata: tensors.update(members=torch.full((K,), 1 << 62)), "members must be how many"),
        (lambda tensors, metadata: tensors.update(members=torch.arange(K) - 1), "members must be how many"),
        (lambda tensors, metadata: tensors.update(times_s=torch.arange(5).double() - 1), "from 0 to 1e\\+12 s"),
        (
            lambda tensors, metadata: metadata["model"].update(weights=[1] * 600),
            "a list of at most 512",
        ),
        (lambda tensors, metadata: metadata["model"].update(weights=[0.5, "1"]), r"model\.weights\.1 must be a number"),
        (lambda tensors, metadata: metadata["model"].update(revision=3), r"model\.revision must be text"),
        (lambda tensors, metadata: tensors.update(times_s=5 - torch.arange(5).double()), "times_s must be ascending"),
        (
            lambda tensors, metadata: tensors.update(times_s=torch.full((5,), 1e300, dtype=torch.float64)),
            "times_s must have a time",
        ),
        (
            lambda tensors, metadata: tensors.update(
                times_s=torch.ones(5, dtype=torch.float64), last_s=torch.zeros(5, dtype=torch.float64)
            ),
            "last_s must not be before times_s",
        ),
        (lambda tensors, metadata: metadata.pop("model"), "model"),
        (lambda tensors, metadata: metadata.update(model={"kind": 1}), r"model\.kind must be text"),
        (lambda tensors, metadata: tensors.update(times_s=torch.zeros(3)), "times_s must have shape 5, got 3"),
        (
            lambda tensors, metadata: tensors.update(times_s=torch.full((5,), torch.nan).double()),
            "times_s has values that are not finite",
        ),
    ],
)
def test_rejects_inconsistent_files(saved: Path, change: Any, message: str) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(saved, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        metadata = json.loads(file.metadata()["floc"])
    change(tensors, metadata)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, saved, {"floc": json.dumps(metadata)})
    with pytest.raises(ValueError, match=f"not a .floc file, or damaged: .*{message}.*; write the file again"):
        floc.load(saved)


def test_rejects_missing_and_other_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        floc.load(tmp_path / "none.floc")
    os.mkfifo(tmp_path / "pipe.floc")
    with pytest.raises(ValueError, match=r"not a regular file; give a \.floc file"):
        floc.load(tmp_path / "pipe.floc")
    (tmp_path / "text.floc").write_text("no")
    with pytest.raises(ValueError, match=r"not a \.floc file"):
        floc.load(tmp_path / "text.floc")


def test_failed_write_keeps_the_old_file(saved: Path, monkeypatch) -> None:
    before = saved.read_bytes()
    video = floc.load(saved)
    import safetensors.torch

    monkeypatch.setattr(safetensors.torch, "save_file", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        video.save(saved)
    assert saved.read_bytes() == before
    assert [file.name for file in saved.parent.iterdir()] == [saved.name]


def test_files_of_kept_tokens_are_named(tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).standard_normal((4, 2, 3, 8)).astype(np.float32)
    floc.files.write_kept(floc.compress(tokens, budget=3), tmp_path / "kept.safetensors")
    with pytest.raises(ValueError, match=r"kept.safetensors: .*read it with floc\.files\.read_kept"):
        floc.load(tmp_path / "kept.safetensors")
