"""`mugrpo plan`: what a run will cost, before it is started, and which schedule pays."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from mugrpo.arguments import Commands
from mugrpo.disk.errors import UsageError

if TYPE_CHECKING:
    from mugrpo.config.run import RunConfig
    from mugrpo.extensions.lab.plan.lengths import Lengths
    from mugrpo.extensions.lab.plan.setting import Setting

Say = Callable[[object], None]

_SCHEDULES = "4,16,64,1024"
_PROMPT = 512  # tokens


def add_plan(commands: Commands) -> None:
    """Add the command."""
    text = "tell what a run will cost, and which schedule pays"
    run = "mugrpo.extensions.lab.plan.command:run_plan"
    plan = commands.add("plan", text, run=run, parents=[commands.overriding])
    target = "a config file (TOML)"
    plan.add_argument("target", type=Path, help=target)
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
    plan.add_argument("--prompt-tokens", type=int, metavar="N", help=prompt)
    share = "share of groups whose rewards differ (default: 1)"
    plan.add_argument("--gradient-share", type=float, metavar="SHARE", help=share)
    price = "price of a device hour, in any currency"
    plan.add_argument("--price-per-gpu-hour", type=float, metavar="PRICE", help=price)
    form = "a directory with the model's config.json (default: model.path)"
    plan.add_argument("--form", type=Path, metavar="DIR", help=form)


def run_plan(options: argparse.Namespace) -> None:
    """Print the plan. Raises UsageError if the target or an option cannot be used."""
    say: Say = options.say
    from mugrpo.extensions.lab.plan.schedules import Planner
    from mugrpo.extensions.lab.plan.setting import as_configured
    from mugrpo.extensions.lab.plan.text import advice, batch_lines, size_lines, table

    schedules = _numbers(options.schedules)
    setting = _setting(options)
    machine = setting.machine
    say(f"{options.target} on {machine.name}: {machine.devices} x {machine.memory_gib:g} GiB")
    say("\n".join([*batch_lines(setting), *size_lines(setting)]))
    own = as_configured(setting.config.schedule)
    plans = Planner(setting).compared(own, schedules)
    say(f"\n{table(plans, options.price_per_gpu_hour, own)}\n")
    say("\n".join([*advice(plans, own), *_assumed(setting)]))


def _setting(options: argparse.Namespace) -> Setting:
    """Return what the arguments describe."""
    from mugrpo.config.load import load_config
    from mugrpo.extensions.lab.plan.machine import load_machine, names
    from mugrpo.extensions.lab.plan.setting import Setting, refuse_many, shape_of

    config = load_config(options.target, options.overrides)
    refuse_many(config.schedule.stages)
    if options.machine is None:
        raise UsageError(
            f"name a machine: --machine NAME, with NAME one of {', '.join(names())} or a TOML file "
            "of your own"
        )
    machine = load_machine(options.machine)
    config = machine.settled(config)
    shape = shape_of(config, options.form)
    return Setting(config, shape, machine, _lengths(options, config), _share(options))


def _lengths(options: argparse.Namespace, config: RunConfig) -> Lengths:
    from mugrpo.extensions.lab.plan.lengths import assumed, from_run

    limit, prompt = config.rollouts.max_new_tokens, options.prompt_tokens or _PROMPT
    if options.lengths:
        return from_run(options.lengths, limit)
    return assumed(limit, prompt=prompt, median=options.median_tokens, sigma=options.sigma)


def _share(options: argparse.Namespace) -> float:
    share = 1.0 if options.gradient_share is None else options.gradient_share
    if not 0 < share <= 1:
        raise UsageError(f"--gradient-share {share:g} must be above 0 and at most 1")
    return float(share)


def _numbers(text: str) -> list[int]:
    numbers = text.split(",")
    if not all(number.strip().isdigit() and int(number) for number in numbers):
        raise UsageError(
            f"--schedules {text}: name numbers of updates after each refresh, separated by commas"
        )
    return [int(number) for number in numbers]


def _assumed(setting: Setting) -> list[str]:
    """Return what the plan rests on."""
    sources = setting.machine.sources.items()
    lines = []
    if assumed := [name for name, source in sources if source.startswith("assumed")]:
        lines.append(f"Assumed about the machine, not measured: {', '.join(assumed)}.")
    if setting.varied == 1.0:
        lines.append("The rewards of every group are taken to differ (--gradient-share).")
    return lines
