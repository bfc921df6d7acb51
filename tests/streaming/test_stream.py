"""`floc.Stream`: results equal to `floc.compress`, saved states, and bad input."""

from __future__ import annotations

import json
import math
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import floc
from examples.synthetic import make_tokens, make_tokens_and_cuts
from floc import _system, files, scenes


def assert_same(kept: floc.Kept, expected: floc.Kept) -> None:
    for name in ("indices", "features", "positions", "order", "gains", "represents"):
        np.testing.assert_array_equal(
            np.asarray(getattr(kept, name)), np.asarray(getattr(expected, name)), err_msg=name
        )
    assert kept.coverage == pytest.approx(expected.coverage, abs=1e-12)
    assert kept.bound == expected.bound
    assert kept.shape == expected.shape


@pytest.mark.parametrize("ratio", ["1/8", "1/7", 0.03, 0.9, 1])
@pytest.mark.parametrize(
    "options", [{"block": 32}, {"block": 32, "detail": 1}, {"block": 7}, {"metric": "gaussian", "block": 11}]
)
def test_ratio_stream_equals_compress(ratio: Any, options: dict[str, Any]) -> None:
    tokens = make_tokens(75, 3, 4, dim=24)
    stream = floc.Stream(ratio=ratio, **options)
    for t, frame in enumerate(tokens):
        stream.push(frame)
        if t in (0, 5, 31, 32, 50, 63, 64, 74):
            assert_same(stream.kept(), floc.compress(tokens[: t + 1], ratio=ratio, **options))


@settings(deadline=None, max_examples=25)
@given(
    frames=st.integers(1, 40),
    block=st.integers(1, 12),
    ratio=st.sampled_from(["1/3", "1/8", "2/7", "1/50", "5/6"]),
    seed=st.integers(0, 5),
    chunks=st.lists(st.integers(1, 9), min_size=1, max_size=12),
)
def test_chunk_sizes_of_pushes_do_not_matter(frames: int, block: int, ratio: str, seed: int, chunks: list[int]) -> None:
    tokens = make_tokens(frames, 2, 2, dim=8, seed=seed, dtype=np.float32)
    stream, start = floc.Stream(ratio=ratio, block=block), 0
    for size in [*chunks, frames]:
        if tokens[start : start + size].size:
            stream.push(tokens[start : start + size])
        start += size
    assert_same(stream.close(), floc.compress(tokens, ratio=ratio, block=block))


def test_at_and_times() -> None:
    tokens = torch.from_numpy(make_tokens(50, 2, 3, dim=16, dtype=np.float32))
    stream = floc.Stream(ratio=1 / 4, block=8)
    stream.push(tokens, time_s=np.arange(50) * 0.5 + 3)
    kept = stream.kept()
    assert kept.span_s == (3.0, 27.5)
    assert isinstance(kept.features, torch.Tensor)
    assert torch.equal(kept.times_s, kept.positions[:, 0] * 0.5 + 3)
    smaller = kept.at(ratio=1 / 8)
    assert smaller.indices.tolist() == floc.compress(tokens, ratio=1 / 8, block=8).indices.tolist()
    assert torch.equal(smaller.times_s, smaller.positions[:, 0] * 0.5 + 3)
    assert smaller.span_s == kept.span_s


def test_frames_without_rows() -> None:
    tokens = make_tokens(20, 1, 6, dim=8)
    stream = floc.Stream(ratio=1 / 4, block=8)
    for frame in tokens[:, 0]:
        stream.push(frame)  # [N, D]
    assert_same(stream.kept(), floc.compress(tokens, ratio=1 / 4, block=8))


@pytest.mark.parametrize("options", [{"ratio": 1 / 6}, {"budget": 30}])
@pytest.mark.parametrize("block", [8, "scene"])
def test_dim_compares_the_first_features_only(options: dict[str, Any], block: Any) -> None:
    tokens = make_tokens(90, 2, 3, dim=16, dtype=np.float32)
    beside = np.random.default_rng(0).standard_normal((90, 2, 3, 5)).astype(np.float32) * 100
    plain, wide = floc.Stream(**options, block=block), floc.Stream(**options, block=block, dim=16)
    plain.push(tokens)
    wide.push(np.concatenate([tokens, beside], -1))
    one, other = plain.kept(), wide.kept()
    np.testing.assert_array_equal(one.indices, other.indices)
    np.testing.assert_array_equal(other.features[:, :16], one.features)
    np.testing.assert_array_equal(other.features[:, 16:], beside.reshape(-1, 5)[one.indices])
    assert one.coverage == pytest.approx(other.coverage, abs=1e-6)


