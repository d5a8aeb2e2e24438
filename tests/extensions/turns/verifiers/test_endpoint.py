"""The endpoint in front of an engine: its tokens and logprobs, in vLLM's form, and refusals."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from mugrpo.extensions.turns.verifiers.extension.mugrpo_endpoint import SESSION, Endpoint, Refused
from tests.cases import table

ASKED = {"messages": [{"role": "user", "content": "5 6 7"}]}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    """One that says what it was asked, and how many characters its session's name has."""

    def answer(session: str, body: dict[str, Any]) -> dict[str, Any]:
        if session == "full":
            raise Refused("This model's maximum context length is reached")
        text = f"{body['messages'][-1]['content']} {len(session)}"
        return {"role": "assistant", "content": text}

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


def test_a_message_is_answered_in_openais_form(endpoint: Endpoint):
    idle = {"top_p": 1, "top_k": -1, "n": 1, "frequency_penalty": 0.0, "stop": None}
    answer = json.loads(post(endpoint, {**ASKED, **idle}))
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "5 6 7 3"}
    assert (choice["finish_reason"], answer["model"]) == ("stop", "policy")


SAMPLING = {
    **{"top_p": 0.9, "top_k": 20, "min_p": 0.1, "frequency_penalty": 1.0, "presence_penalty": 1.0},
    **{"repetition_penalty": 1.1, "logit_bias": {"5": 1}, "n": 2, "stop": ["\n"], "stream": True},
    **{"response_format": {"type": "json_object"}, "tool_choice": "required", "max_tokens": 5},
    "temperature": 0.7,
}


@table(("name", "value"), SAMPLING.items())
def test_sampling_that_would_falsify_logprobs_is_refused(endpoint: Endpoint, name: str, value: Any):
    status, sentence = refusal(endpoint, {**ASKED, name: value})
    assert status == 400 and name in sentence and "leave it out" in sentence


def test_what_is_no_request_is_refused(endpoint: Endpoint):
    assert refusal(endpoint, ASKED, Authorization="Bearer guess")[0] == 401
    found = refusal(endpoint, ASKED, **{SESSION: "full"})
    assert found == (400, "This model's maximum context length is reached")
    assert refusal(endpoint, {})[1] == "the request has no messages"
    assert "not JSON" in refusal(endpoint, b"[" * 100_000)[1]
    assert endpoint.url.startswith("http://127.0.0.1:")
