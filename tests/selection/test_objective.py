"""The constants of the objective, and which matrices hold cosines."""

from __future__ import annotations

import numpy as np
import pytest

from floc.selection.objective import LARGEST_DETAIL, SCALE, Similarity


def test_similarities_fit_int16_and_a_large_detail_float32() -> None:
    assert np.iinfo(np.int16).max >= 2 * SCALE - 1
    assert np.isfinite(np.float32(LARGEST_DETAIL))


@pytest.mark.parametrize(
    ("similarity", "is_plain"),
    [(Similarity(), True), (Similarity(detail=2), False), (Similarity("gaussian"), False)],
)
def test_only_plain_cosines_can_be_read_from_the_matrix(similarity: Similarity, is_plain: bool) -> None:
    assert similarity.is_plain_cosine == is_plain
