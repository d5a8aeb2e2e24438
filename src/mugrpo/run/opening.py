"""Open a run: lock its folder, check its config, read its problems. No work starts before."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from mugrpo.config.base import imported
from mugrpo.config.load import build_config
from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import Interrupted, Locked, RunStopped, UsageError
from mugrpo.disk.publishing import publish_json, set_aside, with_checksum
from mugrpo.disk.records import Problem, TrainerState
from mugrpo.disk.run_dir import RunDir
from mugrpo.model.adapter import imported_peft
from mugrpo.model.loading import image_tokens, load_tokenizer, load_vocabulary, model_sizes
from mugrpo.model.vocabulary import Vocabulary
from mugrpo.processes.lifetime import StopFlag
from mugrpo.processes.ranks import ALONE, Ranks
from mugrpo.rollouts.prompts import PromptEncoder
from mugrpo.rollouts.sampler import Dialogue
from mugrpo.rollouts.schedule import Schedule, schedule_of
from mugrpo.rollouts.score import Scorer
from mugrpo.run.deciding import for_this_machine
from mugrpo.run.faults import faults
from mugrpo.run.journal import Journal
from mugrpo.run.progress import Progress
from mugrpo.run.provenance import (
    checked_config,
    judge_fingerprint,
    provenance_of,
)
from mugrpo.run.suites import Suites, suites_of
from mugrpo.run.target import Target, read_target
from mugrpo.run.trust import remember
from mugrpo.tasks.base import Task

_BEGINNING = 60.0  # seconds that a process waits for another one to begin a run


@dataclass(frozen=True)
class OpenRun:
    """A run whose folder is locked, whose config is checked and whose problems are read.

    `open_run` yields it. It holds no model: a `Host` does.
    """

    folder: RunDir
    config: RunConfig
    task: Task
    problems: Sequence[Problem]  # to train on
    eval_problems: Sequence[Problem]
    prompts: PromptEncoder  # holds the tokenizer too
    vocabulary: Vocabulary
    judge: str  # fingerprint of everything that decides a score
    progress: Progress
    stop: StopFlag
    ranks: Ranks = ALONE
    closing: ExitStack = field(default_factory=ExitStack)  # of what opens while the run is open

    @cached_property
    def journal(self) -> Journal:
        """The run's metrics."""
        journal = Journal(self.folder, self.config, self.progress)
        self.closing.callback(journal.close)
        return journal

    @cached_property
    def suites(self) -> Suites | None:
        """The benchmark suites that the run measures, None if it has none."""
        if self.ranks.follows or (suites := suites_of(self)) is None:
            return None
        self.closing.callback(suites.close)
        return suites

    @cached_property
    def draws(self) -> Schedule:
        """The groups that each stage draws."""
        return schedule_of(self.config, self.problems)

    def state(self, update: int, stage: int | None) -> TrainerState:
        """Return what reward functions learn about responses of the policy after `update`."""
        return TrainerState(update, self.config.schedule.total_updates, stage)

    def scorer(self, problems: Sequence[Problem], stage: int | None) -> Scorer:
        """Return a scorer for rollouts of `problems`, of a stage or, if None, an evaluation."""
        return Scorer(
            self.task,
            problems,
            self.prompts.tokenizer,
            self.config.rewards,
            max_new_tokens=self.config.rollouts.max_new_tokens,
            judge=self.judge,
            state=self.state(0, stage),
            check=self.stop.check,
        )

    def with_ranks(self, count: int) -> "OpenRun":
        """Return the run with `count` ranks, for this process alone: its stored config stays.

        Raises UsageError if the config does not go with so many.
        """
        options = self.config.model_dump(mode="json") | {"distributed": {"processes": count}}
        return replace(self, config=build_config(options, f"a launcher's {count} ranks"))

    def dialogue(self, number: int) -> Dialogue | None:
        """Return what lets responses of the engine `number` have turns, None if they have none.

        The caller closes it. Raises UsageError if the chat template cannot write a conversation.
        """
        options = self.config.environment
        if not options.given:
            return None
        log = self.folder.log(f"environment-{number}")
        dialogue: Dialogue = imported(options.dialogue)(self.config, self.prompts, log)
        return dialogue

    def check(self) -> None:
        """Raise Interrupted if the run was asked to stop. All ranks raise at the same update."""
        if not self.ranks.follows:
            self.stop.check()
            return
        asks = self.ranks.first  # one look at a shared folder is enough
        requested = asks and self.folder.stop_request.exists()
        if self.ranks.any(requested or self.stop.signal_name is not None):
            raise Interrupted("stopped with the other ranks")


