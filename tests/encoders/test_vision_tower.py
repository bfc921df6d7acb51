"""The vision encoder of a transformers model, loaded without its language model, with its own processor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install 'floc-video[hf]'")
pytest.importorskip("torchvision", reason="processors need torchvision: pip install 'floc-video[hf]'")

from floc import encoders  # noqa: E402
from floc.encoders import base, vision_tower  # noqa: E402
from floc.tokens import Frames  # noqa: E402
from tests.integrations.transformers.checkpoints import save  # noqa: E402

KINDS = ("qwen2_5_vl", "qwen3_vl", "qwen3_5", "ernie4_5_vl_moe", "gemma4", "internvl", "llava_next_video", "smolvlm")
JOINING = ("qwen2_5_vl", "qwen3_vl", "qwen3_5", "ernie4_5_vl_moe")  # join frames in pairs


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Any:
    class LazyFolders(dict):  # type: ignore[type-arg]
        def __missing__(self, kind: str) -> Path:
            self[kind] = save(kind, tmp_path_factory.mktemp(kind))
            return self[kind]

    return LazyFolders()


def create_frames(count: int, width: int = 64, height: int = 40) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


@torch.no_grad()
def encode_whole(folder: Path, pixels: np.ndarray) -> torch.Tensor:
    """Return the features [n, D] of a video from the full model, prepared by the processor in one call."""
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder).eval().base_model
    processor = transformers.AutoProcessor.from_pretrained(folder).video_processor
    options = {"cap_pixels_per_frame": True} if "cap_pixels_per_frame" in processor.valid_kwargs.__annotations__ else {}
    inputs = processor(videos=[pixels], do_sample_frames=False, return_tensors="pt", **options)
    names = ("pixel_values_videos", "pixel_values")
    pixel_values = next(inputs[name] for name in names if name in inputs)
    if hasattr(model, "get_video_features"):
        others = ("video_grid_thw", "video_position_ids", "num_frames_per_video")
        given = {name: inputs[name] for name in others if name in inputs}
        features = model.get_video_features(pixel_values, **given).pooler_output
    else:
        pixel_values = pixel_values[0] if model.config.model_type == "internvl" else pixel_values
        features = model.get_image_features(pixel_values).pooler_output
    parts = [features] if torch.is_tensor(features) else features
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [4, 34])
def test_tokens_equal_those_of_the_full_model(kind: str, count: int, folders) -> None:
    """Frames of a planned video are encoded a few at a time; the oracle takes the whole video."""
    pixels = create_frames(count)
    encoder = encoders.get(f"hf:{folders[kind]}", device="cpu")
    assert encoder.name == f"hf:{folders[kind]}"
    assert encoder.frames_per_token == (2 if kind in JOINING else 1)
    planned = encoder.plan_video(vision_tower.VideoFacts(count, 2.0, 64, 40), "all", "all")
    batches = [Frames(pixels[i : i + 6], np.arange(i, min(count, i + 6)) * 0.5) for i in range(0, count, 6)]
    encoded = encoders.encode(batches, planned)
    expected = encode_whole(folders[kind], pixels)
    assert encoded.tokens.shape[0] == count // encoder.frames_per_token
    assert encoded.tokens.dtype == torch.float16
    actual = encoded.tokens.flatten(0, 2).float()
    torch.testing.assert_close(actual, expected, atol=2e-3 * float(expected.abs().max()), rtol=0)
    assert encoded.times_s.tolist() == (np.arange(0, count, encoder.frames_per_token) * 0.5).tolist()


def test_keeps_bfloat16(folders, tmp_path: Path) -> None:
    model = transformers.AutoModelForImageTextToText.from_pretrained(folders["qwen2_5_vl"], dtype=torch.bfloat16)
    model.save_pretrained(tmp_path)
    transformers.AutoProcessor.from_pretrained(folders["qwen2_5_vl"]).save_pretrained(tmp_path)
    encoder = encoders.get(f"hf:{tmp_path}", device="cpu")
    assert encoder(create_frames(2)).dtype == torch.bfloat16


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "internvl", "gemma4"])
def test_language_model_is_dropped(kind: str, folders) -> None:
    encoder = encoders.get(f"hf:{folders[kind]}", device="cpu")
    left = {name.split(".")[0] for name, _ in encoder.model.named_parameters()}
    assert left
    assert not left & {"language_model", "text_model", "lm_head"}


def test_opens_a_file_as_the_processor_samples_it(folders, tmp_path: Path) -> None:
    av = pytest.importorskip("av", reason="av is not installed: pip install 'floc-video[video]'")
    with av.open(tmp_path / "clip.mp4", "w") as out:
        stream = out.add_stream("mpeg4", rate=10)
        stream.width, stream.height = 96, 64
        for image in create_frames(40, 96, 64):
            out.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        out.mux(stream.encode())
    layout = encoders.get_layout(f"hf:{folders['qwen3_vl']}")
    video, planned = base.open_video(tmp_path / "clip.mp4", layout, batch=5)
    assert planned.plan is not None
    assert np.diff(planned.plan.indices).mean() == pytest.approx(5.5, abs=0.6)  # two frames per second
    batches = list(video)
    assert sum(map(len, (batch.times_s for batch in batches))) == len(planned.plan.indices)
    assert batches[0].pixels.shape[2:0:-1] == planned.plan.frame_size != (96, 64)
    video, planned = base.open_video(tmp_path / "clip.mp4", layout, fps="all", max_frames=12, batch=5)
    assert planned.plan is not None
    assert len(planned.plan.indices) == video.planned == 12


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda folder: (folder / "processor_config.json").unlink(), "not a folder or hub id with a processor"),
        (lambda folder: (folder / "config.json").unlink(), "not a folder or hub id with a config"),
        (lambda folder: (folder / "config.json").write_text("{}"), "not a folder or hub id with a config"),
    ],
)
def test_errors_name_the_folder(break_it, message: str, tmp_path: Path) -> None:
    save("qwen2_vl", tmp_path)
    break_it(tmp_path)
    with pytest.raises(ValueError, match=message) as error:
        encoders.get(f"hf:{tmp_path}", device="cpu")
    assert str(tmp_path) in str(error.value)


def test_rejects_other_models(tmp_path: Path) -> None:
    transformers.BertConfig().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="type 'bert'"):
        encoders.get(f"hf:{tmp_path}", device="cpu")


def test_rejects_missing_weights(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    save("qwen2_vl", tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    missing = next(name for name in weights if "visual" in name)
    kept = {name: tensor for name, tensor in weights.items() if name != missing}
    save_file(kept, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match="1 weights of the vision encoder are missing"):
        encoders.get(f"hf:{tmp_path}", device="cpu")


def test_rejects_an_odd_number_of_frames(folders) -> None:
    encoder = encoders.get(f"hf:{folders['qwen2_5_vl']}", device="cpu")
    with pytest.raises(ValueError, match=r"joins 2 frames, got 3; use floc\.encoders\.encode to pad"):
        encoder(create_frames(3))


def test_centre_is_cropped_as_the_processor_does(folders) -> None:
    layout = encoders.get_layout(f"hf:{folders['llava_next_video']}")
    assert layout.crop(create_frames(2, 64, 40)).shape == (2, 40, 40, 3)
    layout = encoders.get_layout(f"hf:{folders['internvl']}")
    assert layout.crop(create_frames(2, 64, 40)).shape == (2, 40, 64, 3)
