"""Who computes for a run: one process, or ranks that one process drives."""

from collections.abc import Iterator
from contextlib import contextmanager

from mugrpo.disk.errors import Interrupted
from mugrpo.hosts.host import Host
from mugrpo.hosts.local import LocalHost
from mugrpo.hosts.ranks import RankHost
from mugrpo.run.opening import OpenRun


@contextmanager
def host_of(run: OpenRun) -> Iterator[Host]:
    """Yield what computes for `run`: ranks that make its updates, or this process.

    If a signal interrupts the block, save a checkpoint of all updates so far.
    """
    config = run.config
    several = config.distributed.processes > 1 or config.backend.clustered
    host: Host = RankHost(run) if several else LocalHost(run)
    try:
        yield host
    except Interrupted:
        host.save(temporary=True)
        raise
    finally:
        host.close()
