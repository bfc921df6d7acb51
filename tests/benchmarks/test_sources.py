import numpy as np
import pytest

from benchmarks import sources


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
    lines = []
    shelf = sources.library(small=False, echo=lines.append)
    assert not shelf.is_real
    assert lines == [f"made-up films: {', '.join(sources.NAMES)} are not in {tmp_path / 'videos'}; set FLOC_DATA"]
    assert shelf.about() == {"encoder": "pixels", "is_real": False, "frame": [2, 3, 84]}


def test_a_film_that_is_missing_is_named(tmp_path, monkeypatch):
    (tmp_path / "videos").mkdir()
    for name in sources.NAMES[1:]:
        (tmp_path / "videos" / name).write_bytes(b"")
    monkeypatch.setenv("FLOC_DATA", str(tmp_path))
    monkeypatch.setattr(sources, "made_up", lambda seed, frames: np.zeros((2, 64, 96, 3), np.uint8))
    lines = []
    sources.library(small=False, echo=lines.append)
    assert lines == [f"made-up films: intel_person.mp4 is not in {tmp_path / 'videos'}; set FLOC_DATA"]
    sources.library(small=True, echo=lines.append)
    assert len(lines) == 1  # small runs are always on made-up ones


@pytest.mark.parametrize(("is_real", "told"), [(True, "features."), (False, "features, made-up films.")])
def test_tables_tell_what_their_tokens_are_of(is_real, told):
    document = {"encoder": "mobilenet", "is_real": is_real, "frame": [5, 9, 1280]}
    assert sources.origin(document) == f"Tokens by mobilenet, 5 x 9 a frame, 1280 {told}"


def test_made_up_films_differ_and_move():
    first, second = (sources.made_up(seed, frames=10).astype(int) for seed in range(2))
    assert first.shape == (10, 64, 96, 3)
    assert np.abs(first - second).mean() > 20
    assert np.abs(first[0] - first[9]).max() > 50


@pytest.mark.slow
def test_real_films_have_one_size():
    if not {*sources.NAMES} <= {path.name for path in sources.real_films()}:
        pytest.skip("no footage in $FLOC_DATA")
    shelf = sources.library(small=False, echo=print)
    assert [source.name for source in shelf.sources] == list(sources.NAMES)
    for source in shelf.sources:
        assert source.pixels.shape[1:] == (sources.SIZE[1], sources.SIZE[0], 3)
        assert source.tokens.shape == (len(source.pixels), 5, 9, 1280)
