"""A plan as text: batch arithmetic, tokens, disk, memory, the table of schedules, and advice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mugrpo.extensions.evals.tables import markdown
from mugrpo.extensions.lab.plan.generation import room
from mugrpo.extensions.lab.plan.schedules import PARTS, STATE, Planned, Planner
from mugrpo.extensions.lab.plan.setting import Setting, as_configured
from mugrpo.report.readable import MISSING, TIMES, duration, plain

GIB = 2.0**30
_ROLLOUT_BYTES = 3.2  # of a response token: 20 million tokens took 64.5 MB
_LONG_TAIL = 0.2  # of generation

_CHANGES = {
    "refresh": "make more updates after each refresh: raise --schedule.batches_per_stage",
    "generate": "more --engine.slots if memory has room, a lower "
    "--rollouts.max_new_tokens, or more devices for generation",
    "score": "score in more processes: raise --task.workers.count",
    "logprobs": "choose an objective that needs no other policy's logprobs, or turn the KL term "
    "off (--reference.name off)",
    "optimize": "raise --optimizer.micro_batch_tokens if memory has room, compute in bf16 "
    "(--model.precision) if you do not, or give updates more devices",
    "checkpoint": "save less often: a larger --checkpoint.every",
    "evaluate": "evaluate less often (--evaluation.every) or on fewer problems",
}
_TAIL = (
    "fill the tail: more updates after each refresh, fewer slots, or engines that stream (vLLM) "
    "with smaller --rollouts.shard_rollouts"
)


def batch_lines(setting: Setting) -> list[str]:
    """Return every number that follows from the schedule, in the literature's words too."""
    schedule, config = setting.config.schedule, setting.config
    stages = as_configured(schedule)
    each = schedule.rollouts_per_update
    mu = f"{stages[0]:,}" if len(set(stages)) == 1 else f"{', '.join(map(str, stages))}"
    firsts = np.cumsum([0, *stages[:-1]]).tolist()
    groups = sum(map(setting.sampled, firsts, stages))
    rollouts = groups * schedule.group_size
    groups_each = schedule.problems_per_update
    prompts, responses = setting.lengths.draw(0, groups_each, schedule.group_size)
    update = setting.update_prices(setting.ranks_on(setting.machine.devices)).update(
        prompts, responses
    )
    rows = [
        (
            "an update",
            f"{schedule.problems_per_update} problems {TIMES} {schedule.group_size} "
            f"responses = {each:,} rollouts (global batch; verl: ppo_mini_batch_size "
            f"{schedule.problems_per_update}, rollout.n {schedule.group_size})",
        ),
        (
            "a batch",
            f"passes over it: {schedule.passes_per_batch} (PPO epochs; TRL: num_iterations)",
        ),
        (
            "a stage",
            f"{mu} updates (\u03bc) on {schedule.batches(0):,} batches at first, "
            f"{schedule.batches(0) * each:,} rollouts (verl: train_batch_size "
            f"{schedule.batches(0) * schedule.problems_per_update:,})",
        ),
        ("staleness", f"0 to {max(stages) - 1:,} updates (off-policy steps)"),
        (
            "the run",
            f"{len(stages)} refreshes, {sum(stages):,} updates (optimizer steps), "
            f"{rollouts:,} rollouts (episodes)",
        ),
        (
            "micro-batches",
            f"{update.rounds} of each rank for an update (gradient accumulation), "
            f"at most {config.optimizer.micro_batch_tokens:,} tokens; ranks are busy for "
            f"{update.balance:.0%} of the time",
        ),
    ]
    return ["batches", *(f"  {name:<14}{text}" for name, text in rows)]


