"""Tests with real vLLM engines of what a request may set: a ratio, a number of tokens, pictures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

vllm = pytest.importorskip("vllm", reason="needs vLLM: run make test-vllm")
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]  # other packages' warnings

from tests.integrations.vllm import tiny  # noqa: E402
from tests.integrations.vllm.studio import LONG, QUIET, ROOT, Answers, Studio  # noqa: E402
from tests.integrations.vllm.test_engine import assert_close, expect_positions  # noqa: E402

KINDS = ("qwen2_5_vl", "qwen3_vl")
RATIOS = ("1/4", "1/8", "1/16", None)
MIXED = [*RATIOS, *reversed(RATIOS)]  # each twice
WRONG: dict[str, Any] = {
    "ratio must be in (0, 1]": {"ratio": 2},
    "unknown setting of a request 'method'": {"method": "random"},
    'give {"floc": {"ratio": "1/16"}}': "1/16",
    "at least 1": {"tokens": 0},
}
PICTURE = ["a", ["image", 32, 48], "b", ["video", 8, 48, 32, 4.0], "c"]
PICTURES = {
    "whole": PICTURE,
    "quarter": [*PICTURE, ["floc", {"images": "1/4"}]],
    "quarter again": [*PICTURE, ["floc", {"images": 0.25}]],
    "whole again": [*PICTURE, ["floc", {"images": False}]],
}
JOBS = {
    **{
        f"{ratio} {number}": [*LONG, ["floc", {"ratio": ratio} if ratio else False]]
        for number, ratio in enumerate(MIXED)
    },
    "one": LONG,
    **PICTURES,
    "nothing pruned": [*PICTURE, ["floc", False]],
    **{message: [*LONG, ["floc", given]] for message, given in WRONG.items()},
    "tokens": [*LONG, ["floc", {"tokens": 100}]],
}
NAMES = [*JOBS]
OF_MIXED = NAMES[: len(MIXED)]
ENGINES: dict[str, dict[str, Any]] = {
    **{str(ratio): {"additional_config": {"floc": {"ratio": ratio}}, "jobs": ["one"]} for ratio in RATIOS if ratio},
    "None": {"additional_config": {}, "jobs": ["one", "whole", OF_MIXED[0]]},
    "mixed": {"jobs": OF_MIXED, "together": True},
    "in turn": {"jobs": NAMES},
    "pictures": {
        "additional_config": {"floc": {"ratio": 1, "images": "1/4"}},
        "jobs": ["whole", "nothing pruned"],
        "max_num_batched_tokens": 40,
        "max_num_seqs": 4,
    },
}


class Answered:
    """The answers of all engines, by the engine's name, for each kind of model."""

    def __init__(self, studio: Studio) -> None:
        self.studio = studio
        self.by_kind: dict[str, dict[str, Answers]] = {}

    def __getitem__(self, kind: str) -> dict[str, Answers]:
        if kind not in self.by_kind:
            self.by_kind[kind] = self.studio.ask_all(kind, kind, JOBS, ENGINES)
        return self.by_kind[kind]


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Answered:
    return Answered(Studio(tmp_path_factory.mktemp("requests")))


@pytest.mark.parametrize("kind", KINDS)
def test_mixed_ratios_in_a_batch_equal_engines_of_one_ratio(answered: Answered, kind: str) -> None:
    engines = answered[kind]
    alone = {str(ratio): engines[str(ratio)] for ratio in RATIOS}
    kept = {ratio: tuple(answers.kept[0]["kept"]) for ratio, answers in alone.items() if ratio != "None"}
    assert [len(each) for each in kept.values()] == [144, 72, 36]  # of 576
    for name in ("mixed", "in turn"):
        # each ratio once: the second time is cached, and a whole video is not recorded
        assert {tuple(each["kept"]) for each in engines[name].kept[:3]} == {*kept.values()}
        for job in OF_MIXED:
            given, expected = engines[name].by_job[job], alone[job.split()[0]].by_job["one"]
            assert given["prompt"] == expected["prompt"]
            assert given["answer"] == expected["answer"]
            for logprobs, other in zip(given["logprobs"], expected["logprobs"], strict=True):
                assert_close(logprobs, other, within=1e-3)
    assert len(engines["mixed"].kept) == 3
    assert len({tuple(answers.by_job["one"]["answer"]) for answers in alone.values()}) > 1  # the ratio matters


@pytest.mark.parametrize("kind", KINDS)
def test_pictures_keep_their_positions(answered: Answered, kind: str) -> None:
    answers = answered[kind]["in turn"]
    lines = [each for each in answers.kept if each["shape"] in ([1, 4, 6], [4, 6, 4])]
    assert len(lines) == 2  # the video and the picture, once each
    by_shape = {tuple(each["shape"]): each["kept"] for each in lines}
    picture, video = by_shape[1, 4, 6], by_shape[4, 6, 4]
    assert len(picture) == 6
    for name, kept in (("whole", [video]), ("quarter", [picture, video])):
        by_rule = expect_positions(JOBS[name], iter(kept), is_stamped=kind in tiny.STAMPED)
        assert answers.positions(name)[: len(by_rule)] == by_rule
        for what in ("prompt", "answer"):
            assert answers.by_job[f"{name} again"][what] == answers.by_job[name][what]
    assert answers.by_job["quarter"]["logprobs"] != answers.by_job["whole"]["logprobs"]


@pytest.mark.parametrize("kind", KINDS)
def test_engine_with_a_ratio_of_pictures(answered: Answered, kind: str) -> None:
    """In chunks, and with videos kept whole."""
    answers = answered[kind]["pictures"]
    (line,) = answers.kept
    assert line["shape"] == [1, 4, 6]
    video = [*range(4 * 6 * 4)]
    for name, job, kept in (("whole", "quarter", [line["kept"], video]), ("nothing pruned", "whole", [video])):
        by_rule = expect_positions(JOBS[job], iter(kept), is_stamped=kind in tiny.STAMPED)
        assert answers.positions(name)[: len(by_rule)] == by_rule
    unpruned = answered[kind]["None"].by_job["whole"]
    assert answers.by_job["nothing pruned"]["prompt"] == unpruned["prompt"]
    assert_close(answers.first_logprobs("nothing pruned"), unpruned["logprobs"][0], within=1e-3)


def test_rejects_wrong_settings_and_continues(answered: Answered) -> None:
    answers = answered[KINDS[0]]["in turn"]
    for message in WRONG:
        assert message in answers.by_job[message]["refused"]
    assert len(answers.kept[-1]["kept"]) == 100  # the job after them


def test_rejects_settings_of_a_request_in_an_engine_without_floc(answered: Answered) -> None:
    whole = answered[KINDS[0]]["None"]
    assert "this engine keeps all tokens, but the request has floc settings" in whole.by_job[OF_MIXED[0]]["refused"]
    assert len(whole.by_job["one"]["prompt"]) > 576


def test_many_requests_leak_nothing_and_answer_right() -> None:
    """`make soak-vllm` sends 1,000."""
    command = [sys.executable, "-m", "tests.integrations.vllm.soak", "120"]
    environment = {**os.environ, **QUIET, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    record = json.loads(done.stdout.splitlines()[-1])
    assert (record["requests"], record["wrong"]) == (120, 0)
    assert record["memory"][-1] - record["memory"][1] < 8 << 20
