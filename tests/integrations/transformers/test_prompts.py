"""Prompts against the processors of transformers; what makes their pixels needs torchvision, and is stood in for."""

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

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors  # noqa: E402
from transformers.processing_utils import ProcessorMixin  # noqa: E402
from transformers.video_utils import VideoMetadata  # noqa: E402

from floc.integrations.transformers import prompts  # noqa: E402
from floc.integrations.transformers.prompts import Film, prompt  # noqa: E402

MERGE = 2
QUESTION = "What happens at 0:07? Größe, 日本"
# special tokens, by the names that a tokenizer may have for them
QWEN = {
    "vision_start_token": "<|vision_start|>",
    "vision_end_token": "<|vision_end|>",
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
}
GLM = {"image_token": "<|image|>", "video_token": "<|video|>"}
LLAVA = {"image_token": "<image>", "video_token": "<video>"}
INTERNVL = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}
SMOLVLM = {
    "fake_image_token": "<fake_token_around_image>",
    "global_image_token": "<global-img>",
    "image_token": "<image>",
    "video_token": "<video>",
}
IN_QWEN, IN_GLM = "<|vision_start|><|video_pad|><|vision_end|>", "<|begin_of_video|><|video|><|end_of_video|>"
# the processor's module and class, special tokens, the name of the placeholder, what the template writes for a video
KINDS: dict[str, tuple[str, str, dict[str, str], str, str]] = {
    "qwen2_vl": ("qwen2_vl", "Qwen2VLProcessor", QWEN, "video_token", IN_QWEN),
    "qwen2_5_vl": ("qwen2_5_vl", "Qwen2_5_VLProcessor", QWEN, "video_token", IN_QWEN),
    "qwen3_vl": ("qwen3_vl", "Qwen3VLProcessor", QWEN, "video_token", IN_QWEN),
    "qwen3_vl_moe": ("qwen3_vl", "Qwen3VLProcessor", QWEN, "video_token", IN_QWEN),
    "glm4v": ("glm4v", "Glm4vProcessor", GLM, "image_token", IN_GLM),
    "glm4v_moe": ("glm4v", "Glm4vProcessor", GLM, "image_token", IN_GLM),
    "video_llama_3": ("video_llama_3", "VideoLlama3Processor", QWEN, "video_token", "<|video_pad|>\n"),
    "llava_next_video": ("llava_next_video", "LlavaNextVideoProcessor", LLAVA, "video_token", "<video>\n"),
    "llava_onevision": ("llava_onevision", "LlavaOnevisionProcessor", LLAVA, "video_token", "<video>\n"),
    "internvl": ("internvl", "InternVLProcessor", INTERNVL, "context_image_token", "<video>\n"),
    "smolvlm": ("smolvlm", "SmolVLMProcessor", SMOLVLM, "image_token", ""),  # its models' template writes no videos
}
PAIRED = {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "glm4v", "glm4v_moe"}
# what num2words would say; it is no dependency of ours
WORDS = {1: "one", 3: "three", 5: "five", 132: "one hundred and thirty-two"}


