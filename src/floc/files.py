"""Token files and kept-tokens files.

A kept-tokens file is a safetensors file with the arrays of `Kept` as tensors, for a video also the times of its frames,
and one metadata entry, "floc": JSON with the other values, the format and the version (docs/reference/files.md).
"""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from floc._arrays import Array
from floc._atomic import write_atomic
from floc._checked_file import CheckedFile, check_regular_file, check_selection, open_checked
from floc._checks import require, shorten
from floc.kept import Kept
from floc.representatives import KnownRepresentation

TOKENS = (".npy", ".safetensors")  # suffixes of token files
FORMAT = 1  # of kept-tokens files
ARRAYS = ("features", "indices", "positions", "order", "gains", "represents")


def read_tokens(path: Path, tensor: str | None = None) -> Array:
    """Read tokens from a .npy file, which is memory-mapped, or from a .safetensors file.

    Args:
        tensor: Name of a tensor in a safetensors file. Default: the one called "tokens", or the only one.
    """
    check_regular_file(path, "a .npy or .safetensors file")
    if path.suffix not in TOKENS:
        got = repr(path.suffix or "no suffix")
        raise ValueError(f"{path}: tokens are read from .npy and .safetensors files, got {got}")
    if path.suffix == ".npy":
        require(tensor is None, f"{path}: a .npy file has one array, so there is no tensor {tensor!r} to select")
        try:
            with np.errstate(all="ignore"):  # a product of sizes that overflows is an error later
                return np.lib.format.open_memmap(path, mode="r")
        except Exception as error:  # numpy evaluates the header as Python, with the errors of its tokenizer
            raise ValueError(f"{path}: not a readable .npy file ({error}); write it with numpy.save") from error
    with open_checked(path, "a safetensors file") as file:
        names = sorted(file.names)
        tensor = tensor if tensor is not None else names[0] if len(names) == 1 else "tokens"
        if tensor in names:
            return file.any_tensor(tensor)
    listed = ", ".join(names[:20]) + ", ..." * (len(names) > 20)
    raise ValueError(f"{path}: no tensor called {tensor!r}; choose one of: {listed or 'none, the file is empty'}")


def write_kept(
    kept: Kept, path: Path, source: str = "", *, times_s: np.ndarray | None = None, made_from: Mapping[str, Any] = {}
) -> None:
    """Write a kept-tokens file atomically.

    Args:
        kept: A result of `floc.compress` or `floc.Stream`.
        source: Name of the input.
        times_s: [T] when each frame is shown, for tokens of a video.
        made_from: Further JSON-serializable metadata: the video, the encoder.
    """
    from safetensors.torch import save_file

    from floc._version import __version__

    missing = {"represents": kept.representation.represents is None, "times_s": kept.times_s is None}
    names = [name for name in (*ARRAYS, "times_s") if not missing.get(name)]
    tensors = {name: torch.as_tensor(getattr(kept, name)).cpu().contiguous() for name in names}
    if times_s is not None:
        tensors["frame_times_s"] = torch.from_numpy(np.array(times_s, np.float64))
        tensors["times_s"] = tensors["frame_times_s"][tensors["positions"][:, 0]]
    metadata = {"format": FORMAT, **summarize(kept), "source": source, "version": __version__, **made_from}
    write_atomic(path, lambda temporary: save_file(tensors, temporary, {"floc": json.dumps(metadata)}))


def read_kept(path: Path) -> Kept:
    """Read a kept-tokens file, without `at`; a prefix of `order` is (nearly) the result for a smaller budget."""
    with open_checked(path, "a kept-tokens file") as file:
        metadata = file.fields("floc")
        metadata.check_format(FORMAT, missing=1)
        shape, method = metadata.shape("shape"), metadata.text("method")
        features = file.tensor("features", (None, None), "float")
        k, n = len(features), math.prod(shape)
        require(features.numel() > 0, "features must not be empty")
        indices, order = (file.tensor(name, (k,), torch.int64) for name in ("indices", "order"))
        check_selection(indices, order, n)
        positions = file.tensor("positions", (k, 3), torch.int64)
        if not torch.equal(positions, torch.stack(torch.unravel_index(indices, shape), 1)):
            raise ValueError("positions must be those of the indices")
        represents = None
        if method != "stream" or "represents" in file.names:
            represents = file.tensor("represents", (n,), torch.int64).numpy()
            require(represents.min() >= 0 and represents.max() < k, f"represents must be within 0..{k - 1}")
        span_s: Any = tuple(metadata.numbers("span_s", 2)) if metadata.has("span_s") else None
        require(span_s is None or span_s[0] <= span_s[1], f"span_s must ascend, got {span_s}")
        for name, value in {"tokens": n, "kept": k, "ratio": k / n, "dim": features.shape[1]}.items():
            if metadata.values.get(name, value) != value:
                raise ValueError(f"{name} must be {value}, got {shorten(metadata.values[name])}")
        gains, settings = file.tensor("gains", (k,), "float"), metadata.section("settings").values
        bound = metadata.number("bound", 0, 1) if metadata.has("bound") else None
        representation = KnownRepresentation(represents, metadata.number("coverage", -1.01, 1.01), bound)
        kept = Kept(indices, features, positions, order, gains, shape, method, settings, representation=representation)
        times_s = _read_times(file, positions[:, 0], shape[0])
        return replace(kept, seconds=metadata.number("seconds", 0), times_s=times_s, span_s=span_s)


def _read_times(file: CheckedFile, frame: torch.Tensor, frames: int) -> torch.Tensor | None:
    """Read the times of kept tokens, [K], given the frame of each, [K]."""
    if not file.names & {"times_s", "frame_times_s"}:
        return None
    times_s = file.tensor("times_s", (len(frame),), torch.float64)
    if "frame_times_s" in file.names:
        frame_times_s = file.tensor("frame_times_s", (frames,), torch.float64)
        is_valid = torch.equal(times_s, frame_times_s[frame])
    else:
        frame_times_s = times_s
        is_valid = bool((times_s[1:] == times_s[:-1])[frame[1:] == frame[:-1]].all())
    if not is_valid or bool((frame_times_s[1:] < frame_times_s[:-1]).any()):
        raise ValueError("times_s and frame_times_s must ascend, and be equal for all tokens of a frame")
    return times_s


def summarize(kept: Kept) -> dict[str, Any]:
    """Return the JSON-serializable metadata of a result."""
    sizes = {"tokens": kept.n, "kept": len(kept), "ratio": kept.ratio, "shape": list(kept.shape)}
    quality = {"dim": kept.features.shape[-1], "coverage": kept.coverage, "bound": kept.bound}
    made = {"method": kept.method, "settings": dict(kept.settings), "seconds": kept.seconds}
    return sizes | quality | made | ({} if kept.span_s is None else {"span_s": list(kept.span_s)})
