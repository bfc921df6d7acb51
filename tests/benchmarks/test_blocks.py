import numpy as np
import pytest

from benchmarks.blocks import BlockTokens, Shape, float64_greedy, value


def plain_greedy(similarity, k):
    """Greedy from the definition: of all candidates, the one with which f is largest."""
    picks = []
    for _ in range(k):
        rest = [c for c in range(len(similarity)) if c not in picks]
        picks.append(max(rest, key=lambda c: value(similarity, np.array([*picks, c]))))
    return picks


@pytest.mark.parametrize("centred", [False, True], ids=["tokens", "negative cosines"])
def test_float64_greedy_is_plain_greedy(centred):
    tokens = Shape(4, 4, 5, 32).tokens(seed=3).reshape(-1, 32).astype(np.float64)
    block = BlockTokens(tokens - tokens.mean(0) if centred else tokens)
    assert float64_greedy(block.cosine, 20).tolist() == plain_greedy(block.cosine, 20)
