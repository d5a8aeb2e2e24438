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
import threading
import time
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

from mugrpo.config.backends import RayBackend
from mugrpo.engines.process import RemoteEngine
from mugrpo.processes.cluster import connected, on_gpus, require_room
from mugrpo.processes.peer import kill_with_all
from mugrpo.processes.ranks import DRIVER, driver_name, said_by_ranks
from mugrpo.run.run import Run

_TICK = 0.2
_PATIENCE = 30.0  # seconds for ranks to follow one that has ended in its own words
_ENDED = re.compile(r"rank \d+ of \d+ ended with \w+(?: \d+)?")  # what a worker says of its rank


def run_ray_ranks(run: Run, words: list[str], logs: Path) -> str | None:
    """Run `mugrpo WORDS` in `distributed.processes` workers; returns what went wrong."""
    backend = run.config.backend
    assert isinstance(backend, RayBackend)
    count, with_gpus = run.config.distributed.processes, on_gpus(backend)
    cpus, gpus = count * backend.rank_cpus, count if with_gpus else 0
    if run.generating:
        actors = [engine for engine in run.engines if isinstance(engine, RemoteEngine)]
        cpus += len(actors) * backend.engine_cpus
        gpus += sum(engine.gpus for engine in actors) if with_gpus else 0
    require_room(backend, cpus, gpus)
    job = Future[None]()

    def fit() -> None:
        try:
            _fit(backend, count, with_gpus, words, logs, run.dir.root.name)
            job.set_result(None)
        except Exception as error:
            job.set_exception(error)

    threading.Thread(target=fit, daemon=True).start()  # not waited for where it waits for room
    _look_after(run, job, logs)
    if said := said_by_ranks(sorted(logs.glob("rank-*.err"))):
        return said
    if (error := job.exception()) is None:
        return None
    if ends := _ENDED.findall(str(error)):
        killed = [end for end in ends if "status" not in end]  # others fail because they miss it
        return (
            f"{(killed or ends)[0]}, and the others with it; more often than --backend.restarts "
            f"{backend.restarts} allows; their logs are in {logs}"
        )
    first = (str(error).splitlines() or [""])[0]
    return f"Ray Train stopped with {type(error).__name__}: {first}"


def _look_after(run: Run, job: Future[None], logs: Path) -> None:
    """Until the job is done; raises what stops the run where no rank has begun to hear of it."""
    shown = 0
    while not job.done():
        run.look_after_ranks()
        if run.dir.stop_request.exists():
            if not any(logs.glob("rank-*.log")):
                run.stop.check()
                _ = run.generating
        elif not run.generating:
            run.close_engines()  # the job may be waiting for what they hold
        wait([job], _TICK)
        shown = _show(logs / "rank-0.log", shown)


def _fit(
    backend: RayBackend, count: int, with_gpus: bool, words: list[str], logs: Path, name: str
) -> None:
    connected(backend)
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.v2.api.config import LoggingConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    DataParallelTrainer(
        _rank,
        train_loop_config={"words": words, "logs": str(logs)},
        scaling_config=ScalingConfig(
            num_workers=count, use_gpu=with_gpus, resources_per_worker={"CPU": backend.rank_cpus}
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
    with open(f"{log}.log", "ab") as out, open(f"{log}.err", "wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "mugrpo", *config["words"]],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    others = [log.with_name(f"rank-{r}.err") for r in range(context.get_world_size()) if r != rank]
    try:
        _wait(process, others)
    finally:
        if process.poll() is None:
            kill_with_all(process)
    if process.returncode and not said_by_ranks([log.with_name(f"rank-{rank}.err"), *others]):
        how = f"status {process.returncode}"  # what was said would come again: no other try
        if process.returncode < 0:
            how = signal.Signals(-process.returncode).name
        raise RuntimeError(f"rank {rank} of {context.get_world_size()} ended with {how}")


def _wait(process: subprocess.Popen[bytes], others: list[Path]) -> None:
    """Until the rank has ended; not much longer than one of the others that says why it did."""
    left = _PATIENCE / _TICK
    while process.poll() is None and left > 0:
        time.sleep(_TICK)
        left -= said_by_ranks(others) is not None


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
