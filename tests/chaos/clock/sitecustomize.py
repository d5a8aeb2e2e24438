"""A wall clock that jumps: every Python process with this folder on PYTHONPATH imports this module.

The file that MUGRPO_CLOCK names holds seconds, which are added to `time.time` and `time.time_ns`.
The monotonic clock and the times of files stay as they are.
"""

import os
import time
from pathlib import Path

_time, _time_ns = time.time, time.time_ns


def _offset() -> float:
    try:
        return float(Path(os.environ["MUGRPO_CLOCK"]).read_text())
    except (KeyError, OSError, ValueError):
        return 0.0


def install() -> None:
    """Let the clocks of this process jump."""
    time.time = lambda: _time() + _offset()
    time.time_ns = lambda: _time_ns() + int(_offset() * 1e9)


if "MUGRPO_CLOCK" in os.environ:
    install()
