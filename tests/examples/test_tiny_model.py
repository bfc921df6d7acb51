"""The tiny model: its files load as those of Qwen2.5-VL, and training computes what the model itself computes."""

from __future__ import annotations

from functools import cache
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install 'floc-video[hf]'")
pytest.importorskip("torchvision", reason="torchvision is not installed: pip install 'floc-video[hf]'")

from examples.tiny_video_model.auxiliary import label_things, label_visual_tokens  # noqa: E402
from examples.tiny_video_model.batches import BatchMaker  # noqa: E402
from examples.tiny_video_model.films import PLACES, ZONES, label_tokens, make_film  # noqa: E402
from examples.tiny_video_model.model import HEIGHT, PREFIX, WIDTH, make_model, make_tokenizer, write_processor  # noqa: E402
from examples.tiny_video_model.optimizers import MATRIX_DECAY, Muon  # noqa: E402
from examples.tiny_video_model.packed import (  # noqa: E402
    WINDOWS,
    PackedDecoder,
    batch_windows,
    encode_frames,
    make_patches,
)
from examples.tiny_video_model.questions import NUMBERS, THIRDS, list_questions  # noqa: E402
from examples.tiny_video_model.rendering import Renderer, list_drawings, render_film  # noqa: E402
from examples.tiny_video_model.things import THINGS  # noqa: E402
from examples.tiny_video_model.train import Log, save_checkpoint  # noqa: E402

SEED, SLICES = 7, 8


@cache
def load_model() -> tuple[Any, Any]:
    """Return the model with random weights, and its tokenizer."""
    tokenizer = make_tokenizer()
    return make_model(tokenizer, 0).eval(), tokenizer


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