def starts(kept: floc.Kept) -> list[int]:
    """Return the first frames of the blocks of a stream with a ratio."""
    assert kept.ranking is not None
    frames = kept.ranking.group_sizes // (kept.shape[1] * kept.shape[2])
    return [0, *np.cumsum(frames)[:-1].tolist()]


@pytest.mark.parametrize(("seed", "noise"), [(0, 0.1), (0, 1.0), (1, 0.5), (3, 0.5), (4, 1.0), (5, 0.1)])
def test_scene_stream_equals_compress(seed: int, noise: float) -> None:
    tokens, cuts = make_tokens_and_cuts(300, 3, 4, 48, seed=seed, shot_frames=20, noise=noise)
    stream = floc.Stream(ratio=1 / 8, block="scene")
    for frame in tokens:
        stream.push(frame)
    kept = stream.kept()
    assert {*cuts} <= {*starts(kept)}
    assert_same(kept, floc.compress(tokens, ratio=1 / 8, block="scene"))


@settings(deadline=None, max_examples=25)
@given(frames=st.integers(1, 200), shot=st.integers(3, 90), seed=st.integers(0, 30), noise=st.sampled_from([0.1, 0.9]))
def test_scene_blocks_partition_any_video(frames: int, shot: int, seed: int, noise: float) -> None:
    tokens, _ = make_tokens_and_cuts(frames, 2, 2, 16, seed=seed, shot_frames=shot, noise=noise)
    stream = floc.Stream(ratio=1 / 5, block="scene")
    stream.push(tokens)
    kept = stream.kept()
    lengths = np.diff([*starts(kept), frames])
    assert lengths.sum() == frames
    assert lengths.max() <= scenes.LONGEST
    assert lengths.min() >= min(frames, scenes.SHORTEST)
    assert_same(kept, floc.compress(tokens, ratio=1 / 5, block=starts(kept)))


def test_an_endless_scene_is_split() -> None:
    tokens, _ = make_tokens_and_cuts(200, 3, 4, 48, seed=4, scenes=1, shot_frames=1000)
    stream = floc.Stream(ratio=1 / 8, block="scene")
    stream.push(tokens)
    assert starts(stream.kept()) == [0, 32, 64, 96, 128, 160]


# ---- saved states


@pytest.mark.parametrize(
    "options",
    [
        {"ratio": 1 / 5},
        {"budget": 30},
        {"budget": 30, "half_life_s": 40.0, "dedupe": 3},
        {"ratio": 1 / 5, "block": "scene"},
        {"budget": 30, "block": "scene"},
        {"budget": 30, "dim": 9},
    ],
)
@pytest.mark.parametrize("at", [0, 3, 16, 50, 96])
@pytest.mark.parametrize("kind", ["float16 numpy", "float32 torch", "bfloat16 torch"])
def test_loaded_stream_continues_identically(options: dict[str, Any], at: int, kind: str, tmp_path: Path) -> None:
    tokens: Any = make_tokens(130, 2, 3, dim=16)
    if "torch" in kind:
        tokens = torch.from_numpy(tokens).to(getattr(torch, kind.split()[0]))
    whole, part = (floc.Stream(**{"block": 16, **options}) for _ in range(2))
    for t in range(at):
        whole.push(tokens[t], time_s=t * 0.5)
        part.push(tokens[t], time_s=t * 0.5)
    part.save(tmp_path / "state.floc-stream")
    part = floc.Stream.load(tmp_path / "state.floc-stream")
    assert part.frames == at
    for t in range(at, 130):
        whole.push(tokens[t], time_s=t * 0.5)
        part.push(tokens[t], time_s=t * 0.5)
    one, other = whole.kept(), part.kept()
    assert type(one.features) is type(other.features)
    for name in ("indices", "order", "gains", "times_s"):
        np.testing.assert_array_equal(np.asarray(getattr(one, name)), np.asarray(getattr(other, name)))
    assert (one.coverage, one.span_s, one.settings) == (other.coverage, other.span_s, other.settings)


