"""Tests with real vLLM engines of models with plain positions, against `floc.attach(positions="compact")`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

vllm = pytest.importorskip("vllm", reason="needs vLLM: run make test-vllm")
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]  # other packages' warnings

import floc  # noqa: E402
from tests.integrations.vllm import prompts, tiny  # noqa: E402
from tests.integrations.vllm.studio import Answers, Studio  # noqa: E402
from tests.integrations.vllm.test_engine import assert_close  # noqa: E402

CLIP = ["Look: ", ["clip", 8, 24, 24], "What is it?"]
JOBS = {
    "one": CLIP,
    "again": CLIP,
    "half": [*CLIP, ["floc", {"ratio": "1/2"}]],
    "two": ["a", ["clip", 8, 24, 24], "b", ["clip", 8, 24, 24], "?"],
    "picture": [*CLIP, ["floc", {"images": "1/2"}]],
}


def compute_logprobs(model: Any, processor: Any, job: list[Any], **options: Any) -> torch.Tensor:
    """Return the log-probabilities of the first token of an answer in transformers."""
    prompt = prompts.build([part for part in job if part[0] != "floc"])
    videos = [torch.from_numpy(video).permute(0, 3, 1, 2) for video in prompt["multi_modal_data"]["video"]]
    inputs = processor(text=[prompt["prompt"]], videos=videos, do_sample_frames=False, return_tensors="pt")
    with torch.no_grad(), floc.attach(model, **options):
        return model(**inputs).logits[0, -1].log_softmax(-1)


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Studio:
    return Studio(tmp_path_factory.mktemp("compact"))


@pytest.fixture(scope="module")
def engines(studio: Studio) -> dict[str, Answers]:
    """An engine of each model, in one process."""
    settings = {"additional_config": {"floc": {"ratio": "1/4", "positions": "compact"}}}
    given: dict[str, dict[str, Any]] = {kind: {"kind": kind, **settings} for kind in tiny.COMPACT}
    return studio.ask_all("compact", tiny.COMPACT[0], JOBS, given)


@pytest.mark.parametrize("kind", tiny.COMPACT)
def test_compact_positions_equal_transformers(studio: Studio, engines: dict[str, Answers], kind: str) -> None:
    import transformers

    answers, folder = engines[kind], studio.model(kind)
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    processor = transformers.AutoProcessor.from_pretrained(folder)
    for name, ratio in (("one", "1/4"), ("half", "1/2"), ("two", "1/4")):
        given = answers.first_logprobs(name)
        exact = compute_logprobs(model, processor, JOBS[name], ratio=ratio, positions="compact")
        assert_close(given, {token: float(exact[int(token)]) for token in given}, within=1e-3)
        other = compute_logprobs(model, processor, JOBS[name], ratio=ratio, positions="keep")
        assert max(abs(float(other[int(token)]) - value) for token, value in given.items()) > 1e-2
    assert [len(each["kept"]) for each in answers.kept] == [18, 36, 18]  # of 72; the first of two is cached
    assert answers.by_job["again"]["answer"] == answers.by_job["one"]["answer"]
    assert answers.by_job["again"]["cached"] > 0
    assert "models with compact positions keep whole pictures" in answers.by_job["picture"]["refused"]