@contextmanager
def open_run(
    target: Path | str | Target,
    *,
    overrides: Sequence[str] = (),
    run_dir: Path | str | None = None,
    force: bool = False,
    trust: bool = False,
    progress: Progress | None = None,
    stop: StopFlag | None = None,
    ranks: Ranks = ALONE,
    apart: bool = False,
) -> Iterator[OpenRun]:
    """Open the run that `target` is or names: a config file, or the directory of a run.

    A config file starts a new run in `run_dir`, by default runs/NAME for NAME.toml, or goes on with
    the one there. The directory is locked while the block lasts, and a checkpoint is complete when
    it ends. `overrides` are words of a command line. Ranks do not lock it, and a process
    `apart`, which does a part of a stage, does so only to begin a run: it changes no config.

    Raises UsageError if the folder is not a run, is locked, or was started with another config,
    data, model or code (unless `force`), if a run's directory names code and was not begun here
    (unless `trust`, see `run.trust`), as `load_config` and `for_this_machine`, or without peft.
    """
    progress = progress or Progress(shown=ranks.first)
    if not isinstance(target, Target):
        asks = not ranks.follows
        target = read_target(target, overrides=overrides, run_dir=run_dir, trust=trust, asks=asks)
    folder, task = target.folder, target.task
    config = for_this_machine(folder, target.config, progress)
    if config.lora.rank:
        imported_peft(config.lora)
    prompts = prompt_encoder(config)
    config = config.model_copy(update={"prompt": prompts.options})
    problems, eval_problems = (_fitting(prompts, side, progress) for side in target.problems)
    newest = _common_update(folder, config.schedule.total_updates, ranks)
    schedule_of(config, problems)  # raises if there are too few
    with ExitStack() as stack:
        if apart:
            _join(folder, config, provenance_of(config, problems, eval_problems), progress)
        elif not ranks.follows:
            for notice in stack.enter_context(folder.locked()):
                progress.say(notice)
            provenance = provenance_of(config, problems, eval_problems)
            _store_config(folder, config, provenance, force, progress, newest)
        for ending in (folder.settle, task.close, progress.stop):  # the last one comes first
            stack.callback(ending)
        yield OpenRun(
            folder,
            config,
            task,
            problems,
            eval_problems,
            prompts,
            load_vocabulary(config.model, prompts.tokenizer),
            judge_fingerprint(config, problems),
            progress,
            stop or StopFlag(),
            ranks,
            stack,
        )


def _store_config(
    folder: RunDir,
    config: RunConfig,
    provenance: dict[str, Any],
    force: bool,
    progress: Progress,
    newest: int = 0,
) -> None:
    """Check the config against the stored one, then store it. `newest` updates are made.

    If a change was forced, rollouts of later stages are set aside: the run will reach those stages
    with another policy. Raises UsageError if a change is refused, RunStopped if a file is damaged.
    From here on the run is known to this user.
    """
    if fault := next(faults(folder, contents=False), None):
        raise RunStopped(fault.sentence(folder))
    document, forced = checked_config(folder, config, provenance, force, progress)
    for later in folder.stages() if forced else ():
        if later > config.schedule.stage_of(newest):
            set_aside(folder.stage(later))
    if document:  # last: after a kill before this line, the change must be forced again
        publish_json(folder.config, with_checksum(document))
    remember(document or folder.read_config() or {}, config)


def _join(
    folder: RunDir, config: RunConfig, provenance: dict[str, Any], progress: Progress
) -> None:
    """Check the config against that of a run which others work on. The first of them begins it.

    Raises UsageError if a change is refused, or if the run does not begin.
    """
    until = time.monotonic() + _BEGINNING
    while folder.read_config() is None:
        try:
            with folder.locked():
                if folder.read_config() is None:
                    _store_config(folder, config, provenance, False, progress)
        except Locked:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
    folder.go_apart()
    checked_config(folder, config, provenance, False, progress, apart=True)
    remember(folder.read_config() or {}, config)


def _common_update(folder: RunDir, total: int, ranks: Ranks) -> int:
    """Return the update of the newest checkpoint.

    Raises UsageError if ranks see different ones, or if it is above the schedule's `total`.
    """
    updates = ranks.all(folder.newest_update())
    if len(set(updates)) > 1:
        raise UsageError(
            f"{folder.root} is not the same for all ranks: their newest checkpoints are of updates "
            f"{', '.join(map(str, updates))}; it must be on storage that all machines share"
        )
    if updates[0] > total:
        raise UsageError(
            f"{folder.root} already has {updates[0]} updates, more than the {total} of its "
            "schedule; raise schedule.stages, or choose a new --run-dir"
        )
    return updates[0]


def prompt_encoder(config: RunConfig) -> PromptEncoder:
    """Return the prompt encoder of `config`, which leaves room for a response in the context.

    Raises UsageError if `max_new_tokens` leaves no room for a prompt.
    """
    vocab_size, context, why = model_sizes(config.model)
    longest = config.rollouts.max_new_tokens
    if (engine_context := config.engine.max_model_len) is not None:
        context = min(engine_context, context or engine_context)
    if context is not None and context <= longest:
        raise UsageError(
            f"rollouts.max_new_tokens = {longest} leaves no room for a prompt in the model's "
            f"context of {context} tokens{why}; lower it"
        )
    limit = None if context is None else context - longest
    turns = config.environment
    tools = partial(imported(turns.schemas), config) if turns.given else None
    tokenizer = load_tokenizer(config.model)
    return PromptEncoder(
        tokenizer,
        vocab_size,
        config.prompt,
        limit,
        tools,
        why=why,
        unread=image_tokens(config.model, tokenizer),
    )


def _fitting(
    encode: PromptEncoder, problems: Sequence[Problem], progress: Progress
) -> list[Problem]:
    """Return the problems whose prompts are not too long. Say how many are left out."""
    fitting = encode.fitting(problems)
    if dropped := len(problems) - len(fitting):
        progress.say(
            f"{dropped} of {len(problems)} problems are left out: their prompts are too long"
        )
    return fitting
