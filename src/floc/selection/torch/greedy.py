"""Lazy greedy in torch, many sets at a time, on any device: the picks of `reference.greedy` without numba.

Where the compiled version evaluates one candidate at a time, this one evaluates the few with the highest bounds at
once, in every set, until each set's best bound is an exact gain. Keys are those of `picking.py`: `gain << bits |
complement of the index`, so a maximum settles the gain and, for equal gains, the lower index.

Memory: the matrices, one int64 a candidate, and POOL rows a set.
"""

from __future__ import annotations

import torch

# how many candidates are evaluated at once; at n = 1920, K = 240 on two cores 8 took 114 ms, 32 took 74, 64 took 70
POOL = 32


def greedy(
    similarity: torch.Tensor, k: int, weights: torch.Tensor | None = None, candidates: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pick `k` candidates in each set; the contract of `reference.greedy`, with a leading axis of sets.

    Args:
        similarity: [B, M, N] int16 fixed point. Sets that are smaller are padded with zeros.
        k: how many to pick in each set; a set of fewer candidates ends in picks with a gain of -1.
        weights: [B, N] int64.
        candidates: [B] int64, how many of the M rows are candidates in each set; all where not given.

    Returns:
        [B, k] int64 picks, and [B, k] int64 their gains.
    """
    b, m, _ = similarity.shape
    device = similarity.device
    index = torch.arange(m, device=device)
    bits = max(1, (m - 1).bit_length())
    complement = (1 << bits) - 1 - index  # [M]
    present = torch.ones(b, m, dtype=torch.bool, device=device)
    if candidates is not None:
        present = index < candidates[:, None]

    def keys_of(gains: torch.Tensor) -> torch.Tensor:
        return (gains << bits) | complement

    first = torch.stack([_sums(rows, weights[i] if weights is not None else None) for i, rows in enumerate(similarity)])
    keys = keys_of(first).masked_fill(~present, torch.iinfo(torch.int64).min)
    best = keys.argmax(1)  # [B]
    picks, gains = [best], [first.gather(1, best[:, None])[:, 0]]
    sets = torch.arange(b, device=device)
    covered = similarity[sets, best]  # [B, N]
    if k == 1:
        return torch.stack(picks, 1), torch.stack(gains, 1)

    # bounds hold only from here on: see picking.py
    keys = torch.stack(
        [
            keys_of(_sums(rows, weights[i] if weights is not None else None, covered[i]))
            for i, rows in enumerate(similarity)
        ]
    )
    keys.masked_fill_(~present, -1)
    exact = torch.ones(b, m, dtype=torch.bool, device=device)
    pool = min(POOL, m)
    for _ in range(1, k):
        keys[sets, best] = -1  # a pick may not repeat
        while True:
            best = keys.argmax(1)
            # exact, a gain of 0 that cannot fall further, or nothing left in this set
            settled = exact[sets, best] | (keys[sets, best] >> bits <= 0)
            if bool(settled.all()):
                break
            top = keys.topk(pool, 1).indices  # [B, pool]
            rows = similarity[sets[:, None], top]  # [B, pool, N]
            fresh = _gains(rows, covered[:, None], None if weights is None else weights[:, None])
            old = keys.gather(1, top)
            keys.scatter_(1, top, torch.where(old < 0, old, (fresh << bits) | complement[top]))
            exact.scatter_(1, top, True)
        picks.append(best)
        gains.append(keys[sets, best] >> bits)
        covered = torch.maximum(covered, similarity[sets, best])
        exact.zero_()
    return torch.stack(picks, 1), torch.stack(gains, 1)


def _gains(rows: torch.Tensor, covered: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """Sum over the last axis of weight x (max(row, covered) - covered)."""
    if weights is None:
        return torch.maximum(rows, covered).sum(-1, dtype=torch.int64) - covered.sum(-1, dtype=torch.int64)
    raised = torch.maximum(rows, covered).to(torch.int64) - covered
    return (raised * weights).sum(-1)


def _sums(rows: torch.Tensor, weights: torch.Tensor | None, covered: torch.Tensor | None = None) -> torch.Tensor:
    """[M] of one set's matrix: gains over `covered`, or plain sums, in pieces that keep the temporaries small."""
    pieces = []
    for piece in rows.split(max(1, (1 << 22) // max(1, rows.shape[1]))):
        if covered is not None:
            pieces.append(_gains(piece, covered, weights))
        elif weights is None:
            pieces.append(piece.sum(-1, dtype=torch.int64))
        else:
            pieces.append((piece.to(torch.int64) * weights).sum(-1))
    return torch.cat(pieces)
