"""`mugrpo plan`: what a run will cost, before it is started, and which schedule pays."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mugrpo.arguments import COMPARE, Commands
from mugrpo.disk.errors import UsageError

if TYPE_CHECKING:
    from mugrpo.extensions.lab.plan.planner import Planned, Planner

_SCHEDULES = "4,16,64,1024"
_PROMPT = 512  # tokens
GIB = 2.0**30
_ROLLOUT_BYTES = 3.2  # of a response token: 20 million tokens took 64.5 MB


def add_plan(commands: Commands) -> None:
    """Add the command."""
    text = "estimate what a run will cost, and which schedule pays"
    run = "mugrpo.extensions.lab.plan.command:run_plan"
    plan = commands.add(
        "plan",
        text,
        run=run,
        group=COMPARE,
        example="mine.toml --machine 8xH100",
        parents=[commands.overriding],
    )
    plan.add_argument("target", type=Path, metavar="CONFIG", help="a config file (TOML)")
    machine = "a machine to plan for: a name, or a TOML file"
    plan.add_argument("--machine", metavar="NAME", help=machine)
    schedules = f"updates after each refresh to compare (default: {_SCHEDULES})"
    plan.add_argument("--schedules", default=_SCHEDULES, metavar="N,M,...", help=schedules)
    lengths = "a run's directory, for the lengths of its responses (default: lognormal)"
    plan.add_argument("--lengths", type=Path, metavar="RUN", help=lengths)
    median = "median of the lognormal lengths (default: a quarter of rollouts.max_new_tokens)"
    plan.add_argument("--median-tokens", type=float, metavar="N", help=median)
    sigma = "sigma of the lognormal lengths, the weight of their tail (default: 0.8)"
    plan.add_argument("--sigma", type=float, help=sigma)
    prompt = f"tokens of a prompt (default: {_PROMPT})"
    plan.add_argument("--prompt-tokens", type=int, default=_PROMPT, metavar="N", help=prompt)
    form = "a directory with the model's config.json (default: model.path)"
    plan.add_argument("--form", type=Path, metavar="DIR", help=form)


def run_plan(options: argparse.Namespace) -> None:
    """Print the plan. Raises UsageError if the target or an option cannot be used."""
    schedules = options.schedules.split(",")
    if not all(number.strip().isdigit() for number in schedules):
        raise UsageError(
            f"--schedules {options.schedules}: name numbers of updates after each refresh, "
            "separated by commas"
        )
    planner = _planner(options)
    machine, say = planner.machine, options.say
    say(f"{options.target} on {machine.name}: {machine.devices} x {machine.memory_gib:g} GiB")
    say("\n".join([*batch_lines(planner), *size_lines(planner)]))
    plans = planner.compared([int(number) for number in schedules])
    say(f"\n{table(plans)}\n")
    say("\n".join(advice(plans)))
    sources = machine.sources.items()
    if assumed := [name for name, source in sources if source.startswith("assumed")]:
        say(f"Assumed about the machine, not measured: {', '.join(assumed)}.")


def _planner(options: argparse.Namespace) -> Planner:
    """Return the planner that the arguments describe."""
    from mugrpo.config.load import load_config
    from mugrpo.extensions.lab.plan.lengths import assumed, from_run
    from mugrpo.extensions.lab.plan.machine import load_machine, names
    from mugrpo.extensions.lab.plan.planner import Planner, shape_of

    config = load_config(options.target, options.overrides)
    if options.machine is None:
        raise UsageError(
            f"name a machine: --machine NAME, with NAME one of {', '.join(names())} or a TOML file "
            "of your own"
        )
    machine = load_machine(options.machine)
    config = machine.settled(config)
    limit = config.rollouts.max_new_tokens
    if options.lengths:
        lengths = from_run(options.lengths, limit)
    else:
        prompt = options.prompt_tokens
        lengths = assumed(limit, prompt=prompt, median=options.median_tokens, sigma=options.sigma)
    return Planner(config, shape_of(config, options.form), machine, lengths)


def batch_lines(planner: Planner) -> list[str]:
    """Return every number that follows from the schedule, in the literature's words too."""
    config, schedule = planner.config, planner.config.schedule
    stages, problems = planner.own_stages(), schedule.problems_per_update
    mu = f"{stages[0]:,}" if len(set(stages)) == 1 else ", ".join(map(str, stages))
    each, first = schedule.rollouts_per_update, schedule.batches(0)
    rollouts = sum(map(planner.groups, stages)) * schedule.group_size
    _, micro_batches = planner.updates.update(*planner.drawn_update())
    return [
        f"an update      {problems} problems x {schedule.group_size} responses = {each:,} rollouts "
        f"(global batch; verl: ppo_mini_batch_size {problems}, rollout.n {schedule.group_size})",
        f"a batch        passes over it: {schedule.passes_per_batch} (PPO epochs; TRL: "
        "num_iterations)",
        f"a stage        {mu} updates (\u03bc) on {first:,} batches at first, {first * each:,} "
        f"rollouts (verl: train_batch_size {first * problems:,})",
        f"staleness      0 to {max(stages) - 1:,} updates (off-policy steps)",
        f"the run        {len(stages)} refreshes, {sum(stages):,} updates (optimizer steps), "
        f"{rollouts:,} rollouts (episodes)",
        f"micro-batches  {micro_batches} of each rank for an update (gradient accumulation), at "
        f"most {config.optimizer.micro_batch_tokens:,} tokens",
    ]