def _template(video: str, opening: str = "") -> str:
    return (
        opening + "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
        "{% for part in message['content'] %}"
        "{% if part['type'] == 'video' %}" + video + "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}"
        "{% endfor %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


def _tokenizer(kind: str, opening: str = "", names: str = "usual") -> Any:
    """A token a byte, so that every letter of a prompt counts, and a <s> before every text."""
    _, _, special, _, video = KINDS[kind]
    if names == "other":
        special = {name: f"<{name} of another kind>" for name in special}
        if kind == "smolvlm":
            special["video_token"] = "<video>"  # its processor's template writes no other
        for name, token in KINDS[kind][2].items():
            video = video.replace(token, special[name])
    vocabulary = {each: i for i, each in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    bare = Tokenizer(models.BPE(vocabulary, merges=[]))
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = decoders.ByteLevel()
    bare.add_special_tokens(["<s>", "<|begin_of_video|>", "<|end_of_video|>", *special.values()])
    bare.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", bare.token_to_id("<s>"))]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=bare,
        bos_token="<s>",
        chat_template=_template(video, opening),
        extra_special_tokens={} if names == "none" else special,
    )


def _config(kind: str, tokenizer: Any) -> Any:
    _, _, special, name, _ = KINDS[kind]
    token = getattr(tokenizer, name, special[name])
    ids = {"video_token_id" if name == "video_token" else "image_token_id": tokenizer.convert_tokens_to_ids(token)}
    return SimpleNamespace(model_type=kind, vision_config=SimpleNamespace(spatial_merge_size=MERGE), **ids)


class Eyes:
    """In place of the image and video processors: what they would have made of the video."""

    merge_size = MERGE
    temporal_patch_size = 2
    num_frames, fps = 64, 1
    model_input_names = ("pixel_values",)

    def __init__(self, made: dict[str, Any]) -> None:
        self.made = made

    def __call__(self, videos: Any, **kwargs: Any) -> dict[str, Any]:
        return dict(self.made)


def _processor(kind: str, tokenizer: Any, shape: tuple[int, int, int], metadata: Any, patch: pytest.MonkeyPatch) -> Any:
    """The family's own processor, for a video of which it gets as many frames, rows and columns of tokens."""
    module, name, *_ = KINDS[kind]
    slices, rows, columns = shape
    size = rows * columns
    grid = torch.tensor([[slices, rows * MERGE, columns * MERGE]])
    made: dict[str, Any] = {"video_metadata": [metadata]}
    options: dict[str, Any] = {}
    if kind in PAIRED:
        made |= {"video_grid_thw": grid}
    elif kind == "video_llama_3":
        made |= {"video_grid_thw": grid, "video_merge_sizes": torch.tensor([MERGE])}
        made |= {"video_compression_mask": torch.ones(slices * size, dtype=torch.bool)}
    elif kind == "smolvlm":
        made |= {"pixel_values": torch.zeros(1, slices, 3, 4, 4)}
        options = {"image_seq_len": size}
        patch.setattr(import_module("transformers.models.smolvlm.processing_smolvlm"), "num2words", WORDS.get)
    else:
        # 4 x 4 pixels a token, where the processor counts them
        made |= {"pixel_values_videos": torch.zeros(1, slices, 3, rows * 4, columns * 4)}
        options = {
            "llava_next_video": {"patch_size": 2},
            "llava_onevision": {"num_image_tokens": (2 * math.isqrt(size)) ** 2},
            "internvl": {"image_seq_length": size},
        }[kind]
    patch.setattr(ProcessorMixin, "check_argument_for_proper_class", lambda *_: None)  # what Eyes are not
    make = getattr(import_module(f"transformers.models.{module}.processing_{module}"), name)
    eyes = Eyes(made)
    return make(
        image_processor=eyes,
        video_processor=eyes,
        tokenizer=tokenizer,
        chat_template=tokenizer.chat_template,
        **options,
    )


def _turns(question: str, history: list[tuple[str, str]]) -> list[dict[str, Any]]:
    said = [each for turn in history for each in turn] + [question]
    turns = [
        {"role": "assistant" if i % 2 else "user", "content": [{"type": "text", "text": each}]}
        for i, each in enumerate(said)
    ]
    turns[0]["content"].insert(0, {"type": "video", "video": np.zeros((2, 4, 4, 3), np.uint8)})
    return turns


def _film(kind: str, shape: tuple[int, int, int], metadata: Any) -> Film:
    joined = 2 if kind in PAIRED else 1
    times_s = np.array(metadata.timestamps)
    filled_s = np.append(times_s, times_s[-1:].repeat(shape[0] * joined - len(times_s)))
    return Film(
        shape,
        filled_s[::joined],
        joined,
        metadata.sampled_fps,
        metadata.duration,
        last_s=filled_s[joined - 1 :: joined],
    )


def _metadata(fps: float, indices: list[int], total: int) -> Any:
    # a list of its own: Qwen3-VL's processor fills the last pair in place
    return VideoMetadata(total, fps=fps, duration=total / fps, frames_indices=list(indices))


HISTORY = [("Who is it?", "A cat."), ("Where?", "On a mat <3")]
# frames a second of the film, which of its frames are taken, how many it has, rows and columns of tokens
FILMS: dict[str, tuple[float, list[int], int, int, int]] = {
    "half seconds": (30, list(range(0, 150, 15)), 150, 3, 2),
    "odd, rounded": (29.97, [0, 14, 31, 44, 60], 75, 2, 5),
    "long": (25, [250 * i + i % 7 for i in range(264)], 95_000, 1, 1),
    "one frame": (24, [43], 48, 4, 4),
}
OUTPUTS = "input_ids attention_mask mm_token_type_ids video_grid_thw second_per_grid_ts video_merge_sizes"


@pytest.mark.parametrize("history", [[], HISTORY], ids=["first", "third"])
@pytest.mark.parametrize("names", ["usual", "none", "other"])
@pytest.mark.parametrize("opening", ["", "{{ bos_token }}"], ids=["unopened", "opened"])
@pytest.mark.parametrize("film_name", FILMS)
@pytest.mark.parametrize("kind", prompts.FAMILIES)
def test_a_prompt_is_the_processors(
    kind: str,
    film_name: str,
    opening: str,
    names: str,
    history: list[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fps, indices, total, rows, columns = FILMS[film_name]
    if kind not in PAIRED:  # as many slices in either
        indices = indices[::2]
    slices = -(-len(indices) // 2) if kind in PAIRED else len(indices)
    shape = (slices, rows, rows if kind == "llava_onevision" else columns)  # which knows only squares
    film = _film(kind, shape, _metadata(fps, indices, total))
    tokenizer = _tokenizer(kind, opening, names)
    # InternVL's processor takes no tokenizer without names, and the ids are the same with them
    its_own = _tokenizer(kind, opening) if (kind, names) == ("internvl", "none") else tokenizer
    processor = _processor(kind, its_own, shape, _metadata(fps, indices, total), monkeypatch)
    # lists, not tensors: GLM's processor would warn, where numpy is new, that it makes arrays of them
    expected = processor.apply_chat_template(
        _turns(QUESTION, history), tokenize=True, add_generation_prompt=True, return_dict=True
    )

    found = prompt(kind, tokenizer, _config(kind, tokenizer), film, QUESTION, history)

    assert set(found) == set(OUTPUTS.split()) & set(expected)
    assert ("mm_token_type_ids" in found) == (kind in PAIRED)
    assert tokenizer.decode(found["input_ids"][0]) == tokenizer.decode(expected["input_ids"][0])  # shows where
    for output, tensor in found.items():
        torch.testing.assert_close(tensor, torch.as_tensor(expected[output]), rtol=0, atol=0, msg=output)


def test_joined_frames_are_evenly_spaced_where_their_times_are_not_given() -> None:
    film = Film((2, 1, 1), np.array([0.0, 1.0]), 2, 2.0, 2.0)

    np.testing.assert_array_equal(film.middles_s, [0.25, 1.25])


@pytest.mark.parametrize(
    ("n", "words"),
    [
        (0, "zero"),
        (13, "thirteen"),
        (20, "twenty"),
        (99, "ninety-nine"),
        (100, "one hundred"),
        (768, "seven hundred and sixty-eight"),
        (1000, "one thousand"),
        (1007, "one thousand and seven"),
        (1042, "one thousand and forty-two"),
        (7200, "seven thousand, two hundred"),
        (21_345, "twenty-one thousand, three hundred and forty-five"),
    ],
)
def test_numbers_are_spelled(n: int, words: str) -> None:
    assert prompts.spelled(n) == words


def test_numbers_are_spelled_as_by_num2words() -> None:
    num2words = pytest.importorskip("num2words", reason="num2words is not installed").num2words

    for n in [*range(1200), *range(1200, 1_000_000, 997)]:
        assert prompts.spelled(n) == num2words(n)


# Loading a tokenizer


def _saved(folder: Path, template: str | None) -> str:
    tokenizer = _tokenizer("qwen2_vl")
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
    ids=["jinja", "json", "processor", "none in it"],
)
def test_the_template_is_the_processors(tmp_path: Path, files: dict[str, Any], expected: str) -> None:
    source = _saved(tmp_path, "its own")
    for name, values in files.items():
        (tmp_path / name).write_text(json.dumps(values))

    tokenizer = prompts.tokenizer(source)

    assert tokenizer.chat_template == expected
    assert tokenizer.decode(tokenizer("Größe")["input_ids"], skip_special_tokens=True) == "Größe"


def test_no_chat_template_is_an_error(tmp_path: Path) -> None:
    source = _saved(tmp_path, None)

    with pytest.raises(ValueError, match=r"has no chat template; put the model's chat_template\.jinja beside"):
        prompts.tokenizer(source)


def test_no_tokenizer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="neither a folder with a tokenizer that transformers"):
        prompts.tokenizer(str(tmp_path))


# What cannot be asked


ONE = Film((1, 2, 2), np.zeros(1), 1, 1.0, 1.0)


def test_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown kind of model 'qwen2vl': did you mean 'qwen2_vl'"):
        prompt("qwen2vl", None, None, ONE, QUESTION)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for message in messages %}{{ message['content'] }}{% endfor %}", "wrote it 0 times: take the template of"),
        ("{% for message in messages %}{{ 'user' + message['content'] }}{% endfor %}", "takes no videos .*str"),
        ("{{ raise_exception('text only') }}", "takes no videos .*text only"),
    ],
    ids=["silent", "strings", "refusing"],
)
def test_a_template_without_videos_is_an_error(template: str, message: str) -> None:
    tokenizer = _tokenizer("qwen2_vl")
    tokenizer.chat_template = template

    with pytest.raises(ValueError, match=message):
        prompt("qwen2_vl", tokenizer, _config("qwen2_vl", tokenizer), ONE, QUESTION)


