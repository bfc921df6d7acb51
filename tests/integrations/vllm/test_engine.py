"""vLLM for real: engines in processes of their own, tiny models from a folder, no network. See `make test-vllm`."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

vllm = pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm runs this where it is")
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]  # other packages' warnings

from floc.compression import compress  # noqa: E402
from floc.integrations.vllm.settings import Settings  # noqa: E402
from tests.integrations.vllm import prompts, tiny  # noqa: E402
from tests.integrations.vllm.studio import JOBS, LONG, QUIET, RATIO, STAMPED_JOBS, Studio, served  # noqa: E402
from tests.integrations.vllm.test_positions import by_hand, stamped  # noqa: E402

PACE = 4  # positions a second, of the tiny Qwen2.5-VL
CELL = 8  # pixels along a token
IS_OLD = vllm.__version__.startswith("0.28.")
LOST_FPS = 24  # in the old release Qwen2.5-VL's videos all have as many frames a second


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Studio:
    return Studio(tmp_path_factory.mktemp("studio"))


def written_times(frames: int, fps: float) -> list[str]:
    """What Qwen3-VL reads before each slice of two frames."""
    return [f"<{(4 * each + 1) / 2 / fps:.1f} seconds>" for each in range(frames // 2)]


def expected(
    job: list[Any], kept: Iterator[list[int]], pace: float | None = PACE, *, is_stamped: bool = False
) -> list[tuple[int, ...]]:
    """Positions of a prompt, by hand."""
    parts: list[Any] = []
    for part in job:
        if isinstance(part, str):
            parts.append(len(part.encode()))
            continue
        if part[0] == "image":
            rows, columns = (side // CELL for side in part[1:])
            medium = ((1, rows, columns, 1.0), [*range(rows * columns)])
        elif is_stamped:
            frames, height, width, fps = part[1:]
            leads = [len(each) + 1 for each in written_times(frames, fps)]
            parts += [1, *stamped(leads, height // CELL, width // CELL, next(kept)), 1]
            continue
        else:
            frames, height, width, fps = part[1:]
            step = 1.0 if pace is None else pace * 2 / (LOST_FPS if IS_OLD else fps)
            medium = ((frames // 2, height // CELL, width // CELL, step), next(kept))
        parts += [1, medium, 1]  # marks around it
    return by_hand([1, *parts])  # the tokenizer opens a prompt with a mark


def close(mine: dict[str, float], other: dict[str, float], within: float) -> None:
    shared = mine.keys() & other.keys()
    assert len(shared) >= len(mine) - 1, (mine, other)
    assert all(mine[token] == pytest.approx(other[token], abs=within) for token in shared), (mine, other)


def test_counts_and_positions_of_all_kinds_of_prompts(studio: Studio) -> None:
    answers = studio.whole
    shapes = [each["shape"] for each in answers.kept]
    assert shapes == [[16, 6, 6], [4, 6, 4], [6, 4, 6], [10, 4, 6]]  # a video that comes again is not looked at again
    for each in answers.kept:
        frames, rows, columns = each["shape"]
        assert len(each["kept"]) == Settings(ratio=RATIO).count(frames * rows * columns)
    kept = iter([each["kept"] for each in answers.kept])
    for name in ("one", "two videos, two pictures", "slow", "text"):
        by_rule = expected(JOBS[name], kept)
        read = answers.positions(name)
        assert read[: len(by_rule)] == by_rule, name
        after = max(max(each) for each in by_rule)
        assert read[len(by_rule) :] == [(after + 1 + i,) * 3 for i in range(3)]
        assert len(answers.said[name]["prompt"]) == len(by_rule)


def test_a_mark_in_the_text_is_refused_and_the_engine_goes_on(studio: Studio) -> None:
    assert "stands for pictures and videos in its text" in studio.whole.said["stray"]["refused"]
    assert studio.whole.said["text"]["answer"]


def test_requests_at_the_same_time_are_answered_as_one_by_one(studio: Studio) -> None:
    jobs = {name: JOBS[name] for name in ("one", "two videos, two pictures", "slow", "other question", "text")}
    together = studio.ask("together", "qwen2_5_vl", jobs, together=True)
    for name in jobs:
        assert together.said[name]["prompt"] == studio.whole.said[name]["prompt"]
        close(together.first(name), studio.whole.first(name), within=1e-3)


def test_the_prefix_cache_changes_no_answer(studio: Studio) -> None:
    first, again = studio.whole.said["one"], studio.whole.said["again"]
    assert first["cached"] == 0
    assert again["cached"] > 8 + len(studio.whole.kept[0]["kept"])  # none of its video is read again
    assert again["answer"] == first["answer"]
    for mine, other in zip(again["logprobs"], first["logprobs"], strict=True):
        close(mine, other, within=1e-3)


def test_a_chunked_prompt_is_answered_like_a_whole_one(studio: Studio) -> None:
    jobs = {name: JOBS[name] for name in ("one", "again", "two videos, two pictures", "slow")}
    chunked = studio.ask("chunked", "qwen2_5_vl", jobs, max_num_batched_tokens=40, max_num_seqs=4)
    assert [len(call[0]) for call in chunked.said["one"]["positions"]][:2] == [40, 40]
    assert chunked.positions("one") == studio.whole.positions("one")
    for name in jobs:
        assert chunked.said[name]["answer"] == studio.whole.said[name]["answer"]
        close(chunked.first(name), studio.whole.first(name), within=1e-3)


def test_late_positions_in_bfloat16(studio: Studio) -> None:
    answers = studio.ask("bfloat16", "qwen2_5_vl", {"slow": JOBS["slow"]}, dtype="bfloat16")
    by_rule = expected(JOBS["slow"], iter([answers.kept[0]["kept"]]))
    assert IS_OLD or max(max(each) for each in by_rule) > 1400
    assert answers.positions("slow")[: len(by_rule)] == by_rule


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen3_vl_moe"])
def test_other_models(studio: Studio, kind: str) -> None:
    jobs = {name: JOBS[name] for name in ("one", "again", "two videos, two pictures")}
    answers = studio.ask(kind, kind, jobs)
    kept = iter([each["kept"] for each in answers.kept])
    for name in ("one", "two videos, two pictures"):
        by_rule = expected(JOBS[name], kept, pace=None, is_stamped=kind in tiny.STAMPED)
        assert answers.positions(name)[: len(by_rule)] == by_rule
    assert answers.said["again"]["answer"] == answers.said["one"]["answer"]


def test_counts_and_positions_with_times_between_frames(studio: Studio) -> None:
    answers = studio.stamped
    assert [each["shape"] for each in answers.kept] == [[16, 6, 6], [4, 6, 4], [6, 4, 6]]
    kept = iter([each["kept"] for each in answers.kept])
    for name in ("one", "two videos, two pictures", "text"):
        by_rule = expected(STAMPED_JOBS[name], kept, is_stamped=True)
        read = answers.positions(name)
        assert read[: len(by_rule)] == by_rule, name
        after = max(max(each) for each in by_rule)
        assert read[len(by_rule) :] == [(after + 1 + i,) * 3 for i in range(3)]


def test_the_prefix_cache_changes_no_answer_with_times_between_frames(studio: Studio) -> None:
    first, again = studio.stamped.said["one"], studio.stamped.said["again"]
    assert (first["cached"], again["cached"] > 200) == (0, True)
    assert again["answer"] == first["answer"]
    for mine, other in zip(again["logprobs"], first["logprobs"], strict=True):
        close(mine, other, within=1e-3)


def test_chunks_with_times_between_frames(studio: Studio) -> None:
    jobs = {name: JOBS[name] for name in ("one", "again", "two videos, two pictures")}
    chunked = studio.ask("stamped chunks", "qwen3_vl", jobs, max_num_batched_tokens=40, max_num_seqs=4)
    assert [len(call[0]) for call in chunked.said["one"]["positions"]][:2] == [40, 40]
    for name in ("one", "two videos, two pictures"):
        assert chunked.positions(name) == studio.stamped.positions(name)
    for name in jobs:
        assert chunked.said[name]["answer"] == studio.stamped.said[name]["answer"]
        close(chunked.first(name), studio.stamped.first(name), within=1e-3)


def test_late_positions_with_times_between_frames(studio: Studio) -> None:
    """In bfloat16, and with a video beside it that is kept whole."""
    job = ["Here: ", ["video", 4, 16, 16, 2.0], ["video", 128, 32, 32, 2.0], "?"]
    told = dict(dtype="bfloat16", max_model_len=2048, additional_config={"floc": {"tokens": 60}})
    answers = studio.ask("late", "qwen3_vl", {"late": job}, **told)
    (line,) = answers.kept  # nothing is chosen from a video that is short enough
    assert line["shape"] == [64, 4, 4]
    by_rule = expected(job, iter([[*range(8)], line["kept"]]), is_stamped=True)
    assert max(max(each) for each in by_rule) > 1100
    assert answers.positions("late")[: len(by_rule)] == by_rule


def test_log_probabilities_of_transformers_with_times_between_frames(studio: Studio) -> None:
    import transformers

    folder = studio.model("qwen3_vl")
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    processor = transformers.AutoProcessor.from_pretrained(folder)
    before, (_, frames, *_, fps), after = LONG
    ((pixels, _),) = prompts.made(LONG)["multi_modal_data"]["video"]
    pixels = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    inputs = processor.video_processor([pixels], do_sample_frames=False, return_tensors="pt")
    inputs = {name: inputs[name] for name in ("pixel_values_videos", "video_grid_thw")}
    kept, (_, rows, columns) = studio.stamped.kept[0]["kept"], studio.stamped.kept[0]["shape"]
    config, tokenizer = model.config, processor.tokenizer
    written = tokenizer.encode(f"{before}<|vision_start|>")
    for number, time_ in enumerate(written_times(frames, fps)):
        here = sum(each // (rows * columns) == number for each in kept)
        written += tokenizer.encode(time_, add_special_tokens=False)
        written += [config.vision_start_token_id, *[config.video_token_id] * here, config.vision_end_token_id]
    written += tokenizer.encode(f"<|vision_end|>{after}", add_special_tokens=False)
    assert sorted(written) == sorted(studio.stamped.said["one"]["prompt"])
    ids = torch.tensor(written)
    is_visual = ids == config.video_token_id
    with torch.no_grad():
        seen = model.model.get_video_features(**inputs)
        (tokens,) = seen.pooler_output
        embeds = model.get_input_embeddings()(ids)
        embeds[is_visual] = tokens[kept]
        hidden = model.model.language_model(
            inputs_embeds=embeds[None],
            attention_mask=torch.ones_like(ids)[None],  # else gaps between positions would be taken for other prompts
            position_ids=torch.tensor(expected(LONG, iter([kept]), is_stamped=True)).T[:, None],
            visual_pos_masks=is_visual[None],
            deepstack_visual_embeds=[of_film[kept] for (of_film,) in seen.deepstack_features],
        ).last_hidden_state
        logprobs = model.lm_head(hidden)[0, -1].log_softmax(-1)
    mine = studio.stamped.first("one")
    close(mine, {token: float(logprobs[int(token)]) for token in mine}, within=1e-2)
    chosen = compress(tokens.view(*studio.stamped.kept[0]["shape"], -1), ratio=RATIO).indices.tolist()
    assert len({*chosen} & {*kept}) >= 0.9 * len(kept)  # the towers round differently


def test_log_probabilities_of_transformers(studio: Studio) -> None:
    import transformers

    folder = studio.model("qwen2_5_vl")
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    prompt = prompts.made(LONG)
    ((pixels, _),) = prompt["multi_modal_data"]["video"]
    processor = transformers.AutoProcessor.from_pretrained(folder)
    inputs = processor.video_processor([torch.from_numpy(pixels).permute(0, 3, 1, 2)], return_tensors="pt")
    ids = torch.tensor(studio.whole.said["one"]["prompt"])
    kept = studio.whole.kept[0]["kept"]
    with torch.no_grad():
        (seen,) = model.model.get_video_features(**inputs).pooler_output
        embeds = model.get_input_embeddings()(ids)
        embeds[ids == model.config.video_token_id] = seen[kept]
        positions = torch.tensor(expected(LONG, iter([kept]))).T[:, None]
        hidden = model.model.language_model(inputs_embeds=embeds[None], position_ids=positions).last_hidden_state
        logprobs = model.lm_head(hidden)[0, -1].log_softmax(-1)
    mine = studio.whole.first("one")
    close(mine, {token: float(logprobs[int(token)]) for token in mine}, within=1e-2)
    chosen = compress(seen.view(*studio.whole.kept[0]["shape"], -1), ratio=RATIO).indices.tolist()
    assert len({*chosen} & {*kept}) >= 0.9 * len(kept)  # the towers round differently


def test_an_engine_in_processes_of_its_own(studio: Studio) -> None:
    answers = studio.ask("processes", "qwen2_5_vl", {"one": LONG}, processes=True)
    assert answers.kept[0]["kept"] == studio.whole.kept[0]["kept"]
    assert answers.said["one"]["answer"] == studio.whole.said["one"]["answer"]


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="vLLM wants a core for each rank")
def test_ranks_that_share_a_model_keep_the_same(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    jobs = {name: JOBS[name] for name in ("one", "two videos, two pictures")}
    answers = studio.ask("ranks", "qwen2_5_vl", jobs, processes=True, tensor_parallel_size=2)
    assert [each["kept"] for each in answers.kept] == [each["kept"] for each in studio.whole.kept[:3]]  # once for both
    for name in jobs:
        assert answers.said[name]["answer"] == studio.whole.said[name]["answer"]
        close(answers.first(name), studio.whole.first(name), within=1e-3)


def test_an_engine_beside_one_with_floc_is_left_alone(studio: Studio) -> None:
    jobs = {name: JOBS[name] for name in ("one", "two videos, two pictures")}
    alone = studio.ask("alone", "qwen2_5_vl", jobs, additional_config={})
    short, beside = studio.ask_all("beside", "qwen2_5_vl", jobs, [{}, {"additional_config": {}}])
    assert alone.kept == beside.kept == []
    for name in jobs:
        for what in ("prompt", "answer", "positions"):
            assert beside.said[name][what] == alone.said[name][what]
    whole = 16 * 6 * 6
    assert len(alone.said["one"]["prompt"]) - len(short.said["one"]["prompt"]) == whole - whole // 8


def test_engines_with_other_settings_share_no_embeddings(studio: Studio) -> None:
    """A store on disk that all of them use: what one wrote is read by one with the same settings alone."""
    store = {
        "ec_connector": "ECExampleConnector",
        "ec_role": "ec_both",
        "ec_connector_extra_config": {"shared_storage_path": str(studio.folder / "store")},
    }

    settings = [{"ratio": RATIO}, {"ratio": RATIO}, {"ratio": RATIO, "method": "random"}]
    engines = [{"additional_config": {"floc": each}, "ec_transfer_config": store} for each in settings]
    first, again, other = studio.ask_all("store", "qwen2_5_vl", {"one": LONG}, engines)
    for answers in (first, again, other):
        answers.kept = [each for each in answers.kept if each["shape"] == [16, 6, 6]]  # no trials when it starts
    assert first.kept[0]["kept"] == studio.whole.kept[0]["kept"]
    assert (len(first.kept), len(again.kept), len(other.kept)) == (1, 0, 1)
    assert again.said["one"]["answer"] == first.said["one"]["answer"]
    assert again.positions("one") == first.positions("one")
    by_rule = expected(LONG, iter([other.kept[0]["kept"]]))
    assert other.positions("one")[: len(by_rule)] == by_rule != first.positions("one")[: len(by_rule)]


REFUSALS = """
import json, sys
from vllm.engine.arg_utils import EngineArgs
for more in json.loads(sys.argv[1]):
    try:
        EngineArgs(enforce_eager=True, **more).create_engine_config()
        print("NOTHING SAID")
    except Exception as error:
        print("SAID", " ".join(str(error).split()))
