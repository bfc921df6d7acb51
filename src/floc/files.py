"""Tokens and what was kept of them, on disk.

A kept-tokens file is a safetensors file with these tensors, K kept of n = T*H*W:

    features    [K, D]  the kept tokens, in the input's dtype
    indices     [K]     ascending flat index t*H*W + y*W + x
    positions   [K, 3]  (t, y, x)
    order       [K]     places in `indices`, most important first
    gains       [K]     what each added, in that order
    represents  [n]     for every input token, the place in `indices` of its representative; not of a stream with a
                        budget, which forgets its tokens

where they come from a video, also

    times_s        [K]  when each kept token is shown, in seconds from the start
    frame_times_s  [T]  the same for every frame there was; not of a stream

and one metadata entry, "floc": JSON with shape [T, H, W], method, settings, coverage, bound, seconds, source, version,
for a video its length, size, sampling and encoder, and for a stream span_s: from when to when it covers.
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
from floc.representatives import Representation

TOKENS = (".npy", ".safetensors")  # suffixes of files that hold tokens
ARRAYS = ("features", "indices", "positions", "order", "gains", "represents")


def read_tokens(path: Path, tensor: str | None = None) -> Array:
    """Tokens from a .npy or .safetensors file.

    Args:
        path: the file; a .npy file is mapped into memory, not read at once.
        tensor: which tensor of a safetensors file; the one called "tokens", or the only one, where not given.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    if path.suffix == ".npy":
        if tensor is not None:
            raise ValueError(f"{path}: a .npy file has one array, so there is no tensor {tensor!r} to choose")
        try:
            return np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise ValueError(f"{path}: not a readable .npy file ({error})") from error
    if path.suffix == ".safetensors":
        return _from_safetensors(path, tensor)
    raise ValueError(f"{path}: tokens are read from .npy and .safetensors files, got {path.suffix or 'no suffix'!r}")


def _from_safetensors(path: Path, tensor: str | None) -> torch.Tensor:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            names = sorted(file.keys())
            if tensor is None and "tokens" in names:
                tensor = "tokens"
            elif tensor is None and len(names) == 1:
                tensor = names[0]
            if tensor not in names:
                asked = "no tensor called 'tokens'" if tensor is None else f"no tensor called {tensor!r}"
                raise ValueError(f"{path}: {asked}; choose one of: {', '.join(names) or 'none, the file is empty'}")
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
    """Write a kept-tokens file, whole or not at all.

    Args:
        kept: what `floc.compress` returned.
        path: the .safetensors file.
        source: the name of what the tokens are from.
        times_s: [T] when each frame is shown, where they are from a video.
        made_from: what else to note, as JSON takes it: the video, the encoder.
    """
    from safetensors.torch import save_file

    from floc._version import __version__

    names = [name for name in ARRAYS if name != "represents" or not kept.forgets]
    if kept.times_s is not None:
        names.append("times_s")
    tensors = {name: torch.as_tensor(getattr(kept, name)).cpu().contiguous() for name in names}
    if times_s is not None:
        tensors["frame_times_s"] = torch.from_numpy(np.array(times_s, np.float64))
        tensors["times_s"] = tensors["frame_times_s"][tensors["positions"][:, 0]]
    about = {**summarize(kept), "source": source, "version": __version__, **(made_from or {})}
    write_atomic(path, lambda temporary: save_file(tensors, temporary, {"floc": json.dumps(about)}))


def read_kept(path: Path) -> Kept:
    """What `write_kept` wrote. `at` is not on file; a prefix of `order` is a smaller answer, in blocks nearly so."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["floc"])
            forgets = about["method"] == "stream" and "represents" not in file.keys()  # noqa: SIM118 - no mapping
            names = [name for name in ARRAYS if name != "represents" or not forgets]
            arrays: dict[str, Any] = {name: file.get_tensor(name) for name in names}
            times_s = file.get_tensor("times_s") if "times_s" in file.keys() else None  # noqa: SIM118
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise ValueError(f"{path}: not a kept-tokens file of floc ({error})") from error
    represents = None if forgets else arrays.pop("represents").numpy()
    return Kept(
        **arrays,
        shape=tuple(about["shape"]),
        times_s=times_s,
        span_s=tuple(about["span_s"]) if "span_s" in about else None,
        standing=Representation(represents, about["coverage"], about["bound"]),
        **{name: about[name] for name in ("method", "settings", "seconds")},
    )


def summarize(kept: Kept) -> dict[str, Any]:
    """What there is to say of a result, as JSON takes it."""
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
    """Let `write` make a file, and put it in place only when it is complete."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: the folder {path.parent} does not exist; create it first")
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
        _settle(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _settle(folder: Path) -> None:
    """Have the names in a folder on disk, so that after a power failure no later file is there without this one."""
    with contextlib.suppress(OSError):  # some systems cannot open folders, some disks cannot be asked
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
