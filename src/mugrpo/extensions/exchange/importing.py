"""`mugrpo import`: a new run whose first stage has the rollouts that another program has saved.

The run is like any other. Its task is a data set: RUN/problems.jsonl has the problems of the
rollouts, RUN/held_out.jsonl the held-out problems of the config's own data.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mugrpo.config.load import apply_overrides, build_config, read_toml
from mugrpo.config.rewards import NumericOptions
from mugrpo.config.run import RunConfig
from mugrpo.config.tasks import DatasetOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.metrics import encoded
from mugrpo.disk.publishing import publish_folder, publish_json, with_sum
from mugrpo.disk.records import Problem
from mugrpo.disk.run_dir import RunDir
from mugrpo.disk.shards import write_rollouts
from mugrpo.extensions.exchange.foreign import HELD_OUT, PROBLEMS
from mugrpo.extensions.exchange.grouping import Group
from mugrpo.extensions.exchange.imported import Importer, Source
from mugrpo.extensions.exchange.notices import notices
from mugrpo.model.hardware import with_precision
from mugrpo.model.loading import load_vocabulary
from mugrpo.model.policy import Policy, load_policy
from mugrpo.model.pretrained import model_fingerprint
from mugrpo.optimize.forward import rollout_logprobs
from mugrpo.rewards.verifiers import has_number
from mugrpo.rollouts.schedule import Schedule
from mugrpo.rollouts.score import publish_scores
from mugrpo.rollouts.statistics import described, refresh_metrics
from mugrpo.run.opening import prompt_encoder
from mugrpo.run.provenance import config_document, provenance_of
from mugrpo.run.target import remember
from mugrpo.stages.stage import Stage, stage_shards
from mugrpo.tasks.dataset import Dataset, canonical

Say = Callable[[str], None]
Raw = dict[str, Any]  # the options of a config, before its defaults

ID = "problem_id"  # the column of PROBLEMS and HELD_OUT
# Options of a task that PROBLEMS and HELD_OUT have been read with, and all that are for its data.
_APPLIED = ("split", "subset", "revision", "eval_split", "system_prompt")
_OF_DATA = (*_APPLIED, "eval_data", "prompt_template")


def import_rollouts(
    target: Path,
    source: Source,
    *,
    run_dir: Path | None = None,
    overrides: Sequence[str] = (),
    say: Say = print,
    check: Callable[[], None] = lambda: None,
) -> Path:
    """Create a run of the config file `target` with the rollouts of `source`. Return its folder.

    The group size and the number of batches are those of the rollouts. If the config names data,
    each prompt must be one of its problems. `check` is called between shards and may raise to stop.
    Raises UsageError if the run exists, if the config's task is no data set, or if a row or group
    cannot be used. Nothing is written then.
    """
    folder = run_dir or Path("runs") / target.stem
    raw = _raw(target, folder, overrides)
    task = raw["task"]
    named = "data" in task
    config = build_config(
        {**raw, "task": {"data": source.names[0], **task}}, str(target), overrides
    )
    own = _dataset(config) if named else None
    train, held_out = (own.train_problems(), own.eval_problems()) if own else ((), ())
    encode = prompt_encoder(config)
    vocabulary = load_vocabulary(config.model, encode.tokenizer)
    importer = Importer(config, source, encode, vocabulary, [*train, *held_out])
    groups = importer.groups()
    asked = {canonical(group[0].problem.prompt) for group in groups}
    held_out = [problem for problem in held_out if canonical(problem.prompt) not in asked]
    options = _options(raw, config, groups, named=named, evaluated=bool(held_out))
    problems = {PROBLEMS: [group[0].problem for group in groups], HELD_OUT: held_out}
    final = with_precision(
        build_config(_with_data(options, folder.absolute(), problems), str(target))
    )
    for sentence in notices(groups, final, encode):
        say(sentence)
    if dropped := importer.dropped:
        say(f"{len(dropped)} rows are left out; the first: {dropped[0]}")
    policy = _policy(config, source.policy, groups)
    with publish_folder(folder, replace=False) as unfinished:
        draft = build_config(_with_data(options, unfinished, problems), str(target))
        for name, some in problems.items():
            _write_problems(unfinished / name, some, options["task"])
        read = _dataset(draft)  # as the run will read it
        provenance = provenance_of(
            final, encode.fitting(read.train_problems()), encode.fitting(read.eval_problems())
        )
        schedule = Schedule(final.schedule, len(groups), final.seed)
        stage = Stage(0, schedule, RunDir(unfinished), final, judge="")
        _write_stage(stage, groups, source, policy, check)
        say(_begin(stage, provenance, say))
    return folder


def _raw(target: Path, folder: Path, overrides: Sequence[str]) -> Raw:
    """Return the options that `target` and `overrides` set, of a run that does not exist yet."""
    if target.is_dir() or folder.exists():
        raise UsageError(
            f"{target if target.is_dir() else folder} exists already; an import begins a new run "
            "from a config file: name one, and a new directory with --run-dir"
        )
    raw = apply_overrides(read_toml(target), overrides)
    task = raw.get("task")
    if not isinstance(task, dict) or task.get("name") != "dataset":
        raise UsageError(
            f"{target}: rollouts from elsewhere need task.name = 'dataset', with task.rewards that "
            "score them again"
        )
    unused = [] if "data" in task else [name for name in _OF_DATA if name in task]
    if unused:
        raise UsageError(
            f"task.{unused[0]} is for problems of your own, and {target} names none; name them "
            f"with task.data, or leave task.{unused[0]} out"
        )
    return raw


def _begin(stage: Stage, provenance: Raw, say: Callable[[str], None]) -> str:
    """Write what a run has besides its stages. Return a line on its rollouts."""
    refresh = {"stage": 0, **refresh_metrics(stage.shards("rollouts"), stage.shards("scores"))}
    line = {"kind": "refresh", "update": 0, **refresh}
    document = config_document(stage.config.model_dump(mode="json"), provenance, stage.folder)
    publish_json(stage.folder.config, with_sum(document))
    stage.folder.metrics.write_bytes(encoded([line]))
    remember(document, stage.config)
    return described(refresh, stage.config.rollouts.max_new_tokens)


def _write_stage(
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
    for number, draws in enumerate(stage_shards(stage)):
        check()
        shard = [one for index, _ in draws for one in groups[index]]
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


def _write_problems(path: Path, problems: Iterable[Problem], task: Raw) -> None:
    """Write a file of problems, unless there are none."""
    prompt, answer = task["prompt_column"], task["answer_column"]
    rows = [
        {**({answer: problem.answer} if answer else {}), **problem.columns}
        | {ID: problem.id, prompt: problem.prompt}
        for problem in problems
    ]
    if rows:
        path.write_text("".join(json.dumps(row, default=str) + "\n" for row in rows))


def _with_data(options: Raw, folder: Path, problems: Mapping[str, Sequence[Problem]]) -> Raw:
    """Return `options` with the files of problems in `folder` as the task's data."""
    names = zip(("data", "eval_data"), problems, strict=True)
    data = {option: str(folder / name) for option, name in names if problems[name]}
    return {**options, "task": {**options["task"], "eval_data": None, **data}}


