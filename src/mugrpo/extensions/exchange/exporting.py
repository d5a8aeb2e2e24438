"""`mugrpo export`: a run's rollouts as a data set, in the layout of the Hugging Face Hub.

`mugrpo import` reads it as a plain table, to the same ids, logprobs and rewards.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import UsageError
from mugrpo.disk.publishing import publish_folder
from mugrpo.disk.records import Message, Problem, Rollout
from mugrpo.disk.shards import SCORE_SCHEMA, TURN_SCHEMA, ShardSet, read_rollouts
from mugrpo.rollouts.score import response_text, scored
from mugrpo.run.opening import OpenRun

_MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
_MEANINGS = {
    "stage": "the stage of the run, from 0",
    "problem_id": "the problem",
    "occurrence": "the epoch in which the problem was drawn; with it and the stage, a group",
    "sample": "the position in the group",
    "prompt": "the problem, as text or as a conversation (in JSON, if its messages have more keys)",
    "answer": "the reference answer",
    "response": "the response as text, without tokens of end-of-sequence and padding",
    "reward": "the reward, or null if it was not known (status skipped or error)",
    "status": "what the judge said: right, wrong, no_answer, truncated, ...",
    "parts": "details of the reward (JSON)",
    "finish_reason": "stop: the response ends with the end-of-sequence token; length: it was cut",
    "prompt_ids": "the prompt's token ids",
    "response_ids": "the response's token ids",
    "logprobs": "the logprob of each response id under the policy that sampled it",
    "temperature": "the temperature that it was sampled at, and that the logprobs are for",
    "seed": "the seed of the response",
    "policy_step": "updates that the policy had received",
}
_TURN_MEANINGS = {
    "loss_mask": "for each response id, whether the model sampled it; an environment said the rest",
    "turns": "the indices in the response at which the model's turns begin",
    "environment": "the environment's own reward, failure and logged values (JSON)",
}
_CARD = """\
---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/*.parquet
tags:
- reinforcement-learning
- rollouts
---

# Rollouts

{rows} scored responses in groups of {size}, sampled at temperature {temperature:g}. The model
before the first update was {model}. Written by mugrpo {version}.

| column | meaning |
| --- | --- |
{columns}

    from datasets import load_dataset
    rollouts = load_dataset("THIS_FOLDER", split="train")

`mugrpo import CONFIG THIS_FOLDER` begins a run with them, with the same ids, logprobs and rewards.
"""


def export_rollouts(
    run: OpenRun,
    out: Path,
    stage: int | None = None,
) -> str:
    """Write the scored rollouts of a stage of `run`, or of all stages, as a data set in `out`.

    The data set has one parquet file per shard, and a card.
    Returns a sentence that says how many rollouts there are. Raises UsageError if `out` exists or
    no shard is scored.
    """
    if out.exists():
        raise UsageError(f"{out} exists already; name a new folder")
    stages = run.folder.stages() if stage is None else [stage]
    shards = list(_scored_shards(run, stages))
    if not shards:
        raise UsageError(
            f"{run.folder.root} has no scored rollouts to export; run `mugrpo generate` and "
            "`mugrpo score` first"
        )
    problems = {problem.id: problem for problem in run.problems}
    conversations = [p.prompt for p in run.problems if not isinstance(p.prompt, str)]
    keys = {name for turns in conversations for message in turns for name in message}
    form = "json" if keys - {"role", "content"} else "chat" if keys else "text"
    rows = 0
    with publish_folder(out, replace=False) as folder:
        (folder / "data").mkdir()
        for number, rollouts, scores, shard in shards:
            run.stop.check()
            table = _table(run, problems, number, rollouts, scores, shard, form)
            pq.write_table(table, folder / "data" / f"stage-{number:03d}-{shard:05d}.parquet")
            rows += table.num_rows
        card = _CARD.format(
            rows=rows,
            size=run.config.schedule.group_size,
            temperature=run.config.rollouts.temperature,
            model=Path(run.config.model.path).name,
            version=version("mugrpo"),
            columns="\n".join(
                f"| `{name}` | {text} |" for name, text in _meanings(run.config).items()
            ),
        )
        (folder / "README.md").write_text(card)
    return f"{rows} rollouts in {out}"


def _scored_shards(
    run: OpenRun, stages: Iterable[int]
) -> Iterator[tuple[int, ShardSet, ShardSet, int]]:
    """Yield (stage, rollouts, scores, shard) for every shard that has scores."""
    for number in stages:
        kinds = ("rollouts", "scores")
        rollouts, scores = (ShardSet(run.folder.shards(number, kind), kind) for kind in kinds)
        for shard in rollouts.numbers():
            if scored(rollouts, scores, shard):
                yield number, rollouts, scores, shard


def _table(
    run: OpenRun,
    problems: Mapping[str, Problem],
    stage: int,
    rollouts: ShardSet,
    scores: ShardSet,
    shard: int,
    form: str,
) -> pa.Table:
    """Return a shard as a table with the columns of `_meanings`.

    Conversations are JSON if `form` says so: no column of Arrow has messages with any keys.
    """
    stored = rollouts.open(shard).read()
    columns = dict(zip(stored.column_names, stored.columns, strict=True))
    columns["logprobs"] = columns.pop("behavior_logprobs")
    columns |= zip(SCORE_SCHEMA.names, scores.open(shard).read().columns, strict=True)
    responses = list(read_rollouts(rollouts, shard))
    asked = [_problem(problems, rollout, rollouts.path(shard)) for rollout in responses]
    texts = [response_text(rollout, run.prompts.tokenizer) for rollout in responses]
    prompts: list[Any] = [problem.prompt for problem in asked]
    prompts = prompts if form == "text" else list(map(_turns, prompts))
    prompts = list(map(json.dumps, prompts)) if form == "json" else prompts
    columns["stage"] = pa.array([stage] * len(asked), pa.int32())
    columns["prompt"] = pa.array(prompts, _MESSAGES if form == "chat" else pa.string())
    columns["answer"] = pa.array([problem.answer for problem in asked], pa.string())
    columns["response"] = pa.array(texts, pa.string())
    if run.config.environment.given:
        empty = {f.name: pa.nulls(len(asked), f.type) for f in TURN_SCHEMA}
        columns = {**empty, **columns}
    return pa.table({name: columns[name] for name in _meanings(run.config)})


def _meanings(config: RunConfig) -> dict[str, str]:
    """Return what each column means."""
    return _MEANINGS | (_TURN_MEANINGS if config.environment.given else {})


def _problem(problems: Mapping[str, Problem], rollout: Rollout, path: Path) -> Problem:
    if rollout.problem_id not in problems:
        raise UsageError(
            f"{path} answers problem {rollout.problem_id!r}, which the task does not have; use the "
            "task that the rollouts were made for"
        )
    return problems[rollout.problem_id]


def _turns(prompt: str | tuple[Message, ...]) -> list[Message]:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
