"""Runs on a Slurm cluster on this machine have the bits of `mugrpo train`, whatever happens."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from mugrpo.disk.run_dir import RunDir
from mugrpo.extensions.slurm.status import lines
from tests.kill_at import fill_disk
from tests.runs import (
    CONFIG,
    ROOT,
    Ended,
    Started,
    checkpoints,
    differences,
    mugrpo,
    read_metrics,
    start,
    write_config,
)
from tests.slurm_cluster import Cluster, cluster, lead_to, missing
from tests.waiting import soon, until

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]

# `mugrpo` in jobs: a file that is named like the job, such as generate-1-0, says what it does at
# which place (tests.kill_at), once or always.
PROGRAM = f"""#!{sys.executable}
import ctypes
import subprocess
import sys
from pathlib import Path
hosts = Path(__file__).with_name("hosts")
if hosts.exists():  # in which the nodes have names; only this process sees it
    ctypes.CDLL(None).unshare(0x20000)  # CLONE_NEWNS
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "--bind", hosts, "/etc/hosts"], check=True)
sys.path.insert(0, {str(ROOT)!r})
from tests.kill_at import arm, settle_checkpoints
from mugrpo.__main__ import main
command, _, _, stage, *part = sys.argv[1:]
number = part[1].partition("/")[0] if "--part" in part else ""
acts = Path(__file__).parent / "-".join(filter(None, [command, stage, number]))
if acts.exists():
    place, nth, act, often = acts.read_text().split("|")
    if often == "once":
        acts.unlink()
    settle_checkpoints()
    arm(place, int(nth), act)
