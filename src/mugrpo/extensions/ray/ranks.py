"""The updates of a stage as a Ray Train job: each worker runs one rank.

Ray Train places the workers, and restarts all of them if one is lost. The ranks then continue from
the newest checkpoint in the run's directory, as they do without Ray. Ray is imported lazily.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

from mugrpo.processes.lifetime import start_rank
from mugrpo.processes.peer import kill_with_all
from mugrpo.processes.ranks import said_by_ranks, show_log, within_a_machine

_LOOPBACK = "127.0.0.1"
_TICK = 0.2
_RESTARTS = 2  # of the job: per run, or per stage if its ranks end after each
_PATIENCE = 30.0  # seconds that a rank may go on after another one has said why it ended
_ENDED = re.compile(r"rank \d+ of \d+ ended with \w+(?: \d+)?")  # what a worker says of its rank


class RayJob:
    """Ranks on a cluster: a Ray Train job, with a rank in each worker."""

    def __init__(self, words: Sequence[str], logs: Path, count: int, *, with_gpus: bool) -> None:
        """Start a job of `count` ranks that run `mugrpo WORDS`. Ray must be connected."""
        self._logs = logs
        self._shown = 0  # bytes of the first rank's log
        self._job = Future[None]()

        def fit() -> None:
            try:
                _fit(count, with_gpus, words, logs)
                self._job.set_result(None)
            except Exception as error:
                self._job.set_exception(error)

        threading.Thread(target=fit, daemon=True).start()  # not joined: it may wait for resources

    def running(self) -> bool:
        """Return whether the job runs. Print what its first rank has said since the last call."""
        done = self._job.done()
        self._shown = show_log(self._logs / "rank-0.log", self._shown)
        return not done

    def end(self, patience: float) -> None:
        """Wait up to `patience` seconds. Ranks that do not end by themselves end with the run."""
        wait([self._job], patience)
        self.running()  # prints the last lines

    def fault(self) -> str | None:
        if said := said_by_ranks(sorted(self._logs.glob("rank-*.err"))):
            return said
        if (error := self._job.exception()) is None:
            return None
        ends = _ENDED.findall(str(error))
        first = next((end for end in ends if "status" not in end), ends and ends[0])  # a kill
        return f"{first or str(error).strip()}; the logs of the ranks are in {self._logs}"


def _fit(count: int, with_gpus: bool, words: Sequence[str], logs: Path) -> None:
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.v2.api.config import LoggingConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    DataParallelTrainer(
        _rank,
        train_loop_config={"words": list(words), "logs": str(logs)},
        scaling_config=ScalingConfig(
            num_workers=count, use_gpu=with_gpus, resources_per_worker={"CPU": 1}
        ),
        run_config=RunConfig(
            name=logs.parents[1].name,
            storage_path=str(logs / "ray"),
            failure_config=FailureConfig(max_failures=_RESTARTS),
            logging_config=LoggingConfig(log_level="ERROR"),
        ),
    ).fit()


def _rank(config: dict[str, Any]) -> None:
    """Run one worker's rank of the updates in a process of its own, which ends with the worker."""
    from ray.train import get_context

    context = get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    alone_on_its_gpu = "," not in os.environ.get("CUDA_VISIBLE_DEVICES", "")
    log = Path(config["logs"]) / f"rank-{rank}"
    environment = {
        **_meeting(tempfile.mkdtemp(dir=config["logs"])),
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": "0" if alone_on_its_gpu else str(context.get_local_rank()),
        "LOCAL_WORLD_SIZE": str(context.get_local_world_size()),
    }
    process = start_rank([sys.executable, "-m", "mugrpo", *config["words"]], log, environment)
    others = [log.with_name(f"rank-{other}.err") for other in range(size) if other != rank]
    try:
        _wait(process, others)
    finally:
        if process.poll() is None:
            kill_with_all(process)
    if process.returncode and not said_by_ranks([log.with_name(f"rank-{rank}.err"), *others]):
        how = f"status {process.returncode}"  # no retry if a rank said why: it would happen again
        if process.returncode < 0:
            how = signal.Signals(-process.returncode).name
        raise RuntimeError(f"rank {rank} of {size} ended with {how}")


def _meeting(folder: str) -> dict[str, str]:
    """Return the environment variables of the ranks' rendezvous, the same for all of them.

    On one machine it is a file in the first rank's empty `folder`, else a port of its machine.
    """
    import ray
    from ray.train.collective import broadcast_from_rank_zero

    here = ray.util.get_node_ip_address()
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    folder, host, port = broadcast_from_rank_zero((folder, here, port))
    if host == _LOOPBACK:
        return within_a_machine(folder)
    return {"MASTER_ADDR": host, "MASTER_PORT": str(port)}


def _wait(process: subprocess.Popen[bytes], others: list[Path]) -> None:
    """Wait until the rank has ended, or `_PATIENCE` seconds after another one said why it ended."""
    ticks = _PATIENCE / _TICK
    while process.poll() is None and ticks > 0:
        time.sleep(_TICK)
        ticks -= said_by_ranks(others) is not None
