"""Tokens of vision encoders, compared with the full model's features of frames that were prepared independently."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from floc import encoders
from floc.encoders import vision_tower
from floc.encoders.vision_tower import PatchLayout, SquareLayout
from floc.tokens import Frames

transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install 'floc-video[hf]'")

MEAN, STD = [0.48, 0.45, 0.40], [0.26, 0.25, 0.27]
TEXT = dict(
    vocab_size=99,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=16,
    pad_token_id=0,
)
MROPE = dict(rope_type="default", rope_theta=1e4, mrope_section=[2, 3, 3])
CLIP = dict(hidden_size=24, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2, patch_size=4)


def _qwen2() -> Any:
    vision = dict(depth=2, embed_dim=32, hidden_size=32, num_heads=2, mlp_ratio=2, patch_size=4)
    return transformers.Qwen2VLConfig(text_config=dict(TEXT, rope_parameters=MROPE), vision_config=vision)


def _qwen2_5() -> Any:
    vision = dict(depth=2, hidden_size=32, out_hidden_size=32, intermediate_size=48, num_heads=2, patch_size=4)
    vision |= dict(window_size=16, fullatt_block_indexes=[1])
    return transformers.Qwen2_5_VLConfig(text_config=dict(TEXT, rope_parameters=MROPE), vision_config=vision)


def _qwen3(make: str, **text: Any) -> Any:
    vision = dict(depth=2, hidden_size=32, out_hidden_size=32, intermediate_size=48, num_heads=2, patch_size=4)
    vision |= dict(num_position_embeddings=36, deepstack_visual_indexes=[0])
    return getattr(transformers, make)(text_config=dict(TEXT, rope_parameters=MROPE, **text), vision_config=vision)


def _llava_onevision() -> Any:
    return transformers.LlavaOnevisionConfig(
        text_config=dict(TEXT, model_type="qwen2"),
        vision_config=dict(CLIP, model_type="siglip_vision_model", image_size=20),
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )


def _llava_next_video() -> Any:
    return transformers.LlavaNextVideoConfig(
        text_config=dict(TEXT, model_type="llama"),
        vision_config=dict(CLIP, model_type="clip_vision_model", image_size=24, projection_dim=16),
        spatial_pool_stride=2,
    )


def _internvl() -> Any:
    return transformers.InternVLConfig(
        text_config=dict(TEXT, model_type="qwen2"),
        vision_config=dict(CLIP, image_size=[24, 24], patch_size=[4, 4]),
        downsample_ratio=0.5,
    )


def _smolvlm() -> Any:
    return transformers.SmolVLMConfig(
        text_config=dict(TEXT, model_type="llama"), vision_config=dict(CLIP, image_size=24), scale_factor=2
    )


PIXELS = dict(min_pixels=16 * 24, max_pixels=40 * 40)
BUDGET = dict(size=dict(shortest_edge=16 * 24, longest_edge=40 * 40))
MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "qwen2_vl": (_qwen2, PIXELS),
    "qwen2_5_vl": (_qwen2_5, BUDGET),
    "qwen3_vl": (lambda: _qwen3("Qwen3VLConfig"), BUDGET),
    "qwen3_vl_moe": (
        lambda: _qwen3("Qwen3VLMoeConfig", num_experts=2, num_experts_per_tok=1, moe_intermediate_size=8),
        BUDGET,
    ),
    "llava_onevision": (_llava_onevision, dict(size=dict(height=20, width=20))),
    "llava_next_video": (
        _llava_next_video,
        dict(size=dict(shortest_edge=28), crop_size=dict(height=24, width=24), do_center_crop=True),
    ),
    "internvl": (_internvl, dict(size=dict(height=24, width=24))),
    "smolvlm": (_smolvlm, dict(size=dict(longest_edge=96), max_image_size=dict(longest_edge=24))),
}
# rows and columns of tokens for a video of 640 x 360
GRIDS = {
    "qwen2_vl": (3, 6),
    "qwen2_5_vl": (3, 6),
    "qwen3_vl": (3, 6),
    "qwen3_vl_moe": (3, 6),
    "llava_onevision": (3, 3),
    "llava_next_video": (3, 3),
    "internvl": (3, 3),
    "smolvlm": (3, 3),
}


def _save(kind: str, folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    make, preprocessing = MODELS[kind]
    torch.manual_seed(0)
    model = transformers.AutoModelForImageTextToText.from_config(make(), dtype=dtype).eval()
    model.save_pretrained(folder)
    values = dict(preprocessing, image_mean=MEAN, image_std=STD, rescale_factor=1 / 255)
    (folder / "preprocessor_config.json").write_text(json.dumps(values))
    return model.model


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> dict[str, tuple[Path, Any]]:
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in MODELS}
    return {kind: (folder, _save(kind, folder)) for kind, folder in folders.items()}


def _create_frames(encoder: encoders.Encoder, count: int) -> np.ndarray:
    width, height = encoder.frame_size(640, 360)
    return np.random.default_rng(count).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


@torch.no_grad()
def _expected(kind: str, model: Any, pixels: np.ndarray) -> torch.Tensor:
    """Compute the full model's features [T, H, W, D], frame by frame and patch by patch."""
    frames = (torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255 - torch.tensor(MEAN)[:, None, None]) / torch.tensor(
        STD
    )[:, None, None]
    frames = frames.to(model.dtype)
    if not kind.startswith("qwen"):
        if kind == "llava_next_video":  # 49 x 28 -> the centre 24 x 24
            frames = frames[:, :, 2:26, 12:36]
        if kind.startswith("llava"):
            features = model.get_video_features(frames[None]).pooler_output[0]
        elif kind == "internvl":
            features = model.get_image_features(frames).pooler_output
        else:
            features = model.get_image_features(frames[None]).pooler_output
            features = (
                features[0] if isinstance(features, list) else features
            )  # one tensor per prompt in newer releases
        if kind == "llava_onevision":
            features = features[: len(frames) * 9]  # newer releases append a newline
        return features.reshape(len(frames), 3, 3, -1)
    if len(frames) % 2:
        frames = torch.cat([frames, frames[-1:]])
    patches = [
        frames[t : t + 2, :, y + dy : y + dy + 4, x + dx : x + dx + 4].transpose(0, 1).flatten()
        for t in range(0, len(frames), 2)
        for y in range(0, frames.shape[2], 8)
        for x in range(0, frames.shape[3], 8)
        for dy in (0, 4)
        for dx in (0, 4)
    ]
    t, h, w = len(frames) // 2, frames.shape[2] // 4, frames.shape[3] // 4
    (features,) = model.get_video_features(torch.stack(patches), torch.tensor([[t, h, w]])).pooler_output
    return features.reshape(t, h // 2, w // 2, -1)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("count", [1, 5])
def test_tokens_equal_those_of_the_full_model(kind: str, count: int, saved) -> None:
    folder, model = saved[kind]
    encoder = encoders.get(f"hf:{folder}", device="cpu")
    assert encoder.name == f"hf:{folder}"
    assert encoder.frames_per_token == (2 if kind.startswith("qwen") else 1)
    pixels = _create_frames(encoder, count)
    encoded = encoders.encode([Frames(pixels, np.arange(count) * 0.5)], encoder)
    expected = _expected(kind, model, pixels)
    assert encoded.tokens.shape == expected.shape
    assert encoded.tokens.shape[1:3] == GRIDS[kind]
    assert encoded.tokens.dtype == torch.float16
    assert expected.std() > 1e-3  # random weights still separate cells
    torch.testing.assert_close(encoded.tokens.float(), expected, atol=2e-3 * float(expected.abs().max()), rtol=0)
    assert encoded.times_s.tolist() == (np.arange(0, count, encoder.frames_per_token) * 0.5).tolist()


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "internvl"])
def test_keeps_bfloat16(kind: str, tmp_path: Path) -> None:
    model = _save(kind, tmp_path, torch.bfloat16)
    encoder = encoders.get(f"hf:{tmp_path}", device="cpu")
    pixels = _create_frames(encoder, 2)
    tokens = encoders.encode([Frames(pixels, np.arange(2.0))], encoder).tokens
    assert tokens.dtype == torch.bfloat16
    expected = _expected(kind, model, pixels)
    torch.testing.assert_close(tokens.float(), expected.float(), atol=0.02 * float(expected.abs().max()), rtol=0)


