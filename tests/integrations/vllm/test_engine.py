"""Tests with real vLLM engines in subprocesses, tiny models and no network. Run them with `make test-vllm`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

vllm = pytest.importorskip("vllm", reason="needs vLLM: run make test-vllm")
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]  # other packages' warnings

from floc.compression import compress  # noqa: E402
from floc.integrations.vllm.settings import Settings  # noqa: E402
from tests.integrations.vllm import prompts, tiny  # noqa: E402
from tests.integrations.vllm.studio import JOBS, LONG, QUIET, RATIO, STAMPED_JOBS, Answers, Studio  # noqa: E402
from tests.integrations.vllm.test_positions import by_hand, stamped  # noqa: E402

PACE = 4  # positions a second, of the tiny Qwen2.5-VL
CELL = 8  # pixels along a token


OTHER_KINDS = ("qwen3_vl_moe", "qwen3_5_moe", "qwen3_5", "qwen2_vl")  # a process must start with experts to have any
CHUNKS = {"max_num_batched_tokens": 40, "max_num_seqs": 4}
TWO = ["one", "two videos, two images"]
LATE = ["Here: ", ["video", 4, 16, 16, 2.0], ["video", 128, 32, 32, 2.0], "?"]


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Studio:
    return Studio(tmp_path_factory.mktemp("studio"))


@pytest.fixture(scope="module")
def engines(studio: Studio) -> dict[str, Answers]:
    """Engines of Qwen2.5-VL in one process."""
    store = {
        "ec_connector": "ECExampleConnector",
        "ec_role": "ec_both",
        "ec_connector_extra_config": {"shared_storage_path": str(studio.folder / "store")},
    }
    sharing = {"jobs": ["one"], "ec_transfer_config": store}
    random = {"additional_config": {"floc": {"ratio": RATIO, "method": "random"}}}
    given: dict[str, dict[str, Any]] = {
        "whole": {},
        "together": {"jobs": [*TWO, "slow", "other question", "text"], "together": True},
        "chunked": {"jobs": [*TWO, "again", "slow"], **CHUNKS},
        "bfloat16": {"jobs": ["slow"], "dtype": "bfloat16"},
        "without floc": {"jobs": TWO, "additional_config": {}},
        **{"store": sharing, "same store": sharing, "store of another method": {**sharing, **random}},
    }
    return studio.ask_all("engines", "qwen2_5_vl", JOBS, given)


@pytest.fixture(scope="module")
def whole(engines: dict[str, Answers]) -> Answers:
    return engines["whole"]


@pytest.fixture(scope="module")
def stamped_engines(studio: Studio) -> dict[str, Answers]:
    """Engines of Qwen3-VL in one process."""
    given: dict[str, dict[str, Any]] = {
        "stamped": {"jobs": [*STAMPED_JOBS]},
        "chunked": {"jobs": [*TWO, "again"], **CHUNKS},
        "late": {
            "jobs": ["late"],
            "dtype": "bfloat16",
            "max_model_len": 2048,
            "additional_config": {"floc": {"budget": 60}},
        },
    }
    return studio.ask_all("stamped", "qwen3_vl", {**STAMPED_JOBS, "late": LATE}, given)


@pytest.fixture(scope="module")
def stamped_whole(stamped_engines: dict[str, Answers]) -> Answers:
    return stamped_engines["stamped"]


@pytest.fixture(scope="module")
def others(studio: Studio) -> dict[str, Answers]:
    """Engines of other models in one process."""
    given: dict[str, dict[str, Any]] = {kind: {"kind": kind} for kind in OTHER_KINDS}
    for kind in tiny.LINEAR_ATTENTION:  # vLLM has no other linear attention for CPUs
        given[kind] |= {"dtype": "bfloat16"}
    return studio.ask_all("others", OTHER_KINDS[0], {name: JOBS[name] for name in (*TWO, "again")}, given)


def write_timestamps(frames: int, fps: float) -> list[str]:
    """Return the text that Qwen3-VL gets before each slice of two frames."""
    return [f"<{(4 * index + 1) / 2 / fps:.1f} seconds>" for index in range(frames // 2)]


def expect_positions(
    job: list[Any], kept: Iterator[list[int]], pace: float | None = PACE, *, is_stamped: bool = False
) -> list[tuple[int, ...]]:
    """Compute the positions of a prompt by hand."""
    parts: list[Any] = []
    prunes_images = any(part[0] == "floc" and "images" in part[1] for part in job)
    for part in job:
        if isinstance(part, str):
            parts.append(len(part.encode()))
            continue
        if part[0] == "floc":
            continue
        if part[0] == "image":
            rows, columns = (side // CELL for side in part[1:])
            medium = ((1, rows, columns, 1.0), next(kept) if prunes_images else [*range(rows * columns)])
        elif is_stamped:
            frames, height, width, fps = part[1:]
            leads = [len(each) + 1 for each in write_timestamps(frames, fps)]
            parts += [1, *stamped(leads, height // CELL, width // CELL, next(kept)), 1]
            continue
        else:
            frames, height, width, fps = part[1:]
            step = 1.0 if pace is None else pace * 2 / fps
            medium = ((frames // 2, height // CELL, width // CELL, step), next(kept))
        parts += [1, medium, 1]  # vision start and end tokens
    return by_hand([1, *parts])  # the tokenizer starts a prompt with one token


def assert_close(logprobs: dict[str, float], other: dict[str, float], within: float) -> None:
    shared = logprobs.keys() & other.keys()
    assert len(shared) >= len(logprobs) - 1, (logprobs, other)
    assert all(logprobs[token] == pytest.approx(other[token], abs=within) for token in shared), (logprobs, other)


def test_counts_and_positions(whole: Answers) -> None:
    shapes = [each["shape"] for each in whole.kept]
    assert shapes == [[16, 6, 6], [4, 6, 4], [6, 4, 6], [10, 4, 6]]  # a repeated video is cached
    for each in whole.kept:
        frames, rows, columns = each["shape"]
        assert len(each["kept"]) == Settings(ratio=RATIO).count(frames * rows * columns)
    kept = iter([each["kept"] for each in whole.kept])
    for name in ("one", "two videos, two images", "slow", "text"):
        by_rule = expect_positions(JOBS[name], kept)
        read = whole.positions(name)
        assert read[: len(by_rule)] == by_rule, name
        after = max(max(each) for each in by_rule)
        assert read[len(by_rule) :] == [(after + 1 + i,) * 3 for i in range(3)]
        assert len(whole.by_job[name]["prompt"]) == len(by_rule)


def test_rejects_placeholder_in_text_and_continues(whole: Answers) -> None:
    assert "contains an image or video placeholder" in whole.by_job["stray"]["refused"]
    assert whole.by_job["text"]["answer"]


def test_concurrent_requests_equal_sequential_ones(engines: dict[str, Answers], whole: Answers) -> None:
    together = engines["together"]
    assert len(together.by_job) == 5
    for name in together.by_job:
        assert together.by_job[name]["prompt"] == whole.by_job[name]["prompt"]
        assert_close(together.first_logprobs(name), whole.first_logprobs(name), within=1e-3)


def test_prefix_cache_changes_no_answer(whole: Answers) -> None:
    first, again = whole.by_job["one"], whole.by_job["again"]
    assert first["cached"] == 0
    assert again["cached"] > 8 + len(whole.kept[0]["kept"])  # the whole video is cached
    assert again["answer"] == first["answer"]
    for logprobs, other in zip(again["logprobs"], first["logprobs"], strict=True):
        assert_close(logprobs, other, within=1e-3)


def test_chunked_prefill_equals_whole_prefill(engines: dict[str, Answers], whole: Answers) -> None:
    chunked = engines["chunked"]
    assert [len(call[0]) for call in chunked.by_job["one"]["positions"]][:2] == [40, 40]
    assert chunked.positions("one") == whole.positions("one")
    assert len(chunked.by_job) == 4
    for name in chunked.by_job:
        assert chunked.by_job[name]["answer"] == whole.by_job[name]["answer"]
        assert_close(chunked.first_logprobs(name), whole.first_logprobs(name), within=1e-3)


def test_large_positions_in_bfloat16(engines: dict[str, Answers]) -> None:
    answers = engines["bfloat16"]
    by_rule = expect_positions(JOBS["slow"], iter([answers.kept[0]["kept"]]))
    assert max(max(each) for each in by_rule) > 1400
    assert answers.positions("slow")[: len(by_rule)] == by_rule


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_other_models(others: dict[str, Answers], kind: str) -> None:
    answers = others[kind]
    kept = iter([each["kept"] for each in answers.kept])
    for name in TWO:
        by_rule = expect_positions(JOBS[name], kept, pace=None, is_stamped=kind in tiny.STAMPED)
        assert answers.positions(name)[: len(by_rule)] == by_rule
    assert answers.by_job["again"]["answer"] == answers.by_job["one"]["answer"]


def test_counts_and_positions_with_timestamps(stamped_whole: Answers) -> None:
    answers = stamped_whole
    assert [each["shape"] for each in answers.kept] == [[16, 6, 6], [4, 6, 4], [6, 4, 6]]
    kept = iter([each["kept"] for each in answers.kept])
    for name in ("one", "two videos, two images", "text"):
        by_rule = expect_positions(STAMPED_JOBS[name], kept, is_stamped=True)
        read = answers.positions(name)
        assert read[: len(by_rule)] == by_rule, name
        after = max(max(each) for each in by_rule)
        assert read[len(by_rule) :] == [(after + 1 + i,) * 3 for i in range(3)]


def test_prefix_cache_changes_no_answer_with_timestamps(stamped_whole: Answers) -> None:
    first, again = stamped_whole.by_job["one"], stamped_whole.by_job["again"]
    assert (first["cached"], again["cached"] > 200) == (0, True)
    assert again["answer"] == first["answer"]
    for logprobs, other in zip(again["logprobs"], first["logprobs"], strict=True):
        assert_close(logprobs, other, within=1e-3)


def test_chunked_prefill_with_timestamps(stamped_engines: dict[str, Answers], stamped_whole: Answers) -> None:
    chunked = stamped_engines["chunked"]
    assert [len(call[0]) for call in chunked.by_job["one"]["positions"]][:2] == [40, 40]
    for name in TWO:
        assert chunked.positions(name) == stamped_whole.positions(name)
    assert len(chunked.by_job) == 3
    for name in chunked.by_job:
        assert chunked.by_job[name]["answer"] == stamped_whole.by_job[name]["answer"]
        assert_close(chunked.first_logprobs(name), stamped_whole.first_logprobs(name), within=1e-3)


def test_large_positions_with_timestamps(stamped_engines: dict[str, Answers]) -> None:
    """In bfloat16, next to a video that is kept whole."""
    answers = stamped_engines["late"]
    (line,) = answers.kept  # a video with few tokens is kept whole and not recorded
    assert line["shape"] == [64, 4, 4]
    by_rule = expect_positions(LATE, iter([[*range(8)], line["kept"]]), is_stamped=True)
    assert max(max(each) for each in by_rule) > 1100
    assert answers.positions("late")[: len(by_rule)] == by_rule


def test_logprobs_equal_transformers_with_timestamps(studio: Studio, stamped_whole: Answers) -> None:
    import transformers

    folder = studio.model("qwen3_vl")
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    processor = transformers.AutoProcessor.from_pretrained(folder)
    before, (_, frames, *_, fps), after = LONG
    ((pixels, _),) = prompts.build(LONG)["multi_modal_data"]["video"]
    pixels = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    inputs = processor.video_processor([pixels], do_sample_frames=False, return_tensors="pt")
    inputs = {name: inputs[name] for name in ("pixel_values_videos", "video_grid_thw")}
    kept, (_, rows, columns) = stamped_whole.kept[0]["kept"], stamped_whole.kept[0]["shape"]
    config, tokenizer = model.config, processor.tokenizer
    ids = tokenizer.encode(f"{before}<|vision_start|>")
    for number, timestamp in enumerate(write_timestamps(frames, fps)):
        count = sum(index // (rows * columns) == number for index in kept)
        ids += tokenizer.encode(timestamp, add_special_tokens=False)
        ids += [config.vision_start_token_id, *[config.video_token_id] * count, config.vision_end_token_id]
    ids += tokenizer.encode(f"<|vision_end|>{after}", add_special_tokens=False)
    assert sorted(ids) == sorted(stamped_whole.by_job["one"]["prompt"])
    ids = torch.tensor(ids)
    is_visual = ids == config.video_token_id
    with torch.no_grad():
        features = model.model.get_video_features(**inputs)
        (tokens,) = features.pooler_output
        # transformers 5.17 has one tensor for all videos of a layer, later releases a tuple
        deep = [layer if isinstance(layer, torch.Tensor) else layer[0] for layer in features.deepstack_features]
        embeds = model.get_input_embeddings()(ids)
        embeds[is_visual] = tokens[kept]
        hidden = model.model.language_model(
            inputs_embeds=embeds[None],
            attention_mask=torch.ones_like(ids)[None],  # without it, gaps between positions would separate prompts
            position_ids=torch.tensor(expect_positions(LONG, iter([kept]), is_stamped=True)).T[:, None],
            visual_pos_masks=is_visual[None],
            deepstack_visual_embeds=[layer[kept] for layer in deep],
        ).last_hidden_state
        logprobs = model.lm_head(hidden)[0, -1].log_softmax(-1)
    logprobs_vllm = stamped_whole.first_logprobs("one")
    assert_close(logprobs_vllm, {token: float(logprobs[int(token)]) for token in logprobs_vllm}, within=1e-2)
    selected = compress(tokens.view(*stamped_whole.kept[0]["shape"], -1), ratio=RATIO).indices.tolist()
    assert len({*selected} & {*kept}) >= 0.9 * len(kept)  # the two vision encoders round differently


def test_logprobs_equal_transformers(studio: Studio, whole: Answers) -> None:
    import transformers

    folder = studio.model("qwen2_5_vl")
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    prompt = prompts.build(LONG)
    ((pixels, _),) = prompt["multi_modal_data"]["video"]
    processor = transformers.AutoProcessor.from_pretrained(folder)
    inputs = processor.video_processor([torch.from_numpy(pixels).permute(0, 3, 1, 2)], return_tensors="pt")
    ids = torch.tensor(whole.by_job["one"]["prompt"])
    kept = whole.kept[0]["kept"]
    with torch.no_grad():
        (tokens,) = model.model.get_video_features(**inputs).pooler_output
        embeds = model.get_input_embeddings()(ids)
        embeds[ids == model.config.video_token_id] = tokens[kept]
        positions = torch.tensor(expect_positions(LONG, iter([kept]))).T[:, None]
        hidden = model.model.language_model(inputs_embeds=embeds[None], position_ids=positions).last_hidden_state
        logprobs = model.lm_head(hidden)[0, -1].log_softmax(-1)
    logprobs_vllm = whole.first_logprobs("one")
    assert_close(logprobs_vllm, {token: float(logprobs[int(token)]) for token in logprobs_vllm}, within=1e-2)
    selected = compress(tokens.view(*whole.kept[0]["shape"], -1), ratio=RATIO).indices.tolist()
    assert len({*selected} & {*kept}) >= 0.9 * len(kept)  # the two vision encoders round differently


def test_engine_in_its_own_processes(studio: Studio, whole: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    """With tensor parallelism, if there is a core for each rank: then both ranks keep the same tokens."""
    ranks = min(2, os.cpu_count() or 1)
    if ranks == 2:
        monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    jobs = {name: JOBS[name] for name in TWO}
    answers = studio.ask("ranks", "qwen2_5_vl", jobs, processes=True, tensor_parallel_size=ranks)
    assert [each["kept"] for each in answers.kept] == [each["kept"] for each in whole.kept[:3]]  # recorded once
    for name in jobs:
        assert answers.by_job[name]["answer"] == whole.by_job[name]["answer"]
        assert_close(answers.first_logprobs(name), whole.first_logprobs(name), within=1e-3)


def test_engine_without_floc_next_to_one_with_floc(studio: Studio, engines: dict[str, Answers], whole: Answers) -> None:
    alone = studio.ask("alone", "qwen2_5_vl", {name: JOBS[name] for name in TWO}, additional_config={})
    beside = engines["without floc"]
    assert alone.kept == beside.kept == []
    for name in TWO:
        for what in ("prompt", "answer", "positions"):
            assert beside.by_job[name][what] == alone.by_job[name][what]
    tokens = 16 * 6 * 6
    assert len(alone.by_job["one"]["prompt"]) - len(whole.by_job["one"]["prompt"]) == tokens - tokens // 8


def test_engines_with_other_settings_share_no_embeddings(engines: dict[str, Answers], whole: Answers) -> None:
    """Engines read embeddings from a shared store only if they have the same settings."""
    first, again, other = (engines[name] for name in ("store", "same store", "store of another method"))
    for answers in (first, again, other):
        answers.kept = [each for each in answers.kept if each["shape"] == [16, 6, 6]]  # without profiling videos
    assert first.kept[0]["kept"] == whole.kept[0]["kept"]
    assert (len(first.kept), len(again.kept), len(other.kept)) == (1, 0, 1)
    assert again.by_job["one"]["answer"] == first.by_job["one"]["answer"]
    assert again.positions("one") == first.positions("one")
    by_rule = expect_positions(LONG, iter([other.kept[0]["kept"]]))
    assert other.positions("one")[: len(by_rule)] == by_rule != first.positions("one")[: len(by_rule)]


REFUSALS = """
import json, sys
from vllm.engine.arg_utils import EngineArgs
for more in json.loads(sys.argv[1]):
    try:
        EngineArgs(enforce_eager=True, **more).create_engine_config()
        print("NO ERROR")
    except Exception as error:
        print("ERROR:", " ".join(str(error).split()))
