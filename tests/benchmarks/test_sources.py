import numpy as np
import pytest

from benchmarks import sources


def encode_brightness(pixels):
    return pixels.mean((1, 2), keepdims=True).astype(np.float16)


def test_pixels_are_encoded_once(tmp_path):
    pixels = sources.make_pixels(0, frames=3)
    calls = []

    def encode(given):
        calls.append(len(given))
        return encode_brightness(given)

    folder = tmp_path / "benchmarks" / "cache"
    first = sources.encode_cached(pixels, encode, folder)
    again = sources.encode_cached(pixels.copy(), encode, folder)
    assert calls == [3]
    np.testing.assert_array_equal(first, again)
    other = pixels.copy()
    other[0, 0, 0, 0] ^= 1  # one pixel, by one
    sources.encode_cached(other, encode, folder)
    assert calls == [3, 3]
    assert len(list(folder.iterdir())) == 2


def test_failing_encoder_leaves_no_file(tmp_path):
    def encode(given):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        sources.encode_cached(sources.make_pixels(0, frames=3), encode, tmp_path)
    assert not list(tmp_path.iterdir())


def test_videos_are_synthetic_if_real_ones_are_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("FLOC_DATA", str(tmp_path))
    monkeypatch.setattr(sources, "make_pixels", lambda seed, frames: np.zeros((2, 64, 96, 3), np.uint8))
    lines = []
    library = sources.load_library(small=False, echo=lines.append)
    assert not library.is_real
    assert lines == [
        f"using synthetic videos: {', '.join(sources.NAMES)} not found in {tmp_path / 'videos'}; set FLOC_DATA"
    ]
    assert library.describe() == {"encoder": "pixels", "is_real": False, "frame": [2, 3, 84]}


def test_missing_video_is_named(tmp_path, monkeypatch):
    (tmp_path / "videos").mkdir()
    for name in sources.NAMES[1:]:
        (tmp_path / "videos" / name).write_bytes(b"")
    monkeypatch.setenv("FLOC_DATA", str(tmp_path))
    monkeypatch.setattr(sources, "make_pixels", lambda seed, frames: np.zeros((2, 64, 96, 3), np.uint8))
    lines = []
    sources.load_library(small=False, echo=lines.append)
    assert lines == [f"using synthetic videos: intel_person.mp4 not found in {tmp_path / 'videos'}; set FLOC_DATA"]
    sources.load_library(small=True, echo=lines.append)
    assert len(lines) == 1  # small runs always use synthetic videos


@pytest.mark.parametrize(("is_real", "ending"), [(True, "features."), (False, "features, synthetic videos.")])
def test_describes_the_source_of_tokens(is_real, ending):
    document = {"encoder": "mobilenet", "is_real": is_real, "frame": [5, 9, 1280]}
    assert sources.describe_source(document) == f"Tokens by mobilenet, 5 x 9 a frame, 1280 {ending}"


def test_synthetic_videos_differ_and_move():
    first, second = (sources.make_pixels(seed, frames=10).astype(int) for seed in range(2))
    assert first.shape == (10, 64, 96, 3)
    assert np.abs(first - second).mean() > 20
    assert np.abs(first[0] - first[9]).max() > 50


@pytest.mark.slow
def test_real_videos_have_one_size():
    if not {*sources.NAMES} <= {path.name for path in sources.find_videos()}:
        pytest.skip("no videos in $FLOC_DATA/videos; set FLOC_DATA and run pytest -m slow")
    library = sources.load_library(small=False, echo=print)
    assert [source.name for source in library.sources] == list(sources.NAMES)
    for source in library.sources:
        assert source.pixels.shape[1:] == (sources.SIZE[1], sources.SIZE[0], 3)
        assert source.tokens.shape == (len(source.pixels), 5, 9, 1280)
