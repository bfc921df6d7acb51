"""Prompts, compared with those of the processors of transformers; fakes replace their image and video processors."""

from __future__ import annotations

import json
import math
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install 'floc-video[hf]'")

from transformers.processing_utils import ProcessorMixin  # noqa: E402
from transformers.video_utils import VideoMetadata  # noqa: E402

from floc.captured import prompts  # noqa: E402
from floc.captured.prompts import build_prompt  # noqa: E402
from floc.families import FAMILIES  # noqa: E402
from floc.families.writers import SampledVideo  # noqa: E402
from tests.integrations.transformers.checkpoints import PROCESSORS, create_tokenizer  # noqa: E402

MERGE = 2
QUESTION = "What happens at 0:07? Größe, 日本"
PAIRED = {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "glm4v", "glm4v_moe"}
WORDS = {1: "one", 3: "three", 5: "five", 132: "one hundred and thirty-two"}  # in place of num2words


def _create_config(kind: str, tokenizer: Any) -> Any:
    facts = PROCESSORS[kind]
    token = getattr(tokenizer, facts.placeholder, facts.special[facts.placeholder])
    name = "video_token_id" if facts.placeholder == "video_token" else "image_token_id"
    ids = {name: tokenizer.convert_tokens_to_ids(token)}
    return SimpleNamespace(model_type=kind, vision_config=SimpleNamespace(spatial_merge_size=MERGE), **ids)


class FakeVideoProcessor:
    """Replaces the image and video processors, which need torchvision: returns what they would have made."""

    merge_size = MERGE
    temporal_patch_size = 2
    num_frames, fps = 64, 1
    model_input_names = ("pixel_values",)

    def __init__(self, outputs: dict[str, Any]) -> None:
        self.outputs = outputs

    def __call__(self, videos: Any, **kwargs: Any) -> dict[str, Any]:
        return dict(self.outputs)


def _create_processor(
    kind: str, tokenizer: Any, shape: tuple[int, int, int], metadata: Any, patch: pytest.MonkeyPatch
) -> Any:
    """Create the family's own processor, for a video with this grid of tokens."""
    slices, rows, columns = shape
    size = rows * columns
    grid = torch.tensor([[slices, rows * MERGE, columns * MERGE]])
    outputs: dict[str, Any] = {"video_metadata": [metadata]}
    options: dict[str, Any] = {}
    if kind in PAIRED:
        outputs |= {"video_grid_thw": grid}
    elif kind == "video_llama_3":
        outputs |= {"video_grid_thw": grid, "video_merge_sizes": torch.tensor([MERGE])}
        outputs |= {"video_compression_mask": torch.ones(slices * size, dtype=torch.bool)}
    elif kind == "smolvlm":
        outputs |= {"pixel_values": torch.zeros(1, slices, 3, 4, 4)}
        options = {"image_seq_len": size}
        patch.setattr(import_module("transformers.models.smolvlm.processing_smolvlm"), "num2words", WORDS.get)
    else:
        # 4 x 4 pixels per token, if the processor counts them
        outputs |= {"pixel_values_videos": torch.zeros(1, slices, 3, rows * 4, columns * 4)}
        options = {
            "llava_next_video": {"patch_size": 2},
            "llava_onevision": {"num_image_tokens": (2 * math.isqrt(size)) ** 2},
            "internvl": {"image_seq_length": size},
        }[kind]
    patch.setattr(ProcessorMixin, "check_argument_for_proper_class", lambda *_: None)  # accept the fake
    facts = PROCESSORS[kind]
    module = import_module(f"transformers.models.{facts.module}.processing_{facts.module}")
    fake = FakeVideoProcessor(outputs)
    return getattr(module, facts.processor)(
        image_processor=fake,
        video_processor=fake,
        tokenizer=tokenizer,
        chat_template=tokenizer.chat_template,
        **options,
    )


