"""`floc.attach`, capture and replay in the setups that people have: adapters, compilation, offloading, quantisation."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import floc
from floc.tokens import Frames
from tests.integrations.transformers.helpers import (
    CLOSE,
    IS_NEW,
    RATIO,
    check_by_hand,
    check_generated,
    check_masked,
    create_batch,
    create_prompt,
    list_hooks,
)
from tests.integrations.transformers.zoo import FAMILIES, TEXT, model, transformers, without_pixels

SOME = pytest.mark.parametrize("kind", ["qwen2_5_vl", "internvl", "llava_onevision"])


def import_or_skip(name: str, package: str | None = None) -> Any:
    package = package or name
    return pytest.importorskip(name, reason=f"{package} is not installed: pip install {package}")


def check_replay(captured_with: Any, replayed_in: Any, kind: str) -> None:
    """Check that a video, captured with one model and replayed in another, equals `floc.attach`."""
    inputs = create_prompt(kind).inputs
    with floc.attach(replayed_in, ratio=RATIO):
        expected = replayed_in(**inputs).logits
    video = floc.capture(captured_with, inputs, ratio=RATIO)
    with floc.replay(replayed_in, video):
        torch.testing.assert_close(replayed_in(**without_pixels(inputs)).logits, expected, **CLOSE)


# ---- wrappers and adapters


def create_lora() -> Any:
    return import_or_skip("peft").LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)


@SOME
def test_peft_model(kind: str) -> None:
    config = create_lora()
    inner = model(kind)
    adapted = import_or_skip("peft").get_peft_model(inner, config)
    adapted(**create_prompt(kind).inputs)  # the library marks some modules in their first call
    before = list_hooks(adapted)
    for example in (create_prompt(kind), create_batch(kind)):
        check_by_hand(adapted, example)
        check_masked(adapted, example)
        check_generated(adapted, example)
    assert list_hooks(adapted) == before
    check_replay(adapted, adapted, kind)
    check_replay(adapted, inner, kind)  # the adapter is part of it


@SOME
def test_added_adapter(kind: str) -> None:
    adapted = model(kind)
    adapted.add_adapter(create_lora())
    check_by_hand(adapted, create_prompt(kind))
    check_generated(adapted, create_batch(kind))


class Wrapper(torch.nn.Module):
    """A module of the user with models inside."""

    def __init__(self, *models: Any) -> None:
        super().__init__()
        self.inner = torch.nn.ModuleList(models)

    def forward(self, **inputs: Any) -> Any:
        return self.inner[-1](**inputs)


@pytest.mark.parametrize("wrap", [Wrapper, torch.nn.DataParallel])
def test_other_wrappers(wrap: Callable[[Any], Any], models) -> None:
    bare, example = models["qwen2_5_vl", "sdpa"], create_prompt("qwen2_5_vl")
    with floc.attach(bare, ratio=RATIO):
        expected = bare(**example.inputs).logits
    wrapped = wrap(bare)
    with floc.attach(wrapped, ratio=RATIO):
        assert torch.equal(wrapped(**example.inputs).logits, expected)


def test_rejects_a_wrapper_of_several_models(models) -> None:
    wrapped = Wrapper(models["qwen2_5_vl", "sdpa"], models["internvl", "sdpa"])
    with pytest.raises(ValueError, match=r"several video models: inner\.0, inner\.1; pass one"):
        floc.attach(wrapped, ratio=RATIO)


@SOME
def test_gradient_checkpointing(kind: str) -> None:
    bare, example = model(kind).train(), create_prompt(kind)
    weight = bare.get_decoder().layers[0].self_attn.q_proj.weight

    def compute_gradient() -> torch.Tensor:
        bare.zero_grad()
        with torch.enable_grad(), floc.attach(bare, ratio=RATIO):
            bare(**example.inputs, use_cache=False).logits.square().mean().backward()
        assert weight.grad is not None
        return weight.grad.clone()

    expected = compute_gradient()
    bare.gradient_checkpointing_enable()
    torch.testing.assert_close(compute_gradient(), expected)


# ---- compiled models

COMPILERS: dict[str, Callable[[Any], Any]] = {
    "torch.compile(model)": lambda bare: torch.compile(bare, backend="eager"),
    "model.compile()": lambda bare: bare.compile(backend="eager") or bare,
    "model.forward": lambda bare: setattr(bare, "forward", torch.compile(bare.forward, backend="eager")) or bare,
    "decoder": lambda bare: (
        setattr(bare.model, "language_model", torch.compile(bare.model.language_model, backend="eager")) or bare
    ),
}


def create_shallow(kind: str) -> Any:
    """Create a model with few layers, because each is compiled."""
    config = FAMILIES[kind][0](kind)
    config.text_config.num_hidden_layers, config.text_config.layer_types = 1, ["full_attention"]
    config.vision_config.num_hidden_layers = config.vision_config.depth = 1
    torch.manual_seed(0)
    return transformers.AutoModelForImageTextToText.from_config(config).eval()


@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=[] if how == "decoder" else pytest.mark.slow) for how in COMPILERS]
)
@pytest.mark.parametrize("kind", ["llava_onevision", pytest.param("qwen2_5_vl", marks=pytest.mark.slow)])
def test_compiled_model(kind: str, how: str) -> None:
    """Code that was compiled before would notice neither that FLoC is attached nor that it is detached."""
    bare, example = create_shallow(kind), create_prompt(kind)
    whole = bare(**example.inputs).logits
    with floc.attach(bare, ratio=RATIO):
        short = bare(**example.inputs).logits
    compiled = COMPILERS[how](bare)
    torch.testing.assert_close(compiled(**example.inputs).logits, whole, **CLOSE)
    with floc.attach(compiled, ratio=RATIO):
        torch.testing.assert_close(compiled(**example.inputs).logits, short, **CLOSE)
    torch.testing.assert_close(compiled(**example.inputs).logits, whole, **CLOSE)


def test_attach_and_detach_discard_compiled_code(models) -> None:
    """The quick part of the test above."""
    compilations = []

    def compile_graph(graph: Any, _: Any) -> Any:
        compilations.append(graph)
        return graph

    double = torch.compile(lambda tensor: tensor * 2, backend=compile_graph)
    double(torch.ones(2))
    with floc.attach(models["llava_onevision", "sdpa"], ratio=RATIO):
        double(torch.ones(2))
        double(torch.ones(2))
        assert len(compilations) == 2
    double(torch.ones(2))
    assert len(compilations) == 3


@pytest.mark.parametrize("kind", ["llava_onevision", pytest.param("qwen2_5_vl", marks=pytest.mark.slow)])
def test_static_cache_with_compiled_decoding(kind: str) -> None:
    bare, example = model(kind), create_prompt(kind)
    compilation = transformers.CompileConfig(backend="eager", mode=None)
    compilation._compile_all_devices = True  # by default, only on a GPU
    settings = dict(max_new_tokens=6, cache_implementation="static", compile_config=compilation)
    whole = bare.generate(**example.inputs, max_new_tokens=6)
    with floc.attach(bare, ratio=RATIO):
        short = bare.generate(**example.inputs, max_new_tokens=6)
        assert bare.generate(**example.inputs, **settings).tolist() == short.tolist()
    assert short.tolist() != whole.tolist()
    assert bare.generate(**example.inputs, **settings).tolist() == whole.tolist()
    with floc.attach(bare, ratio=RATIO):
        assert bare.generate(**example.inputs, **settings).tolist() == short.tolist()
    assert hasattr(bare, "_compiled_call")


# ---- generation


@SOME
def test_assistant_model(kind: str, models) -> None:
    bare, example = models[kind, "sdpa"], create_prompt(kind)
    assistant = model(kind)
    for weight in assistant.get_decoder().layers[-1].parameters():
        weight.mul_(0.7)  # some of its guesses are wrong
    with floc.attach(bare, ratio=RATIO):
        expected = bare.generate(**example.inputs, max_new_tokens=8)
        assert (
            bare.generate(**example.inputs, max_new_tokens=8, assistant_model=assistant).tolist() == expected.tolist()
        )
        # transformers does not show the video to the assistant model
        with floc.attach(assistant, ratio=RATIO), pytest.raises(ValueError, match="video tokens, but neither"):
            bare.generate(**example.inputs, max_new_tokens=8, assistant_model=assistant)


@pytest.mark.parametrize("kind", ["internvl", "llava_onevision"])  # Qwen passes arguments that a text model refuses
def test_assistant_model_without_vision(kind: str, models) -> None:
    if not IS_NEW:
        pytest.skip("not in this release: it passes pixels to the assistant model")
    bare, example = models[kind, "sdpa"], create_prompt(kind)
    assistant = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**TEXT)).eval()
    with floc.attach(bare, ratio=RATIO):
        expected = bare.generate(**example.inputs, max_new_tokens=8)
        assert (
            bare.generate(**example.inputs, max_new_tokens=8, assistant_model=assistant).tolist() == expected.tolist()
        )


@SOME
def test_streamer(kind: str, models) -> None:
    bare, example = models[kind, "sdpa"], create_prompt(kind)

    class Numbers:
        """A tokenizer that writes ids."""

        def decode(self, ids: Any, **_: Any) -> str:
            return "".join(f"{int(token)} " for token in ids)

    streamer = transformers.TextIteratorStreamer(Numbers(), skip_prompt=True, timeout=60)
    with floc.attach(bare, ratio=RATIO):
        expected = bare.generate(**example.inputs, max_new_tokens=6)[0, -6:].tolist()
        settings = dict(example.inputs, max_new_tokens=6, streamer=streamer)
        thread = threading.Thread(target=bare.generate, kwargs=settings)
        thread.start()
        found = "".join(streamer).split()
        thread.join()
    assert found == [str(token) for token in expected]


def create_with_processor(kind: str) -> tuple[Any, Any]:
    """Create a model, and the processor that prepares its inputs."""
    from tests.integrations.transformers.processors import create_processor
    from tests.integrations.transformers.tiny_configs import create_config, set_token_ids

    processor = create_processor(kind)
    config = create_config(kind)
    set_token_ids(config, kind)
    torch.manual_seed(0)
    bare = transformers.AutoModelForImageTextToText.from_config(config).eval()
    bare.generation_config.update(eos_token_id=None, pad_token_id=0)
    return bare, processor


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_5", "llava_onevision"])
def test_pipeline(kind: str) -> None:
    if kind == "qwen3_5" and not IS_NEW:
        pytest.skip("not in this release: its pipeline ignores processor_kwargs")
    from tests.integrations.transformers.processors import apply_template, create_turn

    bare, processor = create_with_processor(kind)
    frames = np.random.default_rng(0).integers(0, 256, (8, 40, 64, 3), np.uint8)
    talk = [create_turn("What?", ("video", frames))]
    sampling = {"do_sample_frames": False}
    ask = transformers.pipeline("image-text-to-text", model=bare, processor=processor)
    with floc.attach(bare, ratio=RATIO) as handle:
        answer = ask(talk, processor_kwargs=sampling, max_new_tokens=4, do_sample=False, return_tensors=True)
        (kept,) = handle.last
        inputs = apply_template(processor, talk, **sampling)
        expected = bare.generate(**inputs, max_new_tokens=4, do_sample=False)
    assert kept.n > len(kept)
    assert answer[0]["generated_token_ids"].tolist() == expected[0].tolist()


# ---- weights elsewhere, or in fewer bits


def save(bare: Any, folder: Path) -> Path:
    bare.save_pretrained(folder)
    return folder


def load(folder: Path, **options: Any) -> Any:
    loaded = transformers.AutoModelForImageTextToText.from_pretrained(folder, **options)
    loaded.generation_config = model("qwen2_5_vl").generation_config
    return loaded


@pytest.mark.parametrize(
    ("kind", "offloaded"),
    [("qwen2_5_vl", "vision"), ("internvl", "language"), *((kind, "both") for kind in SOME.args[1])],
)
@pytest.mark.filterwarnings("ignore:The following device_map keys do not match any submodules")  # but parameters
@pytest.mark.filterwarnings("ignore:You are calling .generate")  # of older releases: the first part is on no device
def test_weights_on_disk(kind: str, offloaded: str, tmp_path: Path) -> None:
    import_or_skip("accelerate")
    bare = model(kind)
    parts = {f"model.{name}": name == "language_model" for name, _ in bare.model.named_children()}
    places = {
        name: "disk" if offloaded in ("both", "language" if is_language else "vision") else "cpu"
        for name, is_language in parts.items()
    }
    others = {"lm_head": "cpu"} | ({"model.image_newline": "cpu"} if kind == "llava_onevision" else {})
    elsewhere = load(save(bare, tmp_path / "model"), device_map=places | others, offload_folder=tmp_path / "disk")
    assert any(weight.is_meta for weight in elsewhere.parameters())
    check_by_hand(elsewhere, create_prompt(kind))
    check_generated(elsewhere, create_prompt(kind))
    for captured_with, replayed_in in ((elsewhere, elsewhere), (elsewhere, bare), (bare, elsewhere)):
        check_replay(captured_with, replayed_in, kind)


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "internvl"])
def test_capture_of_frames_with_the_vision_encoder_on_disk(kind: str, tmp_path: Path) -> None:
    import_or_skip("accelerate")
    bare, processor = create_with_processor(kind)
    places = {f"model.{name}": "disk" for name, _ in bare.model.named_children()}
    places |= {"lm_head": "cpu", "model.language_model": "cpu"}
    elsewhere = load(save(bare, tmp_path / "model"), device_map=places, offload_folder=tmp_path / "disk")
    frames = Frames(np.random.default_rng(0).integers(0, 256, (8, 40, 64, 3), np.uint8), np.arange(8) / 2)
    expected, found = (floc.capture(each, [frames], processor=processor, ratio=RATIO) for each in (bare, elsewhere))
    assert torch.equal(found.indices, expected.indices)
    torch.testing.assert_close(found.features, expected.features)


def create_bitsandbytes_8() -> Any:
    import_or_skip("bitsandbytes")
    return transformers.BitsAndBytesConfig(load_in_8bit=True)


def create_bitsandbytes_4() -> Any:
    import_or_skip("bitsandbytes")
    # its kernels for CPU take multiples of 64 only: the tiny vision encoder has fewer
    skipped = ["lm_head", "model.visual", "model.vision_tower", "model.multi_modal_projector"]
    return transformers.BitsAndBytesConfig(load_in_4bit=True, llm_int8_skip_modules=skipped)


def create_quanto() -> Any:
    import_or_skip("optimum.quanto", "optimum-quanto")
    return transformers.QuantoConfig(weights="int8")


def create_torchao() -> Any:
    return transformers.TorchAoConfig(import_or_skip("torchao.quantization", "torchao").Int8WeightOnlyConfig())


@pytest.mark.parametrize("create", [create_bitsandbytes_8, create_bitsandbytes_4, create_quanto, create_torchao])
@pytest.mark.parametrize("kind", ["qwen2_5_vl", "llava_onevision"])
def test_quantised_weights(kind: str, create: Callable[[], Any], tmp_path: Path) -> None:
    quantisation = create()
    import_or_skip("accelerate")
    config = FAMILIES[kind][0](kind)
    config.text_config.intermediate_size = 128
    torch.manual_seed(0)
    bare = transformers.AutoModelForImageTextToText.from_config(config).eval()
    quantised = load(save(bare, tmp_path), quantization_config=quantisation, device_map="cpu")
    # masking is no oracle: in 8 bits, a token's result depends on the others
    check_by_hand(quantised, create_prompt(kind))
    check_replay(quantised, quantised, kind)
