"""Optimization against the machine: `python benchmarks/optimization_floor.py`.

Compares `Trainer.step` of SmolLM2-135M on one-digit addition, with 8 problems x 8 responses, to the
floor of the same update. The floor is the time of its counted operations at matmul rates that are
measured at the model's shapes in the same run, and of the optimizer step's bytes
(benchmarks/README.md). Every group has a gradient. Useful tokens are response tokens, and the ratio
is the floor's seconds over ours. Loading, generation, rewards and a warm-up are outside the clock.
"""

import time
from collections.abc import Sequence
from typing import Any

from ceilings import Ceilings, counted, update_floor
from mugrpo.model.policy import load_policy
from mugrpo.optimize.trainer import Trainer
from side_by_side import Measured, Ratio, Row, alternate, parser, publish
from workloads import (
    add_engine_options,
    addition_config,
    addition_update,
    engine_group,
    shape_of,
)

OURS, FLOOR = "mugrpo", "floor"


def main(argv: Sequence[str] | None = None) -> Any:
    cli = parser(__doc__)
    add_engine_options(cli)
    cli.add_argument("--problems", type=int, default=8, help="groups of 8 responses")
    cli.add_argument(
        "--micro-batch-tokens", type=int, help="tokens per micro-batch (default: the config's)"
    )
    options = cli.parse_args(argv)
    problems, size = (2, 4) if options.tiny else (options.problems, 8)
    optimizer: dict[str, Any] = {"lr": 1e-7}
    if options.micro_batch_tokens:
        optimizer["micro_batch_tokens"] = options.micro_batch_tokens
    groups = {
        "schedule": {"problems_per_update": problems, "group_size": size},
        "engine": engine_group(options.engine, options.engine_option),
        "optimizer": optimizer,
    }
    config = addition_config(groups, tiny=options.tiny)
    policy = load_policy(config.model)
    update = addition_update(policy, config, problems, size, all_varied=True)
    trainer, shape = Trainer(policy, config), shape_of(policy)
    useful = sum(group.useful for group in update.trained)

    def ours(_: int) -> Measured:
        began = time.perf_counter()
        metrics = trainer.step(update.experience)
        seconds = time.perf_counter() - began
        return Measured(seconds, useful, {"padding_share": metrics["padding_share"]})

    tokens = trainer.budget.tokens

    def floor(_: int) -> Measured:
        ceilings = Ceilings(**({"longest": 0.01, "cold_bytes": 2**20} if options.tiny else {}))
        seconds = update_floor(ceilings, shape, update.trained, tokens)
        return Measured(seconds["total"], useful, {**seconds, **ceilings.described()})

    ours(0)
    results = alternate({OURS: ours, FLOOR: floor}, options.repetitions)
    title = "Optimization, SmolLM2-135M"
    details = {
        "prompt_tokens": [group.prompt for group in update.trained],
        "response_tokens": useful,
        "micro_batch_tokens": tokens,
        "GFLOP": counted(shape, update.trained),
    }
    ratios = [Ratio(OURS, FLOOR, f"{title}, of the floor", 0.7, "floor")]
    row = Row(
        "optimization_floor", title, "useful tokens/s", results, ratios, details, options.tiny
    )
    return publish(row, options.output)


if __name__ == "__main__":
    main()
