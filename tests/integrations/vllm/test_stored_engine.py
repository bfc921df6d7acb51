"""Engines that answer from stored videos, against `floc.replay` in transformers. Run them with `make test-vllm`."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("vllm", reason="needs vLLM: run make test-vllm")
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]  # other packages' warnings

import floc  # noqa: E402
from floc.captured.captured import Captured  # noqa: E402
from tests.integrations.vllm import prompts, tiny  # noqa: E402
from tests.integrations.vllm.stored_videos import (  # noqa: E402
    Replayed,
    place_text_as_vllm,
    replay,
    spoil,
    write_frames,
)
from tests.integrations.vllm.studio import RATIO, Answers, Studio, serve  # noqa: E402
from tests.integrations.vllm.test_positions import by_hand  # noqa: E402
from tests.integrations.vllm.test_stored import ATTACKS  # noqa: E402

SMALL = 800  # tokens of a context that a whole film does not fit


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Studio:
    return Studio(tmp_path_factory.mktemp("studio"))


@dataclass
class Films:
    """Films of the trained model, captured to a folder, with questions."""

    folder: Path
    model: Any
    processor: Any
    seeds: list[int]
    questions: dict[int, list[Any]]  # by seed
    stored: dict[str, Captured] = field(default_factory=dict)  # by address, without the scheme
    errors: dict[str, str] = field(default_factory=dict)  # of files that no engine may take
    replayed: dict[tuple[str, str], Replayed] = field(default_factory=dict)

    def replay(self, address: str, question: str) -> Replayed:
        asked = address, question
        if asked not in self.replayed:
            self.replayed[asked] = replay(self.model, self.processor, self.stored[address], question)
        return self.replayed[asked]


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Films:
    pytest.importorskip("lance", reason="stores need Lance: run make test-vllm")
    from examples.tiny_video_model.checkpoint import load_checkpoint
    from examples.tiny_video_model.exam import TEST_SEED
    from examples.tiny_video_model.films import make_film
    from examples.tiny_video_model.questions import QuestionPicker

    folder = tmp_path_factory.mktemp("films") / "stored"
    folder.mkdir()
    model, processor = load_checkpoint()
    place_text_as_vllm(model)
    picker, seeds = QuestionPicker(TEST_SEED), [*range(TEST_SEED, TEST_SEED + 4)]
    films = Films(folder, model, processor, seeds, {seed: picker.pick(make_film(seed)) for seed in seeds})
    store = floc.Store(folder / "archive", create=True)
    for seed in seeds:
        frames, metadata = prompts.build_film(seed)
        film = write_frames(folder.parent / f"{seed}.mkv", frames, int(metadata["fps"]))
        video = floc.capture(model, film, processor=processor, ratio=RATIO)
        video.save(folder / f"{seed}.floc")
        store.add(folder / f"{seed}.floc", uri=f"{seed}.mkv")
        films.stored[f"{seed}.floc"] = video
        films.stored[f"{seed}.floc?ratio=1/32"] = video.at(ratio="1/32")
        part = store.open(f"{seed}.mkv", start_s=8, end_s=20)
        films.stored[f"archive/{seed}.mkv?from=0:08&to=0:20"] = part
    floc.capture(model, folder.parent / f"{seeds[0]}.mkv", processor=processor, ratio=1.0).save(folder / "whole.floc")
    films.errors = spoil(films.stored[f"{seeds[0]}.floc"], folder)
    return films


def ask_about(*media: Any, question: str) -> list[Any]:
    """Write the prompt of the trained model's chat template."""
    from examples.tiny_video_model.model import PREFIX

    return [PREFIX.removesuffix("<|vision_start|>"), *media, f" {question}<|im_end|>\n<|im_start|>assistant\n"]


