"""Writing an imported run: its options, problems, rollouts, scores and first line of metrics."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mugrpo.config.run import RunConfig
from mugrpo.config.tasks import DatasetOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.metrics import encoded
from mugrpo.disk.publishing import publish_json, with_checksum
from mugrpo.disk.records import Problem, Rollout, Score
from mugrpo.disk.shards import write_rollouts
from mugrpo.extensions.exchange.rows import Row
from mugrpo.model.policy import Policy
from mugrpo.model.pretrained import model_fingerprint
from mugrpo.optimize.forward import rollout_logprobs
from mugrpo.rollouts.score import publish_scores
from mugrpo.rollouts.statistics import refresh_metrics, refresh_text
from mugrpo.run.provenance import config_document
from mugrpo.run.stage import Stage
from mugrpo.run.trust import remember

Raw = dict[str, Any]  # the options of a config, before its defaults

PROBLEMS, HELD_OUT, ID = "problems.jsonl", "held_out.jsonl", "problem_id"
# Options of a task that PROBLEMS and HELD_OUT have been read with.
_APPLIED = ("split", "subset", "revision", "eval_split", "system_prompt")


@dataclass(frozen=True)
class Source:
    """What to import, and how to read it."""

    names: Sequence[str]  # files and folders, or data sets on the hub
    form: str = "table"  # a name in FORMATS
    columns: Mapping[str, str] = field(default_factory=dict)  # field -> column, before the form's
    policy: str | None = None  # the model that computes the behavior logprobs; None: they are given
    group_size: int | None = None  # cut each prompt's responses into groups of this size


@dataclass(frozen=True)
class Imported:
    """A row as a run has it."""

    problem: Problem
    row: Row
    rollout: Rollout  # with logprobs of 0 if a policy is to compute them
    score: Score


Group = list[Imported]  # the responses to one draw of a problem


def begin(stage: Stage, provenance: Raw) -> str:
    """Write what a run has besides its stages. Return a line on its rollouts."""
    refresh = {"stage": 0, **refresh_metrics(stage.shards("rollouts"), stage.shards("scores"))}
    line = {"kind": "refresh", "update": 0, **refresh}
    document = config_document(stage.config.model_dump(mode="json"), provenance)
    publish_json(stage.folder.config, with_checksum(document))
    stage.folder.metrics.write_bytes(encoded(line))
    remember(document, stage.config)
    return refresh_text(refresh, stage.config.rollouts.max_new_tokens)


def write_stage(
    stage: Stage,
    groups: Sequence[Group],
    source: Source,
    policy: Policy | None,
    check: Callable[[], None],
) -> None:
    """Publish the rollouts and scores of a stage, shard by shard in the order of its schedule.

    A `policy` gives them their behavior logprobs.
    """
    rollouts, scores = stage.shards("rollouts"), stage.shards("scores")
    notes = {"format": source.form, "logprobs": "given"}
    if source.policy is not None:
        options = stage.config.model.model_validate({"path": source.policy})
        notes["logprobs"] = f"computed by {options.path}"
        notes["logprobs_model_sha256"] = model_fingerprint(options)
    of_problem = {group[0].problem.id: group for group in groups}
    for number, draws in enumerate(stage.drawn):
        check()
        shard = [one for problem, _ in draws for one in of_problem[problem.id]]
        made = sum(one.row.response_ids is None for one in shard)
        ids = f"made by the tokenizer for {made} rollouts" if made else "given"
        responses = [one.rollout for one in shard]
        if policy is not None:
            computed = rollout_logprobs(policy, responses, stage.config, check=check)
            pairs = zip(responses, computed, strict=True)
            responses = [replace(rollout, behavior_logprobs=each) for rollout, each in pairs]
        write_rollouts(rollouts, number, responses, **notes, ids=ids)
        verdicts = [one.score for one in shard]
        publish_scores(scores, rollouts, number, responses, verdicts, stage.config.rewards)


def write_problems(path: Path, problems: Iterable[Problem], task: Raw) -> None:
    """Write a file of problems, unless there are none."""
    prompt, answer = task["prompt_column"], task["answer_column"]
    rows = [
        {**({answer: problem.reference} if answer else {}), **problem.columns}
        | {ID: problem.id, prompt: problem.prompt}
        for problem in problems
    ]
    if rows:
        path.write_text("".join(json.dumps(row, default=str) + "\n" for row in rows))


def with_data(options: Raw, folder: Path, problems: Mapping[str, Sequence[Problem]]) -> Raw:
    """Return `options` with the files of problems in `folder` as the task's data."""
    names = zip(("data", "eval_data"), problems, strict=True)
    data = {option: str(folder / name) for option, name in names if problems[name]}
    return {**options, "task": {**options["task"], "eval_data": None, **data}}


def run_options(
    raw: Raw, config: RunConfig, groups: Sequence[Group], *, named: bool, evaluated: bool
) -> Raw:
    """Return the options of the run, whose schedule and task follow from the rollouts.

    Raises UsageError if there are too few groups for an update, or no reference answers.
    """
    options, per_update = config.task, config.schedule.problems_per_update
    assert isinstance(options, DatasetOptions)
    if len(groups) < per_update:
        raise UsageError(
            f"the rollouts have {len(groups)} groups, but an update trains on "
            f"schedule.problems_per_update = {per_update}; lower that"
        )
    size, batches = len(groups[0]), len(groups) // per_update
    schedule = {"stages": 1, **raw.get("schedule", {})}
    schedule |= {"batches_per_stage": batches, "group_size": size}
    missing = [group[0].row.where for group in groups if not group[0].problem.reference]
    compares = [reward.name for reward in options.rewards if reward.verifies]
    if missing and compares and not named:
        raise UsageError(
            f"{missing[0]} has no reference answer, and the reward {compares[0]} needs one; name "
            "the problems with task.data, or the answers' column with --columns answer=COLUMN"
        )
    answered = options.answer_column is not None if named else not missing
    task = raw["task"] | {
        "id_column": ID,
        "prompt_column": options.prompt_column,
        "answer_column": (options.answer_column or "answer") if answered else None,
        "eval_share": 0.0,
        "prompt_template": "{prompt}",  # the problems have it already
    }
    for name in _APPLIED:
        task.pop(name, None)
    evaluation = {**raw.get("evaluation", {}), **({} if evaluated else {"every": 0})}
    return {**raw, "schedule": schedule, "task": task, "evaluation": evaluation}
