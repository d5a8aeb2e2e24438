"""The scripts of a run's jobs, as a person would write them: RUN/slurm/generate.sh and so on.

Each takes the stage as its argument, so that a person can submit it, too.
"""

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from mugrpo.extensions.slurm.settings import Flags, SlurmOptions

PHASES = ("generate", "score", "optimize")

# An option of slurm.toml replaces one of these.
_DEFAULTS: Flags = {
    "requeue": True,
    "open-mode": "append",
    "signal": "TERM@120",  # to the steps: mugrpo saves a checkpoint and ends with status 3
    "kill-on-invalid-dep": "yes",
}

_TRIES = """\
# How a job ends, and when it is tried again: the scripts in this folder read this file.
job=${{SLURM_ARRAY_JOB_ID:+${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID}}
job=${{job:-$SLURM_JOB_ID}}
name=$SLURM_JOB_NAME${{SLURM_ARRAY_TASK_ID:+-$SLURM_ARRAY_TASK_ID}}
log=$run/logs/slurm/$name.log
tries=$run/slurm/tries/$name  # a line for each end
before=$(wc -c < "$log")
touch "$tries"
echo "== job $job"  # to the log: what is above it, an earlier try has said
command -v {program} > /dev/null || {{
    echo "mugrpo: there is no {program}; mend activate in slurm.toml"
    exit 127
}}

# srun gives each task the CPUs of the job only if it is told to.
[ -z "$SLURM_CPUS_PER_TASK" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

told_to_stop() {{  # by Slurm, because of the time limit or a preemption
    tail -c "+$((before + 1))" "$log" | grep -q "stopped by SIGTERM"
}}

has_published() {{  # since this try began
    find "$run/stages" "$run/checkpoints" -newer "$tries" -name "*.json" 2>/dev/null | grep -q .
}}

end_with() {{  # the status of mugrpo
    case $1 in
        0) echo "done" >> "$tries"; exit 0 ;;
        2) echo "refused" >> "$tries"; exit 2 ;;  # another try would end the same
    esac
    # If it does not run any more, it was cancelled, or Slurm tries it again by itself.
    [ "$(squeue --noheader --job="$job" --format=%T)" = RUNNING ] || exit "$1"
    if told_to_stop && has_published; then
        echo "stopped" >> "$tries"
    else
        echo "failed with status $1" >> "$tries"
        [ "$(grep -c failed "$tries")" -le {retries} ] || exit "$1"
    fi
    scontrol requeue "$job" && sleep 300  # Slurm ends this script, and begins it again in minutes
    exit "$1"
}}
"""

_WHAT = {
    "generate": "Part $SLURM_ARRAY_TASK_ID of {parts} of the rollouts of stage $1",
    "score": "The scores of part $SLURM_ARRAY_TASK_ID of {parts} of stage $1",
    "optimize": "The updates of stage $1",
}


def script(run: Path, phase: str, options: SlurmOptions, *, beside: bool) -> str:
    """Return the script of a phase's jobs. Updates `beside` generation wait for shards."""
    place = str(run / "logs" / "slurm" / "%").replace("%", "%%")[:-2]
    place += "%x.log" if phase == "optimize" else "%x-%a.log"
    flags = {**_DEFAULTS, **options.sbatch, **getattr(options, phase), "output": place}
    program = "mugrpo" if options.activate else f"{shlex.quote(sys.executable)} -P -m mugrpo"
    step = "srun --kill-on-bad-exit" if phase == "optimize" else "srun --nodes=1 --ntasks=1"
    part = f'--part "$SLURM_ARRAY_TASK_ID/{options.parts}"'
    if phase == "optimize":
        part = f"--wait {options.wait}" if beside else ""
    what = _WHAT[phase].format(parts=options.parts)
    lines = [
        "#!/bin/bash",
        *_sbatch_lines(flags),
        "",
        f"# {what}. `mugrpo submit` writes this file, from slurm.toml.",
        f"run={shlex.quote(str(run))}",
        *options.activate,
        'source "$run/slurm/tries.sh"',
        "",
        f'{step} {program} {phase} "$run" --stage "$1" {part}'.rstrip(),
        "end_with $?",
        "",
    ]
    return "\n".join(lines)


def tries(options: SlurmOptions) -> str:
    """Return the file that the scripts read: when a job is tried again."""
    program = "mugrpo" if options.activate else shlex.quote(sys.executable)
    return _TRIES.format(retries=options.retries, program=program)


def job_name(run: Path, phase: str, stage: int) -> str:
    """Return the name of a job. Its log and the file of its tries have it, too."""
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '-', run.name)}-{phase}-{stage}"


def task_name(run: Path, phase: str, stage: int, task: int | None) -> str:
    """Return the name of a task's log and of the file of its tries."""
    return job_name(run, phase, stage) + ("" if task is None else f"-{task}")


def _sbatch_lines(flags: Flags) -> Iterator[str]:
    for name, value in flags.items():
        if value is True:
            yield f"#SBATCH --{name}"
        elif value is not False:
            yield f"#SBATCH --{name}={shlex.quote(str(value))}"
