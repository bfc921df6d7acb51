"""Peak memory of a call, above what was allocated before.

On a GPU, torch reports it. On a CPU it is the kernel's high-water mark of resident memory, which Linux lets a process
reset. Make the same call once before to warm up: the first call loads libraries, compiles, and fills their buffers.
Freed memory is returned to the system, so that the next call has to request it again.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.processes import run_module
from floc._system import release_memory


def measure_growth(call: Callable[[], object], device: torch.device) -> int | None:
    """Return the bytes by which a call raises the peak of a device, or None if the system does not report it."""
    gc.collect()
    return _measure_gpu(call, device) if device.type == "cuda" else _measure_cpu(call)


def _measure_gpu(call: Callable[[], object], device: torch.device) -> int:
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _measure_cpu(call: Callable[[], object]) -> int | None:
    release_memory()
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    before = read_status_bytes("VmRSS")
    result = call()  # alive until the peak is read
    peak = read_status_bytes("VmHWM")
    del result
    return peak - before


def measure_compress(tokens: np.ndarray, options: dict) -> int | None:
    """Return the growth in bytes of `floc.compress(tokens, **options)`, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokens.npy"
        np.save(path, tokens)
        return run_module("benchmarks.memory", str(path), json.dumps(options))


def _measure_file(path: str, options: dict) -> int | None:
    import floc

    tokens = np.load(path)

    def call() -> floc.Kept:
        return floc.compress(tokens, **options)

    call()
    return measure_growth(call, torch.device("cpu"))


def read_status_bytes(field: str) -> int:
    """Return a field of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no field {field}")


if __name__ == "__main__":
    print(json.dumps(_measure_file(sys.argv[1], json.loads(sys.argv[2]))))
