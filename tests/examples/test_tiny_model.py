"""The tiny model: its files load as those of Qwen2.5-VL, and training computes what the model itself computes."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install 'floc-video[hf]'")
pytest.importorskip("torchvision", reason="torchvision is not installed: pip install 'floc-video[hf]'")

from examples.tiny_video_model.batches import BatchMaker, make_patches  # noqa: E402
from examples.tiny_video_model.films import PLACES, make_film, render_film  # noqa: E402
from examples.tiny_video_model.model import make_model, make_tokenizer, write_processor  # noqa: E402
from examples.tiny_video_model.questions import NUMBERS, THIRDS, QuestionPicker  # noqa: E402
from examples.tiny_video_model.things import THINGS  # noqa: E402
from examples.tiny_video_model.train import ATTENTION, Losses, batch_windows, save  # noqa: E402

SEED, SLICES = 7, 8


@cache
def load_model() -> tuple[Any, Any]:
    """Return the model with random weights, larger than at the start of the training, and its tokenizer."""
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, 0).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(3)
    return model, tokenizer


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("processor")
    model, tokenizer = load_model()
    write_processor(folder, tokenizer)
    model.config.save_pretrained(folder)
    return transformers.AutoProcessor.from_pretrained(folder)


def prepare(processor: Any, frames: np.ndarray, question: str) -> Any:
    """Prepare a film and a question as a user would."""
    content = [{"type": "video"}, {"type": "text", "text": question}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    video = torch.from_numpy(frames).permute(0, 3, 1, 2)
    times = dict(total_num_frames=len(frames), fps=2.0, frames_indices=list(range(len(frames))))
    metadata = [transformers.video_utils.VideoMetadata(**times)]
    return processor(text=[text], videos=[video], video_metadata=metadata, do_sample_frames=False, return_tensors="pt")


def test_words_are_single_tokens_and_any_text_survives() -> None:
    _, tokenizer = load_model()
    for word in (*PLACES, *THINGS, *NUMBERS, *THIRDS, "yes", "no"):
        assert len(tokenizer.encode(f" {word}")) == 1, word
    assert tokenizer.decode(tokenizer.encode("Größe: 12 €?")) == "Größe: 12 €?"


def test_patches_equal_those_of_the_processor(processor: Any) -> None:
    frames = render_film(make_film(SEED, SLICES))
    inputs = prepare(processor, frames, "Is the cup shown?")
    assert inputs["video_grid_thw"].tolist() == [[SLICES, 8, 12]]
    torch.testing.assert_close(make_patches(torch.from_numpy(frames)), inputs["pixel_values_videos"], atol=1e-6, rtol=0)


def test_packed_questions_have_the_losses_of_questions_asked_alone(processor: Any) -> None:
    model, tokenizer = load_model()
    batch = BatchMaker(tokenizer, SLICES, 2, SEED).make()
    with torch.no_grad(), batch_windows(model):
        packed, _, _ = Losses(model, tokenizer).compute(batch)
    picker = QuestionPicker(SEED)
    alone = []
    for seed in (SEED, SEED + 1):
        film = make_film(seed, SLICES, training=True)
        for question in picker.pick(film, 2):
            inputs = prepare(processor, render_film(film), question.text)
            answer = torch.tensor([tokenizer.encode(f" {question.answer}<|im_end|>")])
            inputs["input_ids"] = torch.cat([inputs["input_ids"], answer], 1)
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
            inputs["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(answer)], 1)
            with torch.no_grad():
                logits = model(**inputs).logits[0, -answer.shape[1] - 1 : -1]
            alone.append(torch.nn.functional.cross_entropy(logits, answer[0], reduction="none"))
    torch.testing.assert_close(packed, torch.cat(alone).mean(), atol=1e-5, rtol=1e-5)


def test_windows_in_one_call_equal_the_model_and_are_undone() -> None:
    model, _ = load_model()
    visual = model.model.visual
    patches = make_patches(torch.from_numpy(render_film(make_film(SEED, SLICES))))
    grid = torch.tensor([[SLICES, 8, 12]])
    before = visual.config._attn_implementation
    assert before != ATTENTION
    with torch.no_grad():
        expected = visual(patches, grid_thw=grid).pooler_output
        with batch_windows(model):
            output = visual(patches, grid_thw=grid).pooler_output
    assert visual.config._attn_implementation == before
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)


def test_a_saved_checkpoint_loads_as_any_other(tmp_path: Path) -> None:
    model, tokenizer = load_model()
    save(model, tokenizer, tmp_path / "tiny", [])
    assert sum(path.stat().st_size for path in (tmp_path / "tiny").iterdir()) < 12e6
    loaded = transformers.AutoModelForImageTextToText.from_pretrained(tmp_path / "tiny", dtype=torch.float32)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[name], value.half().float(), atol=0, rtol=0)
    assert transformers.AutoProcessor.from_pretrained(tmp_path / "tiny").tokenizer.eos_token == "<|im_end|>"
