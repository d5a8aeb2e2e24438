"""A wall clock that jumps: every Python process with this folder on PYTHONPATH imports this module.

The file that MUGRPO_CLOCK names holds seconds, which are added to `time.time` and `time.time_ns`,
and in torchrun, which compares such times, to `datetime.now`. (Arrow does not bear another class of
datetime.) The monotonic clock and the times of files stay as they are.
"""

from __future__ import annotations

import datetime
import os
import sys
import time
from pathlib import Path
from typing import Any

_time, _time_ns, _datetime = time.time, time.time_ns, datetime.datetime


def _offset() -> float:
    try:
        return float(Path(os.environ["MUGRPO_CLOCK"]).read_text())
    except (KeyError, OSError, ValueError):
        return 0.0


class _Either(type):
    """Instances that the C code makes count as well."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _datetime)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, _datetime)


class _Jumping(_datetime, metaclass=_Either):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        moment = _datetime.now(tz) + datetime.timedelta(seconds=_offset())
        return cls.combine(moment.date(), moment.timetz())

    @classmethod
    def utcnow(cls) -> Any:
        return cls.now(datetime.UTC).replace(tzinfo=None)


def install() -> None:
    """Let the clocks of this process jump."""
    time.time = lambda: _time() + _offset()
    time.time_ns = lambda: _time_ns() + int(_offset() * 1e9)
    if "mugrpo.processes.torchrun" not in sys.orig_argv:
        return
    _Jumping.__module__, _Jumping.__qualname__ = "datetime", "datetime"  # where pickle looks
    datetime.datetime = _Jumping  # type: ignore[misc]


if "MUGRPO_CLOCK" in os.environ:
    install()
