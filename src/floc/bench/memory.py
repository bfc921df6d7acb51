"""Peak memory of one `floc.compress` call, over what the process held before: measured in a process of its own.

The first call, on the same tokens, is not counted: it loads libraries, compiles, and fills their buffers. What it freed
is then given back to the system, so that the second call has to ask for it again. Linux only: it resets and reads the
kernel's high-water mark of resident memory.
"""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np


def peak_growth_bytes(tokens: np.ndarray, options: dict) -> int | None:
    """By how much `floc.compress(tokens, **options)` raises the peak; None where the system does not tell."""
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
    floc.compress(tokens, **options)
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    before = status_bytes("VmRSS")
    kept = floc.compress(tokens, **options)
    peak = status_bytes("VmHWM")
    assert len(kept)
    return peak - before


def status_bytes(field: str) -> int:
    """A line of what the kernel tells of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {field} in /proc/self/status")


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], json.loads(sys.argv[2]))))
