"""Run every GPU kernel once on small inputs, and compare what it selects with the reference.

Usage: `python -m benchmarks.sanitize`; `compute-sanitizer --tool memcheck python -m benchmarks.sanitize`, then the same
with `--tool racecheck`. Without a GPU it runs in Triton's interpreter if TRITON_INTERPRET=1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import floc
from benchmarks import harness
from floc.selection import reference


def check(tokens: torch.Tensor, **options: Any) -> None:
    """Raise unless the GPU backend keeps the same tokens as the reference, in the same order."""
    kept = floc.compress(tokens, backend="gpu", **options)
    want = floc.compress(tokens.cpu().float(), backend="reference", **options)
    for name in ("indices", "order", "gains"):
        np.testing.assert_array_equal(getattr(kept, name).cpu(), getattr(want, name), err_msg=f"{name}, {options}")


def make_signs(frames: int, cells: int, device: torch.device, dim: int = 16) -> torch.Tensor:
    """[frames, cells, dim] of +1 and -1; frames repeat in part.

    Similarities are whole in fixed point: of 16 features with detail=3, of 64 with detail=1.
    """
    generator = torch.Generator().manual_seed(frames)
    signs = torch.randint(0, 2, (frames, cells, dim), generator=generator) * 2.0 - 1
    repeated = torch.rand(frames, cells, 1, generator=generator) < 0.5
    return torch.where(repeated, signs[:1], signs).to(device)


def main() -> None:
    """Run all kernels."""
    device = harness.get_device()
    small, longer = make_signs(21, 5, device), make_signs(21, 5, device, dim=64)
    for dtype in (torch.bfloat16, torch.float32):
        for options in ({"block": 8}, {"block": None}, {"horizon": 0}, {"horizon": 2}):
            check(small.to(dtype), ratio="1/4", **options)
        for options in ({"block": 8}, {"horizon": 2}):
            check(longer.to(dtype), ratio="1/4", detail=1, **options)
        # sums of clusters are not exact
        kept = floc.compress(small.to(dtype), ratio="1/4", backend="gpu", block=8, dedupe=2)
        assert len(set(kept.indices.tolist())) == 26
    if device.type == "cuda":
        # enough blocks for one program per block, and for two; a band for programs of several warps and slices
        check(make_signs(140, 5, device), ratio="1/4", block=1)
        check(make_signs(40, 150, device), ratio="1/4", block=2)
        check(make_signs(24, 150, device).bfloat16(), ratio="1/30", horizon=4)
        check(make_signs(1200, 2, device).bfloat16(), ratio="1/16", horizon=4)
    similarity = np.random.default_rng(0).integers(-300, 300, (90, 130)).astype(np.int16)
    for weights in (None, np.random.default_rng(1).integers(0, 9, 130)):
        selection = floc.select(torch.from_numpy(similarity).to(device), 40, weights, backend="gpu")
        assert (selection.picks.cpu().numpy() == reference.greedy(similarity, 40, weights)[0]).all()
    harness.synchronize(device)
    print("every kernel ran, and selected what the reference selects")


if __name__ == "__main__":
    main()
