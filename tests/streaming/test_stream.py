"""Streams: what `floc.compress` keeps where that can be told, and bounds that hold for ever where it cannot."""

from __future__ import annotations

import json
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
from floc import _system, files, scenes
from floc.representatives import find_nearest
from floc.selection import backends
from floc.selection.objective import Similarity
from floc.streaming import bounded
from floc.streaming.bounded import ROOM
from floc.streaming.past import Chooser
from floc.synthetic import film, film_and_cuts


def same(kept: floc.Kept, expected: floc.Kept) -> None:
    for name in ("indices", "features", "positions", "order", "gains", "represents"):
        np.testing.assert_array_equal(
            np.asarray(getattr(kept, name)), np.asarray(getattr(expected, name)), err_msg=name
        )
    assert kept.coverage == pytest.approx(expected.coverage, abs=1e-12)
    assert kept.bound == expected.bound
    assert kept.shape == expected.shape


def true_coverage(tokens: np.ndarray, kept: floc.Kept) -> float:
    flat = torch.from_numpy(tokens).reshape(-1, tokens.shape[-1]).float()
    return float(find_nearest(flat, torch.as_tensor(kept.features).float())[0].mean())


# ---- with a ratio


@pytest.mark.parametrize("ratio", ["1/8", "1/7", 0.03, 0.9, 1])
@pytest.mark.parametrize("options", [{}, {"detail": 1}, {"block": 7}, {"metric": "gaussian", "block": 11}])
def test_a_ratio_keeps_what_compress_keeps_of_blocks(ratio: Any, options: dict[str, Any]) -> None:
    tokens = film(75, 3, 4, dim=24)
    stream = floc.Stream(ratio=ratio, **options)
    for t, frame in enumerate(tokens):
        stream.push(frame)
        if t in (0, 5, 31, 32, 50, 63, 64, 74):
            same(stream.kept(), floc.compress(tokens[: t + 1], ratio=ratio, dedupe=1, **options))


@settings(deadline=None, max_examples=25)
@given(
    frames=st.integers(1, 40),
    block=st.integers(1, 12),
    ratio=st.sampled_from(["1/3", "1/8", "2/7", "1/50", "5/6"]),
    seed=st.integers(0, 5),
    chunks=st.lists(st.integers(1, 9), min_size=1, max_size=12),
)
def test_however_it_is_pushed(frames: int, block: int, ratio: str, seed: int, chunks: list[int]) -> None:
    tokens = film(frames, 2, 2, dim=8, seed=seed, dtype=np.float32)
    stream, start = floc.Stream(ratio=ratio, block=block), 0
    for size in [*chunks, frames]:
        if tokens[start : start + size].size:
            stream.push(tokens[start : start + size])
        start += size
    same(stream.close(), floc.compress(tokens, ratio=ratio, block=block, dedupe=1))


def test_smaller_answers_and_times() -> None:
    tokens = torch.from_numpy(film(50, 2, 3, dim=16, dtype=np.float32))
    stream = floc.Stream(ratio=1 / 4, block=8)
    stream.push(tokens, time_s=np.arange(50) * 0.5 + 3)
    kept = stream.kept()
    assert kept.span_s == (3.0, 27.5)
    assert isinstance(kept.features, torch.Tensor)
    assert torch.equal(kept.times_s, kept.positions[:, 0] * 0.5 + 3)
    smaller = kept.at(ratio=1 / 8)
    assert smaller.indices.tolist() == floc.compress(tokens, ratio=1 / 8, block=8, dedupe=1).indices.tolist()
    assert torch.equal(smaller.times_s, smaller.positions[:, 0] * 0.5 + 3)
    assert smaller.span_s == kept.span_s


def test_frames_without_rows() -> None:
    tokens = film(20, 1, 6, dim=8)
    stream = floc.Stream(ratio=1 / 4, block=8)
    for frame in tokens[:, 0]:
        stream.push(frame)  # [N, D]
    same(stream.kept(), floc.compress(tokens, ratio=1 / 4, block=8, dedupe=1))