def size_lines(setting: Setting) -> list[str]:
    """Return tokens, disk, and the memory of devices and host that can be counted."""
    config, machine = setting.config, setting.machine
    stages, first, tokens, read = as_configured(config.schedule), 0, 0.0, 0.0
    for updates in stages:
        groups, seen = setting.sampled(first, updates), setting.lengths.at(first)
        tokens += groups * config.schedule.group_size * float(seen.responses.mean())
        read += groups * float(seen.prompts.mean())
        first += updates
    checkpoints = len(Planner(setting).checkpoints(stages))
    kept = min(checkpoints, config.checkpoint.keep + 1) if config.checkpoint.keep else checkpoints
    saved = STATE * setting.update_prices(1).trained
    ranks = setting.ranks_on(machine.devices)
    shards = max(1, ranks)
    return [
        f"lengths       {setting.lengths.described()}",
        f"tokens        {plain(tokens)} of responses, {plain(read)} of prompts (each once a group)",
        f"disk          {plain(_ROLLOUT_BYTES * tokens / GIB)} GiB of rollouts, and {kept} "
        f"checkpoints of {plain(saved / GIB)} GiB",
        f"memory        {plain(setting.state_bytes() / shards / GIB)} GiB of each of "
        f"{ranks} ranks for weights, gradients and moments; activations come on top",
        f"              {_cache(setting)}",
        f"              host: {plain(saved / GIB)} GiB for a checkpoint that is written beside "
        "training",
    ]


def _cache(setting: Setting) -> str:
    engines = setting.engines()
    prices = setting.engine_prices(engines)
    seen = setting.lengths.at(0)
    longest = int(seen.prompts.max()) + setting.config.rollouts.max_new_tokens
    tokens = room(engines, prices, longest)
    weights = prices.each * setting.shape.parameters / engines.tensor_parallel / GIB
    each = setting.shape.kv_bytes(1.0, prices.each)
    text = f"an engine: {plain(weights)} GiB of weights on each device, "
    full = engines.slots * longest * each / GIB
    if tokens == float("inf"):
        return f"{text}at most {plain(full)} GiB of cache for {engines.slots} slots"
    return f"{text}a cache for {plain(tokens)} tokens, or {tokens / longest:,.0f} longest responses"


def table(plans: Sequence[Planned], price: float | None, own: Sequence[int]) -> str:
    """Return a row for each plan: wall-clock by part, GPU hours, and the price if one is given."""
    return markdown(head(price), [row(plan, price, own) for plan in plans])


def head(price: float | None) -> list[str]:
    """Return the head of the table."""
    names = ["updates per refresh", "refreshes", "pools", *PARTS, "wall-clock", "GPU hours"]
    return [*names, "price"] if price is not None else names


def row(plan: Planned, price: float | None, own: Sequence[int]) -> list[str]:
    """Return the cells of a plan under `head`."""
    most = max(plan.stages)
    name = f"{most:,}" if min(plan.stages[:-1], default=most) == most else "growing"
    name += " (the config's)" if list(plan.stages) == list(own) else ""
    pools = plan.pool
    if pools != "colocated":
        pools += f" {plan.generating} + {plan.updating}"
    cells = [duration(plan.parts[part]) if plan.parts[part] else MISSING for part in PARTS]
    if plan.parts["generate"]:
        cells[PARTS.index("generate")] += f" (tail {plan.tail / plan.parts['generate']:.0%})"
    hours = plan.devices * plan.seconds / 3600
    cells = [name, f"{len(plan.stages):,}", pools, *cells, duration(plan.seconds), plain(hours)]
    return [*cells, f"{hours * price:,.2f}"] if price is not None else cells


def advice(plans: Sequence[Planned], own: Sequence[int]) -> Iterator[str]:
    """Yield what dominates the config's own schedule, what to change, and the fastest row."""
    mine = next(p for p in plans if list(p.stages) == list(own) and p.pool == "colocated")
    part = max(PARTS, key=lambda name: mine.parts[name])
    whole = sum(mine.parts.values())
    yield f"As configured, {part} takes most: {mine.parts[part] / whole:.0%} of the time."
    tail = mine.tail / mine.parts["generate"] if mine.parts["generate"] else 0.0
    change = _TAIL if part == "generate" and tail > _LONG_TAIL else _CHANGES[part]
    yield f"What would change that: {change}."
    best = min(plans, key=lambda plan: plan.seconds)
    if best.seconds < 0.98 * mine.seconds:
        yield (
            f"The fastest row has {max(best.stages):,} updates after each refresh, pools "
            f"{best.pool}: {best.seconds / mine.seconds:.2f} times as long. How far a schedule "
            "carries before accuracy suffers, no plan can tell (docs/staging.md)."
        )