"""


def test_what_cannot_work_is_refused_when_the_engine_is_made(studio: Studio) -> None:
    mine = {"model": str(studio.model("qwen2_5_vl")), "video_pruning_rate": 0.875}
    cases = [
        ({**mine, "additional_config": {"floc": {"tokens": 64}}}, "floc was told tokens=64; give one of them"),
        ({**mine, "additional_config": {"floc": {"bloc": 8}}}, "unknown setting 'bloc': did you mean 'block'"),
        ({**mine, "pipeline_parallel_size": 2}, "--pipeline-parallel-size 2: vLLM tells only the first stage"),
        ({**mine, "model": str(studio.model("internvl"))}, "floc cannot choose the video tokens of InternVL"),
    ]
    if not IS_OLD:  # it does not load this model
        llava = str(studio.model("llava_onevision"))
        cases.append(({**mine, "model": llava}, "floc cannot choose the video tokens of Llava"))
    given = json.dumps([more for more, _ in cases])
    done = subprocess.run(
        [sys.executable, "-c", REFUSALS, given],
        env={**os.environ, **QUIET, "FLOC_VLLM": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    said = [line for line in done.stdout.splitlines() if "SAID" in line]
    assert len(said) == len(cases), done.stdout[-3000:] + done.stderr[-3000:]
    for line, (_, message) in zip(said, cases, strict=True):
        assert message in line


def test_a_film_sent_to_vllm_serve(studio: Studio, tmp_path: Path) -> None:
    import openai

    from examples.demo.film import render

    film = render(tmp_path / "film.mp4", seconds=6, fps=4, width=112, height=84, seed=0).path
    url = "data:video/mp4;base64," + base64.b64encode(film.read_bytes()).decode()
    content = [{"type": "video_url", "video_url": {"url": url}}, {"type": "text", "text": "What is it?"}]
    with served(studio) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none")
        bare = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": content[1:]}], max_tokens=2
        )
        asked = [
            client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": content}], max_tokens=4, temperature=0
            )
            for _ in range(2)
        ]
    assert "floc keeps 1/8 of the tokens of every video, chosen by floc" in (studio.folder / "serve.log").read_text()
    kept = Settings(ratio=RATIO).count(6 * 6 * 9)  # two frames a second, two to a slice, of 48 x 72 pixels
    marks = 2
    assert [each.usage.prompt_tokens for each in asked] == [bare.usage.prompt_tokens + kept + marks] * 2
    assert asked[0].choices[0].message.content == asked[1].choices[0].message.content
