"""`.floc` files: captured videos on disk.

A `.floc` file is a safetensors file with the arrays of `Captured` as tensors, "deep.0" and so on for `deep`, and one
metadata entry, "floc": JSON with the other values, the format and the version (docs/reference/files.md).
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from floc._atomic import write_atomic
from floc._checked_file import (
    COVERAGE,
    FPS,
    FRAMES_PER_SLICE,
    MAX_S,
    MAX_SIDE,
    Fields,
    check_selection,
    is_finite,
    open_checked,
)
from floc._checks import require
from floc._version import __version__
from floc.captured.captured import Captured
from floc.captured.identity import Identity
from floc.families.preparation import Preparation

FORMAT = 1
_TENSORS = {"features": 2, "indices": 1, "order": 1, "gains": 1}  # number of axes
_TIMES = ("times_s", "last_s")
_VALUES = ("nested", "frames_per_slice", "fps", "duration_s")
_MOST_LAYERS = 1000  # a model of today has up to four with deep features


def save(video: Captured, path: Path) -> None:
    """Write a .floc file atomically."""
    from safetensors.torch import save_file

    tensors = {name: getattr(video, name) for name in _TENSORS}
    tensors |= {f"deep.{i}": layer for i, layer in enumerate(video.deep)}
    if video.members is not None:
        tensors["members"] = video.members
    for name in _TIMES:
        if (times := getattr(video, name)) is not None:
            tensors[name] = torch.from_numpy(np.array(times, np.float64))
    metadata = {"format": FORMAT, "version": __version__, "shape": list(video.shape), "model": asdict(video.model)}
    metadata |= {"layers": len(video.deep), "made": dict(video.made)}
    metadata |= {name: getattr(video, name) for name in _VALUES}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomic(path, lambda temporary: save_file(tensors, temporary, {"floc": json.dumps(metadata)}))


def load(path: str | Path) -> Captured:
    """Load a .floc file."""
    with open_checked(Path(path), "a .floc file") as file:
        metadata = file.fields("floc")
        metadata.check_format(FORMAT)
        if metadata.has("method"):
            raise ValueError(
                "it holds the tokens that floc compress or floc stream kept; read it with floc.files.read_kept"
            )
        layers = [f"deep.{i}" for i in range(metadata.integer("layers", most=_MOST_LAYERS))]
        if set(layers) != {name for name in file.names if name.startswith("deep.")}:
            raise ValueError(f"there should be deep features of {len(layers)} layers")
        features = file.tensor("features", (None, None), "float")
        shape = metadata.shape("shape")
        values: dict[str, Any] = {name: metadata.values.get(name) for name in _VALUES}
        values |= {name: file.tensor(name, (shape[0],), torch.float64).numpy() for name in _TIMES if name in file.names}
        indices, order = (file.tensor(name, (len(features),), torch.int64) for name in ("indices", "order"))
        gains = file.tensor("gains", (len(features),), "float")
        if "members" in file.names:
            values["members"] = file.tensor("members", (len(features),), torch.int64)
        deep = tuple(file.tensor(name, tuple(features.shape), features.dtype) for name in layers)
        model, made = Identity.from_fields(metadata.section("model")), metadata.section("made").values
        video = Captured(features, indices, order, gains, deep, shape, model, made, **values)
        require_consistent(video)
    return video


def require_consistent(video: Captured) -> None:
    """Raise ValueError if the parts of a video do not fit together, as in a file that was changed."""
    values = Fields({name: getattr(video, name) for name in _VALUES} | {"shape": list(video.shape)})
    slices = values.shape("shape", 1, MAX_SIDE)[0]
    values.flag("nested")
    values.integer("frames_per_slice", *FRAMES_PER_SLICE)
    for name, least, most in (("fps", *FPS), ("duration_s", 0.0, MAX_S)):
        if values.has(name):
            values.number(name, least, most)
    _check_made(Fields(dict(video.made), "made"), slices, video.frames_per_slice)
    for name, axes in _TENSORS.items():
        tensor = getattr(video, name)
        if tensor.ndim != axes or len(tensor) != len(video):
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, which does not fit {len(video)} tokens")
        if not (tensor.dtype == torch.int64 if name in ("indices", "order") else tensor.is_floating_point()):
            raise ValueError(f"{name} has dtype {tensor.dtype}")
    if video.features.shape[1] != video.model.hidden_size:
        raise ValueError(f"features have {video.features.shape[1]} values, the model takes {video.model.hidden_size}")
    if any(layer.shape != video.features.shape or layer.dtype != video.features.dtype for layer in video.deep):
        raise ValueError("deep features differ from the features in shape or dtype")
    if not all(map(is_finite, (video.features, video.gains, *video.deep))):
        raise ValueError("some values are not finite")
    if video.members is not None:
        members = video.members
        fits = members.shape == video.indices.shape and members.dtype == torch.int64
        # each at most n first, so that the sum cannot overflow
        fits = fits and bool(((members >= 0) & (members <= video.n)).all()) and int(members.sum()) <= video.n
        require(fits, f"members must be how many of {video.n} tokens each of {len(video)} represents")
    check_selection(video.indices, video.order, video.n)
    for name in _TIMES:
        if getattr(video, name) is None:
            continue
        times = np.asarray(getattr(video, name))
        is_valid = times.shape == (slices,) and times.dtype.kind == "f" and ((times >= 0) & (times <= MAX_S)).all()
        require(is_valid, f"{name} must have a time for each of {slices} slices, from 0 to {MAX_S:g} s")
        require(not (times[1:] < times[:-1]).any(), f"{name} must be ascending")
    if video.times_s is not None and video.last_s is not None and (video.last_s < video.times_s).any():
        raise ValueError("last_s must not be before times_s")


def _check_made(made: Fields, slices: int, frames_per_slice: int) -> None:
    """Check what other code reads of `Captured.made`; all of it is optional."""
    for name in filter(made.has, ("method", "source")):
        made.text(name)
    for name in filter(made.has, ("coverage", "bound")):
        made.number(name, 0 if name == "bound" else COVERAGE[0], COVERAGE[1])
    if made.has("settings"):
        made.section("settings")
    if made.has("preparation"):
        frames = len(Preparation.from_dict(made.section("preparation").values).indices)
        if -(-frames // frames_per_slice) != slices:
            raise ValueError(f"preparation has {frames} frames for {slices} slices of {frames_per_slice}")
    if made.has("seconds"):
        seconds = made.section("seconds")
        for stage in seconds.values:
            seconds.number(stage, 0)
