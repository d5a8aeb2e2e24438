"""A Slurm cluster on this machine, without systemd: munged, slurmctld and a slurmd for each node.

All of it lives in one temporary folder, and ends by the pids that were started here. It needs
Debian's packages `slurm-wlm` and `munge`, and root, because slurmd starts processes for users.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from tests.waiting import until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
_CPUS = 8  # that a node says it has; parts of several runs then fit beside each other

_CONF = """\
ClusterName=test
SlurmctldHost={host}
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={controller}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldDebug=info
SlurmdDebug=info
SwitchType=switch/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=1
SlurmdParameters=config_overrides
SlurmdTimeout=10
SlurmctldTimeout=10
MessageTimeout=10
MinJobAge=60
KillWait=5
CompleteWait=0
ReturnToService=2
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PreemptExemptTime=00:00:00
NodeName={nodes} NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports}] CPUs={cpus} RealMemory=4000
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF
"""


def missing() -> str | None:
    """Return why there can be no cluster here, or None."""
    gone = [program for program in PROGRAMS if not _found(program)]
    if gone:
        return f"{', '.join(gone)} not installed: apt-get install slurm-wlm munge"
    return None if os.geteuid() == 0 else "slurmd needs root"


class Cluster:
    """Nodes n1, n2, ... of a cluster, with the partitions `low` and, which preempts it, `high`."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder = folder
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        first = _free_ports(nodes + 1)
        (folder / "state").mkdir()
        for node in self.nodes:
            (folder / f"spool-{node}").mkdir()
        self.conf = folder / "slurm.conf"
        self.conf.write_text(
            _CONF.format(
                folder=folder,
                host=socket.gethostname().partition(".")[0],
                user="root",
                nodes=f"n[1-{nodes}]",
                controller=first,
                ports=f"{first + 1}-{first + nodes}",
                cpus=_CPUS,
            )
        )

    def __enter__(self) -> Cluster:
        try:
            self._start_munge()
            self.start_controller()
            for node in self.nodes:
                self.start_node(node)
            until(lambda: self.states() == dict.fromkeys(self.nodes, "idle"), 60)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if "controller" in self._daemons:
            self.run("scancel", "--signal=KILL", "--full", "--user=root", check=False)
            self.run("scancel", "--user=root", check=False)
        for name in [name for name in self._daemons if name not in ("munge", "controller")]:
            self.kill_node(name)
        for name in list(self._daemons):
            _end(self._daemons.pop(name), signal.SIGTERM)

    def run(self, *words: object, check: bool = True, **environment: str) -> str:
        """Run a program of Slurm's, or another one, with this cluster. Return what it printed."""
        ended = subprocess.run(
            [str(word) for word in words],
            env={**os.environ, **self.environment, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 0 or not check, (words, ended.stdout, ended.stderr)
        return ended.stdout

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables that lead programs to this cluster."""
        return {"SLURM_CONF": str(self.conf)}

    def states(self) -> dict[str, str]:
        """Return node -> its state, such as "idle", "mixed" or "down*"."""
        lines = self.run("sinfo", "-hN", "-p", "low", "-o", "%N %t", check=False).splitlines()
        return dict(line.split() for line in lines)

    def queue(self) -> list[tuple[str, str, str]]:
        """Return (job, name, state) of each job that is not over, a line for each task."""
        lines = self.run("squeue", "-rh", "-o", "%i %j %T", check=False).splitlines()
        return [(job, name, state) for job, name, state in map(str.split, lines)]

    def kill_node(self, node: str, *, jobs: bool = True) -> None:
        """Kill a node: its daemon and, unless only that is lost, the `jobs` that run on it."""
        daemon = self._daemons.pop(node)
        for pid in (daemon.pid, *(_on(node, self.conf) if jobs else ())):
            _kill(pid)
        daemon.wait()

    def start_node(self, node: str) -> None:
        """Start a node's daemon, with a clean table of jobs if the node was killed."""
        self._start(node, "slurmd", "-D", "-N", node, "-f", self.conf)

    def up(self) -> bool:
        """Return whether the controller answers."""
        return "UP" in self.run("scontrol", "ping", check=False)

    def stop_controller(self) -> None:
        """End the controller."""
        _end(self._daemons.pop("controller"), signal.SIGTERM)

    def start_controller(self) -> None:
        """Start the controller, which reads what an earlier one saved."""
        self._start("controller", "slurmctld", "-D", "-f", self.conf)
        until(self.up, 30)

    def _start_munge(self) -> None:
        folder = self.folder / "munge"
        folder.mkdir(mode=0o755)
        key = folder / "key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        names = ("socket", "pid-file", "log-file", "seed-file")
        options = [f"--{name}={folder / name.removesuffix('-file')}" for name in names]
        self._start("munge", "munged", "--foreground", f"--key-file={key}", *options)
        until((folder / "socket").exists, 20)

    def _start(self, name: str, program: str, *words: object) -> None:
        with open(self.folder / f"{name}.out", "ab") as out:
            self._daemons[name] = subprocess.Popen(
                [str(_found(program)), *map(str, words)],
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )


@contextmanager
def cluster(nodes: int = 2) -> Iterator[Cluster]:
    """Yield a cluster of `nodes` idle nodes, in a folder that is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="mugrpo-slurm-"))
    folder.chmod(0o755)  # munged refuses a socket that others cannot reach
    try:
        with Cluster(folder, nodes) as one:
            yield one
    finally:
        if "KEEP_SLURM" not in os.environ:
            shutil.rmtree(folder, ignore_errors=True)


def lead_to(conf: str) -> None:
    """Lead programs that this process starts to the cluster of a slurm.conf."""
    os.environ["SLURM_CONF"] = conf


def _found(program: str) -> str | None:
    """Return the path of a program. Daemons are in folders that users' PATH may lack."""
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


def _free_ports(count: int) -> int:
    """Return the first of `count` ports in a row that nothing listens on."""
    while True:
        first = 20000 + secrets.randbelow(10000)
        try:
            for port in range(first, first + count):
                with socket.socket() as one:
                    one.bind(("", port))
        except OSError:
            continue
        return first


def _on(node: str, conf: Path) -> list[int]:
    """Return the processes of jobs on a node: slurmstepd, which outlives slurmd, and all below."""
    marks = (f"SLURMD_NODENAME={node}".encode(), f"SLURM_CONF={conf}".encode())
    steps, own = [], []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            words = (folder / "environ").read_bytes().split(b"\0")
            if all(mark in words for mark in marks):
                own.append(int(folder.name))
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                if Path(f"/proc/{parent}/cmdline").read_bytes().startswith(b"slurmstepd"):
                    steps.append(int(parent))
    return [*steps, *own]


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _end(daemon: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """End a daemon by a signal, by SIGKILL if that takes too long."""
    if daemon.poll() is None:
        daemon.send_signal(number)
        try:
            daemon.wait(20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
