"""Runs on Ray on this machine have the bits of the local backend, whatever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.harm import resume_words, stopped
from tests.ports import LOOPBACK, listening
from tests.runs import (
    ENVIRONMENT,
    Started,
    checkpoints,
    differences,
    final_weights,
    finished,
    mugrpo,
    read_metrics,
    start_train,
    write_config,
)
from tests.stages.test_rank_processes import LAST, LONG, TWO
from tests.waiting import until

pytest_plugins = ["tests.run_fixtures"]
pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def on_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ...]]:
    """The options of a run on a cluster that is started on this machine for this module."""
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block"]
    command += ["--num-cpus", "3", "--port", "0", "--include-dashboard", "false"]
    command += ["--object-store-memory", str(1 << 28), "--disable-usage-stats"]
    command += ["--node-ip-address", "127.0.0.1"]
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    log = tmp_path_factory.mktemp("ray") / "log"
    with open(log, "wb") as out:
        head = subprocess.Popen(
            command, env=environment, stdout=out, stderr=out, start_new_session=True
        )
    try:
        address = until(lambda: _address(log.read_text()))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAY_ADDRESS", address)
            yield ("--backend.name", "ray")
    finally:
        os.killpg(head.pid, signal.SIGKILL)  # its processes end with it
        head.wait()


def _address(said: str) -> str | None:
    """Return the address that `ray start` says to connect to."""
    _, found, rest = said.partition("--address='")
    return rest.partition("'")[0] if found else None


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run without Ray: two ranks, the engine in the run's process."""
    run_dir = tmp_path_factory.mktemp("local") / "run"
    finished(run_dir, *TWO)
    return run_dir


def processes(*words: str) -> list[int]:
    """Return the ids of processes whose command line has all `words`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if all(word in line for word in words):
            found.append(int(path.parent.name))
    return found


def ranks(run_dir: Path) -> list[int]:
    return processes("mugrpo optimize", str(run_dir))


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


def last_update(run_dir: Path) -> int:
    return max((e["update"] for e in read_metrics(run_dir) if e["kind"] == "update"), default=0)


def start_on_ray(run_dir: Path, on_ray: tuple[str, ...]) -> Started:
    return start_train(run_dir, *TWO, *on_ray)


@pytest.mark.promise("ray")
def test_a_run_has_the_shards_and_weights_of_the_local_backend(
    on_ray: tuple[str, ...], local: Path, tmp_path: Path
):
    ended = finished(tmp_path / "run", *TWO, *on_ray)
    assert not differences(tmp_path / "run", local, LAST)
    assert "optimize  24/24 updates" in ended.out  # what the first rank says is shown


def test_a_ray_that_a_run_starts_runs_nothing_of_the_working_directory_and_listens_on_loopback(
    traps: Path, tmp_path: Path
):
    run_dir, config = tmp_path / "run", write_config(tmp_path)
    words = [sys.executable, "-P", "-m", "mugrpo", "train", str(config), "--run-dir", str(run_dir)]
    words += [*TWO, "--backend.name", "ray", "--engine.processes", "1"]
    environment = {**os.environ, **ENVIRONMENT}
    environment.pop("RAY_ADDRESS", None)  # of other tests' cluster
    with subprocess.Popen(words, env=environment) as run:
        try:
            until(lambda: last_update(run_dir) >= 2, 240)
            everything = descendants(run.pid)
            addresses = list(listening(everything))
            assert run.wait(240) == 0
        finally:
            run.kill()
    assert len(everything) > 5 and len(addresses) > 5
    assert set(addresses) <= LOOPBACK
    assert not (traps / "ran").exists()


def descendants(pid: int) -> list[int]:
    """Return `pid` and the processes that it started, at any depth."""
    children = Path(f"/proc/{pid}/task").glob("*/children")
    own = [int(word) for tasks in children for word in tasks.read_text().split()]
    return [pid, *(found for child in own for found in descendants(child))]


def test_an_actor_that_is_killed_is_started_again(
    on_ray: tuple[str, ...], local: Path, tmp_path: Path
):
    run_dir = tmp_path / "run"
    started = start_on_ray(run_dir, on_ray)
    actor = until(lambda: processes("ray::Relay"))[0]
    worker = until(lambda: [pid for pid in processes("engines/worker.py") if parent(pid) == actor])
    until((run_dir / "stages" / "000" / "rollouts" / "shard-00000.json").exists)
    os.kill(actor, signal.SIGKILL)
    ended = started.end(600)
    assert (ended.status, ended.err) == (0, ""), ended
    assert "the engine ended with its actor" in ended.out
    assert "Restarting it (1/2)" in ended.out
    assert not Path(f"/proc/{worker[0]}").exists()
    assert not differences(run_dir, local, LAST)


@pytest.mark.parametrize("victim", ["rank", "worker"])
def test_updates_whose_worker_is_killed_go_on(
    on_ray: tuple[str, ...], local: Path, tmp_path: Path, victim: str
):
    """The rank's own process is killed, or the process of Ray that holds it."""
    run_dir = tmp_path / "run"
    started = start_on_ray(run_dir, on_ray)
    until(lambda: last_update(run_dir) >= 3, 400)
    first = ranks(run_dir)
    os.kill(first[-1] if victim == "rank" else parent(first[-1]), signal.SIGKILL)
    ended = started.end(600)
    assert (ended.status, ended.err) == (0, ""), ended
    assert not differences(run_dir, local, LAST)
    assert not any(Path(f"/proc/{pid}").exists() for pid in first)


