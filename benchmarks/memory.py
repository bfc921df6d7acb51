"""Peak memory of a call, over what was held before.

On a GPU torch tells it. On a CPU it is the kernel's high-water mark of resident memory, which Linux lets a process
reset. A call to warm up must have come before: the first one loads libraries, compiles, and fills their buffers. What
it freed is given back to the system, so that the next call has to ask for it again.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from floc._system import release_memory


def growth_bytes(call: Callable[[], object], device: torch.device) -> int | None:
    """By how much a call raises the peak of a device; None where the system does not tell."""
    gc.collect()
    return _growth_on_gpu(call, device) if device.type == "cuda" else _growth_on_cpu(call)


def _growth_on_gpu(call: Callable[[], object], device: torch.device) -> int:
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _growth_on_cpu(call: Callable[[], object]) -> int | None:
    release_memory()
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    before = status_bytes("VmRSS")
    held = call()  # until the peak is read
    peak = status_bytes("VmHWM")
    del held
    return peak - before


def peak_growth_bytes(tokens: np.ndarray, options: dict) -> int | None:
    """By how much `floc.compress(tokens, **options)` raises the peak of a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokens.npy"
        np.save(path, tokens)
        command = [sys.executable, "-m", __name__, str(path), json.dumps(options)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"measuring memory failed:\n{done.stderr}")
    return json.loads(done.stdout)


def _measure(path: str, options: dict) -> int | None:
    import floc

    tokens = np.load(path)

    def call() -> floc.Kept:
        return floc.compress(tokens, **options)

    call()
    return growth_bytes(call, torch.device("cpu"))


def status_bytes(field: str) -> int:
    """A line of what the kernel tells of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {field} in /proc/self/status")


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], json.loads(sys.argv[2]))))
