"""Other processes: whether they live, whose children they are, and waiting for what they do."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def until(get: Callable[[], T], seconds: float = 120.0) -> T:
    """Wait until `get` returns something true, and return that. Raises TimeoutError."""
    end = time.monotonic() + seconds
    while not (value := get()):
        if time.monotonic() > end:
            raise TimeoutError(f"nothing happened within {seconds} seconds")
        time.sleep(0.02)
    return value


def soon(claim: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Return whether `claim` becomes true within `seconds`."""
    try:
        return until(claim, seconds)
    except TimeoutError:
        return False


def alive(process: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def ranks_of(pid: int) -> list[int]:
    """Return the process ids of the running ranks that a process drives, by rank."""
    found = {}
    for status in Path("/proc").glob("[0-9]*/environ"):
        try:
            words = dict(w.split("=", 1) for w in status.read_text().split("\0") if "=" in w)
        except (OSError, UnicodeDecodeError):
            continue
        driver = words.get("MUGRPO_DRIVER", "").partition(" ")[0]
        if driver == str(pid) and "RANK" in words:
            found[int(words["RANK"])] = int(status.parent.name)
    return [found[rank] for rank in sorted(found)]


def engines_of(pid: int) -> list[int]:
    """Return the engine workers among the children of a process."""
    try:
        children = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
        lines = {child: Path(f"/proc/{child}/cmdline").read_bytes() for child in children}
    except OSError:
        return []
    return [child for child, line in lines.items() if b"engines/worker.py" in line]
