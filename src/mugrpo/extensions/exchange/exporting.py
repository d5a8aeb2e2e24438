"""`mugrpo export`: a run's rollouts as a data set, in the layout of the Hugging Face Hub.

`mugrpo import` reads it as a plain table, to the same ids, logprobs and rewards.
"""

import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mugrpo.disk.errors import UsageError
from mugrpo.disk.publishing import publish_folder
from mugrpo.disk.records import Problem
from mugrpo.disk.shards import SCORE_SCHEMA, ShardSet, read_rollouts
from mugrpo.rollouts.score import response_text, scored
from mugrpo.run.opening import OpenRun

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
before the first update was {model}. Written by mugrpo {version}; its page on rollouts from
elsewhere explains the columns.

    from datasets import load_dataset
    rollouts = load_dataset("THIS_FOLDER", split="train")

`mugrpo import CONFIG THIS_FOLDER` begins a run with them, with the same ids, logprobs and rewards.
"""


def export_rollouts(run: OpenRun, out: Path, stage: int | None = None) -> str:
    """Write the scored rollouts of a stage of `run`, or of all stages, as a data set in `out`.

    The data set has one parquet file per shard, and a card.
    Returns a sentence that says how many rollouts there are. Raises UsageError if `out` exists or
    no shard is scored.
    """
    stages = run.folder.stages() if stage is None else [stage]
    problems = {problem.id: problem for problem in run.problems}
    rows = 0
    with publish_folder(out, replace=False) as folder:
        (folder / "data").mkdir()
        for number in stages:
            kinds = ("rollouts", "scores")
            rollouts, scores = (ShardSet(run.folder.shards(number, kind), kind) for kind in kinds)
            for shard in (n for n in rollouts.numbers() if scored(rollouts, scores, n)):
                run.stop.check()
                table = _table(run, problems, number, rollouts, scores, shard)
                pq.write_table(table, folder / "data" / f"stage-{number:03d}-{shard:05d}.parquet")
                rows += table.num_rows
        if not rows:
            raise UsageError(f"{run.folder.root} has no scored rollouts; run `mugrpo score` first")
        card = _CARD.format(
            rows=rows,
            size=run.config.schedule.group_size,
            temperature=run.config.rollouts.temperature,
            model=Path(run.config.model.path).name,
            version=version("mugrpo"),
        )
        (folder / "README.md").write_text(card)
    return f"{rows} rollouts in {out}"


def _table(
    run: OpenRun,
    problems: Mapping[str, Problem],
    stage: int,
    rollouts: ShardSet,
    scores: ShardSet,
    shard: int,
) -> pa.Table:
    """Return a shard as a table: its own columns, and prompts, answers and responses as text.

    Conversations are JSON: no column of Arrow has messages with any keys.
    """
    stored = rollouts.open(shard).read()
    columns: dict[str, Any] = dict(zip(stored.column_names, stored.columns, strict=True))
    columns["logprobs"] = columns.pop("behavior_logprobs")
    columns |= zip(SCORE_SCHEMA.names, scores.open(shard).read().columns, strict=True)
    responses = list(read_rollouts(rollouts, shard))
    if unknown := {one.problem_id for one in responses} - problems.keys():
        raise UsageError(
            f"{rollouts.path(shard)} answers problem {min(unknown)!r}, which the task does not "
            "have; use the task that the rollouts were made for"
        )
    asked = [problems[one.problem_id] for one in responses]
    texts = [response_text(rollout, run.prompts.tokenizer) for rollout in responses]
    prompts = [p.prompt if isinstance(p.prompt, str) else json.dumps(p.prompt) for p in asked]
    columns["stage"] = pa.array([stage] * len(asked), pa.int32())
    columns["prompt"] = pa.array(prompts, pa.string())
    columns["answer"] = pa.array([problem.reference for problem in asked], pa.string())
    columns["response"] = pa.array(texts, pa.string())
    return pa.table(columns)
