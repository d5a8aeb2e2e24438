"""The ranks of a run on this machine: processes that end together."""

import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Thread

import torch

from mugrpo.config.training import DistributedOptions
from mugrpo.engines.process import require_gpus
from mugrpo.hosts.orders import TICK
from mugrpo.processes.launcher import launched_ranks
from mugrpo.processes.lifetime import start_rank
from mugrpo.processes.ranks import said_by_ranks, show_log, within_a_machine

_ENDING = 60.0  # seconds to wait until ranks that got a signal end
_GRACE = 30.0  # the same if another rank has failed


class LocalJob:
    """The ranks on this machine. If one fails, the others end.

    If a launcher has started the others, it ends them, and this is the first rank alone.
    """

    def __init__(self, words: Sequence[str], logs: Path, options: DistributedOptions) -> None:
        """Start ranks that run `mugrpo WORDS`. Their output goes to `logs`. See `require_gpus`."""
        self._logs, self._count = logs, options.processes
        self._ended: list[tuple[int, int]] = []  # (rank, status) of those that failed, in order
        self._shown = 0  # bytes of the first rank's log
        if launched := launched_ranks():
            environments = [launched]
        else:
            require_gpus(options)
            common = {
                **within_a_machine(tempfile.mkdtemp(dir=logs)),  # only this user enters it
                "WORLD_SIZE": str(self._count),
                "OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // self._count)),
            }
            ranks = map(str, range(self._count))
            environments = [{**common, "RANK": rank, "LOCAL_RANK": rank} for rank in ranks]
        command = [sys.executable, "-m", "mugrpo", *words]
        self._processes = [
            start_rank(command, logs / f"rank-{rank}", environment)
            for rank, environment in enumerate(environments)
        ]
        self._thread = Thread(target=self._watch, daemon=True)
        self._thread.start()

    def running(self) -> bool:
        """Return whether any rank runs. Print what the first has said since the last call."""
        running = self._thread.is_alive()
        self._shown = show_log(self._logs / "rank-0.log", self._shown)
        return running

    def end(self, patience: float) -> None:
        self._thread.join(patience)
        self._terminate(_ENDING)
        self.running()  # prints the last lines

    def fault(self) -> str | None:
        """Return the error message of the rank that failed first, or how it ended without one."""
        if not self._ended:
            return None
        # If a rank was killed, the others failed because it was gone. SIGTERM comes from here.
        killed = [end for end in self._ended if end[1] < 0 and end[1] != -signal.SIGTERM]
        rank, status = (killed or self._ended)[0]
        log = self._logs / f"rank-{rank}.err"
        others = self._logs.glob("rank-*.err") if status >= 0 else ()
        if said := said_by_ranks([log]) or said_by_ranks(others):  # or why they all ended
            return said
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        return (
            f"rank {rank} of {self._count} ended with {how}, and the others with it; its log is "
            f"{log}"
        )

    def _watch(self) -> None:
        """Wait until the ranks end."""
        left = dict(enumerate(self._processes))
        while left:
            for rank, process in list(left.items()):
                if (status := process.poll()) is not None:
                    del left[rank]
                    if status:
                        self._ended.append((rank, status))
            if left and self._ended:
                self._terminate(_GRACE)
            time.sleep(TICK)

    def _terminate(self, patience: float) -> None:
        """Let the ranks save and end. Kill those that have not after `patience` seconds."""
        running = [process for process in self._processes if process.poll() is None]
        for process in running:
            process.terminate()
        until = time.monotonic() + patience
        while any(p.poll() is None for p in running) and time.monotonic() < until:
            time.sleep(TICK)
        for process in running:
            process.kill()