sys.exit(main())
"""

THREE = CONFIG.replace("stages = 2", "stages = 3\ngrowth = 1.4").replace(
    "batches_per_stage = 3", "batches_per_stage = 4"
)


class Jobs:
    """The jobs of a run, and what is done to them."""

    def __init__(self, one: Cluster, run: Path, folder: Path) -> None:
        self.cluster, self.run, self.folder = one, run, folder
        folder.mkdir()
        program = folder / "mugrpo"
        program.write_text(PROGRAM)
        program.chmod(0o755)
        self.toml = folder / "slurm.toml"
        self.write_toml("parts = 2")

    def write_toml(self, text: str) -> None:
        """Write slurm.toml: lines of the top, then tables."""
        self.toml.write_text(f'activate = ["PATH={self.folder}:$PATH"]\n{text}\n')

    def act(self, name: str, place: str, act: str, often: str = "once") -> None:
        """Let the job `name` do something at the nth pass of a place: "gradient 2"."""
        point, _, nth = place.rpartition(" ")
        (self.folder / name).write_text(f"{point}|{nth}|{act}|{often}")

    def hold(self, name: str, place: str) -> None:
        self.act(name, place, f"hold {self.folder / name}")

    def release(self, name: str) -> None:
        (self.folder / f"{name}.go").touch()

    def wait_for(self, name: str) -> None:
        """Wait until a job is held."""
        assert soon((self.folder / f"{name}.held").exists, 90), self.logs()

    def submit(self, *words: object) -> Ended:
        return self.start_submit(*words).end()

    def start_submit(self, *words: object) -> Started:
        first = partial(lead_to, str(self.cluster.conf))
        return start("submit", self.run, "--slurm", self.toml, *words, first=first)

    def job(self, name: str) -> str:
        """Return Slurm's id of a job: "7_1" for "generate-1-1"."""
        phase, stage, *part = name.split("-")
        ids = [
            job
            for job, full, _ in self.cluster.queue()
            if full.endswith(f"-{phase}-{stage}") and job.partition("_")[2:] == ("".join(part),)
        ]
        assert ids, (name, self.cluster.queue())
        return ids[0]

    def node(self, name: str) -> str:
        return self.cluster.run("squeue", "-h", "-j", self.job(name), "-o", "%N").strip()

    def process(self, name: str) -> int:
        """Return the id of the process of a job's `mugrpo`."""
        phase, stage, *part = name.split("-")
        words = [
            phase,
            str(self.run),
            "--stage",
            stage,
            *(["--part", f"{part[0]}/2"] if part else []),
        ]
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                line = (folder / "cmdline").read_text().split("\0")[:-1]
            except OSError:
                continue
            if line[-len(words) :] == words and line[0] == sys.executable:
                return int(folder.name)
        raise AssertionError(f"{name} does not run")

    def finish(self) -> None:
        """Wait until no job is left. Slurm would begin what it requeues only after two minutes."""

        seen: Counter[str] = Counter()

        def over() -> bool:
            said = self.cluster.run("squeue", "-rh", "-o", "%i %r", check=False).splitlines()
            for job, reason in (line.split(maxsplit=1) for line in said):
                seen[job] += reason == "BeginTime"
                if seen[job] == 8:  # sooner, its first try may not be quite over
                    self.cluster.run(
                        "scontrol", "update", f"JobId={job}", "StartTime=now", check=False
                    )
                    seen[job] = 0
            time.sleep(0.5)
            return not said and self.cluster.up()

        assert soon(over, 240), (self.cluster.queue(), self.logs())

    def status(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        monkeypatch.setenv("SLURM_CONF", str(self.cluster.conf))
        return list(lines(RunDir(self.run)))

    def logs(self) -> str:
        files = sorted((self.run / "logs" / "slurm").glob("*"))
        return "\n".join(f"== {file.name}\n{file.read_text()}" for file in files)


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    with cluster(2) as one:
        yield one


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run of two stages whose first one is over, and the same one when all is done."""
    folder = tmp_path_factory.mktemp("begun")
    config, run = write_config(folder / "config"), folder / "run"
    for phase in ("generate", "score", "optimize"):
        ended = mugrpo(phase, config, "--run-dir", run, "--stage", 0)
        assert ended.status == 0, ended
    whole = folder / "whole"
    shutil.copytree(run, whole)
    assert mugrpo("train", whole).status == 0
    return run, whole


@pytest.fixture
def jobs(
    slurm: Cluster, begun: tuple[Path, Path], small_disk: Path, tmp_path: Path
) -> Iterator[Jobs]:
    """The jobs of a copy of the run that has begun, on a small disk of its own."""
    run = Path(shutil.copytree(begun[0], small_disk / "run"))
    yield Jobs(slurm, run, tmp_path / "jobs")
    slurm.run("scancel", "--user=root", check=False)
    assert soon(lambda: not slurm.queue(), 60)


def test_three_growing_stages_in_four_parts(slurm: Cluster, tmp_path: Path):
    config = write_config(tmp_path / "config", THREE)
    alone = tmp_path / "alone"
    assert mugrpo("train", config, "--run-dir", alone).status == 0
    jobs = Jobs(slurm, tmp_path / "run", tmp_path / "jobs")
    jobs.write_toml("parts = 4\n[sbatch]\nnodes = 1")
    first = partial(lead_to, str(slurm.conf))
    words = ("submit", config, "--run-dir", jobs.run, "--slurm", jobs.toml)
    ended = mugrpo(*words, first=first)
    assert ended.status == 0 and "9 jobs submitted" in ended.out, ended
    jobs.finish()
    assert_same_at_end(jobs.run, alone)
    again = mugrpo(*words, first=first)
    assert again.status == 0 and "nothing to submit" in again.out and not slurm.queue()


def assert_same_at_end(run: Path, alone: Path) -> None:
    assert checkpoints(run)[-1] == checkpoints(alone)[-1]
    assert differences(run, alone, checkpoints(alone)[-1]) == []
    assert list(run.rglob("*.claim-*")) == []


# What is done to a job that is held.


def lose_node(jobs: Jobs, name: str, *, with_jobs: bool = True) -> None:
    node = jobs.node(name)
    jobs.cluster.kill_node(node, jobs=with_jobs)
    until(lambda: jobs.cluster.states()[node].startswith("down"))
    jobs.cluster.start_node(node)
    until(lambda: jobs.cluster.states()[node] in ("idle", "mix"))


def cancel(jobs: Jobs, name: str) -> None:
    jobs.cluster.run("scancel", jobs.job(name))


def requeue(jobs: Jobs, name: str) -> None:
    jobs.cluster.run("scontrol", "requeue", jobs.job(name))


HIGH = ("-p", "high", "-N", "2", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1")


def preempt(jobs: Jobs, name: str) -> None:
    job = jobs.cluster.run("sbatch", "--parsable", *HIGH).strip()
    until(lambda: job not in [one for one, _, _ in jobs.cluster.queue()])


def restart_controller(jobs: Jobs, name: str) -> None:
    jobs.cluster.stop_controller()
    jobs.release(name)
    time.sleep(5)  # the job may end without a controller
    jobs.cluster.start_controller()


def stop_and_take_over(jobs: Jobs, name: str) -> None:
    """The process of a part is stopped for so long that another one takes its shards over."""
    stopped = jobs.process(name)
    os.kill(stopped, signal.SIGSTOP)
    for claim in jobs.run.rglob("*.claim-*"):
        long_ago = time.time() - 3600
        os.utime(claim, (long_ago, long_ago))
    ended = mugrpo("generate", jobs.run, "--stage", 1, "--part", f"{name[-1]}/2")
    os.kill(stopped, signal.SIGCONT)
    assert ended.status == 0, ended


def fill(jobs: Jobs, name: str) -> None:
    """The disk is full while the job goes on, until it gives up."""
    job, filler = jobs.job(name), jobs.run.parent / "filler"
    fill_disk(filler, 0)
    jobs.release(name)
    until(lambda: (job, "RUNNING") not in [(one, state) for one, _, state in jobs.cluster.queue()])
    filler.unlink()


def wait_for_the_time_limit(jobs: Jobs, name: str) -> None:
    """Slurm sends SIGTERM up to a minute earlier than was asked for, and says so in the log."""
    log = jobs.run / "logs" / "slurm" / f"run-{name}.log"
    assert soon(lambda: "CANCELLED AT" in log.read_text(), 150), jobs.logs()


def break_scores(jobs: Jobs, name: str) -> None:
    (jobs.run / "stages" / "001" / "scores").write_text("in the way")


def mend_scores(jobs: Jobs) -> None:
    (jobs.run / "stages" / "001" / "scores").unlink()


def nothing(*_: object) -> None:
    pass


class Fault(NamedTuple):
    """What is done to which job, held at which place. Unless it `says` something, the run ends by
    itself; else its status says that, and `submit` again goes on."""

    at: str
    place: str
    does: Callable[[Jobs, str], None]
    says: str = ""
    mends: Callable[[Jobs], None] = nothing
    toml: str = ""
    act: str = "hold"  # or a signal that mugrpo gets, "always" at each try


PART, SCORES, UPDATES = (
    ("generate-1-1", "engine batch 1"),
    ("score-1-0", "scoring 1"),
    ("optimize-1", "gradient 2"),
)
LIMIT = '[optimize]\ntime = 2\nsignal = "TERM@30"\n[generate]\ntime = 2\nsignal = "TERM@30"'

FAULTS = {
    "a node is lost that generates": Fault(*PART, lose_node),
    "a node is lost that makes updates": Fault(*UPDATES, lose_node),
    "a node is lost, but its process goes on": Fault(*PART, partial(lose_node, with_jobs=False)),
    "a part is cancelled": Fault(*PART, cancel, "CANCELLED"),
    "scores are cancelled": Fault(*SCORES, cancel, "CANCELLED"),
    "updates are cancelled": Fault(*UPDATES, cancel, "CANCELLED"),
    "a part is requeued": Fault(*PART, requeue),
    "scores are requeued": Fault(*SCORES, requeue),
    "updates are requeued": Fault(*UPDATES, requeue),
    "a part is preempted": Fault(*PART, preempt),
    "updates are preempted": Fault(*UPDATES, preempt),
    "a stopped part comes back": Fault(*PART, stop_and_take_over),
    "the controller restarts beside a part": Fault(*PART, restart_controller),
    "the controller restarts beside updates": Fault(*UPDATES, restart_controller),
    "the disk is full for a part": Fault(*PART, fill),
    "the disk is full for updates": Fault(*UPDATES, fill),
    "the time limit of a part": Fault(*PART, wait_for_the_time_limit, toml=LIMIT),
    "the time limit of updates": Fault(*UPDATES, wait_for_the_time_limit, toml=LIMIT),
    "a part is killed once": Fault(*PART, nothing, act="SIGKILL once"),
    "updates are killed once": Fault(*UPDATES, nothing, act="SIGKILL once"),
    "a part is killed each time": Fault(*PART, nothing, "status 137", act="SIGKILL always"),
    "scores are refused": Fault(*PART, break_scores, "cannot be used", mend_scores),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_costs_no_bit(
    jobs: Jobs, begun: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, name: str
):
    fault = FAULTS[name]
    jobs.write_toml(f"parts = 2\nretries = 1\n{fault.toml}")
    signalled, _, often = fault.act.partition(" ")
    if often:
        jobs.act(fault.at, fault.place, signalled, often)
    else:
        jobs.hold(fault.at, fault.place)
    ended = jobs.submit()
    assert ended.status == 0, ended
    if not often:
        jobs.wait_for(fault.at)
        fault.does(jobs, fault.at)
        jobs.release(fault.at)
    jobs.finish()
    if fault.says:
        *said, again = jobs.status(monkeypatch)
        assert any(fault.says in line for line in said), (said, jobs.logs())
        (jobs.folder / fault.at).unlink(missing_ok=True)
        fault.mends(jobs)
        words = shlex.split(again.partition("type: mugrpo ")[2])
        assert mugrpo(*words, first=partial(lead_to, str(jobs.cluster.conf))).status == 0
        jobs.finish()
    assert jobs.status(monkeypatch) == [], jobs.logs()
    assert_same_at_end(jobs.run, begun[1])


def test_updates_that_reach_the_time_limit_lose_none(jobs: Jobs):
    """SIGTERM comes in the second update of a stage, whose first one is kept."""
    jobs.write_toml(f"parts = 2\n{LIMIT}")
    jobs.hold(*UPDATES)
    jobs.submit()
    jobs.wait_for(UPDATES[0])
    wait_for_the_time_limit(jobs, UPDATES[0])
    jobs.release(UPDATES[0])
    log = jobs.run / "logs" / "slurm" / "run-optimize-1.log"
    assert soon(lambda: "stopped by SIGTERM" in log.read_text(), 60), jobs.logs()
    until(lambda: jobs.cluster.run("squeue", "-h", "-o", "%T").split() == ["PENDING"])
    assert max(checkpoints(jobs.run)) >= 4 and len(read_metrics(jobs.run)) > 4
    assert (jobs.run / "slurm" / "tries" / "run-optimize-1").read_text() == "stopped\n"


def test_updates_that_are_preempted_lose_none(jobs: Jobs):
    """Slurm sends SIGTERM twice. The update before the one in which it comes is kept."""
    jobs.write_toml("parts = 2")
    jobs.hold(*UPDATES)
    jobs.submit()
    jobs.wait_for(UPDATES[0])
    log = jobs.run / "logs" / "slurm" / "run-optimize-1.log"
    jobs.cluster.run("sbatch", *HIGH)
    assert soon(lambda: "CANCELLED AT" in log.read_text(), 60), jobs.logs()
    jobs.release(UPDATES[0])
    assert soon(lambda: "stopped by SIGTERM" in log.read_text(), 60), jobs.logs()
    assert max(checkpoints(jobs.run)) >= 4 and len(read_metrics(jobs.run)) > 4


def test_two_at_once_submit_once(jobs: Jobs, begun: tuple[Path, Path]):
    both = [jobs.start_submit() for _ in range(2)]
    said = [one.end() for one in both]
    assert sorted(one.status for one in said) in ([0, 0], [0, 2]), said
    assert all("another `mugrpo submit`" in one.err for one in said if one.status)
    names = [(name, job.partition("_")[2]) for job, name, _ in jobs.cluster.queue()]
    assert len(names) == len(set(names)) <= 5
    jobs.finish()
    assert_same_at_end(jobs.run, begun[1])


def test_updates_beside_generation(jobs: Jobs, begun: tuple[Path, Path]):
    """Their stage's refresh is logged when all is scored, which may be after some of them."""
    assert jobs.submit("--beside").status == 0
    jobs.finish()
    found = differences(jobs.run, begun[1], checkpoints(begun[1])[-1])
    assert [text for text in found if not text.startswith("metrics line")] == []
    ours, theirs = (sorted(map(str, read_metrics(run))) for run in (jobs.run, begun[1]))
    assert ours == theirs


def test_ranks_of_srun_on_two_nodes(jobs: Jobs, begun: tuple[Path, Path], tmp_path: Path):
    alone = Path(shutil.copytree(begun[0], tmp_path / "alone"))
    ended = mugrpo("train", alone, "--distributed.processes", 2)
    assert ended.status == 0, ended
    jobs.write_toml("parts = 2\n[optimize]\nnodes = 2\nntasks-per-node = 1")
    (jobs.folder / "hosts").write_text(f"127.0.0.1 localhost {' '.join(jobs.cluster.nodes)}\n")
    jobs.submit()
    jobs.finish()
    assert_same_at_end(jobs.run, alone)
