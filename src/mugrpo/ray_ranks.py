"""The updates of a stage as a Ray Train job: each worker runs one rank of the torchrun loop.

Ray Train places the workers, and starts all of them again where one was lost; the ranks go on from
the newest checkpoint of the run's directory, as they do without Ray. Imports Ray when used.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from pathlib import Path
from typing import Any

from mugrpo.cluster import connected, gpus_there, require_room
from mugrpo.config.backends import RayBackend
from mugrpo.errors import RunStopped
from mugrpo.processes import kill_with_all
from mugrpo.ranks import DRIVER, driver_name, said_by_ranks
from mugrpo.run import Run

_TICK = 0.2
_ENDED = re.compile(r"rank \d+ of \d+ ended with \w+")  # what a worker says of its rank


def run_ray_ranks(run: Run, words: list[str], logs: Path) -> list[Path]:
    """Run `mugrpo WORDS` in `distributed.processes` workers; returns the logs of the ranks.

    Raises RunStopped where a worker was lost too often.
    """
    backend = run.config.backend
    assert isinstance(backend, RayBackend)
    count, on_gpus = run.config.distributed.processes, gpus_there(backend)
    cpus, gpus = count * backend.rank_cpus, float(count if on_gpus else 0)
    if run.generating:
        cpus += len(run.engines) * backend.engine_cpus
    require_room(backend, cpus, gpus)
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(_fit, backend, count, on_gpus, words, logs, run.dir.root.name)
        shown = 0
        while not job.done():
            _ = run.generating  # what stops it stops the updates that wait for it
            if run.stop.signal_name and not run.dir.stop_request.exists():
                run.dir.stop_request.touch()
            wait_for([job], _TICK)
            shown = _show(logs / "rank-0.log", shown)
    if (error := job.exception()) is not None:
        told = _ENDED.search(str(error))
        lost = told[0] if told else f"{type(error).__name__}: {str(error).splitlines()[0]}"
        raise RunStopped(
            f"{lost}, and the others with it; more often than --backend.restarts "
            f"{backend.restarts} allows; their logs are in {logs}"
        )
    return sorted(logs.glob("rank-*.err"))


def _fit(
    backend: RayBackend, count: int, on_gpus: bool, words: list[str], logs: Path, name: str
) -> None:
    connected(backend)
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.v2.api.config import LoggingConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    DataParallelTrainer(
        _rank,
        train_loop_config={"words": words, "logs": str(logs)},
        scaling_config=ScalingConfig(
            num_workers=count, use_gpu=on_gpus, resources_per_worker={"CPU": backend.rank_cpus}
        ),
        run_config=RunConfig(
            name=name,
            storage_path=str(logs / "ray"),
            failure_config=FailureConfig(max_failures=backend.restarts),
            logging_config=LoggingConfig(log_level="ERROR"),
        ),
    ).fit()


def _rank(config: dict[str, Any]) -> None:
    """One worker: the rank of the updates in a process of its own, which ends with the worker."""
    import ray
    from ray.train import get_context
    from ray.train.collective import broadcast_from_rank_zero

    context = get_context()
    rank = context.get_world_rank()
    meeting = None
    if rank == 0:
        with socket.socket() as free:
            free.bind(("", 0))
            meeting = (ray.util.get_node_ip_address(), free.getsockname()[1])
    host, port = broadcast_from_rank_zero(meeting)
    alone_on_its_gpu = "," not in os.environ.get("CUDA_VISIBLE_DEVICES", "")
    environment = {
        **os.environ,
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "WORLD_SIZE": str(context.get_world_size()),
        "LOCAL_RANK": "0" if alone_on_its_gpu else str(context.get_local_rank()),
        "LOCAL_WORLD_SIZE": str(context.get_local_world_size()),
        "TORCHELASTIC_RUN_ID": "ray",
        DRIVER: driver_name(),
    }
    log = Path(config["logs"]) / f"rank-{rank}"
    with open(f"{log}.log", "ab") as out, open(f"{log}.err", "ab") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "mugrpo.cli", *config["words"]],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    try:
        while process.poll() is None:
            time.sleep(_TICK)
    finally:
        if process.poll() is None:
            kill_with_all(process)
    if process.returncode and not said_by_ranks([Path(f"{log}.err")]):  # else it would come again
        how = f"status {process.returncode}"
        if process.returncode < 0:
            how = signal.Signals(-process.returncode).name
        raise RuntimeError(f"rank {rank} of {context.get_world_size()} ended with {how}")


def _show(log: Path, shown: int) -> int:
    """Print what the first rank has said since; returns how much that is in all."""
    if not log.is_file():
        return shown
    with open(log, "rb") as file:
        file.seek(shown)
        fresh = file.read()
    whole = fresh[: fresh.rfind(b"\n") + 1]
    sys.stdout.write(whole.decode(errors="replace"))
    sys.stdout.flush()
    return shown + len(whole)
