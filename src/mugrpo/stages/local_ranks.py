"""Ranks on this machine, or this machine's share of them, started and watched by torchrun."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import torch

from mugrpo.config.distributed import DistributedOptions
from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import UsageError
from mugrpo.engines.process import visible_gpus
from mugrpo.processes.lifetime import DRIVER, driver_name, passed_on
from mugrpo.processes.ranks import said_by_ranks, within_a_machine

_ENDING = 60.0  # seconds to wait until ranks that got a signal end
_FAILED = re.compile(r"rank\s*: (\d+) \(local_rank: (\d+)\).*?exitcode\s*: (-?\d+)", re.DOTALL)


def require_gpus(options: DistributedOptions) -> None:
    """Raise UsageError if this machine has GPUs, but not one for each of its ranks."""
    if 0 < (gpus := len(visible_gpus())) < options.processes:
        raise UsageError(
            f"distributed.processes = {options.processes} needs as many GPUs on each machine, but "
            f"this process sees {gpus}; set --distributed.processes {gpus}, or name more of them "
            "in CUDA_VISIBLE_DEVICES"
        )


def idle_while_generating(config: RunConfig) -> str | None:
    """Return a sentence if machines that make updates have no engine, and what to do about it."""
    others = config.distributed.machines - 1
    if not others or config.engine.name == "vllm_server" or config.backend.clustered:
        return None
    idle, ranks = others * config.distributed.processes, config.distributed.ranks
    return (
        f"engines run on this machine only: {idle} of the {ranks} GPUs (or shares of the cores) "
        "idle while it generates; to use them, start a vLLM server for each and name all of them "
        "in engine.urls (docs/engines.md)"
    )


class LocalJob:
    """Ranks that torchrun starts on this machine. It may wait for those of other machines."""

    def __init__(self, words: Iterable[str], logs: Path, options: DistributedOptions) -> None:
        """Start this machine's ranks, which run `mugrpo WORDS`. See `require_gpus`."""
        require_gpus(options)
        self._logs, self._count = logs, options.ranks
        count = options.processes
        store = tempfile.mkdtemp(dir=logs)  # only this user can enter it
        command = [sys.executable, "-m", "mugrpo.processes.torchrun", *_meeting(options, store)]
        command += ["--nproc-per-node", str(count), "--log-dir", str(logs)]
        command += ["--redirects", "3", "--tee", "0:1", "-m", "mugrpo", *words]
        environment = {
            DRIVER: driver_name(),
            "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": " ",
            "OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // count)),
        }
        if options.machines == 1:
            environment |= within_a_machine(store)
        ours, theirs = socket.socketpair()  # the lifeline; it carries nothing
        weakref.finalize(self, os.close, ours.detach())
        with theirs, open(logs / "torchrun.log", "ab") as log:
            self._launcher = subprocess.Popen(
                [*command, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=passed_on(**environment),
                stdin=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )

    def running(self) -> bool:
        return self._launcher.poll() is None

    def end(self, patience: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._launcher.wait(patience)
        if self.running():
            self._launcher.terminate()  # it lets the ranks save and end
            with suppress(subprocess.TimeoutExpired):
                self._launcher.wait(_ENDING)

    def fault(self) -> str | None:
        """Return the error message of the rank that failed first, or how it ended without one."""
        if not self._launcher.returncode:
            return None
        logs, count = self._logs, self._count
        text = (logs / "torchrun.log").read_text(errors="replace")
        ends = [tuple(map(int, end)) for end in _FAILED.findall(text)]
        if not ends:
            return f"the {count} ranks failed; their log is {logs / 'torchrun.log'}"
        # torchrun lists the supposed root cause last: the failure that it noticed first. But if a
        # rank was killed, the others failed because it was gone. SIGTERM comes from torchrun.
        killed = [end for end in ends if end[2] < 0 and end[2] != -signal.SIGTERM]
        rank, place, status = (killed or ends)[-1]
        log = next(iter(logs.glob(f"*/attempt_*/{place}/stderr.log")), logs)
        others = logs.glob("*/attempt_*/*/stderr.log") if status >= 0 else ()
        if said := said_by_ranks([log]) or said_by_ranks(others):  # or why they all ended
            return said
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        return f"rank {rank} of {count} ended with {how}, and the others with it; its log is {log}"


def _meeting(options: DistributedOptions, store: str) -> list[str]:
    """Return torchrun's options for its rendezvous.

    On one machine that is a file: torchrun unpickles what it finds there, and the port that
    `--standalone` opens can be reached by every user of the machine and of its network.
    """
    where = ["--nnodes", str(options.machines), "--rdzv-backend", "c10d", "--rdzv-endpoint"]
    if options.machines == 1:
        return [*where, f"{store}/torchrun", "--rdzv-conf", "store_type=file"]
    assert options.address is not None
    return [*where, options.address]