@pytest.fixture(scope="module")
def trained(studio: Studio, films: Films) -> Any:
    """The answers of one engine with the trained model, which also prunes ordinary videos."""
    from examples.tiny_video_model.checkpoint import CHECKPOINT

    first, second, *_ = films.seeds
    jobs: dict[str, list[Any]] = {}
    for address in films.stored:
        seed = next(seed for seed in films.seeds if str(seed) in address)
        questions = films.questions[seed] if address.endswith(".floc") else films.questions[seed][:2]
        for asked in questions:
            jobs[f"{address} {asked.text}"] = ask_about(["stored", f"floc://{address}"], question=asked.text)
    text = films.questions[first][0].text
    jobs["chat"] = [["chat", f"floc://{first}.floc", text]]
    for name, error in films.errors.items():
        jobs[f"bad {name}"] = ask_about(["stored", f"floc://{name}.floc"], question=text)
        assert error
    jobs["bad whole"] = ask_about(["stored", "floc://whole.floc"], question=text)
    media = [
        ["stored", f"floc://{first}.floc"],
        "and",
        ["film", second],
        "and",
        ["stored", f"floc://{second}.floc?ratio=1/16"],
    ]
    jobs["beside"] = jobs["beside again"] = ask_about(*media, question=text)
    for seed in films.seeds:
        for asked in films.questions[seed]:
            jobs[f"film {seed} {asked.text}"] = ask_about(["film", seed], question=asked.text)
    jobs["pruned"] = ask_about(["film", second], question=films.questions[second][0].text)
    shutil.copy(films.folder / f"{first}.floc", films.folder / "changing.floc")
    shutil.copy(films.folder / f"{second}.floc", films.folder.parent / "new.floc")
    jobs["before"] = ask_about(["stored", "floc://changing.floc"], question=text)
    move = ["move", str(films.folder.parent / "new.floc"), str(films.folder / "changing.floc")]
    jobs["after"] = [move, *jobs["before"]]
    jobs["last"] = jobs[f"{first}.floc {text}"]
    settings = {"ratio": RATIO, "stored": [str(films.folder)]}
    return studio.ask(
        "trained",
        "qwen2_5_vl",
        jobs,
        model=str(CHECKPOINT),
        max_model_len=SMALL,
        limit_mm_per_prompt={"image": 2, "video": 3},
        additional_config={"floc": settings},
    )


def assert_equal(actual: dict[str, Any], expected: Replayed, within: float = 1e-3) -> None:
    """Compare an answer of vLLM with `floc.replay`."""
    assert actual["prompt"] == expected.prompt
    assert actual["answer"] == expected.answer
    for token, logprob in actual["logprobs"][0].items():
        assert logprob == pytest.approx(float(expected.logprobs[int(token)]), abs=within)


def assert_positions(answers: Answers, name: str, expected: list[tuple[int, ...]]) -> None:
    """Compare the positions of the prompt tokens that were not in the prefix cache."""
    cached = answers.by_job[name]["cached"]
    assert answers.positions(name)[: len(expected) - cached] == expected[cached:]


def test_answers_equal_replay(films: Films, trained: Any) -> None:
    compared = right = whole = 0
    for address in films.stored:
        seed = next(seed for seed in films.seeds if str(seed) in address)
        for asked in films.questions[seed]:
            if (name := f"{address} {asked.text}") not in trained.by_job:
                continue
            expected = films.replay(address, asked.text)
            assert_equal(trained.by_job[name], expected)
            assert_positions(trained, name, expected.positions)
            assert trained.by_job[name]["tower_calls"] == 0
            compared += 1
            whole += trained.by_job[name]["cached"] == 0
            right += films.processor.tokenizer.decode(expected.answer[:1]).strip() == asked.answer
    assert compared >= 45
    assert right >= 0.6 * compared
    assert whole >= 4  # positions of whole prompts were compared


