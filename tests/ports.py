"""The addresses at which processes accept connections, as the kernel knows them."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# In hexadecimal, as IPv4, as IPv4 in IPv6, and as IPv6.
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
LISTENS = "0A"


def listening(pids: list[int]) -> Iterator[str]:
    """Yield the addresses, in hexadecimal, at which the processes `pids` accept connections."""
    own = set[str]()
    for fd in (fd for pid in pids for fd in Path(f"/proc/{pid}/fd").iterdir()):
        with suppress(FileNotFoundError):  # it was closed since
            own.add(os.readlink(fd))
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == LISTENS and f"socket:[{inode}]" in own:
                yield local.partition(":")[0]
