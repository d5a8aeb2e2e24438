"""What a run needs only later, tried before its first rollout: prompts, engines, rewards, disk.

The data is read, with the held-out problems, when the run is opened, and its sinks are opened with
`Work`. The rewards judge a made-up completion here: the reference answer, in a box if that is what
the first of them reads.

A run that is resumed tries all of it again. What keeps a run from beginning only stops one that has
results: the same command may succeed later, when a judge's server is back or the disk has room.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from mugrpo.config.base import RewardOption
from mugrpo.config.rewards import deciding
from mugrpo.config.tasks import asks_environment, datasets_in
from mugrpo.disk.errors import BrokenReward, RunStopped, UsageError
from mugrpo.disk.records import Answer, FinishReason, Problem, Score, Status
from mugrpo.engines import require_engines
from mugrpo.model.loading import trained_parameters
from mugrpo.optimize.loss import UpdateLoss
from mugrpo.rollouts.prompts import notices
from mugrpo.run.opening import OpenRun
from mugrpo.stages.evaluate import Measures, evaluation_due
from mugrpo.stages.ranks import require_gpus
from mugrpo.stages.stage import Stage, shards_made

_SHOWN = 3  # problems to train on, and as many held-out ones, that `mugrpo check` shows
_IDS = 40  # of a prompt's beginning, and as many of its end
_WEIGHT = 12  # bytes of a trained parameter in a checkpoint: fp32, with AdamW's two moments
_TOKEN = 8  # bytes of a token in a shard of rollouts: its id and its logprob
_LOGPROB = 4  # bytes of a token in a shard of another policy's logprobs


def preflight(run: OpenRun, measures: Measures, *, tell: bool = False) -> None:
    """Try what the rest of the run needs. Say what may go wrong, and with `tell` what was tried.

    Raises UsageError for an engine that cannot be started, more ranks than GPUs, a file without an
    objective, a reward that fails, breaks its contract or finds the reference answer wrong, and a
    disk that is too small for the checkpoints. For these rewards and this disk it is RunStopped if
    the run has results already.
    """
    _try_prompts(run, tell)
    require_engines(run.config)
    if run.config.distributed.ranks > 1 and not run.config.backend.clustered:
        require_gpus(run.config.distributed)
    UpdateLoss.of(run.config)  # a file of the user's own may not be one
    _try_rewards(run, tell)
    for sentence in measures.preflight():
        if tell:
            run.progress.say(sentence)
    _try_disk(run, tell)


def _try_prompts(run: OpenRun, tell: bool) -> None:
    for sentence in notices(run.prompts, run.vocabulary.stop_ids, run.problems):
        run.progress.say(sentence)
    if tell:
        ids = run.prompts(run.problems[0]).tolist()
        shown = f"{str(ids[:_IDS])[:-1]}, ... {str(ids[-_IDS:])[1:]}"
        run.progress.say(f"prompt ids  {ids if len(ids) <= 2 * _IDS else shown}")


def _try_rewards(run: OpenRun, tell: bool) -> None:
    held_out = run.eval_problems if run.config.evaluation.every else ()
    count = _SHOWN if tell else 1
    problems = [*_first(run.problems, count), *_first(held_out, count)]
    for problem, score in zip(problems, _scores(run, problems), strict=True):
        made_up = _made_up(run, problem)
        completion = f"a made-up completion, {made_up!r} to problem {problem.id!r}"
        if tell:
            run.progress.say(f"prompt      {run.prompts.text(problem)!r}")
            reward = "none" if score.reward is None else f"{score.reward:g}"
            run.progress.say(f"reward      {reward} ({score.status}) for {completion}")
        if score.status is Status.WRONG and _verifier(run, problem):
            raise (UsageError if run.folder.is_untouched() else RunStopped)(
                f"the rewards find the reference answer wrong: {completion}; choose another "
                "reward, or store the answer alone in the data"
            )
        broken = score.status in (Status.ERROR, Status.UNFINISHED)  # None may be right here
        if broken and run.config.rewards.failure_limit < 1:
            failed = f"the rewards failed on {completion}: {score.parts['reason']}"
            if run.folder.is_untouched():
                raise UsageError(
                    f"{failed}. Mend this before anything is generated; a function may return None "
                    "for a completion that it cannot judge"
                )
            raise RunStopped(f"{failed}. The run goes on once they judge it again")
        if score.status.failed:
            run.progress.say(
                f"warning: {completion} got no reward ({score.status}); the run stops if a larger "
                f"share than rewards.failure_limit = {run.config.rewards.failure_limit:g} gets none"
            )


def _made_up(run: OpenRun, problem: Problem) -> str:
    verifier = _verifier(run, problem)
    return verifier.written(problem.answer) if verifier else problem.answer


def _verifier(run: OpenRun, problem: Problem) -> RewardOption | None:
    """Return the reward that decides whether a response is right, or None if functions do."""
    task = run.config.task
    sources = {getattr(one, "source", None): one for one in datasets_in(task)}
    options = sources.get(problem.source)
    return next(iter(deciding(options.rewards)), None) if options else None


def _first(problems: Sequence[Problem], count: int) -> list[Problem]:
    """Return the first `count` problems of each source."""
    by_source: dict[str | None, list[Problem]] = {}
    for problem in problems:
        by_source.setdefault(problem.source, []).append(problem)
    return [problem for some in by_source.values() for problem in some[:count]]


def _scores(run: OpenRun, problems: Sequence[Problem]) -> Iterator[Score]:
    """Yield the score of the reference answer to each problem.

    Raises BrokenReward if a reward breaks its contract; UsageError if the run has no results yet.
    """
    newest = run.folder.newest_update()
    state = run.state(newest, run.schedule().stage_of(newest))
    own = 1.0 if asks_environment(run.config.task) else None
    answers = (
        Answer(p, text, run.prompts.ids_of(text), FinishReason.STOP, state, own)
        for p, text in ((p, _made_up(run, p)) for p in problems)
    )
    try:
        yield from run.task.score(answers)
    except BrokenReward as error:
        text = f"tried on a made-up completion, a reward fails: {error}"
        raise (UsageError if run.folder.is_untouched() else BrokenReward)(text) from None


def _try_disk(run: OpenRun, tell: bool) -> None:
    least, most = disk_needed(run)
    free = shutil.disk_usage(run.folder.root).free
    if least > free and not run.folder.is_untouched():
        raise RunStopped(
            f"the disk is full but for {free:,} bytes, and the checkpoints that {run.folder.root} "
            f"still gets take {least:,}; make room, or keep fewer of them (--checkpoint.keep)"
        )
    if least > free:
        raise UsageError(
            f"the checkpoints that {run.folder.root} still gets take {least:,} bytes, but "
            f"{free:,} are free there; make room, name another --run-dir, or keep fewer of them "
            "(--checkpoint.keep)"
        )
    text = (
        f"{run.folder.root} still gets at least {least:,} bytes, and {most:,} if all responses "
        f"are as long as they may be; {free:,} are free"
    )
    if most > free:
        run.progress.say(f"warning: {text}. The run stops if the disk is full, and can be resumed")
    elif tell:
        run.progress.say(f"disk        {text}")


def disk_needed(run: OpenRun) -> tuple[int, int]:
    """Return the bytes that the rest of the run needs on its disk: at least, and at most.

    The least are the checkpoints alone. The most has one more, and rollouts whose responses all
    have `max_new_tokens` tokens.
    """
    config, schedule, newest = run.config, run.schedule(), run.folder.newest_update()
    to_make = range(newest + 1, config.schedule.total_updates + 1)
    if not to_make:
        return 0, 0
    stage = Stage.of(run, schedule.stage_of(newest), schedule)
    ends = _ends(stage)
    options = config.checkpoint
    due = {config.schedule.total_updates, *(ends if options.stage_end else ())}
    due |= {update for update in to_make if options.every and update % options.every == 0}
    checkpoints = len(due)
    if options.keep:  # an old one is removed once a new one is published
        room = options.keep - len(run.folder.checkpoint_updates())
        checkpoints = min(checkpoints, max(0, room) + 1)
    size = trained_parameters(config.model, config.lora) * _WEIGHT
    size += _stored_bytes(run.prompts.tokenizer)
    published, needed = shards_made(stage, "rollouts")
    passes = config.schedule.passes_per_batch
    batches = sum(math.ceil((end - start) / passes) for start, end in pairwise(ends))
    groups = batches * config.schedule.problems_per_update
    groups += stage.groups if published < needed else 0
    trained = groups * config.schedule.group_size
    evaluations = sum(evaluation_due(config, update) for update in to_make)
    evaluated = evaluations * len(run.eval_problems) * config.evaluation.samples
    stored = trained * (_TOKEN + _LOGPROB * len(config.needs)) + evaluated * _TOKEN
    least = checkpoints * size
    return least, least + size + stored * config.rollouts.max_new_tokens


def _stored_bytes(tokenizer: Any) -> int:
    """Return the bytes of the tokenizer's largest file, which each checkpoint holds.

    Tokenizers written in Python have smaller files, which do not count.
    """
    return len(tokenizer.backend_tokenizer.to_str(pretty=True).encode()) if tokenizer.is_fast else 0


def _ends(stage: Stage) -> list[int]:
    """Return the update after which each stage ends, from `stage` to the run's last one.

    A run may have a stage for every update, so no stage is counted from the first one.
    """
    options, total, ends = stage.schedule.options, stage.schedule.options.total_updates, [stage.end]
    for later in range(stage.number + 1, stage.schedule.stages):
        ends.append(min(ends[-1] + options.updates(later), total))
    return ends