def test_answers_of_the_trained_model_equal_transformers(films: Films, trained: Any) -> None:
    processor, same, right, count = films.processor, 0, 0, 0
    for seed in films.seeds:
        frames, metadata = prompts.build_film(seed)
        times = {part: metadata[part] for part in ("fps", "total_num_frames", "frames_indices")}
        for asked in films.questions[seed]:
            prompt = prompts.build(ask_about(["film", seed], question=asked.text))["prompt"]
            inputs = processor(
                text=[prompt],
                videos=[torch.from_numpy(frames).permute(0, 3, 1, 2)],
                video_metadata=[times],
                do_sample_frames=False,
                return_tensors="pt",
            )
            with torch.no_grad(), floc.attach(films.model, ratio=RATIO):
                output = films.model.generate(**inputs, max_new_tokens=4, do_sample=False)
            decode, ids = processor.tokenizer.decode, output[0, inputs["input_ids"].shape[1] :]
            given = decode(trained.by_job[f"film {seed} {asked.text}"]["answer"]).split("<|im_end|>")[0].strip()
            same += given == decode(ids).split("<|im_end|>")[0].strip()
            right += given == asked.answer
            count += 1
    assert count >= 30
    print(f"{same} of {count} answers are those of transformers, {right} are right")
    assert same >= 0.98 * count
    assert right >= 0.7 * count


def test_chat_equals_generate(films: Films, trained: Any) -> None:
    first = films.seeds[0]
    chat, generated = trained.by_job["chat"], trained.by_job[f"{first}.floc {films.questions[first][0].text}"]
    assert (chat["prompt"], chat["answer"]) == (generated["prompt"], generated["answer"])
    assert chat["tower_calls"] == 0


def test_a_bad_video_fails_its_request_alone(films: Films, trained: Any) -> None:
    for name, message in films.errors.items():
        refused = trained.by_job[f"bad {name}"]["refused"]
        assert message in refused, (name, refused)
        assert "\n" not in refused
        assert str(films.folder) not in refused
    assert "longer than the maximum model length" in trained.by_job["bad whole"]["refused"]
    first = films.seeds[0]
    assert_equal(trained.by_job["last"], films.replay(f"{first}.floc", films.questions[first][0].text))


def test_beside_a_pruned_video(films: Films, trained: Any) -> None:
    first, second, *_ = films.seeds
    beside, again = trained.by_job["beside"], trained.by_job["beside again"]
    pruned = next(each["kept"] for each in trained.kept if each["shape"] == [32, 4, 6])
    config = films.model.config
    grid = (32, 4, 6, float(config.vision_config.tokens_per_second))
    media = iter([films.stored[f"{first}.floc"].indices.tolist(), pruned])
    media = [*media, films.stored[f"{second}.floc"].at(ratio="1/16").indices.tolist()]
    runs = [
        (is_video, len([*run])) for is_video, run in groupby(beside["prompt"], lambda i: i == config.video_token_id)
    ]
    assert [length for is_video, length in runs if is_video] == [len(kept) for kept in media]
    kept = iter(media)
    expected = by_hand([(grid, next(kept)) if is_video else length for is_video, length in runs])
    assert_positions(trained, "beside", expected)
    assert (beside["tower_calls"], again["tower_calls"], trained.by_job["pruned"]["tower_calls"]) == (1, 0, 0)
    assert again["answer"] == beside["answer"]
    captured = films.stored[f"{second}.floc"].indices.tolist()
    assert len({*pruned} & {*captured}) >= 0.98 * len(pruned)  # of the same pixels


def test_a_changed_file_is_not_answered_from_a_cache(films: Films, trained: Any) -> None:
    first, second, *_ = films.seeds
    text = films.questions[first][0].text
    assert_equal(trained.by_job["before"], films.replay(f"{first}.floc", text))
    assert_equal(trained.by_job["after"], films.replay(f"{second}.floc", text))


