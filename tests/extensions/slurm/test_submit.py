"""`mugrpo submit` with stand-ins for Slurm's programs, which remember what they are asked."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mugrpo.disk.run_dir import RunDir
from mugrpo.disk.shards import ShardSet
from mugrpo.extensions.slurm.chain import ranges
from mugrpo.extensions.slurm.scripts import tries
from mugrpo.extensions.slurm.settings import SlurmOptions
from mugrpo.extensions.slurm.status import lines
from mugrpo.processes.claims import Claims
from tests.faults.harm import refused
from tests.runs import CONFIG, Command, write_config

# Jobs go to the file `queue` in squeue's format: with a dependency they wait, else they run.
SBATCH = """\
import sys
from pathlib import Path
folder = Path(sys.argv[0]).parent
words = sys.argv[1:]
with open(folder / "asked", "a") as asked:
    print("sbatch", *words, file=asked)
queue, count = folder / "queue", folder / "count"
job = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(job))
options = dict(w[2:].partition("=")[::2] for w in words if w.startswith("--"))
parts = []
for one in options.get("array", "N/A").partition("%")[0].split(","):
    first, _, last = one.partition("-")
    parts += range(int(first), int(last or first) + 1) if one != "N/A" else [one]
state = "PENDING|Dependency|N/A" if "dependency" in options else "RUNNING|None|2026-01-01T00:00:00"
with open(queue, "a") as file:
    for part in parts:
        print(job, part, f"{state}|2026-01-01T00:00:00", " ".join(words[-2:]), sep="|", file=file)
print(job)
"""
SCANCEL = """\
import sys
from pathlib import Path
folder = Path(sys.argv[0]).parent
with open(folder / "asked", "a") as asked:
    print("scancel", *sys.argv[1:], file=asked)
"""
SQUEUE = "import sys; from pathlib import Path\n"
SQUEUE += "queue = Path(sys.argv[0]).with_name('queue')\n"
SQUEUE += "print(queue.read_text() if queue.exists() else '', end='')\n"

THREE = CONFIG.replace("stages = 2", "stages = 3\ngrowth = 2")
SLURM = """
parts = 2
activate = ["source /opt/venv/bin/activate"]
[sbatch]
partition = "low"
[optimize]
time = "2:00:00"
"""


class Slurm:
    """The stand-ins in a folder on the PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in (("sbatch", SBATCH), ("scancel", SCANCEL), ("squeue", SQUEUE)):
            write_program(folder / name, f"#!{sys.executable}\n{text}")

    def asked(self) -> list[str]:
        """Return what was asked since the last call, without paths."""
        file = self.folder / "asked"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        words = (line.replace("sbatch --parsable ", "").split() for line in lines)
        return [" ".join(word.rpartition("/")[2] for word in line) for line in words]

    def queue(self) -> list[str]:
        return (self.folder / "queue").read_text().splitlines()

    def keep(self, keeps: Callable[[list[str]], bool]) -> None:
        """Let jobs end: all but those whose fields `keeps` is true of."""
        kept = [line for line in self.queue() if keeps(line.split("|"))]
        (self.folder / "queue").write_text("".join(line + "\n" for line in kept))


def write_program(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o755)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path, THREE)
    (tmp_path / "slurm.toml").write_text(SLURM)
    return Slurm(folder)


FIRST = [
    "--job-name=tiny-generate-0 --array=0-1 generate.sh 0",
    "--job-name=tiny-score-0 --array=0-1 --dependency=aftercorr:1 score.sh 0",
    "--job-name=tiny-optimize-0 --dependency=afterok:2 optimize.sh 0",
    "--job-name=tiny-generate-1 --array=0-1 --dependency=afterok:3 generate.sh 1",
    "--job-name=tiny-score-1 --array=0-1 --dependency=aftercorr:4 score.sh 1",
    "--job-name=tiny-optimize-1 --dependency=afterok:5 optimize.sh 1",
    "--job-name=tiny-generate-2 --array=0-1 --dependency=afterok:6 generate.sh 2",
    "--job-name=tiny-score-2 --array=0-1 --dependency=aftercorr:7 score.sh 2",
    "--job-name=tiny-optimize-2 --dependency=afterok:8 optimize.sh 2",
]


