"""A changed stream state is refused with ValueError, or continues like a valid one."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import floc
from examples.synthetic import make_tokens

# kept small: every case is saved, loaded, pushed to and compressed
STREAMS: dict[str, dict[str, Any]] = {
    "ratio": {"ratio": "1/5", "block": 4},
    "ratio by scenes": {"ratio": "1/5", "block": "scene"},
    "ratio with a horizon": {"ratio": "1/5", "horizon": 1},
    "budget": {"budget": 7, "block": 4},
    "budget with a horizon": {"budget": 7, "block": 4, "horizon": 1},
    "budget that decays": {"budget": 7, "block": 4, "half_life_s": 3.0},
    "budget by scenes": {"budget": 7, "block": "scene", "dim": 5},
}
FRAMES = {4: 22, "scene": 75, None: 75}
NESTED: Any = []
for _ in range(50):
    NESTED = [NESTED]
ODD = [None, True, False, 0, 1, -1, 2, 3, 2**31, 2**53, 2**63, -(2**63), 10**400, 0.5, -0.5, 1e-320, 1e300, -1e300]
ODD += [float("inf"), float("-inf"), float("nan"), "", "x", "1/2", "1e-99999999", "cuda:97", "meta", "float64", "O"]
ODD += [[], [1], [0.5, 0.5], [None], [[]], ["x"] * 3, {}, {"a": 1}, NESTED]


def save_stream(name: str, path: Path, frames: int | None = None, *, timed: bool = True) -> None:
    options = STREAMS[name]
    stream = floc.Stream(**options)
    count = FRAMES[options.get("block")] if frames is None else frames
    tokens = make_tokens(max(1, count), 2, 2, dim=8)[:count]
    if count:
        stream.push(tokens, time_s=np.arange(count) * 0.5 if timed else None)
    stream.save(path)


def read_state(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    with safe_open(path, framework="pt") as file:
        metadata = json.loads(file.metadata()["floc-stream"])
    return metadata, load_file(path)


def write_state(path: Path, metadata: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    save_file({k: v.contiguous() for k, v in tensors.items()}, path, {"floc-stream": json.dumps(metadata)})


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[dict[str, Any], dict[str, torch.Tensor]]]:
    folder = tmp_path_factory.mktemp("states")
    for name in STREAMS:
        save_stream(name, folder / name)
    return {name: read_state(folder / name) for name in STREAMS}


def list_places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the keys that lead to every value of a JSON object; of long lists only to the first and last."""
    if place:
        yield place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        if not isinstance(value, list) or key in (0, len(value) - 1):
            yield from list_places(part, (*place, key))


