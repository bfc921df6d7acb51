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
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from floc._arrays import Array
from floc.kept import Kept
from floc.representatives import KnownRepresentation

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

TOKENS = (".npy", ".safetensors")  # suffixes of token files
NAME_BYTES = 255  # in a file name, on all usual file systems
NEW_S, OLD_S = 1.0, 86_400.0  # minimum age of a leftover, with and without locks
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


def check_writable(path: Path) -> None:
    """Raise OSError if a file cannot be written to `path`; commands call it before their work."""
    name, folder = path.name, path.parent
    if not folder.is_dir():
        raise FileNotFoundError(f"{path}: the folder {folder} does not exist; create it first")
    if len(os.fsencode(name)) > NAME_BYTES:
        raise OSError(f"the file name {name[:60]!r}... is too long; use at most {NAME_BYTES} bytes")
    if path.is_dir():
        raise IsADirectoryError(f"{path}: is a folder; give the name of a file")
    if path.exists() and not path.is_file():
        raise OSError(f"{path}: is not a regular file, so it cannot be replaced; give another name")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{path}: the folder {folder} is not writable; choose another folder")


def write_atomic(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file with `write` in a temporary folder beside it, and move it when it is complete and on disk.

    The next write to the same path removes what a killed process left behind.
    """
    check_writable(path)
    prefix = f".floc-{hashlib.sha256(os.fsencode(path.name)).hexdigest()[:12]}-"
    _remove_leftovers(path.parent, prefix)
    folder = Path(tempfile.mkdtemp(".tmp", prefix, path.parent))
    try:
        with _lock_folder(folder, wait=True):  # the lock tells that it is in use
            temporary = folder / "part"
            with temporary.open("xb") as empty:
                mode = stat.S_IMODE(os.fstat(empty.fileno()).st_mode)  # as the process wants it for new files
            write(temporary)  # may replace the file
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
            temporary.chmod(mode)
            temporary.replace(path)
    except Exception as error:
        # safetensors has an error class of its own, which names the system's error number
        code = re.search(r"\(os error (\d+)\)", str(error))
        number = error.errno if isinstance(error, OSError) else code and int(code[1])
        if number not in (errno.ENOSPC, errno.EDQUOT):
            raise
        full = OSError(f"{path}: cannot be written ({os.strerror(number)}); free space and run again")
        full.errno = number
        raise full from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    # flush the folder's entries, so that after a power failure no later file exists without this one
    with contextlib.suppress(OSError):  # not every system can open or flush folders
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _remove_leftovers(parent: Path, prefix: str) -> None:
    """Remove the temporary folders that no process uses any more."""
    for folder in parent.glob(f"{prefix}*.tmp"):
        with contextlib.suppress(OSError), _lock_folder(folder, wait=False) as is_locked:
            if time.time() - folder.stat().st_mtime > (NEW_S if is_locked else OLD_S):
                shutil.rmtree(folder)


@contextlib.contextmanager
def _lock_folder(folder: Path, *, wait: bool) -> Iterator[bool]:
    """Lock a folder, and yield whether folders have locks here; raise BlockingIOError if another process has it."""
    if fcntl is None:
        yield False
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        is_locked = True
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:  # such as a network drive without locks
            is_locked = False
        yield is_locked
    finally:
        os.close(handle)
