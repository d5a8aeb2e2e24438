"""The lock of a run's copy in an object store: one push at a time.

An object store has no flock. So a push creates an object that says who pushes, and removes it at
the end. If the push is killed, the object stays. It expires an hour after its last renewal, or, if
it does not say when that was, an hour after it was written.
"""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import uuid4

from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.processes.messages import printable
from mugrpo.tools.objects import Store

LOCK = "push.lock"
_EXPIRES = 3600.0  # seconds; longer than an object takes, and than clocks of two machines differ
_RENEWS = 60.0  # seconds


@contextmanager
def only_push(store: Store) -> Iterator[Callable[[], None]]:
    """Hold the lock of the copy in `store` while the block lasts.

    Yields a function that renews it, to be called between two objects; it raises RunStopped if
    another push has the lock. Raises UsageError, naming the holder, if another push has it already.
    """
    us = {"push": uuid4().hex, "pid": os.getpid(), "host": socket.gethostname()}
    us["since"] = time.strftime("%Y-%m-%d %H:%M:%S")
    renewed = time.time()

    def text() -> bytes:
        return json.dumps(us | {"renewed": renewed}).encode()

    def renew() -> None:
        nonlocal renewed
        if abs(time.time() - renewed) < _RENEWS:
            return
        if (holder := _holder(store)) is None or holder.get("push") != us["push"]:
            raise RunStopped(f"another push to {store.url} has begun meanwhile")
        renewed = time.time()
        store.write(LOCK, text())

    if holder := _holder(store):
        if not _expired(store, holder):
            raise _held(store, holder)
        store.remove(LOCK)
    with suppress(FileExistsError):
        store.create(LOCK, text())
    # Look even if it was created: not every store refuses to create an object that exists.
    if (holder := _holder(store) or {}).get("push") != us["push"]:
        raise _held(store, holder)
    try:
        yield renew
    finally:
        with suppress(OSError):
            if (_holder(store) or {}).get("push") == us["push"]:
                store.remove(LOCK)


def _holder(store: Store) -> dict[str, Any] | None:
    """Return what the lock says, or None if there is none. One that cannot be read says little."""
    if (text := store.read(LOCK)) is None:
        return None
    try:
        said = json.loads(text)
        return {**said, "renewed": float(said["renewed"])}
    except (ValueError, KeyError, TypeError, RecursionError):
        return {"pid": "unknown"}


def _expired(store: Store, holder: dict[str, Any]) -> bool:
    """Return whether the lock of `holder` was last renewed at least an hour ago.

    If it does not say when, or names a time that is more than an hour ahead (of a clock that was
    wrong), it counts from the time at which the object was written. If the store does not tell
    that either, it counts from now on: now is written into the lock.
    """
    now = time.time()
    for renewed in (holder.get("renewed", math.inf), store.modified(LOCK)):
        if renewed < now + _EXPIRES:
            return bool(now - renewed >= _EXPIRES)
    store.write(LOCK, json.dumps({**holder, "renewed": now}).encode())
    return False


def _held(store: Store, holder: dict[str, Any]) -> UsageError:
    pid, host, since = (printable(str(holder.get(key))) for key in ("pid", "host", "since"))
    return UsageError(
        f"{store.url} gets another push (pid {pid} on host {host} since {since}); wait for it, or "
        f"remove {store.url}/{LOCK} if that process has ended (it expires after an hour)"
    )
