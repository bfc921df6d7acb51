"""Token files and kept-tokens files, and atomic writes.

A kept-tokens file is a safetensors file with the arrays of `Kept` as tensors, for a video also the times of its frames,
and one metadata entry, "floc": JSON with the other values, the format and the version (docs/reference/files.md).
"""

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from floc._arrays import Array
from floc._checked_file import CheckedFile, check_regular_file, check_selection, open_checked
from floc._checks import require, shorten
from floc.kept import Kept
from floc.representatives import KnownRepresentation

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

TOKENS = (".npy", ".safetensors")  # suffixes of token files
NAME_BYTES = 255  # in a file name, on all usual file systems
NEW_S, OLD_S = 1.0, 86_400.0  # minimum age of a leftover, with and without locks
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
        is_full = number in (errno.ENOSPC, errno.EDQUOT)
        if number is None or (isinstance(error, OSError) and not is_full and number != errno.EFBIG):
            raise
        remedy = "free space" if is_full else "choose another folder"
        failed = OSError(f"{path}: cannot be written ({os.strerror(number)}); {remedy} and run again")
        failed.errno = number
        raise failed from error
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
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise
        except OSError:  # such as a network drive without locks
            is_locked = False
        yield is_locked
    finally:
        os.close(handle)
