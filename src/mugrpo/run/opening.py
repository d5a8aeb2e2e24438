"""Opening a run: its folder locked, its config checked, its problems read."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from mugrpo.config.load import apply_overrides, build_config, load_config
from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import UsageError
from mugrpo.disk.publishing import publish_json, set_aside
from mugrpo.disk.records import Problem
from mugrpo.disk.run_dir import RunDir
from mugrpo.model.policy import load_tokenizer, load_vocabulary, model_sizes
from mugrpo.processes.ranks import ALONE, Ranks
from mugrpo.processes.stopping import StopFlag
from mugrpo.rollouts.prompts import PromptEncoder
from mugrpo.rollouts.schedule import Schedule
from mugrpo.run.opened import OpenRun
from mugrpo.run.progress import Progress
from mugrpo.run.provenance import judge_fingerprint, provenance_of, settled_config
from mugrpo.tasks import make_task
from mugrpo.tasks.base import Task

_PATIENCE = 90  # seconds until what one machine has written is seen by all


@contextmanager
def open_run(
    target: Path | str,
    *,
    overrides: Sequence[str] = (),
    run_dir: Path | str | None = None,
    force: bool = False,
    progress: Progress | None = None,
    stop: StopFlag | None = None,
    ranks: Ranks = ALONE,
) -> Iterator[OpenRun]:
    """Open the run of `target`, a config file (begins the run if it is new) or a run's directory.

    The folder is `run_dir`, or runs/NAME of a config file NAME.toml. It is locked while the block
    lasts. `overrides` are words of the command line, "--optimizer.lr", "2e-4". `progress` is told
    what goes on, and prints it unless another one is given; `stop` may end the work early. Of
    several `ranks` the first locks and checks the run, unless the run that started them has.

    Raises UsageError if the folder is no run, is locked, or was begun with another config, data,
    model or code (unless `force`), and whatever `load_config` raises.
    """
    progress = progress or Progress(shown=ranks.first)
    folder, config = _begun_or_new(
        Path(target), overrides, None if run_dir is None else Path(run_dir)
    )
    task = make_task(config.task)
    prompts = prompt_encoder(config)
    problems, eval_problems = _problems(task, config, prompts, progress)
    made = _seen_by_all(folder, ranks)
    starts = folder.stage_starts(made)
    schedule = Schedule(config.schedule, len(problems), config.seed, starts)
    if made > config.schedule.total_updates:
        raise UsageError(
            f"{folder.root} has made {made} updates, more than the {config.schedule.total_updates} "
            "of schedule.stages and the rest; raise schedule.stages, or choose a new --run-dir"
        )
    held = not ranks.first or ranks.driven  # by another process
    with nullcontext(()) if held else folder.locked() as notices:
        for notice in notices:
            progress.say(notice)
        if not held:
            provenance = provenance_of(config, problems, eval_problems)
            _settle(folder, config, provenance, force, progress, schedule.stage_of(made))
        try:
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
            )
        finally:
            progress.stop()
            task.close()


def _problems(
    task: Task, config: RunConfig, prompts: PromptEncoder, progress: Progress
) -> tuple[list[Problem], list[Problem]]:
    """Return the problems to train on and those held out, without overlong prompts.

    Raises UsageError if the run evaluates and none is held out.
    """
    problems, eval_problems = task.train_problems(), task.eval_problems()
    if config.evaluation.every and not eval_problems:
        raise UsageError(
            "no problem is held out to evaluate on; hold some out (task.eval_share, "
            "task.eval_data), or turn evaluation off with --evaluation.every 0"
        )
    return _fitting(prompts, problems, progress), _fitting(prompts, eval_problems, progress)


def _settle(
    folder: RunDir,
    config: RunConfig,
    provenance: dict[str, Any],
    force: bool,
    progress: Progress,
    stage: int,
) -> None:
    """Hold the config against the stored one and store it. `stage` is the one under way.

    Rollouts of later stages are set aside if a change was forced: their policy will not come again.
    """
    document, forced = settled_config(folder, config, provenance, force, progress)
    for later in folder.stages() if forced else ():
        if later > stage:
            set_aside(folder.stage(later))
    if document:  # only now, so that a kill before it leaves the change to be forced again
        publish_json(folder.config, document)


def _seen_by_all(folder: RunDir, ranks: Ranks) -> int:
    """The update of the newest checkpoint. Shared storage may tell some ranks of it later."""
    for _ in range(_PATIENCE):
        seen = ranks.all(folder.newest_update())
        if len(set(seen)) == 1:
            return seen[0]
        time.sleep(1)
    raise UsageError(
        f"{folder.root} is not the same for all ranks: their newest checkpoints are of updates "
        f"{', '.join(map(str, seen))}; it has to lie on storage that all machines share"
    )


def _begun_or_new(
    target: Path, overrides: Sequence[str], run_dir: Path | None
) -> tuple[RunDir, RunConfig]:
    """The directory and the config of the run that `target` names."""
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
        if raw.get("preset") != (begun := stored["config"].get("preset")):
            raise UsageError(
                f"{target} was begun with preset {begun}, whose options are all set by now; change "
                "single options, or begin another run from a config file with --run-dir"
            )
        config = build_config(raw, str(folder.config))
    else:
        config = load_config(target, overrides)
        folder = RunDir(run_dir or Path("runs") / target.stem)
        folder.read_config()
    return folder, config


def prompt_encoder(config: RunConfig) -> PromptEncoder:
    """What makes prompts under `config`, leaving room for a response in the model's context."""
    vocab_size, context = model_sizes(config.model)
    longest = config.rollouts.max_new_tokens
    if (most := config.engine.max_model_len) is not None:
        context = min(most, context or most)
    if context is not None and context <= longest:
        raise UsageError(
            f"rollouts.max_new_tokens = {longest} leaves no room for a prompt in the model's "
            f"context of {context} tokens; lower it"
        )
    limit = None if context is None else context - longest
    return PromptEncoder(load_tokenizer(config.model), vocab_size, config.prompt, limit)


def _fitting(
    encode: PromptEncoder, problems: Sequence[Problem], progress: Progress
) -> list[Problem]:
    """Those of `problems` whose prompts are not too long; others are told of."""
    fitting = encode.fitting(problems)
    if dropped := len(problems) - len(fitting):
        progress.say(f"{dropped} of {len(problems)} problems are left out: their prompts are long")
    return fitting
