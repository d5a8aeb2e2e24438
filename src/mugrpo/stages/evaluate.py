"""Accuracy of responses to held-out problems (avg@k, pass@k, greedy), and what suites add to it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, Protocol

from mugrpo.config.base import imported
from mugrpo.config.extensions import installed
from mugrpo.config.run import RunConfig
from mugrpo.config.stages import SuiteUse
from mugrpo.disk.errors import UsageError
from mugrpo.disk.metrics import MetricsLog, read_metrics
from mugrpo.disk.publishing import passing, publish_folder, publish_json, with_sum
from mugrpo.disk.records import Rollout
from mugrpo.disk.shards import RowReader, ShardSet, score_from_row
from mugrpo.engines.base import Engine
from mugrpo.model.hardware import out_of_memory_explained
from mugrpo.optimize.diagnostics import response
from mugrpo.rollouts.sampler import Draw, SampledShard, Sampler
from mugrpo.rollouts.side_by_side import sampled_shards
from mugrpo.rollouts.statistics import evaluated
from mugrpo.rollouts.turns import Dialogue
from mugrpo.run.opening import OpenRun
from mugrpo.stages.generate import counted
from mugrpo.stages.refresh import refreshed
from mugrpo.stages.sampling import Sampling

_STAGE = "evaluation"  # its name in the seeds of its rollouts
SAMPLES = 4  # kept of an update or evaluation, for people to read
_GREEDY = 0.01  # every engine can sample at it; vLLM refuses less


def evaluate(run: OpenRun, sampling: Sampling, update: int) -> dict[str, Any]:
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
    draws = [(problem, 0) for problem in run.eval_problems]
    engines = refreshed(run, sampling, update, draws, _STAGE)
    last = update == run.config.schedule.total_updates
    samples = (options.final_samples if last else None) or options.samples
    passes = [(samples, options.temperature)]
    passes += [(1, _GREEDY)] if last and options.final_greedy else []
    with publish_folder(run.folder.evaluation(update)) as folder:
        rollouts = ShardSet(folder / "rollouts", "rollouts")
        scores = ShardSet(folder / "scores", "scores")
        for shard, (k, temperature) in enumerate(passes):
            with run.progress.aside():
                sampled = _sample(run, engines, sampling, draws, update, k, temperature)
            sampled.publish(rollouts, shard)
            passing("half an evaluation")
            run.scorer(run.eval_problems, None).make_shard(rollouts, scores, shard)
            if not shard:
                shown = _shown(run, sampled.rollouts[: k * SAMPLES], scores)
        measured = evaluated(folder, [problem.source for problem in run.eval_problems])
    if run.config.samples.every:
        document = {"update": update, "samples": shown}
        publish_json(run.folder.samples(update, "evaluation"), with_sum(document))
    return {**measured, "time/evaluate": time.monotonic() - began}


def _shown(run: OpenRun, rollouts: Sequence[Rollout], scores: ShardSet) -> list[dict[str, Any]]:
    """Return these rollouts, the first of shard 0, for people to read: an entry per problem.

    They are of the same problems at every evaluation.
    """
    tokenizer, rows = (
        run.prompts.tokenizer,
        RowReader(scores).rows((0, n) for n in range(len(rollouts))),
    )
    shown: dict[str, dict[str, Any]] = {}
    references = {problem.id: problem.answer for problem in run.eval_problems}
    for rollout, row in zip(rollouts, rows, strict=True):
        about = {
            "problem_id": rollout.problem_id,
            "prompt": tokenizer.decode(rollout.prompt_ids),
            "reference": references[rollout.problem_id],
            "group": [],
        }
        group = shown.setdefault(rollout.problem_id, about)["group"]
        group.append(response(rollout, score_from_row(row), tokenizer))
    return list(shown.values())


def _sample(
    run: OpenRun,
    engines: Sequence[Engine],
    sampling: Sampling,
    draws: Sequence[Draw],
    update: int,
    k: int,
    temperature: float,
) -> SampledShard:
    """Return `k` rollouts of each of `draws` as one shard. Each engine samples a part of it."""
    dialogues = sampling.dialogues()
    samplers = samplers_of(run, engines, _STAGE, k, temperature, update, dialogues=dialogues)
    run.progress.begin(f"update {update}  evaluate", "rollouts", len(draws) * k)
    with out_of_memory_explained("generation", run.config.engine.memory_remedy):
        ((_, sampled),) = sampled_shards(samplers, [(0, draws)], counted(run), pieces=len(engines))
    run.progress.end()
    return sampled


def samplers_of(
    run: OpenRun,
    engines: Sequence[Engine],
    stage: str,
    size: int,
    temperature: float,
    update: int,
    top_p: float = 1.0,
    dialogues: Sequence[Dialogue | None] = (),
) -> list[Sampler]:
    """Return samplers of `size` responses to each problem, seeded as those of `stage`.

    The engines have the policy after `update` updates. With `dialogues`, one for each engine that
    is not None, responses have turns.
    """
    return [
        Sampler(
            engine,
            run.prompts,
            dialogue=dialogue,
            seed=run.config.seed,
            stage=stage,
            group_size=size,
            temperature=temperature,
            top_p=top_p,
            max_new_tokens=run.config.rollouts.max_new_tokens,
            policy_step=update,
        )
        for engine, dialogue in zip_longest(engines, dialogues)
    ]


def evaluation_due(config: RunConfig, update: int) -> bool:
    """Return whether to evaluate after `update` updates: after 0, every N, and at the end."""
    every, total = config.evaluation.every, config.schedule.total_updates
    return every > 0 and (update % every == 0 or update == total)


def evaluate_once(run: OpenRun, sampling: Sampling, metrics: MetricsLog, update: int) -> None:
    """Evaluate the policy after `update` updates, unless the metrics have that evaluation."""
    if not metrics.has("evaluation", update):
        result = evaluate(run, sampling, update)
        passing("evaluation without metrics line")
        run.progress.accuracy = result["accuracy"]
        metrics.append("evaluation", update, **result)


# Measures with the same values of these can be compared.
_SETTINGS = ("problems", "samples", "temperature", "top_p", "max_new_tokens")


class Measures(Protocol):
    """The suites that a run measures."""

    def preflight(self) -> Iterator[str]:
        """Read the problems and references of all suites, and yield a sentence for each."""
        ...

    def measure(self, update: int) -> None:
        """Measure what is due after `update` updates and not in metrics.jsonl yet."""

    def close(self) -> None:
        """End the processes that judge."""


class _None:
    def preflight(self) -> Iterator[str]:
        yield from ()

    def measure(self, update: int) -> None:
        pass

    def close(self) -> None:
        pass


def measures_of(run: OpenRun, sampling: Sampling, metrics: MetricsLog) -> Measures:
    """Return what measures the suites of `run`. Raises UsageError if no extension does."""
    if not run.config.evaluation.suites:
        return _None()
    for extension in installed().values():
        if extension.measures:
            measures: Measures = imported(extension.measures)(run, sampling, metrics)
            return measures
    raise UsageError("evaluation.suites needs the extension evals; leave it out, or install that")


def measuring_due(config: RunConfig, update: int) -> bool:
    """Return whether anything is measured after `update` updates."""
    return evaluation_due(config, update) or bool(suites_due(config, update))


def suites_due(config: RunConfig, update: int) -> list[SuiteUse]:
    """Return the suites to measure after `update` updates: each at its period, and at both ends."""
    ends = (0, config.schedule.total_updates)
    return [
        use
        for use in config.evaluation.suites
        if update in ends or (use.every and update % use.every == 0)
    ]


def best_update(run: OpenRun) -> set[int]:
    """Return the update whose checkpoint did best on checkpoint.best, the earliest if several did.

    Only measurements with the settings of the newest count. The set is empty if no checkpoint has
    been measured.
    """
    kind, saved = f"suite/{run.config.checkpoint.best}", run.folder.checkpoint_updates()
    lines = [line for line in read_metrics(run.folder.metrics) if line["kind"] == kind]
    settings = [{name: line.get(name) for name in _SETTINGS} for line in lines]
    known = [
        (line["accuracy"], -line["update"])
        for line, setting in zip(lines, settings, strict=True)
        if setting == settings[-1] and line["update"] in saved and line.get("accuracy") is not None
    ]
    return {-max(known)[1]} if known else set()


def best_may_change(config: RunConfig, update: int) -> bool:
    """Return whether the suite of checkpoint.best is measured after `update` updates."""
    return any(use.label == config.checkpoint.best for use in suites_due(config, update))
