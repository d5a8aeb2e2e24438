"""The steps of `gpu.py`. Each measures its sides in turn and returns a row."""

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

import torch

from ceilings import Ceilings
from counts import Group
from device import clocked, forget_peak, peak_gib
from generation import compare
from gpu_work import (
    Model,
    Sizes,
    mfu,
    random_experience,
    random_groups,
    random_requests,
    run_config,
    stand_in,
    update_flop,
)
from mugrpo.model.hardware import precision_of
from mugrpo.model.policy import Policy
from mugrpo.model.varlen import Kernel
from mugrpo.optimize.budget import TokenBudget
from mugrpo.optimize.experience import Experience
from mugrpo.optimize.trainer import Trainer
from side_by_side import Measured, Ratio, Row, alternate

TimeLeft = Callable[[], bool]
METRICS = (
    "loss",
    "grad_norm",
    "skipped",
    "computed_tokens",
    "padding_share",
    "shared_prompt_share",
)
SHARED, PLAIN = "shared prompts", "a prompt for each response"
CHECKPOINTING = ", checkpointing"


class Updates:
    """A trainer with random weights, and random experiences with other lengths in each update."""

    def __init__(self, model: Model, sizes: Sizes) -> None:
        self.sizes, self.model = sizes, model
        self.config = run_config(sizes, model, checkpointing=True)
        self.shape = model.shape(tiny=sizes.tiny)
        self.policy: Policy = model.policy(self.config, tiny=sizes.tiny)
        self.notices: list[str] = []  # why varlen_attn is not used, or micro-batches are smaller
        budget = TokenBudget(self.config.optimizer, self.notices.append)
        self.trainer = Trainer(self.policy, self.config, budget)
        if not self.trainer.share:
            raise RuntimeError(f"{model.name} cannot share prompts, so there is nothing to compare")
        if self.policy.device.type == "cpu":
            self.policy.kernel = stand_in
        self.kernel: Kernel | None = self.policy.kernel
        ceilings = Ceilings(device=self.policy.device.type, dtype=torch.bfloat16)
        self.ceiling = ceilings.matmul("forward", sizes.square, sizes.square, sizes.square)

    @cache  # noqa: B019 - it lives as long as its process
    def experience(self, repetition: int) -> tuple[list[Group], Experience]:
        groups = random_groups(self.sizes.groups(self.model), self.sizes, seed=1 + repetition)
        return groups, random_experience(self.shape.vocab, groups)

    def turn(self, repetition: int, *, shared: bool, checkpointing: bool) -> Measured:
        groups, experience = self.experience(repetition)
        self.policy.can_share_prompts = shared
        self.policy.working().train(checkpointing)  # transformers checkpoints in training only
        forget_peak(self.policy.device)
        metrics, seconds = clocked(lambda: self.trainer.step(experience), self.policy.device)
        flop = update_flop(self.shape, groups, shared=shared, adapter=bool(self.model.rank))
        notes = {
            "mfu": mfu(flop, seconds, self.ceiling),
            "peak_gib": peak_gib(self.policy.device),
            "micro_batch_tokens": self.trainer.budget.tokens,
            "counted_tflop": flop / 1e12,
            **{name: metrics[name] for name in METRICS},
        }
        return Measured(seconds, sum(group.useful for group in groups), notes)

    def row(
        self,
        name: str,
        title: str,
        sides: Mapping[str, Callable[[int], Measured]],
        ratios: Sequence[Ratio],
        options: Namespace,
        time_left: TimeLeft,
    ) -> Row:
        # The warm-up, whose shapes no repetition has, also finds the micro-batch that fits.
        warm = []
        for side, turn in sides.items():
            if not warm or time_left():
                turn(-1)
                warm.append(side)
        measured = {side: sides[side] for side in warm}
        results = alternate(measured, options.repetitions, time_left=time_left)
        known = [ratio for ratio in ratios if {ratio.side, ratio.peer} <= results.keys()]
        details = {
            "attention": "varlen" if self.kernel else "masks and padding",
            "notices": self.notices,
            "ceiling_tflops": self.ceiling / 1e12,
            "adapter_rank": self.model.rank,
            "groups": self.sizes.groups(self.model),
            "lengths": self.sizes.lengths,
            "precision": precision_of(self.config.model),
        }
        return Row(name, title, "useful tokens/s", results, known, details, options.tiny)


def update(model: Model, sizes: Sizes, options: Namespace, time_left: TimeLeft) -> Row:
    """Measure updates with and without shared prompts, checkpointing off and on."""
    updates = Updates(model, sizes)
    sides: dict[str, Callable[[int], Measured]] = {}
    for ending, checkpointing in ((CHECKPOINTING, True), ("", False)):  # the smaller memory first
        for name, shared in ((SHARED, True), (PLAIN, False)):
            how = {"shared": shared, "checkpointing": checkpointing}
            sides[name + ending] = partial(updates.turn, **how)
    title = f"Update on a GPU, {model.name}"
    ratios = [
        Ratio(SHARED, PLAIN, f"{title}, shared prompts against plain", kind="own"),
        Ratio(SHARED + CHECKPOINTING, SHARED, f"{title}, checkpointing against none", kind="own"),
    ]
    return updates.row(f"gpu_update_{model.key}", title, sides, ratios, options, time_left)


def generation(model: Model, sizes: Sizes, options: Namespace, time_left: TimeLeft) -> Row:
    """Measure our engine against `model.generate`, see generation.py."""
    config = run_config(sizes, model)
    policy = model.policy(config, tiny=sizes.tiny)
    compare_options = Namespace(
        **vars(options),
        group_size=sizes.group_size,
        peer_batch=sizes.slots,
        warm_up=sizes.slots,
        target=None,
    )
    return compare(
        f"gpu_generation_{model.key}",
        f"Generation on a GPU, {model.name}",
        policy,
        config,
        random_requests(policy.vocab_size, sizes),
        compare_options,
        with_floor=False,
        time_left=time_left,
    )
