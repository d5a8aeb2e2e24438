"""A server on this machine with OpenAI's chat completions, for a model that something else runs.

It answers in vLLM's form: with "return_token_ids", `prompt_token_ids` and each choice's
`token_ids`; with "logprobs", the logprob of every token, named "token_id:N".

This module imports only the standard library, so that an interpreter without mugrpo can load it
(`worker.py`).
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SESSION = "X-Session-ID"  # the header that tells one conversation from another

# What may decide a token beside the temperature, and the values with which it decides nothing.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "top_p": (None, 1, 1.0),
    "top_k": (None, 0, -1),
    "min_p": (None, 0, 0.0),
    "frequency_penalty": (None, 0, 0.0),
    "presence_penalty": (None, 0, 0.0),
    "repetition_penalty": (None, 1, 1.0),
    "logit_bias": (None, {}),
    "bad_words": (None, []),
    "allowed_token_ids": (None, []),
    "min_tokens": (None, 0),
    "ignore_eos": (None, False),
    "stop": (None, []),
    "stop_token_ids": (None, []),
    "response_format": (None, {"type": "text"}),
    "structured_outputs": (None,),
    "tool_choice": (None, "auto"),
    "n": (None, 1),
    "top_logprobs": (None, 0),
}
_THE_RUNS = ("temperature", "max_tokens", "max_completion_tokens")  # options of the run
_LARGEST = 1 << 26  # bytes of a request


class Refused(Exception):
    """A request that is not answered, with the HTTP status that says so."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Said:
    """A message of the model, and its tokens.

    P prompt tokens, T response tokens.
    """

    message: Mapping[str, Any]  # in OpenAI's form
    finish_reason: str  # "stop", "length" or "tool_calls"
    prompt_ids: Sequence[int]  # [P]
    ids: Sequence[int]  # [T]
    logprobs: Sequence[float]  # [T], under the distribution that each id was drawn from


class Endpoint:
    """A server at `url`, for requests that bear `key`, on this machine only.

    `answer` is called with the session and the body of each request, in a thread of its own, and
    returns what the model says or raises Refused. Requests that choose how tokens are drawn are
    refused: the run's options do, and under any other distribution the logprobs would be wrong.
    """

    def __init__(self, answer: Callable[[str, dict[str, Any]], Said], model: str) -> None:
        self.key = secrets.token_urlsafe(24)
        self.model = model
        self._answer = answer
        endpoint = self

        class Handler(_Handler):
            owner = endpoint

        self._server = _Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def models(self) -> dict[str, Any]:
        """Return the answer to GET /v1/models."""
        return {"object": "list", "data": [{"id": self.model, "object": "model"}]}

    def complete(self, session: str, body: Any) -> dict[str, Any]:
        """Return the answer to POST /v1/chat/completions. Raises Refused."""
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
            raise Refused("the request has no messages")
        if body.get("model") not in (None, self.model):
            raise Refused(f"there is no model {body['model']!r}, only {self.model!r}", 404)
        _require_plain_sampling(body)
        return completion(self._answer(session, body), self.model, body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024  # all rollouts of a worker may ask at once


class _Handler(BaseHTTPRequestHandler):
    owner: Endpoint
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self._allowed() and self._route("/v1/models"):
            self._send(200, self.owner.models())

    def do_POST(self) -> None:
        body = self._body()
        if body is None or not self._allowed() or not self._route("/v1/chat/completions"):
            return
        try:
            asked = json.loads(body)
            answer = self.owner.complete(self.headers.get(SESSION, ""), asked)
        except Refused as refused:
            self._send(refused.status, _error(str(refused)))
        except (ValueError, RecursionError) as error:
            self._send(400, _error(f"the request is not JSON: {error}"))
        else:
            if asked.get("stream"):
                self._send_bytes(b"".join(events(answer)), "text/event-stream")
            else:
                self._send(200, answer)

    def _body(self) -> bytes | None:
        """Return the body, or None if its length is missing or too much."""
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > _LARGEST:
            self.close_connection = True
            self._send(413, _error(f"a request has a length of at most {_LARGEST} bytes"))
            return None
        return self.rfile.read(int(length))

    def _allowed(self) -> bool:
        key = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(key.encode(), self.owner.key.encode()):
            self._send(401, _error("the key is missing or wrong"))
            return False
        return True

    def _route(self, path: str) -> bool:
        if self.path.partition("?")[0] != path:
            self._send(404, _error(f"there is no {self.path}"))
            return False
        return True

    def _send(self, status: int, value: dict[str, Any]) -> None:
        self._send_bytes(json.dumps(value).encode(), "application/json", status)

    def _send_bytes(self, body: bytes, kind: str, status: int = 200) -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:  # whoever asked has gone
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a line for every request would fill the log."""


def _require_plain_sampling(body: Mapping[str, Any]) -> None:
    for name, plain in _PLAIN.items():
        if body.get(name) not in plain:
            raise Refused(
                f"{name} = {body[name]!r} is refused: tokens are drawn from the model's whole "
                "distribution, and logprobs are under it; leave it out"
            )
    for name in _THE_RUNS:
        if body.get(name) is not None:
            raise Refused(
                f"{name} = {body[name]!r} is refused: rollouts.temperature and "
                "rollouts.max_new_tokens decide; leave it out"
            )


def completion(said: Said, model: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a chat completion as vLLM writes it, with what the request `body` asks for."""
    choice: dict[str, Any] = {
        "index": 0,
        "message": dict(said.message),
        "logprobs": None,
        "finish_reason": said.finish_reason,
        "stop_reason": None,
    }
    if body.get("logprobs"):
        entries = zip(said.ids, said.logprobs, strict=True)
        choice["logprobs"] = {"content": [_entry(token, logprob) for token, logprob in entries]}
    answer = {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [choice],
        "usage": {
            "prompt_tokens": len(said.prompt_ids),
            "completion_tokens": len(said.ids),
            "total_tokens": len(said.prompt_ids) + len(said.ids),
        },
    }
    if body.get("return_token_ids"):
        choice["token_ids"] = list(said.ids)
        answer["prompt_token_ids"] = list(said.prompt_ids)
    return answer


def events(answer: dict[str, Any]) -> Iterator[bytes]:
    """Yield `answer` as server-sent events: all of it in one, because it is whole already."""
    (choice,) = answer["choices"]
    delta = dict(choice["message"])
    if "tool_calls" in delta:
        calls = enumerate(delta["tool_calls"])
        delta["tool_calls"] = [{**call, "index": index} for index, call in calls]
    rest = {name: value for name, value in choice.items() if name != "message"}
    chunk = {
        **answer,
        "object": "chat.completion.chunk",
        "choices": [{**rest, "delta": delta}],
    }
    yield f"data: {json.dumps(chunk)}\n\n".encode()
    yield b"data: [DONE]\n\n"


def _entry(token: int, logprob: float) -> dict[str, Any]:
    name = f"token_id:{token}"  # as vLLM's --return-tokens-as-token-ids
    return {"token": name, "logprob": float(logprob), "bytes": None, "top_logprobs": []}


def _error(text: str) -> dict[str, Any]:
    return {"error": {"message": text, "type": "BadRequestError", "param": None, "code": None}}
