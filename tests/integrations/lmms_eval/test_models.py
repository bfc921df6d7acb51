"""Tests of the wrapper around a tiny model, with the real lmms-eval."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("lmms_eval", reason="needs lmms-eval: run make test-lmms")
pytestmark = [pytest.mark.lmms, pytest.mark.filterwarnings("ignore")]  # other packages' warnings

from lmms_eval.api.instance import GenerationResult, TokenCounts  # noqa: E402
from lmms_eval.api.model import lmms  # noqa: E402
from loguru import logger  # noqa: E402
from tqdm import tqdm  # noqa: E402

import floc  # noqa: E402
from floc.integrations.lmms_eval import LMMS_MODELS, models  # noqa: E402
from floc.integrations.transformers.cache import is_attached  # noqa: E402
from tests.integrations.transformers.zoo import Text, Video, model, prompt  # noqa: E402

FILM = [Text(3), Video(4, 2, 3), Text(5)]
TEXT = [Text(8)]


class Small(lmms):
    """Answers with token ids, and with an empty text on errors, as some models of lmms-eval do."""

    def __init__(self, pretrained: str, device: str = "cpu", batch_size: int = 1, **kwargs: Any) -> None:
        super().__init__()
        self._model = model(pretrained)
        self.bars: list[Any] = []

    @property
    def model(self) -> Any:
        return self._model

    def generate_until(self, requests: list[Any]) -> list[Any]:
        bar = tqdm(total=len(requests))
        self.bars.append(bar)
        answers = []
        for request in requests:
            inputs = prompt("qwen2_5_vl", [request.parts], seed=request.doc_id).inputs
            try:
                ids = self.model.generate(**inputs, max_new_tokens=4, **request.more)
                answer: Any = GenerationResult(str(ids[0, -4:].tolist()), TokenCounts(output_tokens=4))
            except Exception:
                answer = ""
            answers.append(answer)
            bar.update(1)
        bar.close()
        return answers

    def loglikelihood(self, requests: Any) -> Any:
        raise NotImplementedError

    def generate_until_multi_round(self, requests: Any) -> Any:
        raise NotImplementedError


class Wrapped(models.CompressedModel, Small):
    wrapped_model = LMMS_MODELS["floc_qwen2_5_vl"]


def request(doc_id: int, parts: list[Any] = FILM, **more: Any) -> Any:
    return SimpleNamespace(doc_id=doc_id, task_name="keys", parts=parts, more=more)


def test_answers_equal_attach() -> None:
    requests = [request(0), request(1)]
    bare = Small("qwen2_5_vl")
    with floc.attach(bare.model, ratio=1 / 4):
        expected = bare.generate_until(requests)
    results = Wrapped(pretrained="qwen2_5_vl", ratio="1/4").generate_until(requests)
    assert [each.text for each in results] == [each.text for each in expected]
    for each in results:
        logged = each.token_counts.to_dict()
        assert logged["output_tokens"] == 4
        assert (logged["floc"]["tokens"], logged["floc"]["kept"]) == (24, 6)


def test_ratio_one_equals_the_bare_model() -> None:
    requests = [request(0), request(1), request(2, TEXT)]
    results = Wrapped(pretrained="qwen2_5_vl", ratio=1).generate_until(requests)
    expected = Small("qwen2_5_vl").generate_until(requests)
    assert [each.text for each in results] == [each.text for each in expected]


def test_warns_of_sample_without_video() -> None:
    messages: list[str] = []
    handler = logger.add(messages.append, level="WARNING", format="{message}")
    try:
        (result,) = Wrapped(pretrained="qwen2_5_vl", ratio="1/4").generate_until([request(7, TEXT)])
    finally:
        logger.remove(handler)
    assert result.token_counts.to_dict()["floc"]["coverage"] is None
    assert messages == ["keys, sample 7: no video, so floc compressed nothing\n"]


def test_raises_errors_of_generate() -> None:
    wrapped = Wrapped(pretrained="qwen2_5_vl", ratio="1/4")
    assert Small("qwen2_5_vl").generate_until([request(0, tpyo=1)]) == [""]
    with pytest.raises(ValueError, match="tpyo"):
        wrapped.generate_until([request(0, tpyo=1)])
    assert len(wrapped.generate_until([request(0)])) == 1


def test_raises_errors_outside_generate() -> None:
    class Omni(Small):
        """Answers with an empty text on all errors, as the models of lmms-eval for audio do."""

        def _infer_one(self, request: Any) -> str:
            raise OSError("no such film")

        def generate_until(self, requests: list[Any]) -> list[Any]:
            try:
                return [self._infer_one(request) for request in requests]
            except OSError:
                return [""]

    class WrappedOmni(models.CompressedModel, Omni):
        wrapped_model = LMMS_MODELS["floc_qwen3_omni"]

    assert Omni("qwen2_5_vl").generate_until([request(0)]) == [""]
    with pytest.raises(OSError, match="no such film"):
        WrappedOmni(pretrained="qwen2_5_vl", ratio="1/4").generate_until([request(0)])


def test_accepts_arguments_of_base_classes() -> None:
    class Newer(Small):
        def __init__(self, pretrained: str, enable_thinking: bool = True, **kwargs: Any) -> None:
            super().__init__(pretrained, **kwargs)

    class WrappedNewer(models.CompressedModel, Newer):
        wrapped_model = LMMS_MODELS["floc_qwen3_5"]

    wrapped = WrappedNewer(pretrained="qwen2_5_vl", ratio=1, enable_thinking=False, device="cpu")
    assert len(wrapped.generate_until([request(0)])) == 1
    with pytest.raises(ValueError, match="unknown model argument 'devise'; did you mean 'device'"):
        WrappedNewer(pretrained="qwen2_5_vl", ratio=1, devise="cpu")


def test_samples_share_a_progress_bar() -> None:
    wrapped = Wrapped(pretrained="qwen2_5_vl", ratio="1/4")
    wrapped.generate_until([request(0), request(1)])
    assert not any(isinstance(bar, tqdm) for bar in wrapped.bars)
    assert Small.generate_until.__globals__["tqdm"] is tqdm


def test_clean_detaches_from_the_model() -> None:
    wrapped = Wrapped(pretrained="qwen2_5_vl", ratio="1/4")
    bare = wrapped.model
    assert is_attached(bare.base_model)
    wrapped.clean()
    assert not is_attached(bare.base_model)
    assert not any(isinstance(each, torch.nn.Module) for each in vars(wrapped).values())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ratio": "1/4", "batch_size": 2}, "batch_size must be 1, so that every sample is measured; got 2"),
        ({"ratio": "1/4", "batch_size": "auto"}, "got 'auto'"),
        ({"ratio": "1/4", "max_frmaes": 8}, "unknown model argument 'max_frmaes'; did you mean 'max_frames'"),
        ({}, "exactly one of"),
    ],
)
def test_rejects_arguments_before_loading_weights(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Wrapped(pretrained="no such model", **given)


def test_unknown_attribute() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'floc_gpt_chat'"):
        models.floc_gpt_chat  # noqa: B018