@pytest.mark.parametrize("kind", ["qwen2_vl", "llava_onevision"])
def test_long_batches_are_encoded_in_steps(kind: str, saved) -> None:
    encoder = encoders.get(f"hf:{saved[kind][0]}", device="cpu")
    pixels = _create_frames(encoder, vision_tower.STEP + 2)
    whole, rest = encoder(pixels), encoder(pixels[vision_tower.STEP :])
    assert len(whole) == len(pixels) // encoder.frames_per_token
    torch.testing.assert_close(whole[-len(rest) :], rest, atol=1e-3, rtol=1e-2)


def test_language_model_is_not_loaded(saved) -> None:
    for kind, (folder, model) in saved.items():
        encoder = encoders.get(f"hf:{folder}", device="cpu")
        left = {name.split(".")[0] for name, _ in encoder.model.named_parameters()}
        assert not left & {"language_model", "text_model", "lm_head"}, kind
        visual = {name: weight for name, weight in model.named_parameters() if name.split(".")[0] in left}
        assert dict(encoder.model.named_parameters()).keys() == visual.keys()


def test_video_settings_take_precedence(saved, tmp_path: Path) -> None:
    folder, _ = saved["internvl"]
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    values = dict(size=dict(height=48, width=48), image_mean=MEAN, image_std=STD)
    (tmp_path / "processor_config.json").write_text(json.dumps(dict(video_processor=values)))
    assert encoders.get(f"hf:{tmp_path}", device="cpu").frame_size(9, 5) == (48, 48)
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(dict(values, size=dict(height=72, width=72))))
    assert encoders.get(f"hf:{tmp_path}", device="cpu").frame_size(9, 5) == (72, 72)


