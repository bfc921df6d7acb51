"""Frame sizes of the models' layouts."""

from __future__ import annotations

import pytest

from floc.encoders.layouts import PatchLayout, SquareLayout
from floc.families import FAMILIES

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'floc-video[hf]'")


@pytest.mark.parametrize("size", [(1920, 1080), (640, 360), (20, 10), (4000, 28), (1000, 10), (28, 28), (1001, 999)])
@pytest.mark.parametrize(("least", "most"), [(3136, 602112), (3136, 12845056), (100352, 602112), (784, 6272)])
def test_frame_size_equals_smart_resize_of_qwen(size: tuple[int, int], least: int, most: int) -> None:
    oracle = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl").smart_resize
    layout = PatchLayout(14, 2, 2, least, most)
    for width, height in (size, size[::-1]):
        assert layout.frame_size(width, height) == oracle(height, width, 28, least, most)[::-1]


def test_rejects_extreme_aspect_ratios() -> None:
    with pytest.raises(ValueError, match="aspect ratios up to 200"):
        PatchLayout(14, 2, 2, 3136, 602112).frame_size(2010, 10)


def test_centre_is_cropped_from_a_wide_frame() -> None:
    layout = SquareLayout(24, 28, FAMILIES["llava_next_video"])
    assert layout.frame_size(640, 360) == (49, 28)
    assert layout.frame_size(360, 640) == (28, 49)