def test_a_question_with_a_marker_is_an_error() -> None:
    tokenizer = _tokenizer("internvl")

    with pytest.raises(ValueError, match="<video> once for the video, and wrote it 2 times: leave it out"):
        prompt("internvl", tokenizer, _config("internvl", tokenizer), ONE, "what is <video>?")


def test_a_question_with_placeholders_is_an_error() -> None:
    tokenizer = _tokenizer("internvl")

    with pytest.raises(ValueError, match=r"should have 4 tokens of id \d+, the config's image_token_id, and has 5"):
        prompt("internvl", tokenizer, _config("internvl", tokenizer), ONE, "what is <IMG_CONTEXT>?")


def test_the_tokenizer_of_another_model_is_an_error() -> None:
    tokenizer = _tokenizer("qwen2_vl")
    config = _config("qwen2_vl", tokenizer)
    config.video_token_id += 1000

    with pytest.raises(ValueError, match="has 0: the tokenizer must be the model's own"):
        prompt("qwen2_vl", tokenizer, config, ONE, QUESTION)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(shape=(0, 2, 2), times_s=np.zeros(0)), "shape must be"),
        (dict(shape=(2, 2)), "shape must be"),
        (dict(times_s=np.zeros(2)), r"times_s must have one time for each of 1 slices, got \(2,\)"),
        (dict(last_s=np.zeros(2)), "last_s must have one time"),
        (dict(fps=0.0), "fps is above 0"),
        (dict(frames_per_slice=0), "a slice has frames"),
    ],
)
def test_a_film_that_cannot_be_is_an_error(change: dict[str, Any], message: str) -> None:
    film = dict(shape=(1, 2, 2), times_s=np.zeros(1), frames_per_slice=1, fps=1.0, duration_s=1.0)

    with pytest.raises(ValueError, match=message):
        Film(**(film | change))
