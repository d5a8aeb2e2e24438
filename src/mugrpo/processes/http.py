"""Ask a server over HTTP. Nothing that it says is trusted: not its length, its pace, its form.

One deadline covers the whole exchange, headers too. A timeout of the socket would start anew with
each byte, so a server that sends one now and then could hold a caller for days. Redirects are not
followed: they would send what is asked to another host.
"""

from __future__ import annotations

import base64
import io
import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit, urlunsplit

from mugrpo.processes.messages import printable


class Refused(Exception):
    """A final refusal: a retry would get the same answer."""


class Unanswered(Exception):
    """A missing or incomplete answer, which a retry may get."""


def ask(url: str, route: str, body: Any = None, *, seconds: float, longest: int) -> Any:
    """Return a server's answer to `body` (or to a GET without one) from JSON; None if it is empty.

    `url` may have a user with a password, which are sent, and a query. The exchange may take
    `seconds` in all, and the answer have `longest` bytes. Raises Refused or Unanswered; neither
    names the server, or has a character that a terminal obeys.
    """
    opener = urllib.request.OpenerDirector()
    opener.add_handler(urllib.request.ProxyHandler())
    opener.add_handler(urllib.request.HTTPErrorProcessor())
    opener.add_handler(urllib.request.HTTPDefaultErrorHandler())
    opener.add_handler(urllib.request.UnknownHandler())
    opener.add_handler(_Timed(time.monotonic() + seconds))
    try:
        with opener.open(_request(url, route, body), timeout=seconds) as answer:
            text = answer.read(longest + 1)
    except urllib.error.HTTPError as error:
        if 300 <= error.code < 400:
            raise Refused(f"answered {error.code}, a redirect, which is not followed") from None
        raise Refused(f"answered {error.code} to {route}: {_detail(error)}") from None
    # URLError and timeouts are OSErrors. A truncated answer raises one of the others.
    except (OSError, HTTPException, ValueError) as error:
        late = isinstance(getattr(error, "reason", error), TimeoutError)
        reason = f"nothing whole within {seconds:g} s" if late else printable(str(error))
        raise Unanswered(f"does not answer ({reason})") from None
    if len(text) > longest:
        raise Refused(f"answered with more than {longest} bytes to {route}")
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError) as error:
        raise Unanswered(f"does not answer in JSON ({printable(str(error))})") from None


def _request(url: str, route: str, body: Any) -> urllib.request.Request:
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    whole = urlunsplit(parts._replace(netloc=host, path=parts.path.rstrip("/") + route))
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(whole, data, {"Content-Type": "application/json"})
    if user:
        request.add_header(
            "Authorization", f"Basic {base64.b64encode(unquote_to_bytes(user)).decode()}"
        )
    return request


def _detail(error: urllib.error.HTTPError) -> str:
    try:
        return printable(error.read(500).decode(errors="replace"), 500)
    except (OSError, HTTPException, ValueError):
        return "no reason"


class _Timed(urllib.request.AbstractHTTPHandler):
    """Opens connections whose answers end at `deadline`."""

    http_request = https_request = urllib.request.AbstractHTTPHandler.do_request_

    def __init__(self, deadline: float) -> None:
        super().__init__()
        self._deadline = deadline

    def http_open(self, request: urllib.request.Request) -> HTTPResponse:
        return self.do_open(self._by(HTTPConnection), request)

    def https_open(self, request: urllib.request.Request) -> HTTPResponse:
        return self.do_open(self._by(HTTPSConnection), request)

    def _by(self, kind: type[HTTPConnection]) -> Callable[..., HTTPConnection]:
        def connect(host: str, **options: Any) -> HTTPConnection:
            connection = kind(host, **options)
            response = partial(_Answer, deadline=self._deadline)
            connection.response_class = response  # type: ignore[assignment]
            return connection

        return connect


class _Answer(HTTPResponse):
    def __init__(self, sock: socket.socket, *rest: Any, deadline: float, **options: Any) -> None:
        super().__init__(sock, *rest, **options)
        self.fp.close()
        self.fp = io.BufferedReader(_Until(sock, deadline))


class _Until(io.RawIOBase):
    """What a socket receives until a deadline, by time.monotonic()."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock, self._deadline = sock, deadline
        self._file = sock.makefile("rb", buffering=0)  # keeps the socket open, which urllib closes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()
