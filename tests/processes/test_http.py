"""What a server may do to whoever asks it: nothing beyond the time and the length of the call."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import repeat

import pytest

from mugrpo.processes import http
from tests.cases import table

OK = b"HTTP/1.1 200 OK\r\n"
HEAD = OK + b"\r\n"
GIBIBYTES = [bytes(1 << 20)] * 3072
CHUNKED, CHUNK = OK + b"Transfer-Encoding: chunked\r\n\r\n", b"2000\r\n" + bytes(8192) + b"\r\n"
SECONDS, LONGEST = 0.4, 10_000


class Hostile:
    """A server that says `pieces`, with a pause after each, to whoever asks."""

    def __init__(self) -> None:
        self.pieces: Iterator[bytes] = iter(())
        self.pause = 0.0
        self.asked: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def says(self, *pieces: bytes, pause: float = 0.0) -> None:
        self.pieces, self.pause = iter(pieces), pause

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                caller, _ = self._listener.accept()
                with caller, suppress(OSError):  # the caller has had enough
                    asked = b""
                    while not asked.endswith(b"}" if asked.startswith(b"POST") else b"\r\n\r\n"):
                        asked += caller.recv(1 << 16)
                    self.asked.append(asked)
                    for piece in self.pieces:
                        caller.sendall(piece)
                        time.sleep(self.pause)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def server() -> Iterator[Hostile]:
    server = Hostile()
    yield server
    server.close()


def ask(server: Hostile) -> object:
    return http.ask(server.url, "/it", {"a": 1}, seconds=SECONDS, longest=LONGEST)


def dripping(text: bytes) -> Callable[[], Iterator[bytes]]:
    """Return what says a text and then a byte after the other, for ever."""
    return lambda: (text, *repeat(b"1", 200)).__iter__()


@pytest.mark.parametrize(
    ("pieces", "pause", "error", "sentence"),
    [
        (
            lambda: [OK + b"Content-Length: 3221225472\r\n\r\n", *GIBIBYTES],
            0,
            "R",
            "than 10000 bytes",
        ),
        (lambda: [HEAD, *GIBIBYTES], 0, "R", "more than 10000 bytes"),
        (lambda: [CHUNKED, *[CHUNK] * 9000], 0, "R", "more than 10000 bytes"),
        (dripping(HEAD), 0.02, "U", "nothing whole within 0.4 s"),
        (dripping(OK + b"X: "), 0.02, "U", "nothing whole within 0.4 s"),
        (dripping(b"HTTP/1.1 "), 0.02, "U", "nothing whole within 0.4 s"),
        (lambda: repeat(b"HTTP/1.1 100 Continue\r\n\r\n", 200), 0.02, "U", "within 0.4 s"),
        (lambda: [b""], 2 * SECONDS, "U", "nothing whole within 0.4 s"),
        (lambda: [HEAD + b"[" * 9000], 0, "U", "not answer in JSON"),
        (lambda: [HEAD + b"9" * 9000], 0, "U", "not answer in JSON"),
        (lambda: [HEAD + b'{"a": 1'], 0, "U", "not answer in JSON"),
        (lambda: [HEAD + b"\xff"], 0, "U", "not answer in JSON"),
        (lambda: [b"\x1b[2J\r\n\r\n"], 0, "U", r"x1b\[2J"),
        (lambda: [b"HTTP/1.1 500 No\r\n\r\n\x1b[2Jwhy"], 0, "R", r"500 to /it: \\x1b\[2Jwhy"),
        (lambda: [b"HTTP/1.1 500 No\r\n\r\n", b""], SECONDS, "R", "500 to /it"),
    ],
)
def test_answers_are_bounded_timed_and_refused(
    server: Hostile, pieces: Callable[[], Iterator[bytes]], pause: float, error: str, sentence: str
):
    server.says(*pieces(), pause=pause)
    began = time.monotonic()
    with pytest.raises({"R": http.Refused, "U": http.Unanswered}[error], match=sentence) as failed:
        ask(server)
    assert time.monotonic() - began < 5 * SECONDS
    assert str(failed.value).isprintable() and len(str(failed.value)) < 600


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(server: Hostile, status: int):
    other = Hostile()
    server.says(f"HTTP/1.1 {status} Go\r\nLocation: {other.url}/x\r\n\r\n".encode())
    with pytest.raises(http.Refused, match=f"{status}, a redirect"):
        ask(server)
    assert len(server.asked) == 1 and other.asked == []
    other.close()


def test_an_answer_that_comes_in_time(server: Hostile):
    """In 20 pieces of 0.01 s; with the URL's user and query, which no header or line shows."""
    text = json.dumps({"a": list(range(9))}).encode()
    server.says(HEAD, *(text[i : i + 2] for i in range(0, len(text), 2)), pause=0.01)
    url = server.url.replace("//", "//me:p%40ss@") + "/base/?key=k"
    assert http.ask(url, "/it", seconds=5, longest=LONGEST) == {"a": list(range(9))}
    [asked] = server.asked
    assert asked.startswith(b"GET /base/it?key=k HTTP/1.1\r\n")
    assert base64.b64encode(b"me:p@ss") in asked and f"Host: {server.url[7:]}".encode() in asked


@table("url", ["file:///etc/hostname", "ftp://localhost/x", "data:,1"])
def test_only_http_is_spoken(url: str):
    with pytest.raises((http.Refused, http.Unanswered)):
        http.ask(url, "", seconds=SECONDS, longest=LONGEST)