def test_all_stages_are_chained_and_nothing_queued_is_submitted_again(
    slurm: Slurm, command: Command
):
    assert command("submit", "tiny.toml").status == 0
    assert slurm.asked() == FIRST
    with RunDir(Path("runs/tiny")).locked():  # as updates lock it that are at work
        again = command("submit", "runs/tiny")
        assert again.status == 0, again.err
        assert command("submit", "tiny.toml").status == 0
    Path("runs/tiny/slurm/jobs.json").unlink()  # as if it was killed before it wrote that
    again = command("submit", "runs/tiny")
    assert again.status == 0 and "nothing to submit" in again.out
    assert slurm.asked() == []


def test_what_the_run_decided_is_changed_by_an_option_that_says_otherwise(
    slurm: Slurm, command: Command
):
    """A run that begins here keeps what a CPU decides, which is said, until an option is given."""

    def stored() -> tuple[str, int]:
        config = json.loads(Path("runs/tiny/config.json").read_text())["config"]
        return config["model"]["precision"], config["optimizer"]["micro_batch_tokens"]

    begun = command("submit", "tiny.toml")
    assert "submit again with --model.precision bf16 --optimizer.micro" in begun.out, begun.err
    assert stored() == ("fp32", 4096)
    changed = command("submit", "tiny.toml", "--optimizer.micro_batch_tokens", "512")
    assert changed.status == 0 and stored() == ("fp32", 512) and "bf16" not in changed.out
    assert command("submit", "tiny.toml").status == 0 and stored() == ("fp32", 512)
    assert command("submit", "tiny.toml", "--model.precision", "bf16").status == 0
    assert command("submit", "tiny.toml").status == 0 and stored() == ("bf16", 512)
    own = ("--model.precision", "fp32", "--optimizer.micro_batch_tokens", "512")
    assert "bf16" not in command("submit", "tiny.toml", "--run-dir", "runs/own", *own).out


def test_updates_beside_generation_wait_for_the_updates_before_only(slurm: Slurm, command: Command):
    assert command("submit", "tiny.toml", "--beside", "--schedule.stages=2").status == 0
    before = FIRST[:6]
    before[2] = before[2].replace(" --dependency=afterok:2", "")
    before[5] = before[5].replace("afterok:5", "afterok:3")
    assert slurm.asked() == before
    assert "--wait 60" in Path("runs/tiny/slurm/optimize.sh").read_text()


def test_a_part_that_failed_is_submitted_with_all_that_waits_for_it(slurm: Slurm, command: Command):
    """Of stage 0, part 1 has failed: Slurm has cancelled its scores. What waits for those never
    starts, but the scores of part 0 keep their place."""
    command("submit", "tiny.toml", "--schedule.stages=2")
    slurm.asked()
    slurm.keep(lambda job: job[0] not in ("1", "2") or job[1] == "0")
    assert command("submit", "runs/tiny").status == 0
    assert slurm.asked() == [
        "--job-name=tiny-generate-0 --array=1 generate.sh 0",
        "--job-name=tiny-score-0 --array=1 --dependency=aftercorr:7 score.sh 0",
        "scancel 3",
        "--job-name=tiny-optimize-0 --dependency=afterok:2_0:8 optimize.sh 0",
        *("scancel 4_0", "scancel 4_1"),
        "--job-name=tiny-generate-1 --array=0-1 --dependency=afterok:9 generate.sh 1",
        *("scancel 5_0", "scancel 5_1"),
        "--job-name=tiny-score-1 --array=0-1 --dependency=aftercorr:10 score.sh 1",
        "scancel 6",
        "--job-name=tiny-optimize-1 --dependency=afterok:11 optimize.sh 1",
    ]