# ---- with a budget


def test_a_budget_is_kept_in_bounded_memory() -> None:
    tokens = film(640, 2, 3, dim=16, dtype=np.float32)
    stream = floc.Stream(budget=40, block=8)
    held = []
    for t, frame in enumerate(tokens):
        stream.push(frame, time_s=t * 2.0)
        if t % 64 == 63:
            kept = stream.kept()
            assert len(kept) == min(40, (t + 1) * 6)
            assert kept.shape == (t + 1, 2, 3)
            assert kept.span_s == (0.0, t * 2.0)
            np.testing.assert_array_equal(kept.features, tokens.reshape(-1, 16)[kept.indices])
            np.testing.assert_array_equal(kept.positions, np.stack(np.unravel_index(kept.indices, kept.shape), 1))
            np.testing.assert_array_equal(kept.times_s, kept.positions[:, 0] * 2.0)
            assert (np.diff(kept.indices) > 0).all()
            assert sorted(kept.order.tolist()) == list(range(len(kept)))
            held.append(sum(each.numel() * each.element_size() for each in stream._past.state().values()))
    assert max(held) <= ROOM * 40 * (16 * 8 + 16)
    assert held[-1] <= 1.5 * held[1]


def test_a_budget_is_kept_where_nothing_moves() -> None:
    stream = floc.Stream(budget=40, block=8)
    stream.push(np.repeat(film(1, 2, 3, dim=16), 100, 0))
    assert len(stream.kept()) == 40


def test_a_budget_that_all_fit_in() -> None:
    tokens = film(20, 2, 3, dim=16)
    stream = floc.Stream(budget=1000, block=8)
    stream.push(tokens)
    kept = stream.kept()
    assert kept.indices.tolist() == list(range(120))
    assert kept.coverage == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("detail", [1, 2])
def test_a_stream_is_nearly_as_good_as_one_look_at_all(detail: float) -> None:
    tokens = film(600, 3, 4, dim=32, dtype=np.float32)
    stream = floc.Stream(budget=200, detail=detail)
    stream.push(tokens)
    kept = stream.kept()
    whole = floc.compress(tokens, budget=200, block=None, detail=detail)
    assert true_coverage(tokens, kept) > 0.98 * true_coverage(tokens, whole)
    # sums tell the coverage as if all tokens of a cluster had one representative: never more than there is
    assert 0.9 * true_coverage(tokens, kept) < kept.coverage < true_coverage(tokens, kept) + 1e-6


def test_sums_are_those_of_the_tokens_they_stand_for() -> None:
    """Nothing is lost or counted twice, however often survivors were chosen from."""
    tokens = film(400, 2, 3, dim=16, dtype=np.float32)
    stream = floc.Stream(budget=20, block=8)
    stream.push(tokens)
    unit = tokens.reshape(-1, 16)
    unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
    np.testing.assert_allclose(stream._past.state()["sums"].sum(0).numpy(), unit.sum(0), rtol=1e-4)
    assert stream._past.about()["counted"] == len(unit)


def test_what_was_shown_once_is_not_forgotten() -> None:
    """A thing of two tokens in one frame of the first hundredth, after many reductions."""
    tokens = film(3000, 2, 3, dim=32, dtype=np.float32)
    needle = np.random.default_rng(9).standard_normal((2, 32)).astype(np.float32)
    tokens[20, 0, :2] = needle
    stream = floc.Stream(budget=100, block=8)
    stream.push(tokens)
    assert stream._past.about()["reductions"] >= 6
    cosine, _ = find_nearest(torch.from_numpy(needle), torch.from_numpy(stream.kept().features))
    assert cosine.min() > 0.9


