import numpy as np
import pytest

from benchmarks.oracle import BlockTokens, compute_objective, greedy_float64
from benchmarks.peers import PEERS
from benchmarks.synthetic import Shape


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
@pytest.mark.filterwarnings("ignore")
def test_peers_select_about_as_well_as_greedy(peer):
    if reason := peer.explain_skip(0):
        pytest.skip(reason)
    block = BlockTokens(Shape(8, 3, 4, 32).make_tokens().reshape(-1, 32))
    picks = np.asarray(peer.prepare(block, 12)())
    best = compute_objective(block.cosine, greedy_float64(block.cosine, 12))
    assert compute_objective(block.cosine, picks) / best == pytest.approx(1, abs=0.03)
