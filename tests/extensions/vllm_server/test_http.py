"""What a server may answer, and what whoever asks it makes of that."""

import base64
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from mugrpo.extensions.vllm_server import http
from tests.cases import table

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class Server:
    """A server that says `pieces`, with a pause after each, to whoever asks."""

    def __init__(self) -> None:
        self.pieces: tuple[bytes, ...] = ()
        self.pause = 0.0
        self.asked = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def says(self, *pieces: bytes, pause: float = 0.0) -> None:
        self.pieces, self.pause = pieces, pause

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                caller, _ = self._listener.accept()
                with caller, suppress(OSError):  # the caller has had enough
                    self.asked = caller.recv(1 << 16)
                    caller.settimeout(0.1)
                    with suppress(TimeoutError):  # the body; unread, it would reset the connection
                        self.asked += caller.recv(1 << 16)
                    caller.settimeout(None)
                    for piece in self.pieces:
                        caller.sendall(piece)
                        time.sleep(self.pause)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@table(
    ("said", "error", "sentence"),
    [
        ('HTTP/1.1 200 OK\r\n\r\n{"a": 1', http.Unanswered, "does not answer"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", http.Unanswered, "does not answer"),
        ("HTTP/1.1 500 No\r\n\r\n\x1b[2Jwhy", http.Refused, r"500 to /it: \\x1b\[2Jwhy"),
        ("HTTP/1.1 503 No\r\n\r\nlater", http.Unanswered, "503 to /it: later"),
        ("", http.Unanswered, "nothing within 0.2 s"),  # the last: the server is silent for longer
    ],
)
def test_answers_that_are_missing_cut_or_errors(server, said, error, sentence):
    server.says(said.encode(), pause=0.0 if said else 5.0)
    with pytest.raises(error, match=sentence):
        http.ask(server.url, "/it", {"a": 1}, seconds=5 if said else 0.2)


def test_an_answer_in_pieces_to_a_url_with_a_user_and_a_query(server: Server):
    text = json.dumps({"a": list(range(9))}).encode()
    server.says(HEAD, *(text[i : i + 2] for i in range(0, len(text), 2)), pause=0.01)
    url = server.url.replace("//", "//me:p%40ss@") + "/base/?key=k"
    assert http.ask(url, "/it", seconds=5) == {"a": list(range(9))}
    assert server.asked.startswith(b"GET /base/it?key=k HTTP/1.1\r\n")
    assert base64.b64encode(b"me:p@ss") in server.asked
    assert f"Host: {server.url[7:]}".encode() in server.asked