def test_a_signal_saves_and_the_run_goes_on_without_ray(
    on_ray: tuple[str, ...], local: Path, tmp_path: Path
):
    run_dir = tmp_path / "run"
    started = start_on_ray(run_dir, on_ray)
    until(lambda: last_update(run_dir) >= 3, 400)
    os.kill(started.pid, signal.SIGTERM)
    ended = started.end(600)
    stopped(ended, "stopped by SIGTERM")
    saved = max(checkpoints(run_dir))
    assert saved == last_update(run_dir) >= 3
    again = mugrpo(*without_ray(resume_words(ended)))
    assert again.status == 0, again
    assert "backend.name: 'ray' -> 'local'" in again.out
    assert not differences(run_dir, local, LAST)


@pytest.mark.promise("ray")
def test_a_run_killed_with_all_its_processes_goes_on_without_ray(
    on_ray: tuple[str, ...], local: Path, tmp_path: Path
):
    run_dir = tmp_path / "run"
    started = start_on_ray(run_dir, on_ray)
    until(lambda: last_update(run_dir) >= 3, 400)
    os.kill(started.pid, signal.SIGKILL)
    started.end()
    until(lambda: not ranks(run_dir))  # Ray ends them with the run
    finished(run_dir, *TWO, "--backend.name", "local")
    assert not differences(run_dir, local, LAST)


def without_ray(words: list[str]) -> list[str]:
    """Return the command with the local backend instead."""
    place = words.index("ray")
    return [*words[:place], "local", *words[place + 3 :]]


def test_with_overlap_and_one_worker_it_is_the_run_of_one_process(
    on_ray: tuple[str, ...], tmp_path: Path
):
    """A Ray job of one worker, beside an actor that still generates."""
    finished(tmp_path / "plain", *LONG)
    finished(tmp_path / "run", *LONG, *on_ray, "--overlap", "true", "--checkpoint.every", "0")
    found = differences(tmp_path / "run", tmp_path / "plain", LAST)
    assert not [text for text in found if not text.startswith("metrics line")]


SEVERAL = (
    *("--schedule.stages", "3", "--schedule.batches_per_stage", "4", "--checkpoint.every", "0"),
    *("--evaluation.every", "6", "--distributed.processes", "2", "--engine.processes", "1"),
    *("--reference.name", "kl"),
)


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three stages without Ray, with an evaluation within the second one."""
    run_dir = tmp_path_factory.mktemp("several") / "run"
    finished(run_dir, *SEVERAL)
    return run_dir


def test_ranks_stay_for_the_run_where_the_cluster_has_room_for_engines_beside_them(
    on_ray: tuple[str, ...], several: Path, tmp_path: Path
):
    """Two ranks and an engine, on three CPUs: the same processes from beginning to end."""
    run_dir = tmp_path / "run"
    started = start_train(run_dir, *SEVERAL, *on_ray)
    until(lambda: last_update(run_dir) >= 2, 300)
    early, actor = ranks(run_dir), processes("ray::Relay")
    until(lambda: last_update(run_dir) >= 9, 300)
    assert len(early) == 2 and ranks(run_dir) == early and processes("ray::Relay") == actor
    ended = started.end(600)
    assert (ended.status, ended.err) == (0, ""), ended
    assert not differences(run_dir, several, 12)


def test_ranks_and_engines_take_turns_where_there_is_no_room_for_both(
    on_ray: tuple[str, ...], several: Path, tmp_path: Path
):
    """Two ranks and two engines, on three CPUs."""
    run_dir = tmp_path / "run"
    started = start_train(run_dir, *SEVERAL, *on_ray, "--engine.processes", "2")
    until(lambda: last_update(run_dir) >= 2, 300)
    early = ranks(run_dir)
    until(lambda: last_update(run_dir) >= 9, 300)
    assert not set(early) & set(ranks(run_dir))
    ended = started.end(600)
    assert (ended.status, ended.err) == (0, ""), ended
    assert final_weights(run_dir, 12) == final_weights(several, 12)


def test_a_rank_that_is_killed_between_orders_is_started_again(
    on_ray: tuple[str, ...], several: Path, tmp_path: Path
):
    run_dir = tmp_path / "run"
    started = start_train(run_dir, *SEVERAL, *on_ray)
    until(lambda: 4 in checkpoints(run_dir), 300)
    os.kill(ranks(run_dir)[0], signal.SIGKILL)
    ended = started.end(600)
    assert (ended.status, ended.err) == (0, ""), ended
    assert not differences(run_dir, several, 12)


def _leave_cluster() -> None:
    """Forget the cluster of other tests, which the server that forks processes remembers."""
    os.environ.pop("RAY_ADDRESS", None)


def test_ray_is_started_for_a_run_if_there_is_no_cluster(tmp_path: Path):
    run_dir = tmp_path / "run"
    options = ("--backend.name", "ray", "--evaluation.every", "0")
    ended = start_train(run_dir, *options, first=_leave_cluster).end(400)
    assert ended.status == 0, ended
    finished(tmp_path / "plain", "--evaluation.every", "0")
    assert not differences(run_dir, tmp_path / "plain", 6)


def test_more_than_the_machine_has_is_refused(tmp_path: Path):
    """A Ray that is started for the run cannot grow."""
    options = ("--backend.name", "ray", "--distributed.processes", "1000")
    ended = start_train(tmp_path / "run", *options, first=_leave_cluster).end(600)
    assert ended.status == 2 and "need 1000 CPUs and 0 GPUs at once" in ended.err
