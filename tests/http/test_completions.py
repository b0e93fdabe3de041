"""Plain completions and the tokenizer endpoints, with a scripted engine behind them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from cache.planner import SlotKey
from model.text.deltas import ContentDelta
from server.events import Finished, Progress, TokenLogprob
from tests.fakes.fake_engine import FakeEngine, planned, says
from tests.fakes.live_server import Live, error_of, live
from tests.fakes.openai_types import check_completion


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live(FakeEngine(says("Hel", "lo"))) as running:
        yield running


def complete(server: Live, **fields: Any) -> httpx.Response:
    return server.http.post("/v1/completions", json={"model": "demo", "prompt": "Once", **fields})


def test_a_text_goes_on(server: Live) -> None:
    body = complete(server).json()
    completion = check_completion(body)
    assert completion.choices[0].text == "Hello"
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == len("Once")
    request = server.engine.requests[-1]
    assert request.max_tokens == 16
    assert request.reply.may_think is False
    assert body["crossturn"]["slot"] == "0" * 16


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("ab", ["ab"]),
        (["ab", "c"], ["ab", "c"]),
        ([97, 98], ["ab"]),
        ([[97, 98], [99]], ["ab", "c"]),
    ],
)
def test_prompts_are_texts_or_ids_one_or_several(server: Live, prompt: Any, texts: list[str]) -> None:
    n_before = len(server.engine.requests)
    completion = check_completion(complete(server, prompt=prompt, n=2).json())
    asked = [bytes(request.prompt.ids.tolist()).decode() for request in server.engine.requests[n_before:]]
    assert sorted(asked) == sorted(texts)
    assert [choice.index for choice in completion.choices] == list(range(2 * len(texts)))
    assert {choice.text for choice in completion.choices} == {"Hello"}


def test_a_stream_joins_to_the_whole_text(server: Live) -> None:
    response = complete(server, prompt=["a", "b"], stream=True, stream_options={"include_usage": True})
    frames = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert frames[-1] == "[DONE]"
    chunks = [json.loads(frame) for frame in frames[:-1]]
    texts = {0: "", 1: ""}
    for chunk in chunks:
        check_completion(chunk)
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == {0: "Hello", 1: "Hello"}
    assert chunks[-1]["usage"]["prompt_tokens"] == 2
    assert len(chunks[-1]["crossturn"]) == 2
    with server.openai.completions.create(model="demo", prompt="a", stream=True) as stream:
        assert "".join(chunk.choices[0].text for chunk in stream) == "Hello"


def test_log_probabilities_have_the_old_shape() -> None:
    def script(request: Any) -> Any:
        yield planned(request)
        told = TokenLogprob(ord("x"), -0.5, ((ord("x"), -0.5), (ord("y"), float("-inf"))))
        yield Progress(0, (ContentDelta("x"),), (told,))
        yield Progress(0, (ContentDelta("x"),), (told,))
        yield Finished(0, "length", 2, 0)

    with live(FakeEngine(script)) as server:
        completion = check_completion(complete(server, logprobs=2).json())
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["x", "x"]
    assert logprobs.text_offset == [0, 1]
    assert logprobs.token_logprobs == [-0.5, -0.5]
    assert logprobs.top_logprobs == [{"x": -0.5, "y": -9999.0}] * 2
    assert completion.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": [97, 256]}, "prompt"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"echo": True}, "echo"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"logprobs": 6}, "logprobs"),
        ({"stream_options": {}}, "stream_options"),
        ({"messages": []}, "messages"),
        ({"metadata": {"session_id": "a", "colour": "red"}}, "metadata.colour"),
        ({"prompt": "x" * 5000}, "prompt"),
    ],
)
def test_what_cannot_be_completed_is_refused_by_name(
    server: Live, fields: dict[str, Any], param: str
) -> None:
    response = complete(server, **fields)
    assert response.status_code == 400
    assert error_of(response)["param"] == param


def test_metadata_may_name_the_session(server: Live) -> None:
    check_completion(complete(server, metadata={"session_id": "s"}).json())
    assert server.engine.requests[-1].slot == SlotKey.for_session(None, "s")


def test_text_becomes_tokens_and_text_again(server: Live) -> None:
    tokens = server.http.post("/tokenize", json={"prompt": "héllo"}).json()
    assert tokens == {"tokens": list("héllo".encode()), "count": 6, "max_model_len": 4096}
    text = server.http.post("/detokenize", json={"tokens": tokens["tokens"]}).json()
    assert text == {"prompt": "héllo"}


def test_a_conversation_is_tokenised_as_it_would_be_read(server: Live) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    tokens = server.http.post("/tokenize", json=body).json()["tokens"]
    server.chat(**body)
    assert tokens == server.engine.requests[-1].prompt.ids.tolist()


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "b"}]}, "prompt"),
        (
            "/tokenize",
            {"prompt": "a", "tools": [{"type": "function", "function": {"name": "f"}}]},
            "messages",
        ),
        ("/detokenize", {"tokens": [256]}, "tokens"),
        ("/detokenize", {}, "tokens"),
    ],
)
def test_what_cannot_be_tokenised_is_refused_by_name(
    server: Live, path: str, body: dict[str, Any], param: str
) -> None:
    response = server.http.post(path, json=body)
    assert response.status_code == 400
    assert error_of(response)["param"] == param
