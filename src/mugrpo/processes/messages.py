"""What the run and its processes say to each other: JSON, each message behind its length.

JSON and not pickle: a reward worker has touched what a model wrote, and nothing that it sends may
run.
"""

from __future__ import annotations

import base64
import datetime
import json
import socket
import struct
from decimal import Decimal
from typing import Any

_LENGTH = struct.Struct("!Q")
_TAG = "$mugrpo"
_LARGEST = 1 << 30  # bytes; more is no message but a stream gone wrong

_FROM_TEXT: dict[str, Any] = {
    "datetime": datetime.datetime.fromisoformat,
    "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat,
    "seconds": lambda text: datetime.timedelta(seconds=float(text)),
    "decimal": Decimal,
    "bytes": base64.b64decode,
}


def to_json(value: Any) -> str:
    """`value` as JSON text. Half a surrogate pair is as good a character here as any other.

    Dates, times, Decimal and bytes come back as they were, tuples as lists, numpy's and torch's
    arrays as lists and numbers, keys of dictionaries as text. Raises TypeError for anything else.
    """
    return json.dumps(value, default=_plain, ensure_ascii=False)


def from_json(text: str) -> Any:
    return json.loads(text, object_hook=_original)


def send(channel: socket.socket, text: str) -> None:
    """Send one message of JSON text."""
    body = text.encode("utf-8", "surrogatepass")
    channel.sendall(_LENGTH.pack(len(body)) + body)


class Inbox:
    """Puts messages together from the bytes that arrive."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def read(self, channel: socket.socket) -> bool:
        """Take what `channel` has, waiting for some; False at its end."""
        arrived = channel.recv(1 << 16)
        self._bytes += arrived
        return bool(arrived)

    def message(self) -> Any:
        """The next whole message, or None."""
        if len(self._bytes) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._bytes)
        if length > _LARGEST:
            raise ValueError(f"a message of {length} bytes")
        end = _LENGTH.size + length
        if len(self._bytes) < end:
            return None
        text = self._bytes[_LENGTH.size : end].decode("utf-8", "surrogatepass")
        del self._bytes[:end]
        return from_json(text)


def printable(text: str, longest: int = 300) -> str:
    """`text` cut to a sane length, what cannot be printed written as an escape."""
    cut = text if len(text) <= longest else text[: longest - 3] + "..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)


def _plain(value: Any) -> Any:
    match value:
        case datetime.datetime() | datetime.date() | datetime.time():
            return {_TAG: [type(value).__name__, value.isoformat()]}
        case datetime.timedelta():
            return {_TAG: ["seconds", repr(value.total_seconds())]}
        case Decimal():
            return {_TAG: ["decimal", str(value)]}
        case bytes():
            return {_TAG: ["bytes", base64.b64encode(value).decode()]}
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"JSON has no name for a {type(value).__name__}")


def _original(entry: dict[str, Any]) -> Any:
    if entry.keys() == {_TAG}:
        kind, text = entry[_TAG]
        return _FROM_TEXT[kind](text)
    return entry
