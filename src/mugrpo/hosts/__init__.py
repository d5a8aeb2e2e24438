"""Who computes for a run: one process, or ranks that one process drives."""

from collections.abc import Iterator
from contextlib import contextmanager

from mugrpo.disk.errors import Interrupted
from mugrpo.hosts.host import Host
from mugrpo.hosts.local import LocalHost
from mugrpo.hosts.ranks import RankHost
from mugrpo.processes.launcher import launched_ranks
from mugrpo.run.opening import OpenRun


@contextmanager
def host_of(run: OpenRun) -> Iterator[Host]:
    """Yield what computes for `run`: ranks that make its updates, or this process.

    If a signal interrupts the block, save a checkpoint of all updates so far.
    """
    config = run.config
    # ranks are the business of the process that has the lock
    several = config.distributed.processes > 1 or config.backend.clustered
    several &= not run.folder.apart
    host: Host = RankHost(run) if several else LocalHost(run)
    try:
        if launched_ranks():  # the others wait for the first rank, also if nothing is left to do
            host.load()
        yield host
    except Interrupted:
        host.save(temporary=True)
        raise
    finally:
        host.close()