@pytest.mark.parametrize(("kind", "settings"), [("qwen2_vl", {}), ("qwen3_vl", {"ratio": "1/4"})])
def test_other_models(studio: Studio, kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """Without a ratio, other videos keep all tokens."""
    import transformers

    folder = studio.model(kind)
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    processor = transformers.AutoProcessor.from_pretrained(folder)
    if kind not in tiny.STAMPED:
        place_text_as_vllm(model)
    frames = np.random.default_rng(0).integers(0, 256, (16, 48, 32, 3), dtype=np.uint8)
    clip = write_frames(tmp_path / "clip.mkv", frames, 4)
    video = floc.capture(model, clip, processor=processor, ratio=RATIO)
    video.save(tmp_path / "clip.floc")
    turn = {"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "What?"}]}
    before, after = processor.apply_chat_template([turn], add_generation_prompt=True).split(prompts.VIDEO)
    jobs = {"stored": [before, ["stored", "floc://clip.floc"], after], "other": ["a", ["video", 8, 48, 32, 4.0], "b"]}
    jobs["image"] = [before, ["stored", "floc://clip.floc"], "and", ["image", 32, 48], after]
    settings = {**settings, "stored": [str(tmp_path)]}
    answers = studio.ask(kind, kind, jobs, additional_config={"floc": settings})
    expected, actual = replay(model, processor, video, "What?"), answers.by_job["stored"]
    assert len(actual["prompt"]) == len(expected.prompt)
    assert_positions(answers, "stored", expected.positions)
    for token, logprob in actual["logprobs"][0].items():
        assert logprob == pytest.approx(float(expected.logprobs[int(token)]), abs=1e-2)
    assert actual["tower_calls"] == 0
    assert answers.by_job["other"]["tower_calls"] == answers.by_job["image"]["tower_calls"] == 1
    assert answers.by_job["image"]["prompt"].count(model.config.image_token_id) == 4 * 6
    kept = answers.by_job["other"]["prompt"].count(model.config.video_token_id)
    assert kept == 4 * 6 * 4 // (4 if "ratio" in settings else 1)


def post(address: str, url: str, question: str = "What is it?", **part: str) -> tuple[int, str]:
    """Ask a server about a video; return the status and the answer, or the error."""
    content = [{"type": "video_url", "video_url": {"url": url}, **part}, {"type": "text", "text": question}]
    body = {"model": "tiny", "messages": [{"role": "user", "content": content}], "max_tokens": 4, "temperature": 0}
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"{address}/v1/chat/completions", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.status, json.load(response)["choices"][0]["message"]["content"].strip()
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]["message"]


def test_vllm_serve(studio: Studio, films: Films) -> None:
    from examples.tiny_video_model.checkpoint import CHECKPOINT

    (films.folder / "outside.floc").symlink_to(films.folder.parent / "private.floc")
    shutil.copy(films.folder / f"{films.seeds[0]}.floc", films.folder.parent / "private.floc")
    given = json.dumps({"floc": {"stored": [str(films.folder)]}})
    asked = [
        (address, question.text)
        for address in films.stored
        for seed in films.seeds[:2]
        if str(seed) in address
        for question in films.questions[seed][:4]
    ]
    with serve(studio, "--additional-config", given, model=CHECKPOINT) as address:
        with ThreadPoolExecutor(8) as pool:
            answers = [*pool.map(lambda each: post(address, f"floc://{each[0]}", each[1]), asked)]
        for (name, question), (status, answer) in zip(asked, answers, strict=True):
            words = films.processor.tokenizer.decode(films.replay(name, question).answer).split("<|im_end|>")[0]
            assert (status, answer) == (200, words.strip())
        for name, message in films.errors.items():
            status, error = post(address, f"floc://{name}.floc")
            assert (status, message in error, "\n" in error) == (400, True, False), error
            assert str(films.folder) not in error
        for attack in ATTACKS:
            status, error = post(address, attack.format(root=films.folder))
            assert (status, len(error) < 400) == (400 if attack.startswith("floc") else status, True), (attack, error)
            assert status in (400, 422, 500)
        status, error = post(address, f"floc://{asked[0][0]}", uuid="floc-stored-0")  # another video under this key
        assert (status, "a uuid must not start with 'floc-stored-'" in error) == (400, True)
        assert post(address, f"floc://{asked[0][0]}", asked[0][1], uuid="mine") == answers[0]
        assert post(address, f"floc://{asked[4][0]}", asked[4][1], uuid="mine") == answers[4]  # not by the uuid
    log = (studio.folder / "serve.log").read_text()
    assert str(films.folder / "short.floc") in log  # the operator sees which file is damaged
