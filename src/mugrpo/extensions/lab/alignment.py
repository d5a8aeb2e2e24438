"""How well the gradient of stale rollouts agrees with the on-policy gradient.

For every checkpoint within a stage, the stage's rollouts that no update before it used are
compared with fresh ones of its policy, on the same problems:

    cosine    of an objective's gradient on the unused rollouts with the on-policy gradient
    positive  the same for the responses with a positive advantage alone
    negative  the same for those with a negative one
    fresh     of the on-policy gradients on two independent halves: how much of it is noise

The on-policy gradient is that of -A log pi on fresh rollouts, with the run's advantages. Nothing of
the run changes. The fresh rollouts are kept in RUN/alignment/stage-000/update-000024, so a second
comparison samples nothing.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mugrpo.config.load import build_config
from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import UsageError
from mugrpo.disk.publishing import SUMS, publish_json, sha256_of
from mugrpo.disk.shards import RowReader, ShardSet, rollout_from_row, score_from_row
from mugrpo.extensions.lab.methods import configs_of
from mugrpo.hosts.local import LocalHost
from mugrpo.hosts.reader import StageReader
from mugrpo.hosts.weights import Weights
from mugrpo.model.policy import Policy
from mugrpo.optimize.budget import TokenBudget
from mugrpo.optimize.experience import Experience, with_advantages
from mugrpo.optimize.gradient import accumulate_gradient
from mugrpo.optimize.loss import UpdateLoss
from mugrpo.report.readable import markdown
from mugrpo.rollouts.sampler import Sampler
from mugrpo.rollouts.score import scored
from mugrpo.run.opening import OpenRun
from mugrpo.run.stage import Stage

Row = dict[str, Any]


def alignment(run: OpenRun, number: int, methods: Sequence[str], groups: int) -> list[Row]:
    """Measure the alignment of each method's gradient at every checkpoint within a stage.

    Without methods, measure that of the run's own objective. At most `groups` groups of unused
    rollouts are compared with two times as many fresh ones. Return a row per checkpoint and method,
    which RUN/alignment/stage-000/alignment.json gets too. Raises UsageError for an unknown method,
    for one that needs logprobs of other policies, for a stage without rollouts or scores, and
    for one without a checkpoint between its updates.
    """
    stage = Stage.of(run, number)
    configs = configs_of(run, methods) if methods else {"this run": run.config}
    for name, config in configs.items():
        if not can_align(config):
            raise UsageError(f"{name} needs logprobs of other policies; leave it out")
    stage.require("rollouts", "scores")
    updates = [u for u in run.folder.checkpoint_updates() if stage.first_update < u < stage.end]
    if not updates:
        raise UsageError(
            f"no checkpoint lies within stage {number}; train with --checkpoint.every N, where N "
            f"is smaller than its {stage.end - stage.first_update} updates"
        )
    rows = list[Row]()
    home = run.folder.root / "alignment" / f"stage-{number:03d}"
    with closing(LocalHost(run)) as host:
        reader = StageReader(stage, host.logprobs)
        for update in updates:
            stale = _unused(stage, reader, update, groups)
            halves = _fresh(run, home / f"update-{update:06d}", host, update, stale)
            host.sleep()
            at = {"update": update, "staleness": update - stage.first_update}
            found = _cosines(run.config, configs, host.weights, update, stale, halves)
            rows += [at | row for row in found]
            run.progress.say(f"compared at update {update}")
    publish_json(home / "alignment.json", rows)
    return rows


def can_align(config: RunConfig) -> bool:
    """Return whether the objective's gradient follows from the stored rollouts alone."""
    proximal = config.objective.needs and config.proximal_period > 1
    return not (config.reference.needs or config.correction.needs or proximal)


def table(rows: Sequence[Row]) -> str:
    """Return a Markdown table: a line per method, a column per staleness, three cosines a cell."""
    columns = sorted({row["staleness"] for row in rows})
    by_place = {(row["method"], row["staleness"]): row for row in rows}
    fresh = {row["staleness"]: row["fresh"] for row in rows}
    head = ["cosine (A > 0, A < 0)", *(f"staleness {s}" for s in columns)]
    body = []
    for method in dict.fromkeys(row["method"] for row in rows):
        cells = [
            [_number(by_place[method, s][key]) for key in ("cosine", "positive", "negative")]
            for s in columns
        ]
        body.append([method, *(f"{both} ({above}, {below})" for both, above, below in cells)])
    body.append(["two fresh halves", *(_number(fresh[s]) for s in columns)])
    return markdown(head, body)


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def _unused(stage: Stage, reader: StageReader, update: int, groups: int) -> Experience:
    """Return the rollouts of the batches that no update before `update` used, up to `groups`."""
    options = stage.config.schedule
    used = set(map(options.batch_of, range(stage.first_update, update)))
    first: dict[int, int] = {}  # batch -> the first update on it
    for later in range(update, stage.end):
        if (batch := options.batch_of(later)) not in used:
            first.setdefault(batch, later)
    count = math.ceil(groups / options.problems_per_update)
    parts = [reader.of_update(one) for one in [*first.values()][:count]]
    most = groups * options.group_size
    return Experience(
        [rollout for part in parts for rollout in part.rollouts][:most],
        [score for part in parts for score in part.scores][:most],
    )