def make_batches(size: int, **options: Any) -> BatchMaker:
    return BatchMaker(load_model()[1], SLICES, size, SEED, HEIGHT // 28, WIDTH // 28, **options)


def test_packed_questions_have_the_losses_of_questions_asked_alone(processor: Any) -> None:
    model, tokenizer = load_model()
    batch = next(iter(make_batches(1)))
    frames = Renderer(HEIGHT, WIDTH).draw(batch.drawings).numpy()
    text, asked = batch.text, batch.text.targets >= 0
    with torch.no_grad():
        visual = encode_frames(model, frames).flatten(0, 2)[None]
        states = PackedDecoder(model, tokenizer, 4, 6).compute(SLICES, visual, batch.kept, text)
        packed = torch.nn.functional.cross_entropy(model.lm_head(states[asked]), text.targets[asked])
    alone = []
    for segment in range(int(text.numbers.max()) + 1):
        asked_alone = tokenizer.decode(text.ids[0, text.numbers[0] == segment])
        question, answer = asked_alone.split("<|im_end|>\n<|im_start|>assistant\n")
        inputs = prepare(processor, frames, question.strip())
        ids = torch.tensor([tokenizer.encode(answer)])
        inputs["input_ids"] = torch.cat([inputs["input_ids"], ids], 1)
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        inputs["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(ids)], 1)
        with torch.no_grad():
            logits = model(**inputs).logits[0, -ids.shape[1] - 1 : -1]
        alone.append(torch.nn.functional.cross_entropy(logits, ids[0], reduction="none"))
    torch.testing.assert_close(packed, torch.cat(alone).mean(), atol=1e-4, rtol=1e-4)


def test_dropped_tokens_take_their_positions_and_labels_along() -> None:
    model, tokenizer = load_model()
    batches = list(islice(make_batches(2, drop=True), 12))
    assert len({batch.kept.shape[1] for batch in batches}) > 2
    for batch in batches:
        assert (batch.kept.diff(dim=1) > 0).all()
        assert torch.equal(batch.visual_labels[..., 3], batch.kept // 24)
        positions = PackedDecoder(model, tokenizer, 4, 6).find_positions(SLICES, batch.kept, batch.text)
        start, count = len(tokenizer.encode(PREFIX)), batch.kept.shape[1]
        expected = torch.stack([batch.kept // 24, batch.kept % 24 // 6, batch.kept % 6]) + start
        assert torch.equal(positions[:, :, start : start + count], expected)


@pytest.mark.parametrize("uses", [1, 3])
def test_a_batch_names_the_places_of_its_films_in_the_bank(uses: int) -> None:
    made = (make_film(seed, SLICES, training=True) for seed in count(SEED))
    films = (film for film in made if film.things)
    maker = make_batches(4, uses=uses)
    bank: list[Any] = [None] * maker.bank
    for batch in islice(maker, 10):
        new = list(islice(films, len(batch.new_places)))
        for place, film in zip(batch.new_places.tolist(), new, strict=True):
            bank[place] = film
        drawn = list_drawings(new, HEIGHT, WIDTH)
        assert all(torch.equal(part, getattr(drawn, name)) for name, part in vars(batch.drawings).items())
        for row, place in enumerate(batch.places.tolist()):
            film = bank[place]
            labels = label_visual_tokens(film, label_tokens(film, HEIGHT, WIDTH, 28))
            assert np.array_equal(batch.visual_labels[row], labels)
            assert np.array_equal(batch.thing_labels[row], label_things(film))
            asked = load_model()[1].decode(batch.text.ids[row])
            assert any(thing in asked for thing in film.things)


def test_films_drawn_together_are_those_drawn_alone() -> None:
    films = [make_film(seed, slices) for seed, slices in ((1, 4), (2, 9), (3, 32))]
    together = Renderer(HEIGHT, WIDTH).draw(list_drawings(films, HEIGHT, WIDTH)).numpy()
    assert np.array_equal(together, np.concatenate([render_film(film) for film in films]))


@pytest.mark.parametrize("shape", [(24, 8), (8, 24), (40, 20)])
def test_the_first_step_of_muon_is_orthogonal(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(shape)) for _ in range(3)]
    before = [weight.detach().clone() for weight in weights]
    for weight in weights[1:]:  # the first one has no gradient: only its decay
        weight.grad = torch.randn(shape)
    Muon(weights).step(0.1)
    updates = [(1 - 0.1 * MATRIX_DECAY) * old - new.detach() for old, new in zip(before, weights, strict=True)]
    assert updates[0].abs().max() < 1e-6
    for weight, update in zip(weights[1:], updates[1:], strict=True):
        left, _, right = torch.linalg.svd(weight.grad, full_matrices=False)
        turned = left.T @ update @ right.T / 0.1 / max(1, shape[0] / shape[1]) ** 0.5
        assert (turned.diagonal() > 0.5).all()
        assert (turned.diagonal() < 1.4).all()
        assert (turned - turned.diagonal().diag()).abs().max() < 0.15


def test_auxiliary_labels_follow_from_the_questions() -> None:
    for seed in range(20):
        film = make_film(seed, 32)
        known = label_things(film)
        for kind, part, words in (("count", 1, ("", *NUMBERS)), ("where", 2, ("", *ZONES)), ("when", 5, ("", *THIRDS))):
            for question in list_questions(film, kind):
                assert words[known[THINGS.index(question.thing or ""), part]] == question.answer
        labels = label_tokens(film, HEIGHT, WIDTH, 28)
        tokens = label_visual_tokens(film, labels)
        for thing in film.things:
            number = THINGS.index(thing)
            shown = tokens[tokens[:, 2] == len(PLACES) + number]
            assert shown[:, 4].max() + 1 == known[number, 1]
            assert shown[:, 5].max() == known[number, 4]
            assert shown[:, 3].min() + 1 == known[number, 3]


def test_windows_in_one_call_equal_the_model_and_are_undone() -> None:
    model, _ = load_model()
    visual = model.model.visual
    patches = make_patches(torch.from_numpy(render_film(make_film(SEED, SLICES))))
    grid = torch.tensor([[SLICES, 8, 12]])
    before = visual.config._attn_implementation
    assert before != WINDOWS
    with torch.no_grad():
        expected = visual(patches, grid_thw=grid).pooler_output
        with batch_windows(model):
            output = visual(patches, grid_thw=grid).pooler_output
    assert visual.config._attn_implementation == before
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)


def test_a_saved_checkpoint_loads_as_any_other(tmp_path: Path) -> None:
    model, tokenizer = load_model()
    save_checkpoint(model, tokenizer, tmp_path / "tiny", HEIGHT, WIDTH, Log())
    assert sum(path.stat().st_size for path in (tmp_path / "tiny").iterdir()) < 12e6
    loaded = transformers.AutoModelForImageTextToText.from_pretrained(tmp_path / "tiny", dtype=torch.float32)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[name], value.half().float(), atol=0, rtol=0)
    assert transformers.AutoProcessor.from_pretrained(tmp_path / "tiny").tokenizer.eos_token == "<|im_end|>"
