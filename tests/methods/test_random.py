"""Random selection."""

from __future__ import annotations

import numpy as np

import floc


def test_draws_every_token_equally_often() -> None:
    tokens = np.ones((4, 5, 3))
    drawn = np.zeros(20)
    for seed in range(400):
        drawn[floc.compress(tokens, budget=5, method="random", seed=seed).indices] += 1
    assert abs(drawn - 100).max() < 45  # five standard deviations
