"""A server on this machine with OpenAI's chat completions, for a model that something else runs.

This module imports only the standard library, so that an interpreter without mugrpo can load it
(`worker.py`).
"""

import hmac
import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SESSION = "X-Session-ID"  # the header that tells one conversation from another

# What would decide a token or the form of an answer, and the value with which it decides nothing.
# Temperature and length are options of the run.
_NEUTRAL: dict[str, Any] = {
    **dict.fromkeys(("temperature", "max_tokens", "max_completion_tokens", "structured_outputs")),
    **dict.fromkeys(("logit_bias", "bad_words", "allowed_token_ids", "stop", "stop_token_ids")),
    **dict.fromkeys(("min_p", "frequency_penalty", "presence_penalty", "min_tokens"), 0),
    **dict.fromkeys(("ignore_eos", "stream"), False),
    **dict.fromkeys(("top_p", "repetition_penalty", "n"), 1),
    "top_k": -1,
    "tool_choice": "auto",
    "response_format": {"type": "text"},
}
_LARGEST = 1 << 26  # bytes of a request


class Refused(Exception):
    """A request that is not answered, with the HTTP status that says so."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


Answer = Callable[[str, dict[str, Any]], Mapping[str, Any]]


class Endpoint:
    """A server at `url`, for requests that bear `key`, on this machine only.

    `answer` is called with the session and the body of each request, in a thread of its own, and
    returns the model's message in OpenAI's form, or raises Refused. Requests that choose how tokens
    are drawn are refused: the run's options do, and under any other distribution the logprobs would
    be wrong.
    """

    def __init__(self, answer: Answer, model: str) -> None:
        self.key = secrets.token_urlsafe(24)
        self._answer, self._model = answer, model
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

    def complete(self, key: str, path: str, session: str, text: bytes) -> dict[str, Any]:
        """Return the answer to a POST of `text`. Raises Refused."""
        if not hmac.compare_digest(key.encode(), f"Bearer {self.key}".encode()):
            raise Refused("the key is missing or wrong", 401)
        if path.partition("?")[0] != "/v1/chat/completions":
            raise Refused(f"there is no {path}", 404)
        try:
            body = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Refused(f"the request is not JSON: {error}") from None
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
            raise Refused("the request has no messages")
        for name, neutral in _NEUTRAL.items():
            if body.get(name) not in (None, neutral, [], {}):
                raise Refused(
                    f"{name} = {body[name]!r} is refused: the run's options decide how tokens are "
                    "drawn; leave it out"
                )
        message = self._answer(session, body)
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
        }
        return {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": self._model,
            "choices": [choice],
            # clients expect it, and only the run counts tokens
            "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
        }


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024  # all rollouts of a worker may ask at once


class _Handler(BaseHTTPRequestHandler):
    owner: Endpoint
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        key, session = self.headers.get("Authorization", ""), self.headers.get(SESSION, "")
        try:
            if length > _LARGEST:
                self.close_connection = True
                raise Refused(f"a request has at most {_LARGEST} bytes", 413)
            text = self.rfile.read(length)
            self._send(200, self.owner.complete(key, self.path, session, text))
        except Refused as refused:
            error = {"message": str(refused), "type": "BadRequestError"}
            self._send(refused.status, {"error": error})

    def _send(self, status: int, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:  # whoever asked has gone
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a line for every request would fill the log."""
