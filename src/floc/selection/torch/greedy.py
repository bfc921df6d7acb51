"""Lazy greedy facility location in torch, for a batch of sets on any device: the picks of `reference.greedy`.

The compiled CPU version evaluates one candidate at a time. This one evaluates the POOL candidates with the highest
bounds at once, in every set, until each set's best bound is an exact gain. Keys are as in `cpu/greedy.py`, `gain <<
bits | complement of the index`: the maximum has the largest gain and, for equal gains, the lowest index.
"""

import torch

# candidates evaluated at once; at n = 1920, K = 240 on two cores a pool of 8 took 114 ms, of 32 74 ms, of 64 70 ms
POOL = 32


def greedy(
    similarity: torch.Tensor, k: int, weights: torch.Tensor | None = None, candidates: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pick `k` candidates in each set; like `reference.greedy`, with a leading batch axis.

    Args:
        similarity: [B, M, N] int16 fixed point. Smaller sets are padded with zeros.
        k: number of picks in each set; a set with fewer candidates ends in picks with a gain of -1.
        weights: [B, N] int64.
        candidates: [B] int64, number of rows that are candidates in each set; all M by default.

    Returns:
        [B, k] int64 picks, and [B, k] int64 gains.
    """
    b, m, _ = similarity.shape
    device = similarity.device
    index = torch.arange(m, device=device)
    bits = max(1, (m - 1).bit_length())
    complement = (1 << bits) - 1 - index  # [M]
    limits = torch.full((b,), m, device=device) if candidates is None else candidates
    present = index < limits[:, None]  # [B, M]
    weights_by_set = [None] * b if weights is None else list(weights)

    first = torch.stack([_sum_rows(rows, w) for rows, w in zip(similarity, weights_by_set, strict=True)])
    keys = ((first << bits) | complement).masked_fill(~present, torch.iinfo(torch.int64).min)
    best = keys.argmax(1)  # [B]
    picks, gains = [best], [first.gather(1, best[:, None])[:, 0]]
    sets = torch.arange(b, device=device)
    covered = similarity[sets, best]  # [B, N]
    if k == 1:
        return torch.stack(picks, 1), torch.stack(gains, 1)

    # gains are upper bounds of later gains only from here on: see `cpu/greedy.py`
    second = [_sum_rows(rows, w, cover) for rows, w, cover in zip(similarity, weights_by_set, covered, strict=True)]
    keys = ((torch.stack(second) << bits) | complement).masked_fill(~present, -1)
    exact = torch.ones(b, m, dtype=torch.bool, device=device)
    pool = min(POOL, m)
    for _ in range(1, k):
        keys[sets, best] = -1  # a pick may not repeat
        while True:
            best = keys.argmax(1)
            # exact, or a gain of 0 that cannot fall further, or no candidate left in this set
            settled = exact[sets, best] | (keys[sets, best] >> bits <= 0)
            if bool(settled.all()):
                break
            top = keys.topk(pool, 1).indices  # [B, pool]
            rows = similarity[sets[:, None], top]  # [B, pool, N]
            fresh = _compute_gains(rows, covered[:, None], None if weights is None else weights[:, None])
            old = keys.gather(1, top)
            keys.scatter_(1, top, torch.where(old < 0, old, (fresh << bits) | complement[top]))
            exact.scatter_(1, top, True)
        picks.append(best)
        gains.append(keys[sets, best] >> bits)
        covered = torch.maximum(covered, similarity[sets, best])
        exact.zero_()
    return torch.stack(picks, 1), torch.stack(gains, 1)


def _compute_gains(rows: torch.Tensor, covered: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """Sum weight x (max(row, covered) - covered) over the last axis."""
    if weights is None:
        return torch.maximum(rows, covered).sum(-1, dtype=torch.int64) - covered.sum(-1, dtype=torch.int64)
    return ((torch.maximum(rows, covered).to(torch.int64) - covered) * weights).sum(-1)


def _sum_rows(rows: torch.Tensor, weights: torch.Tensor | None, covered: torch.Tensor | None = None) -> torch.Tensor:
    """[M] gains over `covered`, or plain row sums, of one set's matrix, in chunks that keep the temporaries small."""
    sums = []
    for chunk in rows.split(max(1, (1 << 22) // max(1, rows.shape[1]))):
        if covered is not None:
            sums.append(_compute_gains(chunk, covered, weights))
        else:
            weighted = chunk if weights is None else chunk.to(torch.int64) * weights
            sums.append(weighted.sum(-1, dtype=torch.int64))
    return torch.cat(sums)
