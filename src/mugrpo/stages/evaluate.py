"""Held-out problems: accuracy (avg@k, pass@k, greedy) or rewards, and what suites add to it."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mugrpo.disk.errors import UsageError
from mugrpo.disk.metrics import EVALUATION
from mugrpo.disk.publishing import failpoint, publish_folder, publish_json, with_checksum
from mugrpo.disk.shards import ShardSet, read_rollouts, read_scores
from mugrpo.hosts.host import Host, Refreshed
from mugrpo.hosts.updates import SAMPLES
from mugrpo.optimize.samples import response
from mugrpo.rollouts.evaluation import evaluated, headline, value_text
from mugrpo.rollouts.schedule import Draw
from mugrpo.rollouts.score import scored
from mugrpo.rollouts.statistics import rewards_text
from mugrpo.run.opening import OpenRun
from mugrpo.run.suites import evaluation_due
from mugrpo.stages.generate import counted, sampled

_STAGE = "evaluation"  # its name in the seeds of its rollouts
_GREEDY = 0.01  # every engine can sample at it; vLLM refuses less


def evaluate(run: OpenRun, host: Host, update: int) -> dict[str, Any]:
    """Sample and score the held-out problems under the policy after `update` updates.

    Every evaluation uses the same seeds, so two policies are compared on the same random numbers.
    Rollouts and scores are kept in the run's folder of evaluations: shard 0 has the samples, shard
    1 the greedy responses, if there are any. Returns what `evaluated` reads from them, and the
    seconds taken. Raises UsageError if no problem is held out.
    """
    began = time.monotonic()
    if not run.eval_problems:
        raise UsageError("the task has no held-out problems; set task.eval_share or task.eval_data")
    options = run.config.evaluation
    draws: list[Draw] = [(problem, 0) for problem in run.eval_problems]
    refreshed = host.engines(update, draws, _STAGE)
    at_an_end = update in (0, run.config.schedule.total_updates)
    samples = (options.end_samples if at_an_end else None) or options.samples
    run.progress.measured = ""  # that of an earlier policy
    passes = [(samples, options.temperature)]
    passes += [(1, _GREEDY)] if at_an_end and options.greedy else []
    with publish_folder(run.folder.evaluation(update)) as folder, run.progress.aside():
        for shard, (size, temperature) in enumerate(passes):
            sample_and_score(
                run,
                folder,
                {shard: draws},
                lambda: refreshed,
                title=f"update {update}  evaluate{' greedy' * shard}",
                stage=_STAGE,
                size=size,
                update=update,
                temperature=temperature,
            )
        measured = evaluated(folder, [problem.source for problem in run.eval_problems])
        name = headline(measured)
        run.progress.say(f"  {name} {value_text(measured, name)}")
        if (value := measured[name]) is not None:
            run.progress.measured = f"{name} {value:.3f}"
        if rewards := rewards_text(measured):
            run.progress.say(f"  {rewards}")
        shown = _shown(run, folder, samples * SAMPLES)
    document = {"update": update, "samples": shown}
    publish_json(run.folder.samples(update, "evaluation"), with_checksum(document))
    return {**measured, "time/evaluate": time.monotonic() - began}


def sample_and_score(
    run: OpenRun,
    folder: Path,
    wanted: Mapping[int, Sequence[Draw]],
    refreshed: Callable[[], Refreshed],
    *,
    title: str,
    stage: str,
    size: int,
    update: int,
    temperature: float,
    top_p: float = 1.0,
) -> None:
    """Publish the `wanted` shards of rollouts and scores that `folder` lacks.

    They have `size` responses to each problem, seeded as those of `stage`. `refreshed` returns
    engines with the policy after `update` updates, and is called only if rollouts are missing.
    """
    rollouts = ShardSet(folder / "rollouts", "rollouts")
    scores = ShardSet(folder / "scores", "scores")
    if missing := {shard: draws for shard, draws in wanted.items() if shard not in rollouts}:
        groups, left = (sum(map(len, some.values())) for some in (wanted, missing))
        run.progress.begin(title, "responses", groups * size, (groups - left) * size)
        how: dict[str, Any] = {"temperature": temperature, "top_p": top_p}
        of, count = (groups, max(map(len, wanted.values()))), counted(run)
        drawn = sampled(run, refreshed(), stage, size, update, missing.items(), count, of=of, **how)
        for shard, made in drawn:
            made.publish(rollouts, shard, policy_step=update, top_p=top_p)
            failpoint("evaluation sampled")
        run.progress.end()
    scorer = run.scorer(run.eval_problems, None)
    for shard in wanted:
        if not scored(rollouts, scores, shard, run.judge):
            scorer.make_shard(rollouts, scores, shard)
            failpoint("evaluation scored")


def _shown(run: OpenRun, folder: Path, count: int) -> list[dict[str, Any]]:
    """Return the first `count` rollouts of shard 0, for people to read: an entry per problem.

    They are of the same problems at every evaluation.
    """
    rollouts = list(read_rollouts(ShardSet(folder / "rollouts", "rollouts"), 0))[:count]
    scores = read_scores(ShardSet(folder / "scores", "scores"), 0)[:count]
    tokenizer, shown = run.prompts.tokenizer, dict[str, dict[str, Any]]()
    references = {problem.id: problem.reference for problem in run.eval_problems}
    for rollout, score in zip(rollouts, scores, strict=True):
        about = {
            "problem_id": rollout.problem_id,
            "prompt": tokenizer.decode(rollout.prompt_ids),
            "reference": references[rollout.problem_id],
            "group": [],
        }
        group = shown.setdefault(rollout.problem_id, about)["group"]
        group.append(response(rollout, score, tokenizer))
    return list(shown.values())


def evaluate_if_due(run: OpenRun, host: Host, update: int) -> None:
    """Measure what is due after `update` and has no line of metrics: held-out problems, suites."""
    if evaluation_due(run.config, update) and not run.journal.has(EVALUATION, update):
        result = evaluate(run, host, update)
        failpoint("evaluation without metrics line")
        run.journal.append(EVALUATION, update, **result)
    if run.suites:
        run.suites.measure(host, update)
