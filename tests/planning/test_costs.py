"""Costs from a config agree with a model that runs."""

# no `from __future__ import annotations`: see tests/integrations/transformers/tiny_configs.py
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from floc.encoders.chunks import count_patches
from floc.planning.costs import ModelCosts, Workload, build_without_weights
from tests.integrations.transformers.processors import PARTS, transformers
from tests.integrations.transformers.tiny_configs import create_config

LENGTH = 200  # above the window of 64 tokens of the tiny configs
WITHOUT_CACHE = "cohere_compass"  # its decoder, called on its own, returns none


def create(kind: str) -> tuple[Any, ModelCosts]:
    """Return a tiny config, and its costs without weights."""
    if kind not in transformers.CONFIG_MAPPING:
        pytest.skip(f"{kind} is not in this release")
    config = create_config(kind)
    return config, ModelCosts.from_model(build_without_weights(config))


@pytest.mark.parametrize("kind", [kind for kind in PARTS if kind != WITHOUT_CACHE])
def test_cache_is_as_large_as_that_of_the_model(kind: str) -> None:
    config, costs = create(kind)
    text = config.get_text_config()
    if "deepseek_sparse_attention" in (getattr(text, "layer_types", None) or ()):
        pytest.skip("this release caches the keys and values of GLM-5 without compression")
    decoder = transformers.AutoModelForMultimodalLM.from_config(config).get_decoder()
    with torch.no_grad():
        cache = decoder(inputs_embeds=torch.zeros(1, LENGTH, text.hidden_size), use_cache=True).past_key_values
    layers = [vars(layer) for layer in cache.layers]
    held = [layer[name] for layer in layers for name in ("keys", "values") if torch.is_tensor(layer.get(name))]
    assert costs.count_kv_bytes(LENGTH) == sum(tensor.nbytes for tensor in held)


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "internvl", "llava_onevision", "glm4v", "muse_glimmer"])
def test_products_of_the_decoder_are_those_that_torch_counts(kind: str) -> None:
    config, costs = create(kind)
    decoder = transformers.AutoModelForMultimodalLM.from_config(config).get_decoder()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        decoder(inputs_embeds=torch.zeros(1, LENGTH, config.get_text_config().hidden_size))
    counted = counter.get_flop_counts()["Global"]
    products = sum(count for operator, count in counted.items() if "mm" in str(operator))
    assert costs.decoder.count_flops(LENGTH, LENGTH)[0] == pytest.approx(products, rel=0.02)


def test_products_of_the_vision_encoder_are_those_that_torch_counts() -> None:
    config, costs = create("qwen2_5_vl")
    patches = 8 * 12 * 16
    model = transformers.AutoModelForMultimodalLM.from_config(config).base_model
    grid = torch.tensor([[8, 12, 16]])
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.get_video_features(torch.zeros(patches, 3 * 2 * 4 * 4), grid)
    products = sum(count for operator, count in counter.get_flop_counts()["Global"].items() if "mm" in str(operator))
    assert count_patches(config, (patches, 96)) == patches
    # the merger has a quarter of the rows, but is counted in full: a large part of a tiny encoder
    assert products <= costs.vision.count_flops(patches, 1)[0] <= 3 * products


def test_a_token_passes_through_its_experts_only() -> None:
    config, costs = create("qwen3_vl_moe")
    text = config.get_text_config()
    decoder = build_without_weights(config).get_decoder()
    total = sum(weight.numel() for name, weight in decoder.named_parameters() if "embed" not in name)
    expert = 3 * text.hidden_size * text.moe_intermediate_size
    idle = text.num_hidden_layers * (text.num_experts - text.num_experts_per_tok) * expert
    assert costs.decoder.parameters == total - idle


def test_weights_that_are_loaded_count_as_loaded() -> None:
    config, costs = create("qwen2_5_vl")
    model = transformers.AutoModelForMultimodalLM.from_config(config)
    expected = sum(weight.numel() * 4 for weight in model.parameters())
    assert (costs.weights_bytes, costs.loaded_bytes) == (expected, 0)
    assert ModelCosts.from_model(model).loaded_bytes == expected


def test_memory_of_a_capture_grows_by_what_its_stream_stores() -> None:
    _, costs = create("qwen3_vl")

    def grow(frames: int) -> Workload:
        rows = frames // 2 * 640
        return Workload(frames, frames // 2, frames * 6_000_000, rows * 96, rows, rows // 4, rows // 400, 60)

    short, long = grow(2048), grow(7200)
    grows = costs.count_capture_bytes(long) - costs.count_capture_bytes(short)
    tokens, kept = long.tokens - short.tokens, long.kept - short.kept
    assert grows == pytest.approx(40 * tokens + 5 * kept * costs.dim * costs.itemsize, rel=0.02)
    assert costs.count_attach_bytes(long, with_processor=True) > 3 * costs.count_attach_bytes(
        short, with_processor=True
    )


def test_cache_of_a_model_of_7b_parameters() -> None:
    """28 layers with keys and values of 4 heads of 128 values in bfloat16: 56 KiB per token."""
    sizes = dict(hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, vocab_size=152064)
    text = dict(sizes, num_attention_heads=28, num_key_value_heads=4)
    vision = dict(hidden_size=1280, intermediate_size=3420, out_hidden_size=3584)
    config = transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision, dtype="bfloat16")
    costs = ModelCosts.from_model(build_without_weights(config))
    assert costs.count_kv_bytes(1000) == 1000 * 56 * 1024
    assert costs.weights_bytes == pytest.approx(2 * 8.29e9, rel=0.01)
