"""Optimization against the machine: `python benchmarks/optimization_floor.py`.

`Trainer.step` of SmolLM2-135M on one-digit addition, 8 problems x 8 responses, and beside it the
floor of the same update: its counted operations at the matmul rates measured at the model's own
shapes in the same run, and the bytes of the optimizer's step (docs/cost_model.md). Every group has
a gradient here. Useful tokens are response tokens; the ratio is the floor's seconds over ours.
Outside the clock: loading, generation, rewards, a warm-up.
"""

from __future__ import annotations

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


def main(given: Sequence[str] | None = None) -> Any:
    made = parser(__doc__)
    add_engine_options(made)
    made.add_argument("--problems", type=int, default=8, help="groups of 8 responses")
    made.add_argument("--micro-batch-tokens", type=int, help="of our side (default: the config's)")
    options = made.parse_args(given)
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

    def floor(_: int) -> Measured:
        ceilings = Ceilings(**({"longest": 0.01, "cold_bytes": 2**20} if options.tiny else {}))
        seconds = update_floor(ceilings, shape, update.trained, config.optimizer.micro_batch_tokens)
        return Measured(seconds["total"], useful, {**seconds, **ceilings.described()})

    ours(0)
    found = alternate({OURS: ours, FLOOR: floor}, options.repetitions)
    title = "Optimization, SmolLM2-135M"
    details = {
        "prompt_tokens": [group.prompt for group in update.trained],
        "response_tokens": useful,
        "micro_batch_tokens": config.optimizer.micro_batch_tokens,
        "GFLOP": counted(shape, update.trained),
    }
    ratios = [Ratio(OURS, FLOOR, f"{title}, of the floor", 0.7, "floor")]
    row = Row("optimization_floor", title, "useful tokens/s", found, ratios, details, options.tiny)
    return publish(row, options.output)


if __name__ == "__main__":
    main()