def test_the_past_fades_where_it_shall() -> None:
    first, second = film(320, 2, 3, dim=32, seed=1), film(320, 2, 3, dim=32, seed=2)

    def share_of_the_past(half_life_s: float | None) -> float:
        stream = floc.Stream(budget=60, block=16, half_life_s=half_life_s)
        stream.push(np.concatenate([first, second]))
        return float((stream.kept().positions[:, 0] < 320).mean())

    shares = [share_of_the_past(each) for each in (None, 200.0, 20.0)]
    assert 0.3 < shares[0] < 0.7
    assert shares[0] > shares[1] > shares[2]


def test_the_present_counts_however_long_the_past_was() -> None:
    stream = floc.Stream(budget=60, block=8, half_life_s=50.0)
    stream.push(film(3000, 2, 3, dim=16))
    recent = stream.kept().positions[:, 0] >= 2800  # four half-lives
    assert recent.mean() > 0.6


@pytest.mark.parametrize("waits", [False, True])  # whether the last block still waits, or is in the past
def test_what_the_past_gained_fades_with_it(waits: bool) -> None:
    """After a gap in which all weight is gone, a block hands on what it would hand on alone."""
    rng, times = np.random.default_rng(0), np.arange(16.0)
    old, new = (rng.standard_normal((frames, 2, 3, 16)) for frames in (400, 16))

    def handed_on(stream: floc.Stream, first: int) -> int:
        past = stream._past
        if waits:
            past = past._and(stream._chooser(), stream._piece(slice(0, 15)))
        return int((past.state()["index"] >= first * 6).sum())

    options: dict[str, Any] = dict(budget=20, block=16, dedupe=2, half_life_s=100.0)
    alone, later = floc.Stream(**options), floc.Stream(**options)
    later.push(old, time_s=np.arange(400.0))
    assert later._past.about()["bar"] > 1
    few = slice(0, 15 if waits else 16)
    alone.push(new[few], time_s=times[few])
    later.push(new[few], time_s=times[few] + 1e6)
    assert handed_on(later, 400) == handed_on(alone, 0) == 40


def test_many_survivors_are_chosen_from_in_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = film(600, 3, 4, dim=32, dtype=np.float32)
    unit = tokens.reshape(-1, 32) / np.linalg.norm(tokens.reshape(-1, 32), axis=1, keepdims=True)
    whole = floc.Stream(budget=200)
    whole.push(tokens)
    sizes = []
    plain = bounded.Targets
    monkeypatch.setattr(bounded, "Targets", lambda *given: sizes.append(len(given[1])) or plain(*given))
    monkeypatch.setattr(bounded, "TOGETHER", 90)
    stream = floc.Stream(budget=200)
    stream.push(tokens)
    kept = stream.kept()
    assert max(sizes) <= 90
    assert len(kept) == len(set(kept.indices.tolist())) == 200
    np.testing.assert_allclose(stream._past.state()["sums"].sum(0).numpy(), unit[: 576 * 12].sum(0), rtol=1e-4)
    assert true_coverage(tokens, kept) > 0.97 * true_coverage(tokens, whole.kept())


def test_heirs_are_the_closest_of_their_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "TOGETHER", 40)
    tokens = torch.from_numpy(film(20, 2, 3, dim=16, dtype=np.float32)).flatten(0, 2)
    unit = torch.nn.functional.normalize(tokens, dim=1)
    held = bounded._Survivors(tokens, unit * torch.linspace(1, 9, 120)[:, None], np.arange(120), np.zeros(120))
    chooser = Chooser(backends.create_engine("auto", tokens.device), Similarity("cosine", 1), None)
    lengths, directions = bounded._split(held.sums)
    chosen = bounded._chosen(chooser, held, directions, lengths, 30)
    window = np.arange(120) // 40
    cosine = (unit[chosen.picks] @ unit.T).numpy()
    cosine[window[chosen.picks][:, None] != window] = -2  # of another window
    np.testing.assert_allclose(cosine[chosen.heir, np.arange(120)], cosine.max(0), atol=1e-3)


def test_more_than_memory_has_is_not_asked_for() -> None:
    stream = floc.Stream(budget=10**12, block=8)
    stream.push(film(20, 2, 3, dim=16))
    assert len(stream.kept()) == 120


