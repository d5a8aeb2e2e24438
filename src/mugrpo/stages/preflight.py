"""What a run needs only later, tried before its first rollout: prompts, rewards, suites.

The data is read, with the held-out problems, when the run is opened, and its sinks are opened with
`Work`. The rewards judge a made-up completion here: the reference answer, in a box if that is what
the first of them reads.

A run that is resumed tries all of it again. What keeps a run from beginning only stops one that has
results: the same command may succeed later, when a judge's server is back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from mugrpo.config.base import RewardOption
from mugrpo.config.tasks import asks_environment, datasets_in
from mugrpo.disk.errors import BrokenReward, RunStopped, UsageError
from mugrpo.disk.records import Answer, FinishReason, Problem, Score, Status
from mugrpo.optimize.loss import UpdateLoss
from mugrpo.rollouts.prompts import notices
from mugrpo.run.opening import OpenRun
from mugrpo.stages.evaluate import Measures
from mugrpo.stages.ranks import require_gpus

_SHOWN = 3  # problems to train on, and as many held-out ones, that `mugrpo check` shows
_IDS = 40  # of a prompt's beginning, and as many of its end


def preflight(run: OpenRun, measures: Measures | None, *, verbose: bool = False) -> None:
    """Try what the rest of the run needs. Say what may go wrong, and with `verbose` what was tried.

    Raises UsageError for more ranks than GPUs, a file without an objective, and a reward that
    fails, breaks its contract or finds the reference answer wrong. For these rewards it is
    RunStopped if the run has results already.
    """
    _try_prompts(run, verbose)
    if run.config.distributed.processes > 1 and not run.config.backend.clustered:
        require_gpus(run.config.distributed)
    UpdateLoss(run.config)  # a file of the user's own may not be one
    _try_rewards(run, verbose)
    for sentence in measures.preflight() if measures else ():
        if verbose:
            run.progress.say(sentence)


def _try_prompts(run: OpenRun, verbose: bool) -> None:
    for sentence in notices(run.prompts, run.vocabulary.stop_ids, run.problems):
        run.progress.say(sentence)
    if verbose:
        ids = run.prompts(run.problems[0]).tolist()
        shown = f"{str(ids[:_IDS])[:-1]}, ... {str(ids[-_IDS:])[1:]}"
        run.progress.say(f"prompt ids  {ids if len(ids) <= 2 * _IDS else shown}")


def _try_rewards(run: OpenRun, verbose: bool) -> None:
    held_out = run.eval_problems if run.config.evaluation.every else ()
    count = _SHOWN if verbose else 1
    refusal = UsageError if run.folder.is_untouched() else RunStopped
    problems = [*_first(run.problems, count), *_first(held_out, count)]
    shown = verbose and any(datasets_in(run.config.task))  # embedded tasks have no rewards of yours
    if shown:  # first, as a function that hangs is stopped only after a minute
        run.progress.say(f"rewards     try {len(problems)} reference answers")
    for problem, score in zip(problems, _scores(run, problems), strict=True):
        made_up = _made_up(run, problem)
        completion = f"the reference answer {made_up!r} as the response to problem {problem.id!r}"
        if verbose:
            run.progress.say(f"prompt      {run.prompts.text(problem)!r}")
        if shown:
            reward = "none" if score.reward is None else f"{score.reward:g}"
            run.progress.say(
                f"reward      {reward} ({score.status}{_each(score)}) for {completion}"
            )
        if score.status is Status.WRONG and _verifier(run, problem):
            raise refusal(
                f"the rewards find the reference answer wrong: {completion}; choose another "
                "reward, or store the answer alone in the data"
            )
        # a function that returns None may be right to
        broken = score.status in (Status.ERROR, Status.UNFINISHED)
        if broken and run.config.rewards.failure_limit < 1:
            raise refusal(
                f"the rewards failed on {completion}: {score.parts['reason']}; fix that first, or "
                "return None for a completion that a function cannot judge"
            )
        if score.status.failed:
            run.progress.say(
                f"warning: {completion} got no reward ({score.status}); the run stops if a larger "
                f"share than rewards.failure_limit = {run.config.rewards.failure_limit:g} gets none"
            )


def _each(score: Score) -> str:
    """Return what each of several rewards gave, and what functions logged, as text."""
    last = {name: values[-1] for name, values in score.logged.items() if values}
    means = {n[8:-5]: v for n, v in last.items() if re.fullmatch("rewards/.*/mean", n)}
    others = {n: v for n, v in last.items() if not n.startswith("rewards/")}
    shown = {**(means if len(means) > 1 else {}), **others}
    return "".join(f", {name} {value:g}" for name, value in shown.items())


def _made_up(run: OpenRun, problem: Problem) -> str:
    verifier = _verifier(run, problem)
    return verifier.written(problem.answer) if verifier else problem.answer


def _verifier(run: OpenRun, problem: Problem) -> RewardOption | None:
    """Return the reward that decides whether a response is right, or None if functions do."""
    task = run.config.task
    sources = {getattr(one, "source", None): one for one in datasets_in(task)}
    options = sources.get(problem.source)
    return next((one for one in options.rewards if one.verifies), None) if options else None


def _first(problems: Sequence[Problem], count: int) -> list[Problem]:
    """Return the first `count` problems of each source."""
    by_source: dict[str | None, list[Problem]] = {}
    for problem in problems:
        by_source.setdefault(problem.source, []).append(problem)
    return [problem for some in by_source.values() for problem in some[:count]]


def _scores(run: OpenRun, problems: Sequence[Problem]) -> Iterator[Score]:
    """Yield the score of the reference answer to each problem.

    Raises BrokenReward if a reward breaks its contract, or UsageError in its place if the run has
    no results yet.
    """
    newest = run.folder.newest_update()
    state = run.state(newest, run.config.schedule.stage_of(newest))
    own = 1.0 if asks_environment(run.config.task) else None
    answers = (
        Answer(p, text, run.prompts.ids_of(text), FinishReason.STOP, state, own)
        for p, text in ((p, _made_up(run, p)) for p in problems)
    )
    try:
        yield from run.task.score(answers)
    except BrokenReward as error:
        text = f"tried on a reference answer, a reward fails: {error}"
        raise (UsageError if run.folder.is_untouched() else BrokenReward)(text) from None
