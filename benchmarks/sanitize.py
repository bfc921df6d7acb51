"""Run every GPU kernel once on small inputs.

Usage: `compute-sanitizer --tool memcheck python -m benchmarks.sanitize`, then the same with `--tool racecheck`.
"""

from __future__ import annotations

import numpy as np
import torch

import floc
from floc.selection import reference

if __name__ == "__main__":
    device = torch.device("cuda")
    generator = torch.Generator(device=device).manual_seed(0)
    tokens = torch.randn(21, 5, 40, generator=generator, device=device)
    tokens[10:] = tokens[0] + 0.3 * torch.randn(11, 5, 40, generator=generator, device=device)
    for dtype in (torch.bfloat16, torch.float32):
        for options in ({"dedupe": 2}, {}, {"block": None}):
            kept = floc.compress(tokens.to(dtype), ratio="1/4", backend="gpu", **({"block": 8} | options))
            assert len(set(kept.indices.tolist())) == 26
        for horizon in (0, 2):
            kept = floc.compress(tokens.to(dtype), ratio="1/4", backend="gpu", horizon=horizon)
            assert len(set(kept.indices.tolist())) == 26
    # enough blocks for one program per block, and for two
    many = torch.randn(140, 5, 40, generator=generator, device=device)
    large = torch.randn(40, 150, 40, generator=generator, device=device)
    for video, block in ((many, 1), (large, 2)):
        kept = floc.compress(video, ratio="1/4", backend="gpu", block=block)
        assert len(set(kept.indices.tolist())) == video.shape[0] * video.shape[1] // 4
    similarity = np.random.default_rng(0).integers(-300, 300, (90, 130)).astype(np.int16)
    for weights in (None, np.random.default_rng(1).integers(0, 9, 130)):
        selection = floc.select(torch.from_numpy(similarity).to(device), 40, weights, backend="gpu")
        assert (selection.picks.cpu().numpy() == reference.greedy(similarity, 40, weights)[0]).all()
    torch.cuda.synchronize()
    print("every kernel ran")
