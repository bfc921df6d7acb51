import pytest
import torch

import floc
from benchmarks.operations import COUNTED, ESTIMATED, count_operations

TOKENS = torch.randn(40, 2, 3, 16, generator=torch.Generator().manual_seed(0))
PAIRS = (32 * 6) ** 2 + (8 * 6) ** 2  # of tokens in blocks of 32 frames


def test_floc_counts_its_similarities_and_little_else():
    counted, how = count_operations("floc-paper", TOKENS, "1/8")
    assert how == COUNTED
    products = 2 * PAIRS * 16
    fixed_point, lengths = PAIRS, 8 * TOKENS.numel()
    assert products <= counted <= products + fixed_point + lengths


def test_second_pass_adds_operations():
    assert count_operations("floc", TOKENS, "1/8", dedupe=2)[0] > count_operations("floc-paper", TOKENS, "1/8")[0]


def test_random_selection_has_no_operation():
    assert count_operations("random", TOKENS, "1/8") == (0, COUNTED)


def test_pooling_counts_elements():
    pooled = floc.compress(TOKENS, ratio="1/2", method="pooling")
    counted, how = count_operations("pooling", TOKENS, "1/2")
    assert how == COUNTED
    assert len(pooled) * 16 <= counted <= 2 * TOKENS.numel()


@pytest.mark.parametrize("method", ["kmeans", "kmedoids", "spectral"])
def test_clusterings_are_estimated_by_their_distances(method):
    pairs_in_blocks_of_8 = 5 * (8 * 6) ** 2
    assert count_operations(method, TOKENS, "1/8") == (2 * pairs_in_blocks_of_8 * 16, ESTIMATED)
