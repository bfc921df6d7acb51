"""`.floc` files: what is saved is loaded, and damaged files are rejected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
    with pytest.raises(ValueError, match=r"a\.floc: not a readable \.floc file"):
        floc.load(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors, metadata: tensors.update(features=tensors["features"][:-1]), "features has shape"),
        (lambda tensors, metadata: tensors.update(indices=tensors["indices"].flip(0)), "ascending"),
        (lambda tensors, metadata: tensors.update(indices=tensors["indices"] + 1000), "ascending within"),
        (lambda tensors, metadata: tensors.update(indices=tensors["indices"] - 1000), "ascending within"),
        (lambda tensors, metadata: tensors.update(order=tensors["order"] * 0), "order is not a permutation"),
        (lambda tensors, metadata: tensors.update(gains=tensors["gains"][:3]), "gains has shape"),
        (lambda tensors, metadata: tensors.update({"deep.1": tensors["deep.1"][:, :-1]}), "deep features"),
        (lambda tensors, metadata: tensors.pop("features"), "features"),
        (lambda tensors, metadata: tensors.pop("deep.0"), "deep features of 2 layers"),
        (lambda tensors, metadata: tensors.pop("deep.1"), "deep features of 2 layers"),
        (lambda tensors, metadata: tensors.update({"deep.2": tensors["deep.1"].clone()}), "deep features of 2 layers"),
        (lambda tensors, metadata: tensors["features"].fill_(torch.nan), "not finite"),
        (lambda tensors, metadata: tensors["deep.1"].fill_(torch.inf), "not finite"),
        (lambda tensors, metadata: tensors.update(features=tensors["features"].long()), "features has dtype"),
        (lambda tensors, metadata: tensors.update(indices=tensors["indices"].double()), "indices has dtype"),
        (
            lambda tensors, metadata: tensors.update(
                features=tensors["features"][:, :-1], **{"deep.0": tensors["deep.0"][:, :-1]}
            ),
            "the model takes 64",
        ),
        (lambda tensors, metadata: metadata.update(shape=[30, True, True]), "not slices, rows and columns"),
        (lambda tensors, metadata: metadata.update(shape=[1 << 60, 1, 1]), "not slices, rows and columns"),
        (lambda tensors, metadata: metadata.update(fps="x"), "fps is 'x'"),
        (lambda tensors, metadata: metadata.update(nested="no"), "wrong type"),
        (lambda tensors, metadata: metadata.update(made=[1]), "wrong type"),
        (lambda tensors, metadata: metadata.update(shape=[0, 1, 2]), "not slices, rows and columns"),
        (lambda tensors, metadata: metadata.update(shape=[5, 2]), "not slices, rows and columns"),
        (lambda tensors, metadata: metadata.update(shape=[1, 1, 2]), "ascending within"),
        (lambda tensors, metadata: metadata.update(format=99), "format 99"),
        (lambda tensors, metadata: metadata.pop("model"), "model"),
        (lambda tensors, metadata: metadata.update(model={"kind": 1}), "missing"),
        (lambda tensors, metadata: tensors.update(times_s=torch.zeros(3)), "times_s does not have a finite time"),
        (
            lambda tensors, metadata: tensors.update(times_s=torch.full((5,), torch.nan)),
            "times_s does not have a finite time",
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
    with pytest.raises(ValueError, match=f"not a readable .floc file.*{message}"):
        floc.load(saved)


def test_rejects_missing_and_other_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        floc.load(tmp_path / "none.floc")
    (tmp_path / "text.floc").write_text("no")
    with pytest.raises(ValueError, match="not a readable"):
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
