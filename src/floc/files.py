"""Token files and kept-tokens files, and atomic writes.

A kept-tokens file is a safetensors file with these tensors, K kept of n = T*H*W:

    features    [K, D]  the kept tokens, in the input's dtype
    indices     [K]     ascending flat index t*H*W + y*W + x
    positions   [K, 3]  (t, y, x)
    order       [K]     places in `indices`, most important first
    gains       [K]     what each added, in that order
    represents  [n]     for every input token, the place in `indices` of its representative; missing for a stream with a
                        budget, which does not store its tokens

for tokens of a video also

    times_s        [K]  when each kept token is shown, in seconds from the start
    frame_times_s  [T]  the same for every input frame; missing for a stream

and one metadata entry, "floc": JSON with shape [T, H, W], method, settings, coverage, bound, seconds, source, version;
for a video its length, size, sampling and encoder; for a stream span_s, its first and last time.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from floc._arrays import Array
from floc.kept import Kept
from floc.representatives import KnownRepresentation

TOKENS = (".npy", ".safetensors")  # suffixes of token files
ARRAYS = ("features", "indices", "positions", "order", "gains", "represents")


def read_tokens(path: Path, tensor: str | None = None) -> Array:
    """Read tokens from a .npy file, which is memory-mapped, or from a .safetensors file.

    Args:
        tensor: Name of a tensor in a safetensors file. Default: the one called "tokens", or the only one.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    if path.suffix == ".npy":
        if tensor is not None:
            raise ValueError(f"{path}: a .npy file has one array, so there is no tensor {tensor!r} to select")
        try:
            return np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise ValueError(f"{path}: not a readable .npy file ({error})") from error
    if path.suffix not in TOKENS:
        got = repr(path.suffix or "no suffix")
        raise ValueError(f"{path}: tokens are read from .npy and .safetensors files, got {got}")
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            names = sorted(file.keys())
            if tensor is None:
                tensor = names[0] if len(names) == 1 else "tokens"
            if tensor not in names:
                listed = ", ".join(names) or "none, the file is empty"
                raise ValueError(f"{path}: no tensor called {tensor!r}; choose one of: {listed}")
            return file.get_tensor(tensor)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path}: not a readable safetensors file ({error})") from error


def write_kept(
    kept: Kept,
    path: Path,
    source: str = "",
    *,
    times_s: np.ndarray | None = None,
    made_from: Mapping[str, Any] | None = None,
) -> None:
    """Write a kept-tokens file atomically.

    Args:
        kept: A result of `floc.compress` or `floc.Stream`.
        source: Name of the input.
        times_s: [T] when each frame is shown, for tokens of a video.
        made_from: Further JSON-serialisable metadata: the video, the encoder.
    """
    from safetensors.torch import save_file

    from floc._version import __version__

    names = list(ARRAYS if kept.representation.represents is not None else ARRAYS[:-1])
    if kept.times_s is not None:
        names.append("times_s")
    tensors = {name: torch.as_tensor(getattr(kept, name)).cpu().contiguous() for name in names}
    if times_s is not None:
        tensors["frame_times_s"] = torch.from_numpy(np.array(times_s, np.float64))
        tensors["times_s"] = tensors["frame_times_s"][tensors["positions"][:, 0]]
    metadata = {**summarize(kept), "source": source, "version": __version__, **(made_from or {})}
    write_atomic(path, lambda temporary: save_file(tensors, temporary, {"floc": json.dumps(metadata)}))


def read_kept(path: Path) -> Kept:
    """Read a kept-tokens file, without `at`; a prefix of `order` is (nearly) the result for a smaller budget."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = json.loads((file.metadata() or {})["floc"])
            names = set(file.keys())
            required = ARRAYS[:-1] if metadata["method"] == "stream" and "represents" not in names else ARRAYS
            arrays: dict[str, Any] = {name: file.get_tensor(name) for name in (*required, *({"times_s"} & names))}
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise ValueError(f"{path}: not a kept-tokens file of floc ({error})") from error
    represents = arrays.pop("represents").numpy() if "represents" in arrays else None
    return Kept(
        **arrays,
        shape=tuple(metadata["shape"]),
        span_s=tuple(metadata["span_s"]) if "span_s" in metadata else None,
        representation=KnownRepresentation(represents, metadata["coverage"], metadata["bound"]),
        **{name: metadata[name] for name in ("method", "settings", "seconds")},
    )


def summarize(kept: Kept) -> dict[str, Any]:
    """Return the JSON-serialisable metadata of a result."""
    return {
        "tokens": kept.n,
        "kept": len(kept),
        "ratio": kept.ratio,
        "shape": list(kept.shape),
        "dim": kept.features.shape[-1],
        "coverage": kept.coverage,
        "bound": kept.bound,
        "method": kept.method,
        "settings": dict(kept.settings),
        "seconds": kept.seconds,
        **({} if kept.span_s is None else {"span_s": list(kept.span_s)}),
    }


def write_atomic(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file with `write` under a temporary name, and rename it when it is complete and on disk."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: the folder {path.parent} does not exist; create it first")
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    # flush the folder's entries, so that after a power failure no later file exists without this one
    with contextlib.suppress(OSError):  # not every system can open or flush folders
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
