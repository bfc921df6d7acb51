"""One small run of every kernel, to be run by compute-sanitizer: --tool memcheck, then --tool racecheck."""

from __future__ import annotations

import numpy as np
import torch

import floc
from floc.selection import reference

if __name__ == "__main__":
    device = torch.device("cuda")
    made = torch.Generator(device=device).manual_seed(0)
    tokens = torch.randn(21, 5, 40, generator=made, device=device)
    tokens[10:] = tokens[0] + 0.3 * torch.randn(11, 5, 40, generator=made, device=device)
    for dtype in (torch.bfloat16, torch.float32):
        for options in ({}, {"dedupe": 1}, {"block": None}):
            given = {"block": 8} | options
            kept = floc.compress(tokens.to(dtype), ratio="1/4", backend="gpu", **given)
            assert len(set(kept.indices.tolist())) == 26
    # enough blocks for one program each, and for two
    many = torch.randn(140, 5, 40, generator=made, device=device)
    large = torch.randn(40, 150, 40, generator=made, device=device)
    for given, block in ((many, 1), (large, 2)):
        kept = floc.compress(given, ratio="1/4", backend="gpu", block=block, dedupe=1)
        assert len(set(kept.indices.tolist())) == given.shape[0] * given.shape[1] // 4
    similarity = np.random.default_rng(0).integers(-300, 300, (90, 130)).astype(np.int16)
    weights = np.random.default_rng(1).integers(0, 9, 130)
    for given in (None, weights):
        chosen = floc.select(torch.from_numpy(similarity).to(device), 40, given, backend="gpu")
        assert (chosen.picks.cpu().numpy() == reference.greedy(similarity, 40, given)[0]).all()
    torch.cuda.synchronize()
    print("every kernel ran")
