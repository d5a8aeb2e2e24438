"""A run, opened: its folder locked, its config checked, its task, policy and engine at hand."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from mugrpo.config.load import apply_overrides, build_config, changes, load_config, on_resume
from mugrpo.config.run import RunConfig
from mugrpo.engines import make_engine
from mugrpo.engines.base import Engine
from mugrpo.errors import RunStopped, UsageError
from mugrpo.metrics import MetricsLog
from mugrpo.optimize.trainer import Trainer
from mugrpo.policy import EMBEDDED, Policy, load_policy, model_fingerprint, model_path
from mugrpo.progress import Progress
from mugrpo.records import Problem
from mugrpo.rollouts.prompts import PromptEncoder
from mugrpo.run_dir import FORMAT, RunDir, publish_json, sealed_folder_fault, set_aside, sha256_of
from mugrpo.schedule import Schedule
from mugrpo.stopping import StopFlag
from mugrpo.tasks import make_task
from mugrpo.tasks.base import Task

_MUST_AGREE = {
    "problems_sha256": "the problems",
    "model_sha256": "the model",
    "template_sha256": "the chat template",
    "code_sha256": "mugrpo's code",
}


@dataclass
class Run:
    """What every phase needs. Heavy parts are made when first asked for."""

    dir: RunDir
    config: RunConfig
    task: Task
    problems: Sequence[Problem]
    schedule: Schedule
    progress: Progress
    stop: StopFlag
    checkpoint_seconds: float = 0.0  # spent since the last update's metrics line

    @cached_property
    def policy(self) -> Policy:
        return load_policy(self.config.model, self.progress.say)

    @cached_property
    def encode(self) -> PromptEncoder:
        return PromptEncoder(self.policy.tokenizer, self.policy.vocab_size, self.config.prompt)

    @cached_property
    def engine(self) -> Engine:
        return make_engine(self.policy, self.config.engine)

    @cached_property
    def trainer(self) -> Trainer:
        return Trainer(self.policy, self.config)

    @cached_property
    def metrics(self) -> MetricsLog:
        """The metrics file, cut to the newest checkpoint: where the run goes on from."""
        return MetricsLog(self.dir.metrics, self.newest_update)

    @property
    def newest_update(self) -> int:
        """The update of the newest checkpoint, 0 before the first."""
        return max(self.dir.checkpoint_updates(), default=0)

    def policy_at(self, update: int) -> Policy:
        """The policy with the weights it had after `update` updates.

        Raises UsageError where no update has come so far, RunStopped where its checkpoint is gone.
        """
        if self.policy.update != update:
            self.policy.load_weights(self._weights(update), update)
        return self.policy

    def trainer_at(self, update: int) -> Trainer:
        """The trainer as it was after `update` updates."""
        if not (self.trainer.update == self.policy.update == update):
            if update == 0:
                self.policy_at(0)
                del self.trainer  # a fresh optimizer
            else:
                self.trainer.load(Path(self._weights(update)))
        return self.trainer

    def _weights(self, update: int) -> str:
        """Where the weights after `update` updates lie."""
        if update == 0:
            return model_path(self.config.model)
        folder = self.dir.checkpoint(update)
        if update > self.newest_update:
            raise UsageError(
                f"{folder} is not made yet: optimize the stages before (`mugrpo train` does all)"
            )
        if update not in self.dir.checkpoint_updates():
            raise RunStopped(
                f"{folder} is needed, but gone; remove the checkpoints after it, and the run goes "
                "on from an earlier one"
            )
        if fault := sealed_folder_fault(folder):
            raise RunStopped(f"{folder} {fault}; `mugrpo repair {self.dir.root}` sets it aside")
        return str(folder)


@contextmanager
def open_run(
    target: Path,
    *,
    overrides: Sequence[str] = (),
    run_dir: Path | None = None,
    force: bool = False,
    progress: Progress,
    stop: StopFlag | None = None,
) -> Iterator[Run]:
    """The run of `target`, a config file (begun where it is new) or the directory of a run.

    Raises UsageError where the folder is no run, is locked, or was begun with another config,
    data, model or code (unless `force`).
    """
    if target.is_dir():
        if run_dir is not None:
            raise UsageError(
                f"{target} is a run's directory already; leave out --run-dir {run_dir}"
            )
        folder = RunDir(target)
        stored = folder.read_config()
        if stored is None:
            raise UsageError(f"{target} is an empty directory, not a run; name a config file")
        raw = apply_overrides(stored["config"], overrides)
        config = build_config(raw, str(folder.config))
    else:
        config = load_config(target, overrides)
        folder = RunDir(run_dir or Path("runs") / target.stem)
        folder.read_config()
    config = _absolute(config)
    task = make_task(config.task)
    problems = task.train_problems()
    schedule = Schedule(config.schedule, len(problems), config.seed)
    made = max(folder.checkpoint_updates(), default=0)
    if made > config.schedule.total_updates:
        raise UsageError(
            f"{folder.root} has made {made} updates, more than the {config.schedule.total_updates} "
            "of schedule.stages and the rest; raise schedule.stages, or choose a new --run-dir"
        )
    with folder.locked() as notices:
        for notice in notices:
            progress.say(notice)
        document, forced = _settled_config(
            folder, config, _provenance(config, task), force, progress
        )
        for stage in range(config.schedule.stages) if forced else ():
            if schedule.first_update(stage) > made and folder.stage(stage).exists():
                set_aside(folder.stage(stage))  # rollouts of a policy that will not come again
        if document:  # only now, so that a kill before it leaves the change to be forced again
            publish_json(folder.config, document)
        run = Run(folder, config, task, problems, schedule, progress, stop or StopFlag())
        try:
            yield run
        finally:
            progress.stop()
            if "metrics" in run.__dict__:
                run.metrics.close()


def _absolute(config: RunConfig) -> RunConfig:
    """Local paths made absolute, so that the run can be resumed from anywhere."""
    model, prompt = config.model, config.prompt
    if model.path not in EMBEDDED and Path(model.path).is_dir():
        model = model.model_copy(update={"path": str(Path(model.path).absolute())})
    if prompt.chat_template is not None:
        path = str(Path(prompt.chat_template).absolute())
        prompt = prompt.model_copy(update={"chat_template": path})
    return config.model_copy(update={"model": model, "prompt": prompt})


def _settled_config(
    folder: RunDir, config: RunConfig, provenance: dict[str, Any], force: bool, progress: Progress
) -> tuple[dict[str, Any] | None, bool]:
    """Hold a resumed run's config against what it was begun with.

    Returns the config.json to store, None where it stands already, and whether something that
    decides the run's numbers was changed by force.
    """
    resolved = json.loads(config.model_dump_json())
    document = {"format": FORMAT, "config": resolved, "provenance": provenance}
    stored = folder.read_config()
    if stored is None or folder.is_untouched():
        return document, False
    differences = changes(stored["config"], resolved)
    texts = {name: f"{name}: {a!r} -> {b!r}" for name, a, b in differences}
    refused = [texts[name] for name in texts if on_resume(name) != "harmless"]
    for name, words in _MUST_AGREE.items():
        if stored["provenance"].get(name) != provenance[name]:
            refused.append(f"{words} changed ({name} does not match)")
    fixed = [name for name in texts if on_resume(name) == "fixed"]
    if fixed or (refused and not force):
        way_out = (
            f"The shards on disk rest on {', '.join(fixed)}: undo that or choose a new --run-dir"
            if fixed
            else "Undo that, choose a new --run-dir, or go on regardless with --force"
        )
        raise UsageError(f"{folder.root} was begun otherwise: {'; '.join(refused)}. {way_out}")
    for text in texts.values():
        progress.say(f"changed since the run began: {text}")
    for name in provenance.keys() - _MUST_AGREE.keys() - {"git_revision"}:
        if (old := stored["provenance"].get(name)) != provenance[name]:
            progress.say(f"{name} was {old}, is {provenance[name]}: not resumed to the bit")
    return (document if differences or refused else None), bool(refused)


def _provenance(config: RunConfig, task: Task) -> dict[str, Any]:
    """What a run's numbers rest on besides its config."""
    problems = hashlib.sha256()
    for problem in (*task.train_problems(), *task.eval_problems()):
        problems.update(f"{problem.id}\0{problem.prompt}\0{problem.answer}\0".encode())
    code = hashlib.sha256()
    home = Path(__file__).parent
    for file in sorted(home.rglob("*.py")):
        code.update(f"{file.relative_to(home)}\0".encode() + file.read_bytes())
    template = config.prompt.chat_template
    if template is not None and not Path(template).is_file():
        raise UsageError(f"prompt.chat_template = {template!r}: there is no such file")
    packages = ("mugrpo", "torch", "transformers", "numpy")
    return {
        "problems_sha256": problems.hexdigest(),
        "model_sha256": model_fingerprint(config.model),
        "template_sha256": sha256_of(Path(template)) if template else None,
        "code_sha256": code.hexdigest(),
        **{name: metadata.version(name) for name in packages},
        "threads": torch.get_num_threads(),
        "git_revision": _git_revision(home),
    }


def _git_revision(folder: Path) -> str | None:
    command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