def _fresh(
    run: OpenRun, folder: Path, host: LocalHost, update: int, stale: Experience
) -> list[Experience]:
    """Return two independent sets of scored rollouts of the policy after `update` updates.

    Both have the problems of `stale`. They are read if `folder` has them, of the same weights.
    """
    rollouts, scores = (ShardSet(folder / kind, kind) for kind in ("rollouts", "scores"))
    by_id = {problem.id: problem for problem in run.problems}
    groups = dict.fromkeys(rollout.group for rollout in stale.rollouts)
    draws = [(by_id[group.problem_id], group.occurrence) for group in groups]
    count = len(stale.rollouts)
    seal = sha256_of(run.folder.checkpoint(update) / SUMS)
    rests_on = hashlib.sha256(f"{seal} {list(groups)}".encode()).hexdigest()
    stage = run.config.schedule.stage_of(update)
    halves = []
    for half in range(2):
        if half not in rollouts or rollouts.entry(half).get("rests_on") != rests_on:
            refreshed = host.engines(update, draws, f"alignment {half}")
            sampler = Sampler(
                refreshed.engines[0],
                run.prompts,
                dialogue=refreshed.dialogues[0],
                seed=run.config.seed,
                stage=f"alignment {half}",
                group_size=run.config.schedule.group_size,
                temperature=run.config.rollouts.temperature,
                max_new_tokens=run.config.rollouts.max_new_tokens,
                policy_step=update,
            )
            sampled = sampler.sample_shard(draws, lambda _: run.stop.check())
            sampled.publish(rollouts, half, rests_on=rests_on)
        if not scored(rollouts, scores, half, run.judge):
            run.scorer(run.problems, stage).make_shard(rollouts, scores, half)
        places = [(half, row) for row in range(count)]
        halves.append(
            Experience(
                [rollout_from_row(row) for row in RowReader(rollouts).rows(places)],
                [score_from_row(row) for row in RowReader(scores).rows(places)],
            )
        )
    return halves


def _cosines(
    config: RunConfig,
    configs: dict[str, RunConfig],
    weights: Weights,
    update: int,
    stale: Experience,
    halves: Sequence[Experience],
) -> Iterator[Row]:
    """Yield a row per method: its cosines after `update` updates."""
    policy, off = weights.at(update), {"name": "off"}
    plain = dict.fromkeys(("veto", "sequence_mask", "correction", "reference"), off)
    plain["objective"] = {"name": "reinforce"}
    on_policy = build_config(config.model_dump(mode="json") | plain, "alignment")
    first, second = (_gradient(policy, weights.budget, half, on_policy) for half in halves)
    for name, method in configs.items():
        of = partial(_gradient, policy, weights.budget, stale, method)
        yield {
            "method": name,
            "cosine": _cosine(of(), first + second),
            "positive": _cosine(of(sign=1), first + second),
            "negative": _cosine(of(sign=-1), first + second),
            "fresh": _cosine(first, second),
        }


def _gradient(
    policy: Policy,
    budget: TokenBudget,
    experience: Experience,
    config: RunConfig,
    sign: int | None = None,
) -> torch.Tensor:
    """Return the gradient of the loss on `experience` as one vector, fp64.

    With a `sign`, advantages of the other sign count as 0.
    """
    responses = with_advantages(experience, config)
    if sign:
        kept = responses.advantages.sign() == sign
        responses = replace(responses, advantages=responses.advantages * kept)
    loss = UpdateLoss(config)

    def compute(tokens: int) -> None:
        policy.model.zero_grad()
        accumulate_gradient(policy, responses, loss, config, micro_batch_tokens=tokens)

    budget.fitted(compute)
    of_parameters = ((p, p.grad) for p in policy.model.parameters())
    flat = [(torch.zeros_like(p) if g is None else g).double().flatten() for p, g in of_parameters]
    policy.model.zero_grad()
    return torch.cat(flat).cpu()


def _cosine(one: torch.Tensor, other: torch.Tensor) -> float | None:
    """Return the cosine of two gradients, or None if one of them is 0."""
    if not (one.any() and other.any()):
        return None
    return torch.nn.functional.cosine_similarity(one, other, 0).item()
