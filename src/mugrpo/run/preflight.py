"""What a run needs only later, tried before its first rollout, in the order of cost.

These are prompts, engines, environments, rewards, suites, and room in memory and on the disk.

The data is read, with the held-out problems, when the run is opened, and its sinks are opened with
its journal. The rewards judge a made-up completion here: the reference answer, in a box if that is
what the first of them reads. `mugrpo check` also tries what says nothing (`_try_for_nothing`).

A run that is resumed tries all of it again. What keeps a run from beginning only stops one that has
results: the same command may succeed later, when a judge's server is back.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

from mugrpo.config.base import RewardOption
from mugrpo.config.tasks import asks_environment, datasets_in
from mugrpo.disk.errors import BrokenReward, RunStopped, UsageError
from mugrpo.disk.records import FinishReason, Problem, Response, Score, Status
from mugrpo.engines import require_processes
from mugrpo.engines.process import require_gpus
from mugrpo.optimize.experience import advantage_of
from mugrpo.optimize.loss import UpdateLoss
from mugrpo.processes.messages import printable
from mugrpo.rollouts.notices import notices
from mugrpo.run.memory import require_room
from mugrpo.run.opening import OpenRun

Trial = Callable[[OpenRun, bool], None]  # the second is `verbose`
_Offer = Sequence[tuple[Problem, str]]  # problems with an answer to each
PROMPTS = 64  # whose lengths say how long a prompt is
_SHOWN = 3  # problems to train on, and as many held-out ones, that `mugrpo check` shows
_TRIED = 8  # problems of each source that are answered with what says nothing
_LITTLE = 0.05  # mean reward that such an answer may have without a warning


def prepare(run: OpenRun) -> None:
    """Start the reward workers and print their notices."""
    for sentence in run.task.prepare(run.folder.log("rewards")):
        run.progress.say(sentence)


def preflight(run: OpenRun, *, verbose: bool = False, elsewhere: Trial | None = None) -> None:
    """Start the reward workers, and try what the rest of the run needs, if anything is left to do.

    Say what may go wrong, and with `verbose` what was tried. `elsewhere` tries another machine, in
    place of this one.

    Raises UsageError for prompts that a template does not write whole, engines that cannot start,
    more ranks than GPUs, a file without an objective, an environment or a reward that fails or
    breaks its contract, a reference answer that is found wrong, with `verbose` also if as much is
    paid for nothing, and for a model that cannot fit. For rewards that fail it is RunStopped if the
    run has results already. With `verbose`, all faults are said.
    """
    prepare(run)
    if run.folder.newest_update() == run.config.schedule.total_updates and not verbose:
        return
    tries: list[Trial] = [_try_prompts, _try_parts, _try_rewards, _try_suites]
    tries.append(elsewhere or _try_room)
    if verbose:
        tries.insert(3, _try_for_nothing)
    if elsewhere is None:
        tries.insert(1, _try_machine)
    faults = dict[str, Exception]()  # by what they say, as several trials may meet the same one
    for trial in tries:
        try:
            trial(run, verbose)
        except (UsageError, RunStopped) as error:
            if not verbose:
                raise
            faults.setdefault(str(error), error)
    if len(faults) == 1:
        raise next(iter(faults.values()))
    for number, fault in enumerate(faults, 1):
        run.progress.say(f"fault {number}     {fault}")
    if faults:
        raise UsageError(f"{len(faults)} faults, all said above, keep this run from training")


def _try_machine(run: OpenRun, _: bool) -> None:
    """Try what engines and ranks need here."""
    config = run.config
    if config.distributed.processes > 1 and not config.backend.clustered:
        require_gpus(config.distributed)
    require_processes(config)


def _try_parts(run: OpenRun, _: bool) -> None:
    UpdateLoss(run.config)  # a file of the user's own may not be one
    advantage_of(run.config.advantage)  # and may have none


def _try_suites(run: OpenRun, verbose: bool) -> None:
    for sentence in run.suites.preflight() if run.suites else ():
        if verbose:
            run.progress.say(sentence)


def _try_room(run: OpenRun, _: bool) -> None:
    prompt = max(len(run.prompts(problem)) for problem in run.problems[:PROMPTS])
    for warning in require_room(run.config, run.folder, prompt):
        run.progress.say(warning)


def _try_prompts(run: OpenRun, verbose: bool) -> None:
    for sentence in notices(run.prompts, run.vocabulary.stop_ids, run.problems):
        run.progress.say(sentence)
    if dialogue := run.dialogue(0):  # raises if the template cannot write a conversation
        dialogue.close()


def _try_rewards(run: OpenRun, verbose: bool) -> None:
    held_out = run.eval_problems if run.config.evaluation.every else ()
    count = _SHOWN if verbose else 1
    refusal = UsageError if run.folder.is_untouched() else RunStopped
    sides = (run.problems, held_out)
    problems = [p for side in sides for some in _by_source(side, count) for p in some]
    shown = verbose and any(datasets_in(run.config.task))  # embedded tasks have no rewards of yours
    if shown:  # first, as a function that hangs is stopped only after a minute
        run.progress.say(f"rewards     try {len(problems)} reference answers")
    responses = [(p, _right(run, p)) for p in problems]
    own = _own_rewards(run, responses) if verbose else None
    if verbose:
        _show_row(run, *responses[0])
    scores = list(_scores(run, responses, own))
    again = [s.reward for s in _scores(run, responses, own)] if verbose else []
    if verbose and again != [score.reward for score in scores]:
        run.progress.say(
            "warning: asked twice, the rewards answer differently: one of them has a state, or is "
            "random. A run that stops and is resumed has other rewards than one that does not"
        )
    for (problem, text), score in zip(responses, scores, strict=True):
        made_up = f"the reference answer {text!r}" if problem.reference else "an empty answer"
        completion = f"{made_up} as the response to problem {problem.id!r}"
        if verbose:
            run.progress.say(f"prompt      {run.prompts.text(problem)!r}")
        if shown:
            reward = "none" if score.reward is None else f"{score.reward:g}"
            unclear = ", no accuracy: no reward has verdict = true"
            status = f"{score.status}{unclear if score.status is Status.GRADED else ''}"
            run.progress.say(f"reward      {reward} ({status}{_each(score)}) for {completion}")
        if score.status is Status.WRONG and _verified(run, problem):
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


def _right(run: OpenRun, problem: Problem) -> str:
    """Return the reference answer as a response, "" if the data have none."""
    return run.task.written(problem, problem.reference) if problem.reference else ""


def _verified(run: OpenRun, problem: Problem) -> bool:
    """Return whether a comparison with the reference decides which responses are right."""
    deciding = [reward for reward in _rewards(run, problem) if reward.decides]
    return bool(deciding) and all(reward.verifies for reward in deciding)


def _rewards(run: OpenRun, problem: Problem) -> tuple[RewardOption, ...]:
    """Return the rewards that the config names for a problem, none for a task with its own."""
    sources = {getattr(one, "source", None): one for one in datasets_in(run.config.task)}
    options = sources.get(problem.source)
    return options.rewards if options else ()


def _by_source(problems: Sequence[Problem], count: int) -> list[list[Problem]]:
    """Return up to `count` problems of each source, spread over it: data may be sorted."""
    by_source: dict[str | None, list[Problem]] = {}
    for problem in problems:
        by_source.setdefault(problem.source, []).append(problem)
    return [some[:: max(1, len(some) // count)][:count] for some in by_source.values()]


def _show_row(run: OpenRun, problem: Problem, text: str) -> None:
    """Say what a training row is: all ids of the prompt, and of the response that is trained on."""
    prompt, response = run.prompts(problem).tolist(), run.prompts.ids_of(text)
    run.progress.say(f"prompt ids  {prompt}, not trained on")
    run.progress.say(f"trained on  {[*response, run.prompts.tokenizer.eos_token_id]}, as {text!r}")


def _own_rewards(run: OpenRun, responses: _Offer) -> list[float | None] | None:
    """Return the environment's own reward for each response, None if no reward asks for it.

    Raises UsageError if an environment cannot be loaded, BrokenReward if it breaks its contract.
    """
    if (dialogue := run.dialogue(0)) is None:
        return None
    try:
        rewards = dialogue.rewards(run.config.seed, responses)
    finally:
        dialogue.close()
    return rewards if asks_environment(run.config.task) else None


def _scores(
    run: OpenRun, responses: _Offer, own: Sequence[float | None] | None = None
) -> Iterator[Score]:
    """Yield the score of each response. `own` has the environment's reward for each.

    Raises BrokenReward if a reward breaks its contract, or UsageError in its place if the run has
    no results yet.
    """
    newest = run.folder.newest_update()
    state = run.state(newest, run.config.schedule.stage_of(newest))
    claimed = 1.0 if asks_environment(run.config.task) else None
    answers = (
        Response(p, text, run.prompts.ids_of(text), FinishReason.STOP, state, reward)
        for (p, text), reward in zip(responses, own or [claimed] * len(responses), strict=True)
    )
    try:
        yield from run.task.score(answers)
    except BrokenReward as error:
        text = f"tried before the first rollout, a reward fails: {error}"
        if run.folder.is_untouched():  # no run has the reward as it was
            raise UsageError(text.partition(" (--force")[0]) from None
        raise BrokenReward(text) from None


_RIGHT = "the right answer"
_REJECTED = "; unless it lacks a form that a reward wants, they reject what the data call right"


def _try_for_nothing(run: OpenRun, _: bool) -> None:
    """Say what the rewards pay for the right answer, and for answers that say nothing.

    Training finds what is paid without work. Raises UsageError if it is as much as for the right
    answer, unless an option says that this is known.
    """
    faults = []
    for problems in _by_source(run.problems, _TRIED):
        if any(reward.in_rollout for reward in _rewards(run, problems[0])):
            continue  # what an environment pays is not for a text
        place = f" in the source {problems[0].source!r}" if problems[0].source else ""
        if not all(problem.reference for problem in problems):
            run.progress.say(
                f"paid        nothing is known of {_RIGHT}{place}: the data name none, and the "
                "rewards alone say what is right"
            )
        full = None  # what the right answer gets, if it is known
        tried = {what: _best(run, offer) for what, offer in _offers(problems)}
        known = {
            what: [s.reward for s in scores if s.reward is not None and not s.status.failed]
            for what, scores in tried.items()
        }
        least = min(map(fmean, filter(None, known.values())), default=0.0)
        for what, scores in tried.items():
            mean = fmean(known[what] or [0.0])
            little = mean <= (min(_LITTLE, least) if what == _RIGHT else _LITTLE)
            warned = bool(known[what]) and little == (what == _RIGHT)
            figure = f"{mean:.3g} on average" if known[what] else "nothing"
            lacking = len(scores) - len(known[what])
            run.progress.say(
                f"{'warning: paid' if warned else 'paid       '} {figure} for {what}{place} to "
                f"{len(scores)} problems{f', {lacking} without a verdict' if lacking else ''}"
                f"{_REJECTED if warned and what == _RIGHT else ''}"
            )
            paid = [score.status is Status.RIGHT or _paid_in_full(score) for score in scores]
            if what == _RIGHT:
                full = mean if any(paid) else None
            elif warned and (all(paid) if full is None else mean >= full):
                faults.append(f"{what}{place}")
    if faults and not run.config.rewards.pays_for_nothing:
        raise UsageError(
            f"the rewards pay as much for {faults[0]} as for {_RIGHT}, so a model would learn to "
            "say that; choose another reward or other data, or accept it with "
            "--rewards.pays_for_nothing true"
        )


def _paid_in_full(score: Score) -> bool:
    """Return whether a response whose rewards are no verdict gets what a right one usually gets."""
    return score.status is Status.GRADED and (score.reward or 0.0) >= 1.0


def _offers(problems: Sequence[Problem]) -> Iterator[tuple[str, _Offer]]:
    """Yield what is tried, with the answers to some of `problems`: the right one first.

    Answers that equal a problem's own are left out.
    """
    known = [problem for problem in problems if problem.reference.strip()]
    constant = known[0].reference if known else "0"
    turned = zip(known, [other.reference for other in (*known[1:], *known[:1])], strict=True)
    offers: dict[str, _Offer] = {
        _RIGHT: [(problem, problem.reference) for problem in known],
        "an empty answer": [(problem, "") for problem in problems],
        "the question itself": [(problem, _question(problem)) for problem in problems],
        f"the constant {printable(repr(constant), 40)}": [(p, constant) for p in problems],
        "another problem's answer": list(turned),
    }
    for what, offer in offers.items():
        others = [
            (p, one) for p, one in offer if not p.reference or one.strip() != p.reference.strip()
        ]
        if offer := offer if what == _RIGHT else others:
            yield what, offer


def _question(problem: Problem) -> str:
    turns = problem.prompt
    return turns if isinstance(turns, str) else str(turns[-1].get("content", ""))


def _best(run: OpenRun, offer: _Offer) -> list[Score]:
    """Return the score of each answer, as it is or in the form that is judged: the higher one.

    One that has no verdict in one form has that in the other.
    """
    bare = list(_scores(run, offer))
    formed = list(_scores(run, [(p, run.task.written(p, said)) for p, said in offer]))
    both = ([s for s in pair if not s.status.failed] for pair in zip(bare, formed, strict=True))
    return [
        max(some, key=lambda score: score.reward or 0.0) if some else first
        for some, first in zip(both, bare, strict=True)
    ]
