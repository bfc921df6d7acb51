import numpy as np
import pytest

from benchmarks.oracle import BlockTokens, compute_objective, greedy_float64
from benchmarks.synthetic import Shape


def greedy_by_definition(similarity, k):
    """Add the candidate with which f is largest, k times."""
    picks = []
    for _ in range(k):
        rest = [c for c in range(len(similarity)) if c not in picks]
        picks.append(max(rest, key=lambda c: compute_objective(similarity, np.array([*picks, c]))))
    return picks


@pytest.mark.parametrize("centred", [False, True], ids=["tokens", "negative cosines"])
def test_float64_greedy_equals_plain_greedy(centred):
    tokens = Shape(4, 4, 5, 32).make_tokens(seed=3).reshape(-1, 32).astype(np.float64)
    block = BlockTokens(tokens - tokens.mean(0) if centred else tokens)
    assert greedy_float64(block.cosine, 20).tolist() == greedy_by_definition(block.cosine, 20)