def replace_value(metadata: dict[str, Any], place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(metadata)
    part: Any = changed
    for key in place[:-1]:
        part = part[key]
    if value == "missing" and isinstance(part, dict):
        del part[place[-1]]
    else:
        part[place[-1]] = value
    return changed


def change_tensor(tensor: torch.Tensor, change: str, at: int) -> torch.Tensor:
    """Change a tensor in one of the ways of CHANGES."""
    tensor = tensor.clone()
    if change in ("shorter", "longer", "empty", "reversed"):
        places = {
            "shorter": slice(0, -1),
            "longer": [*range(len(tensor)), *[0] * min(1, len(tensor))],
            "empty": slice(0),
        }
        return tensor.flip(0) if change == "reversed" else tensor[places[change]]
    if change in ("wider", "flat", "scalar"):
        return {"wider": tensor[None], "flat": tensor.flatten(), "scalar": tensor.flatten()[:1].sum()}[change]
    if change.startswith("torch."):
        return tensor.to(getattr(torch, change.removeprefix("torch.")))
    if tensor.numel():
        value = float(change) if tensor.is_floating_point() else int(max(-(2.0**62), min(2.0**62, float(change))))
        tensor.view(-1)[at % tensor.numel()] = value
    return tensor


VALUES = ["nan", "inf", "-inf", "-1", "0", "1", "2", "7", "1e9", "-1e9", "3e38", "1e-40"]
CHANGES = [*VALUES, "shorter", "longer", "empty", "reversed", "wider", "flat", "scalar"]
CHANGES += [
    "torch.float64",
    "torch.float16",
    "torch.int64",
    "torch.int32",
    "torch.bool",
    "torch.uint8",
    "torch.float32",
]


def check_outcome(path: Path) -> bool:
    """Load a state; return whether it was accepted, and then check what it continues with."""
    try:
        stream = floc.Stream.load(path)
    except (ValueError, MemoryError):  # MemoryError: a block that does not fit in memory
        return False
    dim = 8 if stream._waiting is None else stream._waiting.shape[-1]
    shape = (2, 2, 8) if stream._waiting is None else (*stream._waiting.shape[1:3], dim)
    dtype = torch.float32 if stream._waiting is None else stream._waiting.dtype
    before, timed = stream.frames, stream._is_timed or stream.frames == 0
    if stream._is_closed:
        with pytest.raises(ValueError, match="closed"):
            stream.push(torch.ones(shape, dtype=dtype))
    else:
        for i in range(2):
            new = torch.from_numpy(make_tokens(1, *shape[:2], dim=shape[2])[0]).to(dtype)
            stream.push(new, time_s=max(0.0, stream._last_s) * 2 + 10 + i if timed else None)
        assert stream.frames == before + 2
    if stream.frames:
        check_kept(stream)
    return True


def check_kept(stream: floc.Stream) -> None:
    kept = stream.kept()
    indices, n = np.asarray(kept.indices), stream.frames * kept.shape[1] * kept.shape[2]
    assert kept.shape[0] == stream.frames
    assert kept.n == n
    assert len(indices) == len(kept.features) == len(kept.times_s)  # type: ignore[arg-type]
    assert 1 <= len(indices) <= n
    if stream.settings["budget"] is not None:
        assert len(indices) <= stream.settings["budget"]
    assert indices[0] >= 0
    assert indices[-1] < n
    assert (np.diff(indices) > 0).all()
    assert sorted(np.asarray(kept.order).tolist()) == list(range(len(indices)))
    for values in (kept.features, kept.gains, kept.times_s):
        assert torch.as_tensor(values).float().isfinite().all()  # type: ignore[arg-type]
    times = np.asarray(kept.times_s)
    assert (np.diff(times) >= 0).all()
    assert (times == times[0]).all() or kept.span_s is not None
    assert kept.span_s is not None
    assert kept.span_s[0] <= times[0]
    assert times[-1] <= kept.span_s[1]
    assert -1.01 <= kept.coverage <= 1.01
    represents = kept.represents if kept.representation.represents is not None else None
    if represents is not None:
        assert np.asarray(represents).shape == (n,)
        assert np.asarray(represents).min() >= 0
        assert np.asarray(represents).max() < len(indices)


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("frames", [0, 1, 3, 4, 5, 64, 70])
@pytest.mark.parametrize("name", STREAMS)
def test_valid_states_are_accepted(name: str, frames: int, timed: bool, tmp_path: Path) -> None:
    save_stream(name, tmp_path / "state", frames, timed=timed)
    assert check_outcome(tmp_path / "state")


@settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_changed_states_are_refused_or_valid(states: Any, tmp_path: Path, data: st.DataObject) -> None:
    metadata, tensors = states[data.draw(st.sampled_from(list(STREAMS)))]
    if data.draw(st.booleans()):
        place = data.draw(st.sampled_from(list(list_places(metadata))))
        metadata = replace_value(metadata, place, data.draw(st.sampled_from([*ODD, "missing"])))
    else:
        name = data.draw(st.sampled_from(sorted(tensors)))
        change = data.draw(st.sampled_from([*CHANGES, "missing"]))
        tensors = {k: v for k, v in tensors.items() if k != name}
        if change != "missing":
            tensors[name] = change_tensor(states_tensor(states, metadata, name), change, data.draw(st.integers(0, 500)))
    write_state(tmp_path / "state", metadata, tensors)
    check_outcome(tmp_path / "state")


def states_tensor(states: Any, metadata: dict[str, Any], name: str) -> torch.Tensor:
    return next(tensors[name] for known, tensors in states.values() if known is metadata)


@pytest.mark.slow
@pytest.mark.parametrize("name", STREAMS)
def test_every_change_is_refused_or_valid(states: Any, tmp_path: Path, name: str) -> None:
    metadata, tensors = states[name]
    outcomes = []
    for place in list_places(metadata):
        for value in [*ODD, "missing"]:
            write_state(tmp_path / "state", replace_value(metadata, place, value), tensors)
            outcomes.append(check_case(tmp_path / "state", (place, value)))
    for tensor in tensors:
        for change in CHANGES:
            for at in (0, 1, 5, 2**20 + 3):
                changed = {**tensors, tensor: change_tensor(tensors[tensor], change, at)}
                write_state(tmp_path / "state", metadata, changed)
                outcomes.append(check_case(tmp_path / "state", (tensor, change, at)))
    assert 0 < sum(outcomes) < len(outcomes) / 2


def check_case(path: Path, case: Any) -> bool:
    try:
        return check_outcome(path)
    except Exception as error:
        raise AssertionError(f"{case}: {error!r}") from error
