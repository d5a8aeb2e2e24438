"""Accuracy on held-out problems through an engine: avg@k and pass@k."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from mugrpo.disk.errors import UsageError
from mugrpo.disk.publishing import publish_folder
from mugrpo.disk.records import Status
from mugrpo.disk.shards import RowReader, ShardSet
from mugrpo.engines.base import Decoded
from mugrpo.model.memory import out_of_memory_explained
from mugrpo.rollouts.sampler import Sampler
from mugrpo.run.run import Run


def evaluate(run: Run, update: int) -> dict[str, Any]:
    """Sample and score the held-out problems under the policy after `update` updates.

    Every evaluation draws from the same seeds, so that two policies are compared on the same
    random numbers. Rollouts and scores are kept under the run's evaluations. Returns `accuracy`
    (avg@k: the share of right ones over k samples of every problem, those that could not be judged
    left out), `reward` (their mean reward), `pass@k` (share of problems with a right sample among
    k) and the counts by status.
    """
    began = time.monotonic()
    options = run.config.evaluation
    problems = run.eval_problems
    if not problems:
        raise UsageError("the task holds no problem out; set task.eval_share or task.eval_data")
    sampler = Sampler(
        run.engines_at(update)[0],
        run.encode,
        seed=run.config.seed,
        stage="evaluation",
        group_size=options.samples,
        temperature=options.temperature,
        max_new_tokens=run.config.rollouts.max_new_tokens,
        policy_step=update,
    )
    with publish_folder(run.dir.evaluation(update)) as folder:
        rollouts = ShardSet(folder / "rollouts", "rollouts")
        scores = ShardSet(folder / "scores", "scores")
        with run.progress.aside():
            _generate(run, sampler, rollouts, update)
        run.scorer(problems).make_shard(rollouts, scores, 0)
        count = scores.entry(0)["rows"]
        verdicts = RowReader(scores).rows((0, row) for row in range(count))
    rewards = [v["reward"] for v in verdicts if v["reward"] is not None]
    right = [v["status"] == Status.RIGHT for v in verdicts]
    k = options.samples
    passed = sum(any(right[i : i + k]) for i in range(0, count, k))
    statuses = Counter(v["status"] for v in verdicts)
    return {
        "accuracy": sum(right) / len(rewards) if rewards else None,
        "reward": sum(rewards) / len(rewards) if rewards else None,
        f"pass@{k}": passed / len(problems),
        "problems": len(problems),
        "samples": k,
        **{f"status/{status}": statuses[status] for status in Status},
        "time/evaluate": time.monotonic() - began,
    }


def _generate(run: Run, sampler: Sampler, rollouts: ShardSet, update: int) -> None:
    def on_decoded(decoded: Decoded) -> None:
        run.stop.check()
        tokens = sum(len(completion.ids) for _, completion in decoded.completions)
        run.progress.advance(len(decoded.completions), tokens)

    total = len(run.eval_problems) * sampler.group_size
    run.progress.begin(f"update {update}  evaluate", "rollouts", total)
    with out_of_memory_explained("generation", run.config.engine.way_out_of_memory):
        sampler.make_shard(rollouts, 0, [(p, 0) for p in run.eval_problems], on_decoded)
    run.progress.end()


def evaluate_if_due(run: Run, update: int) -> None:
    """Evaluate before the first, after the last and after every N-th update, once each.

    Not in the ranks of an update: the run that started them evaluates their checkpoints.
    """
    if evaluation_due(run, update) and run.alone:
        evaluate_once(run, update)


def evaluation_due(run: Run, update: int) -> bool:
    every, total = run.config.evaluation.every, run.config.schedule.total_updates
    return every > 0 and (update % every == 0 or update == total)


def evaluate_once(run: Run, update: int) -> None:
    """Evaluate the policy after `update` updates, unless a line says what came of it."""
    if not run.metrics.has("evaluation", update):
        result = evaluate(run, update)
        run.progress.accuracy = result["accuracy"]
        run.metrics.append("evaluation", update, **result)
