import pytest
import torch

import floc
from benchmarks.operations import COUNTED, ESTIMATED, operations

TOKENS = torch.randn(40, 2, 3, 16, generator=torch.Generator().manual_seed(0))
BLOCKS = (32 * 6) ** 2 + (8 * 6) ** 2  # pairs of tokens in blocks of 32 frames


def test_floc_is_its_similarities_and_little_else():
    counted, how = operations("floc-paper", TOKENS, "1/8")
    assert how == COUNTED
    products = 2 * BLOCKS * 16
    fixed_point, lengths = BLOCKS, 8 * TOKENS.numel()
    assert products <= counted <= products + fixed_point + lengths


def test_the_second_pass_comes_on_top():
    assert operations("floc", TOKENS, "1/8")[0] > operations("floc-paper", TOKENS, "1/8")[0]


def test_choosing_blindly_takes_no_operation():
    assert operations("random", TOKENS, "1/8") == (0, COUNTED)


def test_means_of_cells_are_counted_by_element():
    pooled = floc.compress(TOKENS, ratio="1/2", method="pooling")
    counted, how = operations("pooling", TOKENS, "1/2")
    assert how == COUNTED
    assert len(pooled) * 16 <= counted <= 2 * TOKENS.numel()


@pytest.mark.parametrize("method", ["kmeans", "kmedoids", "spectral"])
def test_clusterings_are_estimated_by_their_distances(method):
    blocks_of_8 = 5 * (8 * 6) ** 2
    assert operations(method, TOKENS, "1/8") == (2 * blocks_of_8 * 16, ESTIMATED)
