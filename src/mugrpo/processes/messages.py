"""Messages between the run and its processes: JSON, each preceded by its length.

The format is JSON rather than pickle because both sides may have different interpreters, and
because nothing that a process sends may be executed.
"""

import base64
import json
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("!Q")
_BYTES = "$bytes"


def to_json(value: Any) -> str:
    """Return `value` as JSON text. Half a surrogate pair is allowed like any other character.

    `from_json` restores bytes. Tuples come back as lists, arrays of numpy and torch as lists or
    numbers, keys of dictionaries as text, and dates, times and Decimal as text. Raises TypeError
    for anything else, and ValueError if `value` contains itself.
    """
    return json.dumps(value, default=_plain, ensure_ascii=False)


def from_json(text: str) -> Any:
    """Return the value that `to_json` wrote."""
    return json.loads(text, object_hook=_original)


def send(channel: socket.socket, text: str) -> None:
    """Send JSON text as one message."""
    body = text.encode("utf-8", "surrogatepass")
    channel.sendall(_LENGTH.pack(len(body)) + body)


class Inbox:
    """Bytes received from a channel, and the messages assembled from them."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def read(self, channel: socket.socket) -> bool:
        """Read what `channel` has, waiting for at least one byte. Return False at its end."""
        arrived = channel.recv(1 << 16)
        self._bytes += arrived
        return bool(arrived)

    def message(self) -> Any:
        """Return the next complete message, or None."""
        if len(self._bytes) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._bytes)
        end = _LENGTH.size + length
        if len(self._bytes) < end:
            return None
        text = self._bytes[_LENGTH.size : end].decode("utf-8", "surrogatepass")
        del self._bytes[:end]
        return from_json(text)


def printable(text: str, longest: int = 300) -> str:
    """Return `text` cut to `longest` characters, with unprintable ones escaped."""
    cut = text if len(text) <= longest else text[: longest - 3] + "..."
    return "".join(map(_escaped, cut))


def first_line(error: Exception | str) -> str:
    """Return the first line of a library's error message, or the error's name.

    What follows a line that ends in a colon belongs to it.
    """
    lines = (str(error).strip() or type(error).__name__).split("\n")
    count = next((n for n, line in enumerate(lines, 1) if not line.rstrip().endswith(":")), None)
    return printable(" ".join(line.strip() for line in lines[:count]), 1000)


def visible(text: str) -> str:
    """Return `text` with the characters escaped that a terminal obeys, except the end of a line."""
    return "".join(c if c == "\n" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {_BYTES: base64.b64encode(value).decode()}
    if hasattr(value, "tolist"):
        return value.tolist()
    if type(value).__module__ in ("datetime", "decimal"):
        return str(value)
    raise TypeError(f"JSON cannot represent a value of type {type(value).__name__}")


def _original(entry: dict[str, Any]) -> Any:
    return base64.b64decode(entry[_BYTES]) if entry.keys() == {_BYTES} else entry
