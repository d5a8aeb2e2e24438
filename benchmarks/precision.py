"""bf16 against fp32 on this machine: `python benchmarks/precision.py --phase update`.

    --phase generation   the engine of the config; smollm2: 64 word problems x 8 responses of up to
                         64 tokens, in fp32 with 128 slots too, chain: 256 problems x 8 of up to 48
    --phase update       Trainer.step on one-digit addition, 8 problems x 8 responses, and for
                         smollm2 with compiled blocks too, and TRL's step on the same rollouts with
                         bf16=True
    --model              smollm2 (needs `mugrpo convert smollm2`) or chain

The sides take turns in one process. Each precision also has its floor: the counted operations at
the rates that matrix products reach here in that precision (docs/cost_model.md). "allowed" in the
details is the floor's seconds in fp32 over those in bf16: the gain if all time went into products.
Loading and a warm-up are outside the clock.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ceilings import Ceilings, generation_floor, update_floor
from device import clocked
from mugrpo.config.run import RunConfig
from mugrpo.config.tasks import ChainOptions
from mugrpo.disk.records import Problem
from mugrpo.extensions.lab.plan.counts import Group
from mugrpo.model.policy import Policy, load_policy
from mugrpo.optimize.trainer import Trainer
from mugrpo.tasks.chain import Chain
from side_by_side import Measured, Ratio, Row, Side, alternate, parser, publish
from trl_peer import UpdatePeer
from update_smollm2 import fastest_batch
from workloads import (
    Update,
    addition_config,
    addition_update,
    encoder,
    other_copy,
    requests,
    sampled,
    shape_of,
    slots_of,
    word_problems,
)

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
TRL = "TRL, bf16=True"
_WARM = 3  # steps until an update touches no new memory, and compiles nothing
COMPILED = "bf16, compiled"
FEW_SLOTS = "fp32, 128 slots"  # what an engine had by default before slots_for


@dataclass(frozen=True)
class Sides:
    """What takes turns, and the floor of the phase at given rates."""

    turns: dict[str, Side]
    floor: Callable[[Ceilings], float]


def generation(configs: dict[str, RunConfig], problems: Sequence[Problem], size: int) -> Sides:
    policies = {name: load_policy(config.model) for name, config in configs.items()}
    config = configs["fp32"]
    workload = requests(encoder(policies["fp32"], config), problems, size)
    lengths: list[int] = []

    def turn(name: str) -> Side:
        def side(_: int) -> Measured:
            policy = policies[name]
            (completions, _), seconds = clocked(
                lambda: sampled(policy, configs[name], workload), policy.device
            )
            if name == "fp32":
                lengths[:] = [len(c.ids) for c in completions]
            return Measured(seconds, sum(len(c.ids) for c in completions))

        sampled(policies[name], configs[name], workload[:16])
        return side

    def floor(ceilings: Ceilings) -> float:
        prompts = [len(workload[start].prompt_ids) for start in range(0, len(workload), size)]
        groups = [Group(p, lengths[i * size : (i + 1) * size]) for i, p in enumerate(prompts)]
        slots = min(slots_of(config), len(workload))
        return generation_floor(ceilings, shape_of(policies["fp32"]), groups, slots)["total"]

    return Sides({name: turn(name) for name in configs}, floor)


def update(configs: dict[str, RunConfig], problems: int, size: int, *, trl: bool) -> Sides:
    policies = {name: load_policy(config.model) for name, config in configs.items()}
    data = addition_update(policies["fp32"], configs["fp32"], problems, size, all_varied=True)

    def turn(name: str) -> Side:
        trainer = Trainer(policies[name], configs[name])
        for _ in range(_WARM):
            trainer.step(data.experience)
        return lambda _: Measured(clocked(lambda: trainer.step(data.experience), policy.device)[1])

    policy = policies["bf16"]
    turns: dict[str, Side] = {name: turn(name) for name in configs}
    if trl:
        turns[TRL] = _trl(policy, configs["bf16"], data)

    def floor(ceilings: Ceilings) -> float:
        tokens = configs["fp32"].optimizer.micro_batch_tokens
        return update_floor(ceilings, shape_of(policy), data.trained, tokens)["total"]

    return Sides(turns, floor)


def _trl(policy: Policy, config: RunConfig, data: Update) -> Side:
    peer = UpdatePeer(other_copy(policy), policy, config, fastest_batch(policy, config, data))
    peer.train_on(data, config, policy.pad_id)
    for _ in range(_WARM):
        peer.step()
    return lambda _: Measured(peer.step())


def sides_of(options: Namespace) -> Sides:
    small = options.model == "chain"
    problems, size = (2, 4) if options.tiny else (8, 8)
    groups: dict[str, Any] = {
        "schedule": {"problems_per_update": problems, "group_size": size},
        "optimizer": {"lr": 1e-7},  # so small that the policy stays the one that sampled
    }
    if options.phase == "generation":
        longest = 8 if options.tiny else 48 if small else 64
        groups["rollouts"] = {"max_new_tokens": longest}
        groups["engine"] = {"slots": 1024} if small else {}
    configs = {}
    for name in DTYPES:
        own = {"precision": name} if small else {"path": "smollm2", "precision": name}
        configs[name] = addition_config({**groups, "model": own}, tiny=small)
    if options.phase == "generation" and not small:
        few = {"model": {"path": "smollm2"}, "engine": {"slots": 128}}
        configs[FEW_SLOTS] = addition_config({**groups, **few})
    if options.phase == "update" and not small:
        compiled = {"path": "smollm2", "precision": "bf16", "compile": True}
        configs[COMPILED] = addition_config({**groups, "model": compiled})
    if options.phase == "update":
        return update(configs, problems, size, trl=not small)
    count = problems if options.tiny else 256 if small else 64
    chosen = Chain(ChainOptions()).train_problems()[:count] if small else word_problems(count)
    return generation(configs, chosen, size)


def main(argv: Sequence[str] | None = None) -> Any:
    cli = parser(__doc__)
    cli.add_argument("--phase", choices=("generation", "update"), required=True)
    cli.add_argument("--model", choices=("smollm2", "chain"), default="smollm2")
    options = cli.parse_args(argv)
    sides = sides_of(options)
    results = alternate(sides.turns, options.repetitions)
    how = {"longest": 0.01, "cold_bytes": 2**20} if options.tiny else {}
    floors = {
        name: sides.floor(Ceilings(dtype=dtype, **how))  # type: ignore[arg-type]
        for name, dtype in DTYPES.items()
    }
    title = f"{options.phase.capitalize()} in bf16, {options.model}"
    ratios = [Ratio("bf16", "fp32", f"{title}, against fp32", kind="own")]
    if FEW_SLOTS in results:
        ratios.append(Ratio("bf16", FEW_SLOTS, f"{title}, against {FEW_SLOTS}", kind="own"))
    if TRL in results:
        ratios.append(Ratio("bf16", TRL, f"{title}, against TRL in bf16"))
        ratios.append(Ratio(COMPILED, TRL, f"{title}, compiled, against TRL in bf16"))
        ratios.append(Ratio(COMPILED, "fp32", f"{title}, compiled, against fp32", kind="own"))
    details = {"floors": floors, "allowed": floors["fp32"] / floors["bf16"]}
    name = f"precision_{options.phase}_{options.model}"
    row = Row(name, title, "1/s", results, ratios, details, options.tiny)
    return publish(row, options.output)


if __name__ == "__main__":
    main()
