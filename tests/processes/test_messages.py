"""Messages between a run and its workers arrive as they were sent."""

from __future__ import annotations

import datetime
import socket
from decimal import Decimal

import numpy as np
import pytest

from mugrpo.processes.messages import Inbox, from_json, printable, send, to_json
from tests.cases import table


def test_messages_keep_every_character_and_arrive_in_pieces():
    ours, theirs = socket.socketpair()
    said = {"text": "\x00\ud800\udfff\u2028é", "n": [1, None, 0.1]}
    with ours, theirs:
        send(ours, to_json(said))
        send(ours, to_json("next"))
        inbox = Inbox()
        assert inbox.message() is None
        inbox.read(theirs)
        assert [inbox.message(), inbox.message(), inbox.message()] == [said, "next", None]


@table(
    "text",
    [
        "[" * 100_000,
        "{",
        '{"$mugrpo": 7}',
        '{"$mugrpo": ["no such kind", "1"]}',
        '{"$mugrpo": ["decimal", "one"]}',
        '{"$mugrpo": ["bytes", {}]}',
    ],
)
def test_text_that_nobody_here_writes_is_a_value_error(text: str):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(ours, text)
        send(ours, "1")
        inbox = Inbox()
        while len(inbox._bytes) < 16 + len(text) + 1:
            inbox.read(theirs)
        with pytest.raises(ValueError):
            inbox.message()
        assert inbox.message() == 1


def test_values_that_json_cannot_express_come_back_as_they_were_sent():
    columns = {
        "when": datetime.datetime(2026, 1, 2, 3, 4, tzinfo=datetime.UTC),
        "day": datetime.date(2026, 1, 2),
        "hour": datetime.time(3, 4),
        "long": datetime.timedelta(days=1, microseconds=3),
        "price": Decimal("1.10"),
        "raw": b"\x00\xff",
    }
    assert from_json(to_json(columns)) == columns
    arrays = {"a": np.arange(3), "b": np.float32(0.5), "c": (1, 2), "d": np.int64(7)}
    assert from_json(to_json(arrays)) == {"a": [0, 1, 2], "b": 0.5, "c": [1, 2], "d": 7}
    with pytest.raises(TypeError, match="object"):
        to_json(object())


def test_printable():
    assert printable("a\x1b[2J\ud800\n") == r"a\x1b[2J\ud800\n"
    assert printable("x" * 400, 10) == "xxxxxxx..."