def test_load_rejects_other_files(tmp_path: Path) -> None:
    path = tmp_path / "state"
    stream = floc.Stream(budget=8, block=4)
    stream.push(make_tokens(10, 2, 2, dim=8))
    stream.save(path)
    whole = path.read_bytes()
    for broken in (b"", whole[: len(whole) // 2], whole[:100], b"no" * 50):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match="not a stream saved by floc, or damaged"):
            floc.Stream.load(path)
    from safetensors.torch import save_file

    save_file({"times": torch.zeros(1)}, path, {"floc-stream": json.dumps({"format": 99})})
    with pytest.raises(ValueError, match="format 99"):
        floc.Stream.load(path)
    files.write_kept(stream.kept(), path)
    with pytest.raises(ValueError, match=r"not written by Stream.save; read kept tokens with floc.files.read_kept"):
        floc.Stream.load(path)
    with pytest.raises(FileNotFoundError, match="no such file"):
        floc.Stream.load(tmp_path / "none")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda metadata, tensors: metadata.update(settings=[]), "not a stream saved by floc"),
        (lambda metadata, tensors: metadata["settings"].update(budget="many"), "budget must be"),
        (lambda metadata, tensors: metadata["settings"].update(colour=1), "not a stream saved by floc"),
        (lambda metadata, tensors: metadata.update(device="cuda:97"), "pass device='cpu'"),
        (lambda metadata, tensors: tensors.pop("sums"), "sums"),
        (lambda metadata, tensors: tensors.update(sums=tensors["sums"][1:]), "tensor sums must have shape"),
        (lambda metadata, tensors: tensors.update(times=torch.zeros(3)), "tensor times must have dtype"),
        (lambda metadata, tensors: tensors.update(times=torch.arange(3.0).double()), "tensor room must have shape 3x"),
        (lambda metadata, tensors: tensors["times"].fill_(-math.inf), "tensor times has values that are not finite"),
        (lambda metadata, tensors: metadata["past"].update(counted=math.inf), "past.counted must be a number"),
        (lambda metadata, tensors: tensors["index"].fill_(-1), "index must differ"),
        (lambda metadata, tensors: tensors["sums"].fill_(3e38), "sums of 32 tokens have a length of"),
        (lambda metadata, tensors: metadata.update(numpy_dtype="object"), "numpy_dtype must be"),
        (lambda metadata, tensors: metadata.update(device="meta"), "which stores no values"),
        (lambda metadata, tensors: metadata["settings"].update(block=10**15), "not a stream saved by floc"),
        (lambda metadata, tensors: metadata.pop("cutter"), "cutter"),
    ],
)
def test_load_rejects_a_changed_state(change: Any, message: str, tmp_path: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    path = tmp_path / "state"
    stream = floc.Stream(budget=8, block=4)
    stream.push(make_tokens(10, 2, 2, dim=8))
    stream.save(path)
    with safe_open(path, framework="pt") as file:
        metadata = json.loads(file.metadata()["floc-stream"])
    tensors = load_file(path)
    change(metadata, tensors)
    save_file(tensors, path, {"floc-stream": json.dumps(metadata)})
    with pytest.raises(ValueError, match=message):
        floc.Stream.load(path)


def test_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import safetensors.torch

    path = tmp_path / "state"
    stream = floc.Stream(budget=8, block=4)
    stream.push(make_tokens(10, 2, 2, dim=8))
    stream.save(path)
    before = path.read_bytes()
    monkeypatch.setattr(safetensors.torch, "save_file", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        stream.save(path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["state"]


def test_save_flushes_the_file_before_renaming_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power failure at any moment, the old or the new state is complete."""
    done: list[str] = []
    flush, rename = os.fsync, Path.replace

    def log_flush(handle: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        flush(handle)

    def log_rename(source: Path, target: Path) -> Path:
        done.append("name")
        return rename(source, target)

    stream = floc.Stream(budget=8, block=4)
    stream.push(make_tokens(10, 2, 2, dim=8))
    monkeypatch.setattr(os, "fsync", log_flush)
    monkeypatch.setattr(Path, "replace", log_rename)
    stream.save(tmp_path / "state")
    assert done == ["file", "name", "folder"]


# ---- bad input


@pytest.mark.parametrize(("block", "frames"), [(600, 600), ("scene", scenes.LONGEST)])
@pytest.mark.parametrize("options", [{"ratio": 1 / 6}, {"budget": 30}])
def test_rejects_a_block_that_does_not_fit_in_memory_at_the_first_push(
    options: dict[str, Any], block: Any, frames: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = floc.Stream(**options, block=block)
    with monkeypatch.context() as scarce:
        scarce.setattr(_system, "available_bytes", lambda device: 2**20)
        for _ in range(2):
            with pytest.raises(
                MemoryError,
                match=f"from {frames * 6} tokens at once needs .* 1.0 MiB are free; .*fewer than {frames} frames",
            ):
                stream.push(make_tokens(1, 2, 3, dim=16)[0])
    assert stream.frames == 0
    stream.push(make_tokens(1, 2, 3, dim=24)[0], time_s=5.0)
    assert stream.kept().span_s == (5.0, 5.0)


@pytest.mark.parametrize("options", [{"ratio": 1 / 4}, {"budget": 12}])
@pytest.mark.parametrize("pushed", [3, 8])  # within a block, and after one
@pytest.mark.parametrize(
    ("frames", "time_s", "message"),
    [
        (np.ones((2, 3, 9), np.float16), 99.0, "must have one shape"),
        (np.ones((3, 2, 8), np.float16), 99.0, "must have one shape"),
        (np.ones((2, 3, 8), np.float32), 99.0, "must have one dtype"),
        (np.full((2, 3, 8), np.nan, np.float16), 99.0, "finite"),
        (np.ones((2, 3, 8), np.int64), 99.0, "floating point"),
        (np.ones((8,), np.float16), 99.0, "tokens of a frame"),
        ([[1.0]], 99.0, "torch tensor or a numpy array"),
        (torch.empty(2, 3, 8, dtype=torch.float16, device="meta"), 99.0, "on the device 'meta'"),
        (torch.ones(2, 3, 8).to_sparse(), 99.0, "dense tensor, got layout torch.sparse_coo"),
        (torch.ones(3, 8).to_sparse(), 99.0, "dense tensor"),
        (np.ones((2, 3, 8), np.float16), -math.inf, "finite number of seconds"),
        (np.ones((2, 3, 8), np.float16), -(10**400), "finite number of seconds"),
        (np.ones((2, 3, 8), np.float16), "99", "finite number of seconds"),
        (np.ones((2, 3, 8), np.float16), np.datetime64("2099"), "finite number of seconds"),
        (np.ones((2, 3, 8), np.float16), -1e308, "times must ascend"),
        (np.ones((2, 3, 8), np.float16), 1.0, "times must ascend"),
        (np.ones((2, 3, 8), np.float16), float("nan"), "finite number of seconds.*got nan"),
        (np.ones((2, 3, 8), np.float16), "noon", "finite number of seconds.*got 'noon'"),
        (np.ones((2, 2, 3, 8), np.float16), [99.0, object()], "finite number of seconds.*got"),
        (np.ones((2, 2, 3, 8), np.float16), [99.0, 98.0], "times must ascend"),
        (np.ones((2, 2, 3, 8), np.float16), [99.0], "every frame needs one time"),
        (np.ones((2, 3, 8), np.float16), [[99.0]], "every frame needs one time"),
        (np.ones((2, 3, 8), np.float16), None, "for all frames or for none"),
    ],
)
def test_rejects_bad_frames_and_stays_unchanged(
    options: dict[str, Any], pushed: int, frames: Any, time_s: Any, message: str
) -> None:
    stream = floc.Stream(**options, block=4)
    tokens = make_tokens(pushed, 2, 3, dim=8)
    stream.push(tokens, time_s=np.arange(pushed) + 50.0)
    before = stream.kept()
    with pytest.raises((ValueError, TypeError), match=message):
        stream.push(frames, time_s=time_s)
    after = stream.kept()
    assert (after.indices.tolist(), after.span_s) == (before.indices.tolist(), before.span_s)
    stream.push(make_tokens(1, 2, 3, dim=8)[0], time_s=200.0)
    assert stream.frames == pushed + 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "exactly one of"),
        ({"ratio": 0.5, "budget": 3}, "exactly one of"),
        ({"ratio": 2}, "ratio must be"),
        ({"budget": 0}, "budget must be"),
        ({"budget": 5, "dedupe": 10**400}, "dedupe must be a number, at least 1 and finite"),
        ({"budget": 5, "half_life_s": 10**400}, "half_life_s must be"),
        ({"budget": 5, "half_life_s": math.nan}, "half_life_s must be"),
        ({"budget": 5, "block": 10**5000 * -1}, "block of a stream must be"),
        ({"budget": 5, "block": 0}, "block of a stream must be"),
        ({"budget": 5, "block": "scenes"}, "block of a stream must be"),
        ({"budget": 5, "block": [0, 7]}, "block of a stream must be"),
        ({"budget": 5, "dim": 0}, "dim must be"),
        ({"ratio": 0.5, "metric": "euclid"}, "unknown metric"),
        ({"budget": 5, "dedupe": 0.5}, "dedupe must be"),
        ({"budget": 5, "detail": "x"}, "detail must be"),
        ({"budget": 5, "half_life_s": 0}, "half_life_s must be"),
        ({"budget": 5, "metric": "gaussian"}, "the metric must be 'cosine'"),
        ({"ratio": 0.5, "dedupe": 2}, "needs a budget.*got dedupe=2; leave it out, or pass budget="),
        ({"ratio": 0.5, "half_life_s": 5}, "needs a budget.*got half_life_s=5; leave it out"),
        ({"ratio": 0.5, "backend": "nope"}, "unknown backend"),
    ],
)
def test_rejects_bad_settings(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        floc.Stream(**arguments)


def test_features_do_not_require_grad() -> None:
    stream = floc.Stream(budget=5, block=4)
    stream.push(torch.from_numpy(make_tokens(10, 2, 2, dim=8, dtype=np.float32)).requires_grad_())
    assert not stream.kept().features.requires_grad


def test_works_in_and_out_of_inference_mode(tmp_path: Path) -> None:
    tokens = torch.from_numpy(make_tokens(120, 2, 3, dim=8, dtype=np.float32))
    plain, mixed = (floc.Stream(budget=10, block=8, half_life_s=20.0) for _ in range(2))
    plain.push(tokens)
    with torch.inference_mode():
        mixed.push(tokens[:40].clone())
    mixed.push(tokens[40:80])
    mixed.save(tmp_path / "state")
    with torch.inference_mode():
        mixed = floc.Stream.load(tmp_path / "state")
    mixed.push(tokens[80:])
    assert mixed.kept().indices.tolist() == plain.kept().indices.tolist()


def test_error_shows_times_in_full_precision() -> None:
    """Seconds since 1970 need all their digits to differ."""
    stream = floc.Stream(budget=5)
    stream.push(make_tokens(1, 2, 2, dim=8)[0], time_s=1_763_300_000.5)
    with pytest.raises(ValueError, match=r"at 1763300000.25 s came after one at 1763300000.5 s; push frames in order"):
        stream.push(make_tokens(1, 2, 2, dim=8)[0], time_s=1_763_300_000.25)


def test_rejects_times_for_some_frames_only() -> None:
    stream = floc.Stream(budget=5)
    stream.push(make_tokens(3, 2, 2, dim=8))
    with pytest.raises(ValueError, match="for all frames or for none"):
        stream.push(make_tokens(1, 2, 2, dim=8)[0], time_s=99.0)


def test_kept_before_the_first_frame_and_push_after_close() -> None:
    stream = floc.Stream(budget=5)
    with pytest.raises(ValueError, match="no frame was pushed"):
        stream.kept()
    stream.push(make_tokens(3, 2, 2, dim=8))
    assert len(stream.close()) == 5
    with pytest.raises(ValueError, match="closed"):
        stream.push(make_tokens(1, 2, 2, dim=8)[0])
    assert len(stream.kept()) == 5
    assert "3 frames so far" in repr(stream)