def _change_settings(folder: Path, **changes: Any) -> None:
    file = folder / "preprocessor_config.json"
    values = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({name: value for name, value in values.items() if value is not None}))


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda folder: (folder / "preprocessor_config.json").unlink(), "has no preprocessor file"),
        (lambda folder: _change_settings(folder, image_mean=None), "must give image_mean and image_std"),
        (lambda folder: _change_settings(folder, min_pixels=None), "must give min_pixels and max_pixels"),
        (lambda folder: (folder / "config.json").unlink(), "not a folder or hub id with a config"),
        (lambda folder: (folder / "config.json").write_text("{}"), "not a folder or hub id with a config"),
        (
            lambda folder: transformers.BertConfig().save_pretrained(folder),
            "type 'bert'.*supported types: qwen2_vl, .*smolvlm",
        ),
    ],
)
def test_errors_name_the_folder(break_it, message: str, tmp_path: Path) -> None:
    _save("qwen2_vl", tmp_path)
    break_it(tmp_path)
    with pytest.raises(ValueError, match=message) as error:
        encoders.get(f"hf:{tmp_path}", device="cpu")
    assert str(tmp_path) in str(error.value)


def test_rejects_missing_weights(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    _save("qwen2_vl", tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    missing = next(name for name in weights if "visual" in name)
    save_file(
        {name: tensor for name, tensor in weights.items() if name != missing},
        tmp_path / "model.safetensors",
        {"format": "pt"},
    )
    with pytest.raises(ValueError, match="1 weights of the vision encoder are missing"):
        encoders.get(f"hf:{tmp_path}", device="cpu")


@pytest.mark.parametrize(
    ("kind", "size", "message"),
    [
        ("qwen2_vl", (2, 30, 48), "multiples of 8 pixels"),
        ("qwen2_vl", (3, 24, 48), "joins 2 frames"),
        ("internvl", (1, 24, 48), "takes frames of 24 pixels, got 48 x 24"),
        ("llava_next_video", (1, 24, 48), "takes frames of 28 pixels"),
    ],
)
def test_rejects_frames_of_another_size(kind: str, size, message: str, saved) -> None:
    encoder = encoders.get(f"hf:{saved[kind][0]}", device="cpu")
    with pytest.raises(ValueError, match=message):
        encoder(np.zeros((*size, 3), np.uint8))


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
    layout = SquareLayout(24, 28)
    assert layout.frame_size(640, 360) == (49, 28)
    assert layout.frame_size(360, 640) == (28, 49)
