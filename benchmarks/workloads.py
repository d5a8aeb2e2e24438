"""What the benchmarks run on: models, problems, prompts and rollouts, the same in every call.

Prompts and shards are imported where they are used: they need pyarrow, which a machine that only
runs `card/run.py` may lack.
"""

from __future__ import annotations

import argparse
import copy
import os
import random
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counts import Group, Shape
from mugrpo.config.load import build_config
from mugrpo.config.run import RunConfig
from mugrpo.disk.records import Problem, Rollout, Score, Status
from mugrpo.engines import make_engine
from mugrpo.engines.base import Completion, Request
from mugrpo.model.policy import Policy
from mugrpo.optimize.trainer import Experience
from side_by_side import ROOT

if TYPE_CHECKING:
    from mugrpo.rollouts.prompts import PromptEncoder
    from mugrpo.tasks.base import Task

NAMES = ("Ada", "Ben", "Chloe", "Dev", "Elif", "Finn", "Grace", "Hugo", "Ines", "Jonas")
THINGS = ("apples", "marbles", "stamps", "books", "shells", "coins", "tickets", "cards")


def word_problems(count: int, seed: int = 0) -> list[Problem]:
    """Return different word problems in arithmetic, with prompts of unequal lengths."""
    rng = random.Random(seed)
    problems: dict[str, Problem] = {}
    while len(problems) < count:
        name, thing, total = rng.choice(NAMES), rng.choice(THINGS), rng.randint(3, 40)
        text = f"{name} has {total} {thing}."
        for _ in range(rng.randint(0, 3)):
            other, amount = rng.choice(NAMES), rng.randint(1, 12)
            if rng.random() < 0.5 or amount > total:
                text += f" {other} gives {name} {amount} more {thing} for a birthday."
                total += amount
            else:
                text += f" {name} gives {amount} of the {thing} to {other} on the way to school."
                total -= amount
        text += f" How many {thing} does {name} have now? Explain your answer."
        problems[text] = Problem(f"word-{len(problems)}", text, str(total))
    return list(problems.values())


def other_copy(policy: Policy) -> Any:
    """Return a copy of the policy's model with the forward passes that transformers gives it."""
    model = copy.deepcopy(policy.model)
    for module in model.modules():
        vars(module).pop("forward", None)
    return model


def addition_config(groups: Mapping[str, Any] | None = None, *, tiny: bool = False) -> RunConfig:
    """Return a config of GRPO on one-digit addition in fp32, as in configs/smollm2_addition.toml.

    If `tiny`, use the embedded model on the embedded task, which needs no conversion first.
    """
    raw: dict[str, Any] = {
        "preset": "grpo",
        "evaluation": {"every": 0},
        **(groups or {}),
    }
    if not tiny:
        real = tomllib.loads((ROOT / "configs" / "smollm2_addition.toml").read_text())
        real["task"]["data"] = str(ROOT / real["task"]["data"])
        real["model"]["precision"] = "fp32"
        for name in ("model", "task", "prompt", "rollouts"):
            raw[name] = {**real[name], **raw.get(name, {})}
    return build_config(raw, "benchmark")


