"""One update without generation, against TRL: `python benchmarks/update_smollm2.py`.

SmolLM2-135M learns one-digit addition from 8 problems x 8 responses, in fp32. Both sides make the
same update on the same rollouts: GRPO's objective, the mean over responses of means over tokens,
and AdamW. First, the clipped gradients that the two optimizers receive are compared. If they differ
by more than 1e-4 of the largest entry, the benchmark stops.

    ours   Trainer.step
    TRL    a step of GRPOTrainer's own training loop (its loss with its fused head, its backward
           pass, its clipping and its AdamW) on the given rollouts instead of its own generation,
           without reference model, old logprobs and gradient checkpointing

TRL's micro-batch size is the fastest of three, which are tried before the measurement (--trl-batch
sets it). Groups whose rewards are all equal have no gradient. Our side does not compute them, and
TRL does. "every group varied" is the same update with rewards that leave no such group. Loading,
generation, rewards, the start of TRL's loop and a warm-up are outside the clock.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch

from mugrpo.config.run import RunConfig
from mugrpo.model.policy import Policy, load_policy
from mugrpo.optimize.trainer import Trainer
from side_by_side import Measured, Ratio, Row, alternate, parser, publish
from trl_peer import UpdatePeer
from workloads import (
    Update,
    add_engine_options,
    addition_config,
    addition_update,
    engine_group,
    other_copy,
)

TOLERANCE = 1e-4
OURS, VARIED, PEER = "mugrpo", "mugrpo, every group varied", "TRL"


def our_gradients(trainer: Trainer, update: Update) -> dict[str, torch.Tensor]:
    """Make an update and return the clipped gradients that the optimizer receives."""
    gradients: dict[str, torch.Tensor] = {}

    def keep(*_: Any) -> None:
        named = trainer.policy.model.named_parameters()
        gradients.update({n: p.grad.clone() for n, p in named if p.grad is not None})

    handle = trainer.optimizer.register_step_pre_hook(keep)
    trainer.step(update.experience)
    handle.remove()
    return gradients


def largest_difference(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """Return the largest difference of two entries, as a share of the largest entry."""
    assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
    scale = max(gradient.abs().max().item() for gradient in theirs.values())
    assert scale > 0, "no group of these rollouts has a gradient"
    gaps = ((ours[name] - gradient).abs().max().item() for name, gradient in theirs.items())
    return max(gaps) / scale


def fastest_batch(policy: Policy, config: RunConfig, update: Update) -> int:
    """Return the responses per micro-batch (all, half, a quarter) with which TRL is fastest."""
    whole = config.schedule.rollouts_per_update
    seconds = {}
    for batch in (whole, whole // 2, whole // 4):
        peer = UpdatePeer(other_copy(policy), policy, config, batch)
        peer.train_on(update, config, policy.pad_id)
        seconds[batch] = min(peer.step() for _ in range(2))
        print(f"TRL with {batch} responses per micro-batch: {seconds[batch]:.2f} s", flush=True)
    return min(seconds, key=lambda batch: seconds[batch])


def checked(trainer: Trainer, peer: UpdatePeer, update: Update, config: RunConfig) -> float:
    """Return the largest difference of the gradients.

    Both models must still have their initial weights. Raises SystemExit if the difference is too
    large to be rounding.
    """
    peer.train_on(update, config, trainer.policy.pad_id)
    peer.step(keep_gradients=True)
    gap = largest_difference(our_gradients(trainer, update), peer.gradients)
    print(f"largest difference of the gradients: {gap:.2g} of the largest entry", flush=True)
    if not gap <= TOLERANCE:
        raise SystemExit("the two sides do not make the same update; nothing was measured")
    return gap


def main(argv: Sequence[str] | None = None) -> Any:
    cli = parser(__doc__)
    add_engine_options(cli)
    cli.add_argument(
        "--trl-batch", type=int, help="TRL's responses per micro-batch (default: the fastest)"
    )
    cli.add_argument("--micro-batch-tokens", type=int, help="on our side (default: the config's)")
    cli.add_argument("--problems", type=int, default=8, help="groups of 8 responses")
    options = cli.parse_args(argv)
    problems, size = (2, 4) if options.tiny else (options.problems, 8)
    optimizer: dict[str, Any] = {"lr": 1e-7}  # so small that the policy stays the one that sampled
    if options.micro_batch_tokens:
        optimizer["micro_batch_tokens"] = options.micro_batch_tokens
    groups = {
        "schedule": {
            "stages": 1000,
            "batches_per_stage": 1,
            "problems_per_update": problems,
            "group_size": size,
        },
        "engine": engine_group(options.engine, options.engine_option),
        "optimizer": optimizer,
    }
    config = addition_config(groups, tiny=options.tiny)
    policy = load_policy(config.model)
    update = addition_update(policy, config, problems, size)
    varied = addition_update(policy, config, problems, size, all_varied=True)

    batch = options.trl_batch or (
        problems * size if options.tiny else fastest_batch(policy, config, varied)
    )
    peer = UpdatePeer(other_copy(policy), policy, config, batch)
    trainer = Trainer(policy, config)
    gap = checked(trainer, peer, varied, config)

    def ours(what: Update) -> Measured:
        began = time.perf_counter()
        metrics = trainer.step(what.experience)
        seconds = time.perf_counter() - began
        kept = ("padding_share", "computed_tokens", "zero_variance_share")
        return Measured(seconds, 1.0, {name: metrics[name] for name in kept})

    ours(update)
    peer.train_on(update, config, policy.pad_id)
    sides = {
        OURS: lambda _: ours(update),
        VARIED: lambda _: ours(varied),
        PEER: lambda _: Measured(peer.step()),
    }
    results = alternate(sides, options.repetitions)
    title = "One update, SmolLM2-135M"
    ratios = [
        Ratio(OURS, PEER, f"{title}, against TRL", 3.0),
        Ratio(VARIED, PEER, f"{title}, every group varied, against TRL"),
    ]
    details = {
        "gradient_difference": gap,
        "trl_batch": batch,
        "responses": problems * size,
        "prompt_tokens": [group.prompt for group in update.groups],
        "response_tokens": sum(group.useful for group in update.groups),
        "zero_variance_groups": len(update.groups) - len(update.trained),
    }
    row = Row("update_smollm2", title, "updates/s", results, ratios, details, options.tiny)
    return publish(row, options.output)


if __name__ == "__main__":
    main()
