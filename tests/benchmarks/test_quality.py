import numpy as np

from benchmarks.quality import measure_redundancy


def test_redundancy_is_between_spans():
    unit = np.eye(4, dtype=np.float32)[[0, 0, 1, 1]]
    picks = np.arange(4)
    assert measure_redundancy(unit, picks, np.array([0, 0, 1, 1])) == 0  # equal tokens are in the same span
    assert measure_redundancy(unit, picks, np.array([0, 1, 0, 1])) == 1
    assert measure_redundancy(unit, picks, np.zeros(4, int)) is None