def engine_group(name: str | None, options: Sequence[str]) -> dict[str, Any]:
    """Return the config's [engine] for `--engine NAME --engine-option KEY=VALUE ...`."""
    group: dict[str, Any] = {"name": name} if name else {}
    for option in options:
        key, _, value = option.partition("=")
        group[key] = int(value) if value.lstrip("-").isdigit() else value
    return group


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--engine", help="name of our engine (default: the config's)")
    parser.add_argument(
        "--engine-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of the engine, such as slots=128; may be repeated",
    )


def slots_of(config: RunConfig) -> int:
    """Return the number of sequences that the engine decodes together."""
    engine = config.engine
    return int(engine.slots)


def encoder(policy: Policy, config: RunConfig) -> PromptEncoder:
    from mugrpo.rollouts.prompts import PromptEncoder

    return PromptEncoder(policy.tokenizer, policy.vocab_size, config.prompt)


def requests(
    encode: PromptEncoder, problems: Sequence[Problem], group_size: int, seed: int = 0
) -> list[Request]:
    """Return `group_size` requests for each problem, side by side as in a shard."""
    from mugrpo.rollouts.schedule import rollout_seed

    workload = []
    for problem in problems:
        ids = encode(problem)
        seeds = (rollout_seed(seed, "benchmark", problem.id, 0, g) for g in range(group_size))
        workload += [Request(ids, one) for one in seeds]
    return workload


def sampled(
    policy: Policy, config: RunConfig, workload: Sequence[Request]
) -> tuple[list[Completion], int]:
    """Return all completions from the config's engine, and the most that it returned at once."""
    engine = make_engine(policy, config.engine)
    completions: dict[int, Completion] = {}
    largest = 0
    for decoded in engine.generate(
        workload,
        temperature=config.rollouts.temperature,
        max_new_tokens=config.rollouts.max_new_tokens,
    ):
        completions.update(decoded.completions)
        largest = max(largest, len(decoded.completions))
    return [completions[index] for index in range(len(workload))], largest


@dataclass(frozen=True)
class Update:
    """The data of one update, the same for both trainers."""

    experience: Experience
    groups: list[Group]  # of all responses
    trained: list[Group]  # of those whose rewards differ within the group


def addition_update(
    policy: Policy, config: RunConfig, problems: int, group_size: int, *, all_varied: bool = False
) -> Update:
    """Return scored rollouts of `problems` one-digit additions by the policy.

    With `all_varied`, each group's first response is scored right and the others wrong, so every
    response has a gradient.
    """
    from mugrpo.rollouts.sampler import Sampler
    from mugrpo.tasks import make_task

    task = make_task(config.task)
    chosen = list(task.train_problems())[:problems]
    sampler = Sampler(
        make_engine(policy, config.engine),
        encoder(policy, config),
        seed=config.seed,
        stage="benchmark",
        group_size=group_size,
        temperature=config.rollouts.temperature,
        max_new_tokens=config.rollouts.max_new_tokens,
        policy_step=0,
    )
    rollouts = sampler.sample([(problem, 0) for problem in chosen], lambda batch: None)
    task.prepare(Path(os.devnull))
    scores = judged(task, policy, config, chosen, rollouts)
    task.close()
    if all_varied:
        right, wrong = Score(Status.RIGHT, 1.0), Score(Status.WRONG, 0.0)
        scores = [wrong if i % group_size else right for i in range(len(scores))]
    experience = Experience(rollouts, scores)
    return Update(experience, grouped(experience, group_size), varied(experience, group_size))


def judged(
    task: Task,
    policy: Policy,
    config: RunConfig,
    problems: Sequence[Problem],
    rollouts: Sequence[Rollout],
) -> list[Score]:
    """Return the scores that a stage's score shard would hold."""
    from mugrpo.disk.shards import RowReader, ShardSet, score_from_row, write_rollouts
    from mugrpo.rollouts.score import Scorer

    scorer = Scorer(
        task,
        problems,
        policy.tokenizer,
        config.rewards,
        max_new_tokens=config.rollouts.max_new_tokens,
    )
    with tempfile.TemporaryDirectory() as folder:
        shards, scores = (ShardSet(Path(folder) / kind, kind) for kind in ("rollouts", "scores"))
        write_rollouts(shards, 0, rollouts)
        scorer.make_shard(shards, scores, 0)
        rows = RowReader(scores).rows((0, row) for row in range(len(rollouts)))
        return [score_from_row(row) for row in rows]


def grouped(experience: Experience, group_size: int) -> list[Group]:
    rows = experience.rollouts
    return [
        Group(
            len(rows[start].prompt_ids),
            [len(r.response_ids) for r in rows[start : start + group_size]],
        )
        for start in range(0, len(rows), group_size)
    ]


def varied(experience: Experience, group_size: int) -> list[Group]:
    """Return the groups that have a gradient because their rewards are not all equal."""
    rewards = [score.reward for score in experience.scores]
    groups = grouped(experience, group_size)
    starts = range(0, len(rewards), group_size)
    return [
        group
        for start, group in zip(starts, groups, strict=True)
        if len(set(rewards[start : start + group_size])) > 1
    ]


def shape_of(policy: Policy) -> Shape:
    return Shape.of(policy.model.config.to_dict())