"""


def test_rejects_unsupported_engines(studio: Studio) -> None:
    base = {"model": str(studio.model("qwen2_5_vl")), "video_pruning_rate": 0.875}
    cases = [
        ({**base, "additional_config": {"floc": {"budget": 64}}}, "but floc has budget=64; give one"),
        ({**base, "additional_config": {"floc": {"bloc": 8}}}, "unknown setting 'bloc'; did you mean 'block'"),
        (
            {**base, "pipeline_parallel_size": 2},
            "--pipeline-parallel-size 2: vLLM gives the positions of kept tokens to the first stage",
        ),
        *(
            ({**base, "model": str(studio.model(kind))}, 'needs "positions": "compact" in the floc settings')
            for kind in tiny.COMPACT
        ),
        ({**base, "model": str(studio.model("glm4v"))}, "floc does not support Glm4v"),
    ]
    given = json.dumps([more for more, _ in cases])
    done = subprocess.run(
        [sys.executable, "-c", REFUSALS, given],
        env={**os.environ, **QUIET, "FLOC_VLLM": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in done.stdout.splitlines() if "ERROR" in line]
    assert len(errors) == len(cases), done.stdout[-3000:] + done.stderr[-3000:]
    for line, (_, message) in zip(errors, cases, strict=True):
        assert message in line