def _create_turns(question: str, history: list[tuple[str, str]]) -> list[dict[str, Any]]:
    texts = [text for turn in history for text in turn] + [question]
    turns = [
        {"role": "assistant" if i % 2 else "user", "content": [{"type": "text", "text": text}]}
        for i, text in enumerate(texts)
    ]
    turns[0]["content"].insert(0, {"type": "video", "video": np.zeros((2, 4, 4, 3), np.uint8)})
    return turns


def _create_video(kind: str, shape: tuple[int, int, int], metadata: Any) -> SampledVideo:
    per_slice = 2 if kind in PAIRED else 1
    times_s = np.array(metadata.timestamps)
    filled_s = np.append(times_s, times_s[-1:].repeat(shape[0] * per_slice - len(times_s)))
    return SampledVideo(
        shape,
        filled_s[::per_slice],
        per_slice,
        metadata.sampled_fps,
        metadata.duration,
        last_s=filled_s[per_slice - 1 :: per_slice],
    )


def _create_metadata(fps: float, indices: list[int], total: int) -> Any:
    # a copy of the list: Qwen3-VL's processor fills the last pair in place
    return VideoMetadata(total, fps=fps, duration=total / fps, frames_indices=list(indices))


HISTORY = [("Who is it?", "A cat."), ("Where?", "On a mat <3")]
# frames per second of the video, sampled frames, number of frames, rows and columns of tokens
VIDEOS: dict[str, tuple[float, list[int], int, int, int]] = {
    "half seconds": (30, list(range(0, 150, 15)), 150, 3, 2),
    "odd, rounded": (29.97, [0, 14, 31, 44, 60], 75, 2, 5),
    "long": (25, [250 * i + i % 7 for i in range(264)], 95_000, 1, 1),
    "one frame": (24, [43], 48, 4, 4),
}
OUTPUTS = "input_ids attention_mask mm_token_type_ids video_grid_thw second_per_grid_ts video_merge_sizes"


@pytest.mark.parametrize("history", [[], HISTORY], ids=["first", "third"])
@pytest.mark.parametrize("names", ["usual", "none", "other"])
@pytest.mark.parametrize("opening", ["", "{{ bos_token }}"], ids=["unopened", "opened"])
@pytest.mark.parametrize("video_name", VIDEOS)
@pytest.mark.parametrize("kind", [kind for kind, family in FAMILIES.items() if family.write_video is not None])
def test_prompt_equals_that_of_the_processor(
    kind: str,
    video_name: str,
    opening: str,
    names: str,
    history: list[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fps, indices, total, rows, columns = VIDEOS[video_name]
    if kind not in PAIRED:  # the same number of slices for all families
        indices = indices[::2]
    slices = -(-len(indices) // 2) if kind in PAIRED else len(indices)
    shape = (slices, rows, rows if kind == "llava_onevision" else columns)  # LLaVA-OneVision takes squares only
    video = _create_video(kind, shape, _create_metadata(fps, indices, total))
    tokenizer = create_tokenizer(kind, opening, names)
    # InternVL's processor needs a tokenizer that names its tokens; the ids are the same
    named = create_tokenizer(kind, opening) if (kind, names) == ("internvl", "none") else tokenizer
    processor = _create_processor(kind, named, shape, _create_metadata(fps, indices, total), monkeypatch)
    # lists, not tensors: GLM's processor would warn, with a new numpy, that it makes arrays of them
    expected = processor.apply_chat_template(
        _create_turns(QUESTION, history), tokenize=True, add_generation_prompt=True, return_dict=True
    )

    actual = build_prompt(kind, tokenizer, _create_config(kind, tokenizer), video, QUESTION, history)

    assert set(actual) == set(OUTPUTS.split()) & set(expected)
    assert ("mm_token_type_ids" in actual) == (kind in PAIRED)
    assert tokenizer.decode(actual["input_ids"][0]) == tokenizer.decode(expected["input_ids"][0])  # readable diff
    for output, tensor in actual.items():
        torch.testing.assert_close(tensor, torch.as_tensor(expected[output]), rtol=0, atol=0, msg=output)


# Loading a tokenizer


def _save_tokenizer(folder: Path, template: str | None) -> str:
    tokenizer = create_tokenizer("qwen2_vl")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, "its own"),
        ({"chat_template.json": {"chat_template": "older"}}, "older"),
        (
            {"processor_config.json": {"chat_template": "oldest"}, "chat_template.json": {"chat_template": "old"}},
            "oldest",
        ),
        ({"processor_config.json": {"image_processor": {}}}, "its own"),
    ],
    ids=["jinja", "json", "processor", "no template in the file"],
)
def test_tokenizer_has_the_template_of_the_processor(tmp_path: Path, files: dict[str, Any], expected: str) -> None:
    source = _save_tokenizer(tmp_path, "its own")
    for name, values in files.items():
        (tmp_path / name).write_text(json.dumps(values))

    tokenizer = prompts.load_tokenizer(source)

    assert tokenizer.chat_template == expected
    assert tokenizer.decode(tokenizer("Größe")["input_ids"], skip_special_tokens=True) == "Größe"