def size_lines(planner: Planner) -> list[str]:
    """Return tokens, disk, and the memory of devices that can be counted."""
    from mugrpo.extensions.lab.plan.generation import cache_tokens
    from mugrpo.extensions.lab.plan.planner import STATE

    config, engines, prices = planner.config, planner.engines, planner.prices
    stages, lengths = planner.own_stages(), planner.lengths
    rollouts = sum(map(planner.groups, stages)) * config.schedule.group_size
    tokens = rollouts * float(lengths.responses.mean())
    checkpoints = len(planner.checkpoints(stages))
    kept = min(checkpoints, config.checkpoint.keep + 1) if config.checkpoint.keep else checkpoints
    saved = STATE * planner.updates.trained
    longest = int(lengths.prompts.max()) + config.rollouts.max_new_tokens
    weights = prices.each * planner.shape.parameters / engines.tensor_parallel / GIB
    full = engines.slots * longest * planner.shape.kv_bytes(1.0, prices.each) / GIB
    limit = cache_tokens(engines, prices, longest)
    room = f"room for {limit:,.0f} tokens" if engines.share else f"at most {full:.3g} GiB"
    state = planner.state_bytes() / planner.ranks / GIB
    return [
        f"lengths        {lengths.described()}",
        f"tokens         {tokens:,.0f} of responses",
        f"disk           {_ROLLOUT_BYTES * tokens / GIB:.3g} GiB of rollouts, and {kept} "
        f"checkpoints of {saved / GIB:.3g} GiB",
        f"memory         {state:.3g} GiB of each of {planner.ranks} ranks for weights, gradients "
        "and moments; activations come on top",
        f"               an engine: {weights:.3g} GiB of weights on each device, a cache with "
        f"{room} for {engines.slots} slots",
        f"               host: {saved / GIB:.3g} GiB for a checkpoint that is written beside "
        "training",
    ]


def table(plans: Sequence[Planned]) -> str:
    """Return a Markdown row for each plan: wall-clock by part."""
    from mugrpo.extensions.lab.plan.planner import PARTS
    from mugrpo.report.readable import MISSING, duration, markdown

    rows = []
    for number, plan in enumerate(plans):
        most = max(plan.stages)
        name = f"{most:,}" if min(plan.stages[:-1], default=most) == most else "growing"
        cells = [duration(plan.parts[part]) if plan.parts[part] else MISSING for part in PARTS]
        cells[PARTS.index("generate")] += f" (tail {_tail(plan):.0%})"
        own = "" if number else " (the config's)"
        rows.append([f"{name}{own}", f"{len(plan.stages):,}", *cells, duration(plan.seconds)])
    return markdown(["updates per refresh", "refreshes", *PARTS, "wall-clock"], rows)


def advice(plans: Sequence[Planned]) -> Iterator[str]:
    """Yield what dominates the config's own schedule, and the fastest row.

    The config's own schedule is the first plan.
    """
    mine = plans[0]
    part = max(mine.parts, key=lambda name: mine.parts[name])
    share = mine.parts[part] / mine.seconds
    yield f"As configured, {part} takes most: {share:.0%} of the time."
    best = min(plans, key=lambda plan: plan.seconds)
    if best.seconds < 0.98 * mine.seconds:
        yield (
            f"The fastest row has {max(best.stages):,} updates after each refresh: "
            f"{best.seconds / mine.seconds:.2f} times as long. How far a schedule carries before "
            "accuracy suffers, no plan can tell (docs/staging.md)."
        )


def _tail(plan: Planned) -> float:
    return plan.tail / plan.parts["generate"]
