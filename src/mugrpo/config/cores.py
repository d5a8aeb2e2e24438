"""This machine's cores, how threads wait on them, and its memory. Imports no other package."""

import os
import sys
from pathlib import Path

# Turns of a waiting loop before a thread sleeps; libgomp's own number is 300,000. If others want
# the cores, a spinning thread takes the time of the one it waits for. Measured with
# 1,000: 0.88 to 0.96 of the default's time on an idle machine, 0.13 to 0.55 beside four busy
# processes; with 10,000, up to 0.69. Sleeping at once costs up to 1.14 on an idle machine.
_SPINS = 1_000


def cores() -> list[int]:
    """Return the numbers of the cores that this process may use; all of them on macOS."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def bound_spinning() -> None:
    """Bound how long OpenMP's threads spin at barriers, in this process and those it starts.

    libgomp, which torch brings on Linux, reads that when torch is imported; later this does
    nothing. A setting of the user's own wins.
    """
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(_SPINS))


def host_memory() -> int:
    """Return the bytes of memory that this machine, or this container, has."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total
