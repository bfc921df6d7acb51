"""Tests with a real `vllm serve`, a tiny model and clients of its API."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

vllm = pytest.importorskip("vllm", reason="needs vLLM: run make test-vllm")
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]  # other packages' warnings

from floc.integrations.vllm.settings import Settings  # noqa: E402
from tests.integrations.vllm.studio import RATIO, Studio, serve  # noqa: E402

WHOLE = 6 * 6 * 9  # two frames a second, two to a slice, of 48 x 72 pixels
EIGHTH = Settings(ratio=RATIO).count(WHOLE)
MARKS = 2  # before and after the video
TEXT = {"type": "text", "text": "What is it?"}


class Client:
    """A client of the server, with a video to ask about."""

    def __init__(self, address: str, video: bytes, log: str) -> None:
        import openai

        self.completions = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0).chat.completions
        url = "data:video/mp4;base64," + base64.b64encode(video).decode()
        self.video = {"type": "video_url", "video_url": {"url": url}}
        self.log = log

    def ask(self, *parts: Any, floc: object = None, **options: Any) -> Any:
        extra = {} if floc is None else {"extra_body": {"mm_processor_kwargs": {"floc": floc}}}
        given: dict[str, Any] = {"max_tokens": 4, "temperature": 0, **extra, **options}
        return self.completions.create(model="tiny", messages=[{"role": "user", "content": [*parts]}], **given)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    from examples.demo.film import render

    folder = tmp_path_factory.mktemp("server")
    film = render(folder / "film.mp4", seconds=6, fps=4, width=112, height=84, seed=0).path
    studio = Studio(folder)
    with serve(studio) as address:
        yield Client(address, film.read_bytes(), (studio.folder / "serve.log").read_text())


@pytest.fixture(scope="module")
def text_tokens(client: Client) -> int:
    return client.ask(TEXT).usage.prompt_tokens


def test_vllm_serve(client: Client, text_tokens: int) -> None:
    responses = [client.ask(client.video, TEXT) for _ in range(2)]
    assert "floc keeps 1/8 of the tokens of every video, selected by floc" in client.log
    assert [each.usage.prompt_tokens for each in responses] == [text_tokens + EIGHTH + MARKS] * 2
    assert responses[0].choices[0].message.content == responses[1].choices[0].message.content


@pytest.mark.parametrize(
    ("given", "kept"), [({"ratio": "1/4"}, WHOLE // 4), ({"tokens": 33}, 33), (False, WHOLE), (None, EIGHTH)]
)
def test_ratio_of_a_request(client: Client, text_tokens: int, given: object, kept: int) -> None:
    assert client.ask(client.video, TEXT, floc=given).usage.prompt_tokens == text_tokens + kept + MARKS


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ratio": 2}, "ratio must be in (0, 1]"),
        ({"record": "/tmp/x"}, "unknown setting of a request 'record'"),
        ("1/8", "got '1/8'"),
    ],
)
def test_rejects_wrong_settings_and_continues(client: Client, given: object, message: str) -> None:
    import openai

    with pytest.raises(openai.BadRequestError, match="floc in mm_processor_kwargs") as error:
        client.ask(client.video, TEXT, floc=given)
    assert message in str(error.value)
    assert client.ask(client.video, TEXT).choices[0].message.content


def test_client_that_leaves_harms_nobody_else(client: Client) -> None:
    import openai

    given: list[object] = [{"ratio": "1/4"}, None, False, {"tokens": 33}]
    alone = [client.ask(client.video, TEXT, floc=each).choices[0].message.content for each in given]

    def leave(number: int) -> None:
        options: dict[str, Any] = {"stream": True, "max_tokens": 600, "extra_body": {"ignore_eos": True}}
        if number % 2:  # while its video is prepared
            options["timeout"] = 0.02
        with contextlib.suppress(openai.APITimeoutError):
            stream = client.ask(client.video, {"type": "text", "text": f"{number}?"}, **options)
            next(iter(stream))
            stream.close()  # long before its last token

    with ThreadPoolExecutor(8) as pool:
        leaving = [pool.submit(leave, number) for number in range(4)]
        answers = [pool.submit(client.ask, client.video, TEXT, floc=each) for each in given * 3]
        leaving += [pool.submit(leave, number) for number in range(4, 8)]
        together = [future.result().choices[0].message.content for future in answers]
        for future in leaving:
            future.result()
    assert together == alone * 3
    assert [client.ask(client.video, TEXT, floc=each).choices[0].message.content for each in given] == alone
