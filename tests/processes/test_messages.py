"""Messages between a run and its workers arrive as they were sent."""

import datetime
import socket
from decimal import Decimal

import numpy as np
import pytest

from mugrpo.processes.messages import Inbox, from_json, printable, send, to_json


def test_messages_keep_every_character_and_arrive_in_pieces():
    ours, theirs = socket.socketpair()
    said = {"text": "\x00\ud800\udfff\u2028é", "n": [1, None, 0.1], "raw": b"\x00\xff"}
    with ours, theirs:
        send(ours, to_json(said))
        send(ours, to_json("next"))
        inbox = Inbox()
        assert inbox.message() is None
        inbox.read(theirs)
        assert [inbox.message(), inbox.message(), inbox.message()] == [said, "next", None]


def test_values_that_json_cannot_express():
    values = {"a": np.arange(3), "b": np.float32(0.5), "c": (1, 2), "d": np.int64(7)}
    values |= {"day": datetime.date(2026, 1, 2), "price": Decimal("1.10")}
    plain = {"a": [0, 1, 2], "b": 0.5, "c": [1, 2], "d": 7}
    assert from_json(to_json(values)) == {**plain, "day": "2026-01-02", "price": "1.10"}
    with pytest.raises(TypeError, match="object"):
        to_json(object())


def test_printable():
    assert printable("a\x1b[2J\ud800\n") == r"a\x1b[2J\ud800\n"
    assert printable("x" * 400, 10) == "xxxxxxx..."