def test_only_what_a_run_lacks_is_submitted(
    slurm: Slurm, command: Command, scored_run: Path, tmp_path: Path
):
    """Stage 0 is generated and scored, but shard 1 has lost its scores: part 1 of two."""
    run_dir = Path(tmp_path / "run")
    shutil.copytree(scored_run, run_dir)
    ShardSet(run_dir / "stages" / "000" / "scores", "scores").forget(1)
    ended = command("submit", run_dir, "--slurm", "slurm.toml")
    assert ended.status == 0, ended.err
    assert slurm.asked()[:3] == [
        "--job-name=run-score-0 --array=1 score.sh 0",
        "--job-name=run-optimize-0 --dependency=afterok:1 optimize.sh 0",
        "--job-name=run-generate-1 --array=0-1 --dependency=afterok:2 generate.sh 1",
    ]


def test_a_dry_run_prints_scripts_that_bash_reads_and_begins_nothing(
    slurm: Slurm, command: Command, tmp_path: Path
):
    ended = command("submit", "tiny.toml", "--dry-run")
    assert ended.status == 0 and slurm.asked() == [] and not Path("runs").exists()
    assert "score_0=$(sbatch --parsable --job-name=tiny-score-0 --array=0-1" in ended.out
    assert " --dependency=aftercorr:$generate_0 " in ended.out
    assert subprocess.run(["bash", "-n"], input=ended.out, text=True).returncode == 0
    assert "#SBATCH --time=2:00:00" in ended.out and "#SBATCH --requeue" in ended.out


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("retrie = 1", "there is no option retrie; did you mean retries?"),
        ("[sbatch]\nparts = 2", "parts is no option of sbatch; write it above the first [table]"),
        ("[score]\narray = '1-2'", "array is set by `mugrpo submit`; leave it out"),
    ],
)
def test_a_bad_option_is_explained(slurm: Slurm, command: Command, text: str, sentence: str):
    Path("slurm.toml").write_text(text)
    ended = command("submit", "tiny.toml")
    assert (ended.status, slurm.asked()) == (2, []) and sentence in ended.err


def test_without_slurm_one_sentence_says_so(
    slurm: Slurm, command: Command, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", "/nowhere")
    ended = command("submit", "tiny.toml")
    assert ended.status == 2 and "there is no sbatch" in ended.err and ended.err.count("\n") == 1


def test_queued_jobs_keep_the_number_of_parts(slurm: Slurm, command: Command):
    command("submit", "tiny.toml", "--schedule.stages=1")
    slurm.asked()
    Path("slurm.toml").write_text("parts = 3")
    ended = command("submit", "runs/tiny")
    assert ended.status == 2 and "parts = 2 are queued" in ended.err
    assert "scancel 1 2 3" in ended.err and slurm.asked() == []


def test_two_at_once_do_not_submit_twice(slurm: Slurm, command: Command):
    command("submit", "tiny.toml", "--schedule.stages=1")
    (slurm.folder / "queue").unlink()
    slurm.asked()
    other = Claims(Path("runs/tiny/slurm"))
    assert other.take("submitting")
    ended = command("submit", "runs/tiny")
    refused(ended, "another `mugrpo submit` is at work", f"(pid {os.getpid()})")
    assert slurm.asked() == []
    other.close()
    assert (command("submit", "runs/tiny").status, len(slurm.asked())) == (0, 3)


# How tries end, in order; then the times that the job is asked for again, and its last status.
# Of a status 3, "stopped" was by SIGTERM after something was published, "early" before.
ENDS = [
    ("0", 0, 0),
    ("2", 0, 2),
    ("3 0", 1, 0),
    ("3 137 3", 2, 3),
    ("1 3 2", 2, 2),
    ("stopped stopped stopped stopped 3 0", 5, 0),
    ("early early early", 2, 3),
    ("gone", 0, 3),
]


@pytest.mark.parametrize(("ends", "requeued", "status"), ENDS)
def test_a_script_tries_again_what_has_failed(
    tmp_path: Path, ends: str, requeued: int, status: int
):
    """The script is run as Slurm would: again for as long as it asks for that."""
    run, log = tmp_path / "run", tmp_path / "run/logs/slurm/tiny-generate-0-3.log"
    for folder in (run / "slurm" / "tries", log.parent, run / "stages", run / "checkpoints"):
        folder.mkdir(parents=True)
    (run / "slurm" / "tries.sh").write_text(tries(SlurmOptions(retries=2)))
    programs = {
        "srun": f"""
            case $1 in
                stopped) sleep 0.02; touch {run}/stages/shard.json ;&
                early) echo "mugrpo: stopped by SIGTERM. Nothing" >&2; exit 3 ;;
                gone) exit 3 ;;
                *) exit $1 ;;
            esac""",
        "squeue": '[ "$1 $2" = "--noheader --job=7_3" ] && [ "$end" != gone ] && echo RUNNING',
        "scontrol": f'echo "$@" >> {tmp_path}/requeued',
        "sleep": f"[ $1 = 300 ] || exec {shutil.which('sleep')} $1",
    }
    for name, text in programs.items():
        write_program(tmp_path / name, f"#!/bin/bash\n{text}\n")
    script = f'run={run}\nsource "$run/slurm/tries.sh"\nsrun "$end"\nend_with $?\n'
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_NAME": "tiny-generate-0",
        "SLURM_JOB_ID": "10",
        "SLURM_ARRAY_JOB_ID": "7",
        "SLURM_ARRAY_TASK_ID": "3",
    }
    asked = 0
    for end in ends.split():
        with open(log, "ab") as out:
            ended = subprocess.run(
                ["bash", "-c", script], env={**environment, "end": end}, stdout=out, stderr=out
            )
        file = tmp_path / "requeued"
        before, asked = asked, len(file.read_text().splitlines()) if file.exists() else 0
        if asked == before:
            break
    assert (asked, ended.returncode) == (requeued, status), log.read_text()
    assert asked == 0 or set(file.read_text().splitlines()) == {"requeue 7_3"}