def test_rejects_a_missing_chat_template(tmp_path: Path) -> None:
    source = _save_tokenizer(tmp_path, None)

    with pytest.raises(ValueError, match=r"has no chat template; put the model's chat_template\.jinja beside"):
        prompts.load_tokenizer(source)


def test_rejects_a_missing_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a folder or hub id with a tokenizer that transformers"):
        prompts.load_tokenizer(str(tmp_path))


# Prompts that cannot be built


ONE_FRAME = SampledVideo((1, 2, 2), np.zeros(1), 1, 1.0, 1.0)


def test_rejects_unknown_model_types() -> None:
    with pytest.raises(ValueError, match="unknown model type 'qwen2vl'; did you mean 'qwen2_vl'"):
        build_prompt("qwen2vl", None, None, ONE_FRAME, QUESTION)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for message in messages %}{{ message['content'] }}{% endfor %}", "wrote it 0 times; use the template of"),
        ("{% for message in messages %}{{ 'user' + message['content'] }}{% endfor %}", "not support videos .*str"),
        ("{{ raise_exception('text only') }}", "not support videos .*text only"),
    ],
    ids=["no marker", "strings", "exception"],
)
def test_rejects_templates_without_videos(template: str, message: str) -> None:
    tokenizer = create_tokenizer("qwen2_vl")
    tokenizer.chat_template = template

    with pytest.raises(ValueError, match=message):
        build_prompt("qwen2_vl", tokenizer, _create_config("qwen2_vl", tokenizer), ONE_FRAME, QUESTION)


def test_rejects_a_marker_in_the_question() -> None:
    tokenizer = create_tokenizer("internvl")

    with pytest.raises(ValueError, match="<video> once, for the video, but wrote it 2 times; remove it"):
        build_prompt("internvl", tokenizer, _create_config("internvl", tokenizer), ONE_FRAME, "what is <video>?")


def test_rejects_placeholders_in_the_question() -> None:
    tokenizer = create_tokenizer("internvl")

    with pytest.raises(ValueError, match=r"must have 4 tokens with id \d+, the config's image_token_id, but has 5"):
        build_prompt("internvl", tokenizer, _create_config("internvl", tokenizer), ONE_FRAME, "what is <IMG_CONTEXT>?")


def test_rejects_the_tokenizer_of_another_model() -> None:
    tokenizer = create_tokenizer("qwen2_vl")
    config = _create_config("qwen2_vl", tokenizer)
    config.video_token_id += 1000

    with pytest.raises(ValueError, match="but has 0; use the model's own tokenizer"):
        build_prompt("qwen2_vl", tokenizer, config, ONE_FRAME, QUESTION)
