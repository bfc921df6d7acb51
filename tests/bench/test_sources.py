import numpy as np
import pytest

from floc.bench import sources


def brightness(pixels):
    return pixels.mean((1, 2), keepdims=True).astype(np.float16)


def test_pictures_are_encoded_once(tmp_path):
    pixels = sources.made_up(0, frames=3)
    calls = []

    def encode(given):
        calls.append(len(given))
        return brightness(given)

    folder = tmp_path / "benchmarks" / "cache"
    first = sources.remembered(pixels, encode, folder)
    again = sources.remembered(pixels.copy(), encode, folder)
    assert calls == [3]
    np.testing.assert_array_equal(first, again)
    other = pixels.copy()
    other[0, 0, 0, 0] ^= 1  # one pixel, by one
    sources.remembered(other, encode, folder)
    assert calls == [3, 3]
    assert len(list(folder.iterdir())) == 2


def test_nothing_is_left_of_an_encoder_that_fails(tmp_path):
    def encode(given):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        sources.remembered(sources.made_up(0, frames=3), encode, tmp_path)
    assert not list(tmp_path.iterdir())


def test_films_are_made_up_where_there_are_none(tmp_path, monkeypatch):
    monkeypatch.setenv("FLOC_DATA", str(tmp_path))
    monkeypatch.setattr(sources, "made_up", lambda seed, frames: np.zeros((2, 64, 96, 3), np.uint8))
    shelf = sources.library(small=False)
    assert not shelf.is_real
    assert shelf.about() == {"encoder": "pixels", "is_real": False, "frame": [2, 3, 84]}


def test_made_up_films_differ_and_move():
    first, second = (sources.made_up(seed, frames=10).astype(int) for seed in range(2))
    assert first.shape == (10, 64, 96, 3)
    assert np.abs(first - second).mean() > 20
    assert np.abs(first[0] - first[9]).max() > 50


@pytest.mark.slow
def test_real_films_have_one_size():
    if not {*sources.NAMES} <= {path.name for path in sources.real_films()}:
        pytest.skip("no footage in $FLOC_DATA")
    shelf = sources.library(small=False)
    assert [source.name for source in shelf.sources] == list(sources.NAMES)
    for source in shelf.sources:
        assert source.pixels.shape[1:] == (sources.SIZE[1], sources.SIZE[0], 3)
        assert source.tokens.shape == (len(source.pixels), 5, 9, 1280)
