import math

import numpy as np
import pytest

import floc
from benchmarks import scoring
from benchmarks.inserts import CLIP, OBJECT, Insert, PlantedVideo
from benchmarks.scoring import Score


def test_scores_equal_plain_loops(tokens):
    rng = np.random.default_rng(0)
    n, d = tokens[..., 0].size, tokens.shape[-1]
    places = [rng.choice(n, 7, replace=False) for _ in range(4)]
    video = PlantedVideo("", tokens, [Insert(CLIP, "", 1, *places[:2]), Insert(OBJECT, "", 1, *places[2:])])
    kept = floc.compress(tokens, ratio=1 / 16)

    def similarity(place):
        flat = tokens.reshape(-1, d).astype(np.float64)
        best = [
            max(flat[v] @ flat[u] / np.linalg.norm(flat[v]) / np.linalg.norm(flat[u]) for u in kept.indices)
            for v in place
        ]
        return sum(best) / len(best)

    scores = scoring.score_inserts(video, kept)
    for score, (insert, background) in zip(scores, (places[:2], places[2:]), strict=True):
        insert_count, background_count = (
            len({*place.tolist()} & {*kept.indices.tolist()}) for place in (insert, background)
        )
        assert score == Score(
            insert_count > 0,
            insert_count / 7,
            pytest.approx(similarity(insert), abs=1e-5),
            background_count > 0,
            background_count / 7,
            pytest.approx(similarity(background), abs=1e-5),
        )


def test_merged_token_counts_if_more_than_half_is_the_inserts():
    tokens = np.random.default_rng(0).standard_normal((2, 4, 4, 8)).astype(np.float32)
    kept = floc.compress(tokens, ratio="1/4", method="pooling")  # merges squares of four cells
    assert len(kept) == 8
    first = [0, 1, 4, 5]
    assert scoring.count_kept(kept, np.array(first)) == 1
    assert scoring.count_kept(kept, np.array(first[:3])) == 1
    assert scoring.count_kept(kept, np.array(first[:2])) == 0
    assert scoring.count_kept(kept, np.arange(16)) == 4


def test_similarity_to_merged_tokens_uses_the_merged_features():
    tokens = np.zeros((2, 2, 2, 2), np.float32)
    tokens[0, :, 0] = (1, 0)
    tokens[0, :, 1] = (0, 1)
    tokens[1] = (1, 0)
    kept = floc.compress(tokens, ratio="1/4", method="pooling")  # one token a frame: (1/2, 1/2) and (1, 0)
    place = np.array([1])
    (score,) = scoring.score_inserts(PlantedVideo("", tokens, [Insert(OBJECT, "", 1, place, np.array([4]))]), kept)
    assert score.similarity == pytest.approx(math.sqrt(0.5), abs=1e-3)
    assert score.background_similarity == pytest.approx(1, abs=1e-3)


def test_interval_has_the_theoretical_width():
    values = np.tile([0.0, 1.0], 200)
    interval = scoring.compute_interval(values)
    assert interval["mean"] == 0.5
    half = 1.96 * 0.5 / math.sqrt(400)
    assert interval["low"] == pytest.approx(0.5 - half, abs=0.006)
    assert interval["high"] == pytest.approx(0.5 + half, abs=0.006)
