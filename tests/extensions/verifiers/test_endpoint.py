"""The endpoint in front of an engine: its tokens and logprobs, in vLLM's form, and refusals."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from mugrpo.config.engines import HFOptions
from mugrpo.engines.base import Completion, Request
from mugrpo.engines.hf import HFEngine
from mugrpo.extensions.verifiers.endpoint import SESSION, Endpoint, Refused, Said
from mugrpo.model.policy import Policy
from tests.cases import table

PROMPT = np.array([5, 6, 7], np.int32)
ASKED = {"messages": [{"role": "user", "content": "5 6 7"}]}


def completion(policy: Policy, ids: Any, seed: int) -> Completion:
    engine = HFEngine(policy, HFOptions(batch_size=1))
    request = Request(np.array(ids, np.int32), seed)
    (decoded,) = engine.generate([request], temperature=1.0, max_new_tokens=6)
    return decoded.completions[0][1]


@pytest.fixture(scope="module")
def endpoint(embedded_policy: Policy) -> Iterator[Endpoint]:
    """One whose model is an engine, with a message of numbers as the prompt and as the answer."""

    def answer(session: str, body: dict[str, Any]) -> Said:
        if session == "full":
            raise Refused("This model's maximum context length is reached")
        ids = [int(word) for word in body["messages"][-1]["content"].split()]
        said = completion(embedded_policy, ids, seed=len(session))
        text = " ".join(map(str, said.ids))
        message = {"role": "assistant", "content": text}
        return Said(message, "stop", ids, said.ids.tolist(), said.logprobs.tolist())

    server = Endpoint(answer, "policy")
    yield server
    server.close()


def post(endpoint: Endpoint, body: Any, **headers: str) -> bytes:
    own = {"Authorization": f"Bearer {endpoint.key}", SESSION: "one"}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    url = f"{endpoint.url}/chat/completions"
    return urllib.request.urlopen(urllib.request.Request(url, data, {**own, **headers})).read()


def refusal(endpoint: Endpoint, body: Any, **headers: str) -> tuple[int, str]:
    with pytest.raises(urllib.error.HTTPError) as raised:
        post(endpoint, body, **headers)
    return raised.value.code, json.loads(raised.value.read())["error"]["message"]


def test_tokens_are_those_of_the_engine(endpoint: Endpoint, embedded_policy: Policy):
    asked = {**ASKED, "logprobs": True, "return_token_ids": True}
    answer = json.loads(post(endpoint, asked))
    expected = completion(embedded_policy, PROMPT, seed=3)
    (choice,) = answer["choices"]
    assert answer["prompt_token_ids"] == [5, 6, 7]
    assert choice["token_ids"] == expected.ids.tolist()
    entries = choice["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == [f"token_id:{n}" for n in expected.ids]
    assert np.array([e["logprob"] for e in entries], np.float32).tobytes() == (
        expected.logprobs.tobytes()
    )
    assert answer["usage"]["total_tokens"] == 3 + len(expected.ids)


def test_tokens_are_there_only_if_asked_for(endpoint: Endpoint):
    answer = json.loads(post(endpoint, ASKED))
    assert "prompt_token_ids" not in answer
    assert answer["choices"][0].keys() == {
        "index",
        "message",
        "logprobs",
        "finish_reason",
        "stop_reason",
    }
    assert answer["choices"][0]["logprobs"] is None


def test_a_stream_says_the_same_in_one_event(endpoint: Endpoint):
    whole = json.loads(post(endpoint, {**ASKED, "return_token_ids": True}))
    events = post(endpoint, {**ASKED, "return_token_ids": True, "stream": True}).split(b"\n\n")
    assert events[1:] == [b"data: [DONE]", b""]
    chunk = json.loads(events[0].removeprefix(b"data: "))
    assert chunk["choices"][0].pop("delta") == whole["choices"][0].pop("message")
    assert chunk["choices"] == whole["choices"]
    assert chunk["prompt_token_ids"] == whole["prompt_token_ids"]


@table(
    "sampling",
    [
        {"top_p": 0.9},
        {"top_k": 20},
        {"min_p": 0.1},
        {"frequency_penalty": 1.0},
        {"presence_penalty": 1.0},
        {"repetition_penalty": 1.1},
        {"logit_bias": {"5": 1}},
        {"n": 2},
        {"stop": ["\n"]},
        {"response_format": {"type": "json_object"}},
        {"tool_choice": "required"},
        {"temperature": 0.7},
        {"max_tokens": 5},
    ],
)
def test_sampling_that_would_falsify_logprobs_is_refused(endpoint: Endpoint, sampling: Any):
    status, sentence = refusal(endpoint, {**ASKED, **sampling})
    assert status == 400
    assert next(iter(sampling)) in sentence
    assert "leave it out" in sentence


def test_values_that_change_nothing_are_accepted(endpoint: Endpoint):
    plain = {"top_p": 1, "top_k": -1, "n": 1, "frequency_penalty": 0.0, "stop": None}
    assert json.loads(post(endpoint, {**ASKED, **plain}))["choices"]


def test_what_is_no_request_is_refused(endpoint: Endpoint):
    assert refusal(endpoint, ASKED, Authorization="Bearer guess")[0] == 401
    assert refusal(endpoint, ASKED, **{SESSION: "full"}) == (
        400,
        "This model's maximum context length is reached",
    )
    assert refusal(endpoint, {**ASKED, "model": "gpt"}) == (
        404,
        "there is no model 'gpt', only 'policy'",
    )
    assert refusal(endpoint, {})[1] == "the request has no messages"
    assert "not JSON" in refusal(endpoint, b"[" * 100_000)[1]
    assert endpoint.url.startswith("http://127.0.0.1:")


def test_models_are_listed(endpoint: Endpoint):
    headers = {"Authorization": f"Bearer {endpoint.key}"}
    listed = urllib.request.urlopen(urllib.request.Request(f"{endpoint.url}/models", None, headers))
    assert json.loads(listed.read())["data"][0]["id"] == "policy"
