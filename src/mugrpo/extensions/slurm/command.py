"""`mugrpo submit`: what a run lacks, as jobs of Slurm."""

import argparse
import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mugrpo.arguments import BEGIN, Commands, add_target
from mugrpo.config.load import changes, with_newer_options
from mugrpo.config.run import DECIDED, OPEN, RunConfig
from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.publishing import publish_file, publish_json
from mugrpo.extensions.slurm.chain import Chain, Work
from mugrpo.extensions.slurm.queue import Queued, Task, cancel, has_slurm, queued, submit
from mugrpo.extensions.slurm.scripts import PHASES, script, task_name, tries
from mugrpo.extensions.slurm.settings import SlurmOptions, read_settings
from mugrpo.processes.claims import Claims, claims_in
from mugrpo.run.target import Target, read_target

_DECIDED = {".".join(names) for names in DECIDED}


def add_submit(commands: Commands) -> None:
    """Add the command."""
    text = "submit what a run lacks to Slurm: jobs that generate, score and make updates"
    example = "mine.toml --slurm slurm.toml"
    command = commands.add(
        "submit",
        text,
        run="mugrpo.extensions.slurm.command:run_submit",
        group=BEGIN,
        example=example,
        parents=[commands.opening],
    )
    add_target(command)
    file = "the options of the jobs (default: slurm.toml)"
    command.add_argument(
        "--slurm", type=Path, default=Path("slurm.toml"), metavar="FILE", help=file
    )
    beside = "begin a stage's updates beside its generation"
    command.add_argument("--beside", action="store_true", help=beside)
    dry = "print the scripts and what would be submitted"
    command.add_argument("--dry-run", action="store_true", help=dry)


def run_submit(options: argparse.Namespace) -> None:
    """Submit what the run lacks, and begin it before if need be."""
    if not options.dry_run and not has_slurm():
        raise UsageError(
            "there is no sbatch or squeue on this machine's PATH; log in where jobs are submitted, "
            "or print them with --dry-run"
        )
    words = {"overrides": options.overrides, "run_dir": options.run_dir, "trust": options.trust}
    target = read_target(options.target, **words)
    run = target.folder.root.resolve()
    settings = read_settings(options.slurm)
    if options.dry_run:
        _say_dry(options, target, run, settings)
        return
    if options.force or _changed(target):
        from mugrpo.cli import opened

        begins = target.folder.read_config() is None
        with opened(options):  # which stores the config
            pass
        if begins and (warning := _decided_here(target.config)):
            options.say(warning)
        target = read_target(run, trust=options.trust)
    with _alone(run):
        jobs = _Jobs(run, settings, options.say)
        jobs.write_scripts(options.slurm, beside=options.beside)
        chain = Chain(run, settings, jobs.queue, jobs.submit, cancel, beside=options.beside)
        for work in lacking(target):
            chain.add(work)
    count = len(jobs.submitted)
    told = f"{count} jobs submitted" if count else "nothing to submit: all is queued, or done"
    options.say(f"{told}; `mugrpo status {shlex.quote(str(run))}` shows them")


def _say_dry(
    options: argparse.Namespace, target: Target, run: Path, settings: SlurmOptions
) -> None:
    """Print the scripts, and the lines of sbatch as a shell would run them."""
    said: list[str] = []

    def submitted(tasks: list[Task], words: list[str]) -> str:
        name = f"{tasks[0].phase}_{tasks[0].stage}"
        quoted = [word if "$" in word else shlex.quote(word) for word in words]
        said.append(f"{name}=$(sbatch --parsable {' '.join(quoted)})")
        return f"${name}"

    queue: dict[Task, Queued] = {}
    with suppress(RunStopped):  # without Slurm, all that the run lacks is shown
        queue = queued(run) if has_slurm() else {}
    chain = Chain(
        run,
        settings,
        queue,
        submitted,
        lambda job: said.append(f"scancel {job}"),
        beside=options.beside,
    )
    for work in lacking(target):
        chain.add(work)
    for name, text in _files(run, settings, beside=options.beside).items():
        options.say(f"# {run}/slurm/{name}\n{text}")
    options.say("\n".join(said))


def lacking(target: Target) -> Iterator[Work]:
    """Yield the missing work of each unfinished stage, without locking the run."""
    from mugrpo.rollouts.schedule import schedule_of
    from mugrpo.run.opening import prompt_encoder
    from mugrpo.run.provenance import judge_fingerprint
    from mugrpo.run.stage import Stage

    folder, config = target.folder, target.config
    problems = prompt_encoder(config).fitting(target.problems[0])
    draws, judge = schedule_of(config, problems), judge_fingerprint(config, problems)
    for number in range(config.schedule.stages):
        stage = Stage(number, draws, folder, config, judge)
        if stage.end > folder.newest_update():
            yield Work(number, stage.lacking(), stage.unscored())