def _dataset(config: RunConfig) -> Dataset:
    assert isinstance(config.task, DatasetOptions)
    return Dataset(config.task, config.workers)


def _options(
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
    answered = options.answer_column is not None if named else _answered(options, groups)
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


def _answered(options: DatasetOptions, groups: Sequence[Group]) -> bool:
    """Return whether the rollouts have reference answers: all of them, or none.

    Raises UsageError if only some have, or if none has and a reward needs them.
    """
    missing = [group[0].row.place for group in groups if not group[0].problem.answer]
    compares = [r.name for r in options.rewards if r.verifies]
    if missing and (compares or len(missing) < len(groups)):
        needs = f"the reward {compares[0]} needs one" if compares else "others have one"
        raise UsageError(
            f"{missing[0]} has no reference answer, and {needs}; name the problems with task.data, "
            "the answers' column with --columns answer=COLUMN, or only functions as task.rewards"
        )
    numeric = any(isinstance(reward, NumericOptions) for reward in options.rewards)
    for one in (group[0] for group in groups if numeric):
        if not has_number(one.problem.answer):
            raise UsageError(
                f"{one.row.place} has the reference answer {one.problem.answer!r:.40}, which the "
                "reward numeric cannot compare with; name another column with --columns "
                "answer=COLUMN, or choose another reward"
            )
    return not missing


def _policy(config: RunConfig, path: str | None, groups: Sequence[Group]) -> Policy | None:
    """Return the policy that computes the behavior logprobs, or None if they are given."""
    if path is None:
        return None
    options = config.model.model_validate({**config.model.model_dump(), "path": path})
    policy = load_policy(options)
    rollouts = (one.rollout for group in groups for one in group)
    largest = max(int(max(r.prompt_ids.max(), r.response_ids.max())) for r in rollouts)
    if largest >= policy.vocab_size:
        raise UsageError(
            f"--policy {path} has {policy.vocab_size} token ids, but the rollouts have the id "
            f"{largest}; name the model that sampled them"
        )
    return policy
