"""The meaning of cosines of the built-in descriptor."""

from __future__ import annotations

import numpy as np
import pytest

from floc import encoders
from floc.encoders import pixels


def _cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = a.astype(np.float64), b.astype(np.float64)
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


def _material(kind: str, seed: int, side: int = 32) -> np.ndarray:
    """Return a patch [side, side, 3] of a material; seeds vary the place, not the material."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:side, :side] + rng.integers(0, 40, (2, 1, 1))
    shades = {
        "wall": np.full((side, side), 0.8),
        "night": np.full((side, side), 0.02),
        "boards": 0.5 + 0.2 * np.sign(np.sin(x / 2.5)),
        "blinds": 0.5 + 0.2 * np.sign(np.sin(y / 2.5)),
        "gravel": 0.5 + 0.25 * rng.standard_normal((side // 2, side // 2)).repeat(2, 0).repeat(2, 1),
        "lawn": 0.4 + 0.1 * rng.standard_normal((side // 2, side // 2)).repeat(2, 0).repeat(2, 1),
        "brick": 0.5 - 0.2 * ((y % 16 < 3) | ((x + 10 * (y // 16 % 2)) % 20 < 3)),
    }
    tints = {"lawn": (0.6, 1.1, 0.4), "brick": (1.3, 0.7, 0.6)}
    return np.clip(shades[kind][..., None] * np.array(tints.get(kind, (1, 1, 1))), 0, 1)


MATERIALS = ("wall", "night", "boards", "blinds", "gravel", "lawn", "brick")


def _encode(image: np.ndarray, noise: float = 0.0, exposure: float = 1.0) -> np.ndarray:
    values = image * 255 * exposure + np.random.default_rng(9).normal(0, noise, image.shape)
    return encoders.get("pixels")(np.clip(np.round(values), 0, 255).astype(np.uint8)[None])[0]


@pytest.fixture(scope="module")
def scene() -> np.ndarray:
    """[224, 128, 3], four patches of each material."""
    return np.vstack([np.hstack([_material(kind, seed) for seed in range(4)]) for kind in MATERIALS])


def test_noise_and_exposure_change_little(scene: np.ndarray) -> None:
    clean = _encode(scene)
    assert _cosine(clean, _encode(scene, noise=5)).min() > 0.95
    assert _cosine(clean, _encode(scene, exposure=1.06)).min() > 0.93
    assert _cosine(clean, _encode(scene, exposure=0.94)).min() > 0.93


def test_materials_are_separated(scene: np.ndarray) -> None:
    tokens = _encode(scene, noise=3)  # [7, 4, D]: one row per material
    same = np.array([_cosine(row[:, None], row[None]) for row in tokens]).min((1, 2))
    assert dict(zip(MATERIALS, same > 0.85, strict=True)) == dict.fromkeys(MATERIALS, True)
    across = _cosine(tokens[:, None, :, None], tokens[None, :, None, :]).max((2, 3))
    np.fill_diagonal(across, 0)
    assert across.max() < 0.82, across.round(2)
    assert (across.max(1) < same).all()  # every patch is nearest to its own material


@pytest.mark.parametrize("value", [0, 1, 127, 128, 255])
def test_flat_cells_have_the_same_length(value: int) -> None:
    (flat,) = encoders.get("pixels")(np.full((1, 32, 32, 3), value, np.uint8))[0]
    black = encoders.get("pixels")(np.zeros((1, 32, 32, 3), np.uint8))[0, 0]
    lengths = [float(np.linalg.norm(cell.astype(float))) for cell in (flat, black)]
    assert lengths[0] == pytest.approx(lengths[1], rel=0.15)
    assert lengths[0] > 0.5
    assert (_cosine(flat, black) > 0.99) == (value <= 1)
    assert value < 127 or _cosine(flat, black) < 0.2


def test_colour_equals_its_definition() -> None:
    """Compare with the definition, pixel by pixel."""
    image = np.random.default_rng(3).integers(0, 256, (2, 8, 8, 3)).repeat(4, 1).repeat(4, 2).astype(np.uint8)
    shares = []
    for cell in image:
        cell_shares = np.zeros(pixels.COLOURS)
        for red, green, blue in cell[::4, ::4].reshape(-1, 3) / 255:
            opponent = np.array([(red + green + blue) / 3, red - green, (red + green) / 2 - blue])
            near = np.exp(-(((opponent - pixels._fixed_colours()) / pixels.WIDTH) ** 2).sum(1) / 2)
            cell_shares += near / near.sum() / 64
        shares.append(np.sqrt(cell_shares))
    tokens = encoders.get("pixels")(image)[:, 0, 0, : pixels.COLOURS]
    np.testing.assert_allclose(tokens, shares, atol=2e-3)
    assert np.linalg.norm(tokens.astype(float), axis=-1) == pytest.approx([1, 1], abs=1e-3)


@pytest.mark.parametrize("material", MATERIALS)
def test_small_objects_stand_out(material: str) -> None:
    table = np.vstack([np.hstack([_material(material, 3 * row + column) for column in range(3)]) for row in range(3)])
    y, x = np.mgrid[:96, :96] - 48
    keys = table.copy()
    keys[np.abs(np.hypot(x + 5, y + 5) - 6) < 1.5] = (0.75, 0.75, 0.7)  # a ring
    keys[(np.abs(x - y - 3) < 2) & (x > 0) & (x < 13)] = (0.9, 0.75, 0.3)
    keys[(np.abs(y - 2) < 2) & (x > 0) & (x < 14)] = (0.9, 0.75, 0.3)
    before, after = (_encode(image, noise=3).reshape(9, -1) for image in (table, keys))
    plain = np.delete(after, 4, 0)
    # less similar to the other cells than these are to one another; only slightly so on coarse texture
    assert _cosine(after[4], plain).mean() < _cosine(plain[:, None], plain[None]).mean() - 0.02
    assert material not in ("wall", "night") or _cosine(after[4], plain).max() < 0.9
    assert _cosine(after[4], before[4]) < 0.975
    assert _cosine(np.delete(before, 4, 0), plain).min() > 0.99  # the neighbours do not change


def test_structure_depends_on_direction_and_place() -> None:
    def bar(angle: float, offset: float) -> np.ndarray:
        y, x = np.mgrid[:32, :32] - 15.5
        on = np.abs(x * np.cos(angle) + y * np.sin(angle) - offset) < 3
        return np.repeat(np.where(on, 0.8, 0.4)[..., None], 3, -1)

    angles = np.radians([0, 45, 90, 135])
    tokens = np.stack([_encode(bar(angle, 0))[0, 0] for angle in angles])[:, pixels.COLOURS :]
    assert (_cosine(tokens[:, None], tokens[None]) - np.eye(4)).max() < 0.75
    moved = _encode(bar(0, 9))[0, 0, pixels.COLOURS :]
    assert _cosine(tokens[0], moved) < 0.85


def test_colour_alone_separates_cells() -> None:
    grey = np.full((32, 32, 3), 0.5)
    tokens = [
        _encode(grey + 0.16 * np.array(tint))[0, 0] for tint in ((0, 0, 0), (1, -1, 0), (-1, 1, 0), (0.5, 0.5, -1))
    ]
    cosines = _cosine(np.stack(tokens)[:, None], np.stack(tokens)[None])
    assert (cosines - np.eye(4)).max() < 0.4


def test_rejects_other_devices() -> None:
    with pytest.raises(ValueError, match="CPU only, got device='cuda'"):
        encoders.get("pixels", device="cuda")