def _changed(target: Target) -> bool:
    """Return whether the stored config has to be written: there is none, or it is another one."""
    if (stored := target.folder.read_config()) is None:
        return True
    old, new = with_newer_options(stored["config"]), target.config.model_dump(mode="json")
    return any(
        name != "prompt.chat_template" and (name not in _DECIDED or value not in OPEN)
        for name, _, value in changes(old, new)  # a run keeps its own copy of a template
    )


def _decided_here(config: RunConfig) -> str:
    """Return a warning that a run which begins here decides for jobs that may have a GPU, or ""."""
    from mugrpo.model.hardware import device

    options = {
        "--model.precision bf16": config.model.precision,
        "--optimizer.micro_batch_tokens 16384": config.optimizer.micro_batch_tokens,
    }
    left = [option for option, value in options.items() if value in OPEN]
    if device() != "cpu" or not left:
        return ""
    return (
        "warning: this machine has no GPU, so the run has fp32 and micro-batches of 4,096 tokens "
        f"where that is left open; for jobs on GPUs submit again with {' '.join(left)}, or the "
        "tokens that `mugrpo check --gpus` says"
    )


def _files(run: Path, settings: SlurmOptions, *, beside: bool) -> dict[str, str]:
    """Return name -> text of the scripts in RUN/slurm."""
    own = {f"{phase}.sh": script(run, phase, settings, beside=beside) for phase in PHASES}
    return {**own, "tries.sh": tries(settings)}


class _Jobs:
    """The jobs of a run: those that Slurm has, and in RUN/slurm/jobs.json all that there were."""

    def __init__(self, run: Path, settings: SlurmOptions, say: Any) -> None:
        self.queue = queued(run)
        self.submitted: list[str] = []
        self._run, self._settings, self._say = run, settings, say
        self._file = run / "slurm" / "jobs.json"
        self._all = read_jobs(run)
        if self.queue and (parts := self._all["parts"]) not in (None, settings.parts):
            ids = shlex.join(dict.fromkeys(queued.job for queued in self.queue.values()))
            raise UsageError(
                f"jobs with parts = {parts} are queued; write that in slurm.toml, or cancel them "
                f"first: scancel {ids}"
            )

    def write_scripts(self, toml: Path, *, beside: bool) -> None:
        """Write the scripts. `toml` is the file that their options come from."""
        folder = self._run / "slurm"
        for place in (folder / "tries", self._run / "logs" / "slurm"):
            place.mkdir(parents=True, exist_ok=True)
        files = _files(self._run, self._settings, beside=beside)
        for name, text in files.items():
            with publish_file(folder / name) as file:
                file.write(text.encode())
        words = ["--slurm", str(toml.resolve()), *(["--beside"] if beside else [])]
        live = {queued.job for queued in self.queue.values()}
        jobs = [job for job in self._all["jobs"] if job["job"] in live]  # the others are history
        self._all = {"parts": self._settings.parts, "words": words, "jobs": jobs}
        publish_json(self._file, self._all)

    def submit(self, tasks: list[Task], words: list[str]) -> str:
        """Submit a job and note it. Its tasks may fail as often as if they were new."""
        for task in tasks:
            (self._run / "slurm" / "tries" / task_name(self._run, *task)).unlink(missing_ok=True)
        job = submit(words)
        self.submitted.append(job)
        phase, stage, _ = tasks[0]
        parts = [task.part for task in tasks]
        self._all["jobs"].append({"job": job, "phase": phase, "stage": stage, "parts": parts})
        publish_json(self._file, self._all)
        shown = next((word for word in words if word.startswith("--array")), "")
        self._say(
            f"job {job}: {phase} of stage {stage} {shown.replace('--array=', 'parts ')}".rstrip()
        )
        return job


def read_jobs(run: Path) -> dict[str, Any]:
    """Return what RUN/slurm/jobs.json says, or no jobs if there is none."""
    file = run / "slurm" / "jobs.json"
    try:
        return dict(json.loads(file.read_bytes()))
    except FileNotFoundError:
        return {"parts": None, "words": [], "jobs": []}
    except ValueError as error:
        raise UsageError(
            f"{file} is damaged ({error}); remove it: jobs that are queued are found without it"
        ) from None


@contextmanager
def _alone(run: Path) -> Iterator[None]:
    """Let only one process at a time submit a run's jobs. Raises UsageError if another one does."""
    claims = Claims(run / "slurm")
    if not claims.take("submitting"):
        holder = next((claim.holder() for claim in claims_in(run / "slurm")), "it has just ended")
        raise UsageError(
            f"another `mugrpo submit` is at work on {run} ({holder}); wait until it ends"
        )
    try:
        yield
    finally:
        claims.close()