def test_a_job_without_mugrpo_says_what_to_mend(tmp_path: Path):
    run, log = tmp_path / "run", tmp_path / "run/logs/slurm/tiny.log"
    for folder in (run / "slurm" / "tries", log.parent):
        folder.mkdir(parents=True)
    log.touch()
    text = tries(SlurmOptions(activate=["source absent/bin/activate"]))
    ended = subprocess.run(
        ["bash", "-c", f"run={run}\n{text}\necho begun"],
        env={"PATH": "/usr/bin:/bin", "SLURM_JOB_NAME": "tiny", "SLURM_JOB_ID": "10"},
        capture_output=True,
        text=True,
    )
    said = "== job 10\nmugrpo: there is no mugrpo; mend activate in slurm.toml\n"
    assert (ended.returncode, ended.stdout) == (127, said)


def test_status_says_which_job_failed_why_and_what_to_type(slurm: Slurm, command: Command):
    command("submit", "tiny.toml", "--schedule.stages=1")
    run = Path("runs/tiny").resolve()
    (run / "logs/slurm/tiny-generate-0-1.log").write_text(
        "mugrpo: an earlier try's reason\n== job 1_1\n"
        "mugrpo: the disk is full; make room\nsrun: error: n1: task 0: Exited with exit code 2\n"
    )
    for part, end in ((0, "done"), (1, "failed with status 3\nrefused")):
        (run / "slurm/tries" / f"tiny-generate-0-{part}").write_text(f"{end}\n")
    slurm.keep(lambda job: job[0] == "2" and job[1] == "0")
    again = run / "logs/slurm/tiny-score-0-0.log"
    again.write_text("== job 2_0\nmugrpo: stopped by SIGTERM. Nothing published is lost; resume\n")
    (run / "slurm/tries/tiny-score-0-0").write_text("failed with status 3\n" * 2)
    log = run / "logs/slurm/tiny-generate-0-1.log"
    here = Path("slurm.toml").resolve()
    assert lines(RunDir(Path("runs/tiny"))) == [
        "job 2_0  score of stage 0, part 0: pending (Dependency) since 2026-01-01T00:00:00; 2 "
        "tries failed, the last one: stopped by SIGTERM; give it more `time` in slurm.toml "
        f"({again})",
        f"job 1_1  generate of stage 0, part 1: refused: the disk is full; make room ({log})",
        "2 jobs were cancelled before they began",
        f"to go on, type: mugrpo submit runs/tiny --slurm {here}",
    ]


def test_numbers_are_written_as_ranges():
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
