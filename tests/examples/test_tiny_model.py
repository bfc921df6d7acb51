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

from examples.tiny_video_model.auxiliary import label_things, label_visual_tokens  # noqa: E402
from examples.tiny_video_model.batches import BatchMaker  # noqa: E402
from examples.tiny_video_model.encoded_films import EncodedFilms, make_patches  # noqa: E402
from examples.tiny_video_model.films import PLACES, ZONES, label_tokens, make_film, render_film  # noqa: E402
from examples.tiny_video_model.model import HEIGHT, WIDTH, make_model, make_tokenizer, write_processor  # noqa: E402
from examples.tiny_video_model.packed import WINDOWS, PackedDecoder, batch_windows, encode_frames  # noqa: E402
from examples.tiny_video_model.questions import NUMBERS, THIRDS, list_questions  # noqa: E402
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


class WholeFilm(EncodedFilms):
    """One film, drawn as it is."""

    def __init__(self, tokens: torch.Tensor, slices: int):
        self.film, self.tokens = make_film(SEED, slices, training=True), tokens

    def draw(self, slices: int, rng: np.random.Generator) -> tuple[Any, torch.Tensor, np.ndarray]:
        return self.film, self.tokens, label_tokens(self.film, HEIGHT, WIDTH, 28)


def encode(frames: np.ndarray) -> torch.Tensor:
    return encode_frames(load_model()[0], frames).flatten(0, 2)


def test_packed_questions_have_the_losses_of_questions_asked_alone(processor: Any) -> None:
    model, tokenizer = load_model()
    frames = render_film(make_film(SEED, SLICES, training=True))
    films = WholeFilm(encode(frames), SLICES)
    batch = BatchMaker(tokenizer, films, SLICES, 1, SEED).make()
    text, asked = batch.text, batch.text.targets >= 0
    with torch.no_grad():
        states = PackedDecoder(model, tokenizer, 4, 6).compute(SLICES, batch.visual, batch.kept, text)
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


def test_dropped_tokens_take_their_positions_along() -> None:
    model, tokenizer = load_model()
    tokens = encode(render_film(make_film(SEED, SLICES, training=True)))
    maker = BatchMaker(tokenizer, WholeFilm(tokens, SLICES), SLICES, 2, SEED, drop=True)
    batches = [maker.make() for _ in range(12)]
    assert len({batch.visual.shape[1] for batch in batches}) > 2
    for batch in batches:
        torch.testing.assert_close(batch.visual, tokens[batch.kept], atol=0, rtol=0)
        assert (batch.kept.diff(dim=1) > 0).all()
        positions = PackedDecoder(model, tokenizer, 4, 6).find_positions(SLICES, batch.kept, batch.text)
        start, count = len(tokenizer.encode("<|im_start|>user\n<|vision_start|>")), batch.visual.shape[1]
        expected = torch.stack([batch.kept // 24, batch.kept % 24 // 6, batch.kept % 6]) + start
        assert torch.equal(positions[:, :, start : start + count], expected)


def test_films_from_slices_of_others_are_what_their_pictures_show() -> None:
    films = EncodedFilms(lambda frames: torch.from_numpy(frames[::2, ::28, ::28].copy()), 2, 0, HEIGHT, WIDTH)
    rng = np.random.default_rng(0)
    for _ in range(50):
        film, tokens, labels = films.draw(SLICES, rng)
        assert len(tokens) == labels.size == SLICES * 24
        for thing in THINGS:
            shown = (labels == len(PLACES) + THINGS.index(thing)).any((1, 2))
            runs = int((np.diff(shown.astype(int), prepend=0) == 1).sum())
            assert runs == len(film.get_appearances(thing))
        places = [film.get_place(slice_) for slice_ in range(SLICES)]
        assert places == [PLACES[frame.ravel()[frame.ravel() < len(PLACES)][0]] for frame in labels]


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