@pytest.mark.parametrize(("block", "frames"), [(600, 600), ("scene", scenes.LONGEST)])
@pytest.mark.parametrize("dial", [{"ratio": 1 / 6}, {"budget": 30}])
def test_a_block_that_memory_has_no_room_for_is_refused_at_once(
    dial: dict[str, Any], block: Any, frames: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after ten minutes of frames that nobody can choose from any more."""
    stream = floc.Stream(**dial, block=block)
    with monkeypatch.context() as scarce:
        scarce.setattr(_system, "available_bytes", lambda device: 2**20)
        for _ in range(2):
            with pytest.raises(
                MemoryError,
                match=f"from {frames * 6} tokens at once needs .* 1.0 MiB are free; .*fewer than {frames} frames",
            ):
                stream.push(film(1, 2, 3, dim=16)[0])
    assert stream.frames == 0
    stream.push(film(1, 2, 3, dim=24)[0], time_s=5.0)
    assert stream.kept().span_s == (5.0, 5.0)


def test_a_choice_that_failed_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = film(200, 2, 3, dim=16)
    calm, troubled = (floc.Stream(budget=20, block=8, half_life_s=30.0) for _ in range(2))
    choose, failures = bounded._reduced, []

    def fail_once(*given: Any) -> Any:
        if not failures:
            failures.append("no memory")
            raise MemoryError
        return choose(*given)

    for t, frame in enumerate(tokens):
        calm.push(frame, time_s=float(t))
    monkeypatch.setattr(bounded, "_reduced", fail_once)
    with pytest.raises(MemoryError):
        troubled.push(tokens, time_s=np.arange(200.0))
    done = troubled.frames  # the last of them is in, its block is chosen from later
    assert 0 < done < 200
    troubled.push(tokens[done:], time_s=np.arange(done, 200.0))
    np.testing.assert_array_equal(calm.kept().indices, troubled.kept().indices)
    assert calm.kept().coverage == troubled.kept().coverage


@pytest.mark.parametrize("dial", [{"ratio": 1 / 6}, {"budget": 30}])
@pytest.mark.parametrize("block", [8, "scene"])
def test_features_that_go_along(dial: dict[str, Any], block: Any) -> None:
    tokens = film(90, 2, 3, dim=16, dtype=np.float32)
    beside = np.random.default_rng(0).standard_normal((90, 2, 3, 5)).astype(np.float32) * 100
    plain, wide = floc.Stream(**dial, block=block), floc.Stream(**dial, block=block, dim=16)
    plain.push(tokens)
    wide.push(np.concatenate([tokens, beside], -1))
    one, other = plain.kept(), wide.kept()
    np.testing.assert_array_equal(one.indices, other.indices)
    np.testing.assert_array_equal(other.features[:, :16], one.features)
    np.testing.assert_array_equal(other.features[:, 16:], beside.reshape(-1, 5)[one.indices])
    assert one.coverage == pytest.approx(other.coverage, abs=1e-6)


def test_smaller_answers_of_a_budget() -> None:
    stream = floc.Stream(budget=60, block=8)
    stream.push(film(200, 2, 3, dim=16))
    kept = stream.kept()
    smaller = kept.at(budget=20)
    assert set(smaller.indices.tolist()) == set(kept.indices[kept.order[:20]].tolist())
    assert 0 < smaller.coverage < kept.coverage
    assert len(smaller.times_s) == 20
    with pytest.raises(ValueError, match="forgets its tokens"):
        _ = kept.represents


def test_looking_changes_nothing() -> None:
    tokens = film(150, 2, 3, dim=16)
    quiet, watched = floc.Stream(budget=30, block=8), floc.Stream(budget=30, block=8)
    for frame in tokens:
        quiet.push(frame)
        watched.push(frame)
        watched.kept()
    np.testing.assert_array_equal(quiet.kept().indices, watched.kept().indices)


# ---- along scenes


def starts(kept: floc.Kept) -> list[int]:
    """The first frames of the blocks that a stream with a ratio made."""
    assert kept.path is not None
    frames = kept.path.group_sizes // (kept.shape[1] * kept.shape[2])
    return [0, *np.cumsum(frames)[:-1].tolist()]


@pytest.mark.parametrize(("seed", "noise"), [(0, 0.1), (0, 1.0), (1, 0.5), (3, 0.5), (4, 1.0), (5, 0.1)])
def test_scenes_of_a_stream_are_those_of_compress(seed: int, noise: float) -> None:
    tokens, cuts = film_and_cuts(300, 3, 4, 48, seed=seed, shot_frames=20, noise=noise)
    stream = floc.Stream(ratio=1 / 8, block="scene")
    for frame in tokens:
        stream.push(frame)
    kept = stream.kept()
    assert {*cuts} <= {*starts(kept)}
    same(kept, floc.compress(tokens, ratio=1 / 8, block="scene", dedupe=1))


@settings(deadline=None, max_examples=25)
@given(frames=st.integers(1, 200), shot=st.integers(3, 90), seed=st.integers(0, 30), noise=st.sampled_from([0.1, 0.9]))
def test_whatever_the_scenes_are(frames: int, shot: int, seed: int, noise: float) -> None:
    tokens, _ = film_and_cuts(frames, 2, 2, 16, seed=seed, shot_frames=shot, noise=noise)
    stream = floc.Stream(ratio=1 / 5, block="scene")
    stream.push(tokens)
    kept = stream.kept()
    lengths = np.diff([*starts(kept), frames])
    assert lengths.sum() == frames
    assert lengths.max() <= scenes.LONGEST
    assert lengths.min() >= min(frames, scenes.SHORTEST)
    same(kept, floc.compress(tokens, ratio=1 / 5, block=starts(kept), dedupe=1))


def test_a_scene_without_end_is_cut_into_parts() -> None:
    tokens, _ = film_and_cuts(200, 3, 4, 48, seed=4, scenes=1, shot_frames=1000)
    stream = floc.Stream(ratio=1 / 8, block="scene")
    stream.push(tokens)
    assert starts(stream.kept()) == [0, 32, 64, 96, 128, 160]


def test_scenes_with_a_budget() -> None:
    tokens, cuts = film_and_cuts(600, 2, 3, 32, seed=2, shot_frames=15, noise=0.3)
    stream = floc.Stream(budget=100, block="scene")
    for t, frame in enumerate(tokens):
        stream.push(frame)
        if t % 97 == 0:
            assert len(stream.kept()) == min(100, (t + 1) * 6)
    kept, even = stream.kept(), floc.Stream(budget=100)
    even.push(tokens)
    assert len(cuts) > 20
    assert true_coverage(tokens, kept) > 0.98 * true_coverage(tokens, even.kept())


# ---- saved and restored


@pytest.mark.parametrize(
    "dial",
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
def test_a_restored_stream_goes_on_identically(dial: dict[str, Any], at: int, kind: str, tmp_path: Path) -> None:
    tokens: Any = film(130, 2, 3, dim=16)
    if "torch" in kind:
        tokens = torch.from_numpy(tokens).to(getattr(torch, kind.split()[0]))
    whole, part = (floc.Stream(**{"block": 16, **dial}) for _ in range(2))
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


def test_a_file_that_is_no_stream(tmp_path: Path) -> None:
    path = tmp_path / "state"
    stream = floc.Stream(budget=8, block=4)
    stream.push(film(10, 2, 2, dim=8))
    stream.save(path)
    whole = path.read_bytes()
    for broken in (b"", whole[: len(whole) // 2], whole[:100], b"no" * 50):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match="not a readable stream"):
            floc.Stream.load(path)
    from safetensors.torch import save_file

    save_file({"times": torch.zeros(1)}, path, {"floc-stream": json.dumps({"format": 99})})
    with pytest.raises(ValueError, match="format 99"):
        floc.Stream.load(path)
    files.write_kept(stream.kept(), path)
    with pytest.raises(
        ValueError, match=r"Stream.save did not write it; what was kept is read by floc.files.read_kept"
    ):
        floc.Stream.load(path)
    with pytest.raises(FileNotFoundError, match="no such file"):
        floc.Stream.load(tmp_path / "none")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda about, tensors: about.update(settings=[]), "not a readable stream"),
        (lambda about, tensors: about["settings"].update(budget="many"), "budget must be"),
        (lambda about, tensors: about["settings"].update(colour=1), "not a readable stream"),
        (lambda about, tensors: about.update(device="cuda:97"), "pass device='cpu'"),
        (lambda about, tensors: tensors.pop("sums"), "sums"),
        (lambda about, tensors: tensors.update(sums=tensors["sums"][1:]), "not equally many"),
        (lambda about, tensors: tensors.update(times=torch.zeros(3)), "2 frames wait, with times for 3"),
        (lambda about, tensors: about.pop("cutter"), "cutter"),
    ],
)
def test_a_state_that_was_changed(change: Any, message: str, tmp_path: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    path = tmp_path / "state"
    stream = floc.Stream(budget=8, block=4)
    stream.push(film(10, 2, 2, dim=8))
    stream.save(path)
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["floc-stream"])
    tensors = load_file(path)
    change(about, tensors)
    save_file(tensors, path, {"floc-stream": json.dumps(about)})
    with pytest.raises(ValueError, match=message):
        floc.Stream.load(path)


def test_a_write_that_fails_leaves_the_file_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import safetensors.torch

    path = tmp_path / "state"
    stream = floc.Stream(budget=8, block=4)
    stream.push(film(10, 2, 2, dim=8))
    stream.save(path)
    before = path.read_bytes()
    monkeypatch.setattr(safetensors.torch, "save_file", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        stream.save(path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["state"]


def test_a_state_is_on_disk_before_its_name_is_and_then_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power failure at any moment leaves the state before or this one."""
    done: list[str] = []
    settle, rename = os.fsync, Path.replace

    def noted_settle(handle: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        settle(handle)

    def noted_rename(source: Path, target: Path) -> Path:
        done.append("name")
        return rename(source, target)

    stream = floc.Stream(budget=8, block=4)
    stream.push(film(10, 2, 2, dim=8))
    monkeypatch.setattr(os, "fsync", noted_settle)
    monkeypatch.setattr(Path, "replace", noted_rename)
    stream.save(tmp_path / "state")
    assert done == ["file", "name", "folder"]


# ---- what is wrong leaves the stream as it was


@pytest.mark.parametrize("dial", [{"ratio": 1 / 4}, {"budget": 12}])
@pytest.mark.parametrize("pushed", [3, 8])  # in the middle of a block, and after one
@pytest.mark.parametrize(
    ("frames", "time_s", "message"),
    [
        (np.ones((2, 3, 9), np.float16), 99.0, "one shape"),
        (np.ones((3, 2, 8), np.float16), 99.0, "one shape"),
        (np.ones((2, 3, 8), np.float32), 99.0, "one dtype"),
        (np.full((2, 3, 8), np.nan, np.float16), 99.0, "finite"),
        (np.ones((2, 3, 8), np.int64), 99.0, "floating point"),
        (np.ones((8,), np.float16), 99.0, "tokens of a frame"),
        ([[1.0]], 99.0, "torch tensor or a numpy array"),
        (np.ones((2, 3, 8), np.float16), 1.0, "time goes on"),
        (np.ones((2, 3, 8), np.float16), float("nan"), "finite number of seconds.*got nan"),
        (np.ones((2, 3, 8), np.float16), "noon", "finite number of seconds.*got 'noon'"),
        (np.ones((2, 2, 3, 8), np.float16), [99.0, object()], "finite number of seconds.*got"),
        (np.ones((2, 2, 3, 8), np.float16), [99.0, 98.0], "time goes on"),
        (np.ones((2, 2, 3, 8), np.float16), [99.0], "every frame needs its time"),
        (np.ones((2, 3, 8), np.float16), [[99.0]], "every frame needs its time"),
        (np.ones((2, 3, 8), np.float16), None, "for all of them or for none"),
    ],
)
def test_bad_frames(dial: dict[str, Any], pushed: int, frames: Any, time_s: Any, message: str) -> None:
    stream = floc.Stream(**dial, block=4)
    tokens = film(pushed, 2, 3, dim=8)
    stream.push(tokens, time_s=np.arange(pushed) + 50.0)
    before = stream.kept()
    with pytest.raises((ValueError, TypeError), match=message):
        stream.push(frames, time_s=time_s)
    after = stream.kept()
    assert (after.indices.tolist(), after.span_s) == (before.indices.tolist(), before.span_s)
    stream.push(film(1, 2, 3, dim=8)[0], time_s=200.0)
    assert stream.frames == pushed + 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "exactly one of"),
        ({"ratio": 0.5, "budget": 3}, "exactly one of"),
        ({"ratio": 2}, "ratio must be"),
        ({"budget": 0}, "budget must be"),
        ({"budget": 5, "block": 0}, "block must be"),
        ({"budget": 5, "block": None}, "no end to wait for"),
        ({"budget": 5, "block": "scenes"}, "no end to wait for"),
        ({"budget": 5, "block": [0, 7]}, "no end to wait for"),
        ({"budget": 5, "dim": 0}, "dim must be"),
        ({"ratio": 0.5, "metric": "euclid"}, "unknown metric"),
        ({"budget": 5, "dedupe": 0.5}, "dedupe must be"),
        ({"budget": 5, "detail": "x"}, "detail must be"),
        ({"budget": 5, "half_life_s": 0}, "half_life_s must be"),
        ({"budget": 5, "metric": "gaussian"}, "the metric is cosine"),
        ({"ratio": 0.5, "dedupe": 2}, "for a budget.*got dedupe=2: leave it out, or pass budget="),
        ({"ratio": 0.5, "half_life_s": 5}, "for a budget.*got half_life_s=5: leave it out"),
        ({"ratio": 0.5, "backend": "nope"}, "unknown backend"),
    ],
)
def test_bad_settings(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        floc.Stream(**arguments)


def test_gradients_are_not_followed() -> None:
    stream = floc.Stream(budget=5, block=4)
    stream.push(torch.from_numpy(film(10, 2, 2, dim=8, dtype=np.float32)).requires_grad_())
    assert not stream.kept().features.requires_grad


def test_inference_mode_comes_and_goes(tmp_path: Path) -> None:
    tokens = torch.from_numpy(film(120, 2, 3, dim=8, dtype=np.float32))
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


def test_times_that_go_back_are_told_apart() -> None:
    """Seconds since 1970 need all their digits."""
    stream = floc.Stream(budget=5)
    stream.push(film(1, 2, 2, dim=8)[0], time_s=1_763_300_000.5)
    with pytest.raises(ValueError, match=r"at 1763300000.25 s came after one at 1763300000.5 s; push frames in order"):
        stream.push(film(1, 2, 2, dim=8)[0], time_s=1_763_300_000.25)


def test_times_for_none_and_then_for_one() -> None:
    stream = floc.Stream(budget=5)
    stream.push(film(3, 2, 2, dim=8))
    with pytest.raises(ValueError, match="for all of them or for none"):
        stream.push(film(1, 2, 2, dim=8)[0], time_s=99.0)


def test_nothing_yet_and_no_more() -> None:
    stream = floc.Stream(budget=5)
    with pytest.raises(ValueError, match="nothing was pushed"):
        stream.kept()
    stream.push(film(3, 2, 2, dim=8))
    assert len(stream.close()) == 5
    with pytest.raises(ValueError, match="closed"):
        stream.push(film(1, 2, 2, dim=8)[0])
    assert len(stream.kept()) == 5
    assert "3 frames so far" in repr(stream)
