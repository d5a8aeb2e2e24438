"""What libraries print of others' files, without the characters that a terminal obeys."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mugrpo.processes.messages import visible

_COLORS = re.compile(r"\x1b\[[0-9;]*m")  # a library's own, or another's: dropped


class _Visible:
    """A stream that passes text on without the characters that a terminal obeys."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(visible(_COLORS.sub("", text).expandtabs()))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def visibly() -> Iterator[None]:
    """Escape what Python code prints, warns of or logs within the block.

    Names of tensors, tokens and keys are quoted by libraries in reports and warnings as they are.
    A log handler keeps the stream that it was made with, so that stream is replaced too.
    """
    streams = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    loggers = [logging.root, *map(logging.getLogger, list(logging.root.manager.loggerDict))]
    handlers = {
        handler: handler.stream
        for logger in loggers
        for handler in logger.handlers
        if isinstance(handler, logging.StreamHandler)
        and vars(handler).get("stream") is not None  # else it looks for one, or opens a file
    }
    try:
        for name, stream in streams.items():
            setattr(sys, name, _Visible(stream))
        for handler, stream in handlers.items():
            handler.stream = _Visible(stream)
        yield
    finally:
        for handler, stream in handlers.items():
            handler.stream = stream
        for name, stream in streams.items():
            setattr(sys, name, stream)
