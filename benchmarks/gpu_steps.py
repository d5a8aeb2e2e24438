"""The steps of `gpu.py`. Each measures its sides in turn and returns a row."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch

from ceilings import Ceilings
from device import clocked, forget_peak, peak_gib
from generation import compare
from gpu_work import (
    Model,
    Sizes,
    kernels_of,
    mfu,
    random_experience,
    random_groups,
    random_requests,
    run_config,
    stand_in,
    update_flop,
)
from mugrpo.extensions.lab.plan.counts import Group, passed
from mugrpo.model.policy import Policy
from mugrpo.model.shared_prompts import Packing, packed_attention
from mugrpo.model.varlen import Kernel, varlen_kernel
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
VARLEN, MASKS = "varlen", "masks and padding"
WAYS = {
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "single": {"foreach": False, "fused": False},
}


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

    def turn(
        self, repetition: int, *, shared: bool, checkpointing: bool, kernel: Kernel | None
    ) -> Measured:
        groups, experience = self.experience(repetition)
        self.policy.can_share_prompts, self.policy.kernel = shared, kernel
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
        kernels: dict[str, list[str]] = {}
        for side, turn in sides.items():
            if not kernels or time_left():
                kernels[side] = kernels_of(partial(turn, -1))
        results = alternate(
            {side: sides[side] for side in kernels}, options.repetitions, time_left=time_left
        )
        measured = [ratio for ratio in ratios if {ratio.side, ratio.peer} <= results.keys()]
        details = {
            "kernels": kernels,
            "attention": VARLEN if self.kernel else MASKS,
            "notices": self.notices,
            "ceiling_tflops": self.ceiling / 1e12,
            "adapter_rank": self.model.rank,
            "groups": self.sizes.groups(self.model),
            "lengths": self.sizes.lengths,
            "precision": self.config.model.precision,
        }
        return Row(name, title, "useful tokens/s", results, measured, details, options.tiny)


def update(model: Model, sizes: Sizes, options: Namespace, time_left: TimeLeft) -> Row:
    """Measure updates with and without shared prompts, checkpointing off and on."""
    updates = Updates(model, sizes)
    sides: dict[str, Callable[[int], Measured]] = {}
    for ending, checkpointing in ((CHECKPOINTING, True), ("", False)):  # the smaller memory first
        for name, shared in ((SHARED, True), (PLAIN, False)):
            how = {"shared": shared, "checkpointing": checkpointing, "kernel": updates.kernel}
            sides[name + ending] = partial(updates.turn, **how)
    title = f"Update on a GPU, {model.name}"
    ratios = [
        Ratio(SHARED, PLAIN, f"{title}, shared prompts against plain", kind="own"),
        Ratio(SHARED + CHECKPOINTING, SHARED, f"{title}, checkpointing against none", kind="own"),
    ]
    return updates.row(f"gpu_update_{model.key}", title, sides, ratios, options, time_left)


def update_by_attention(model: Model, sizes: Sizes, options: Namespace, time_left: TimeLeft) -> Row:
    """Measure updates with varlen_attn and with masks. Raises RuntimeError without varlen_attn."""
    updates = Updates(model, sizes)
    if updates.kernel is None:
        raise RuntimeError("; ".join(updates.notices))
    sides, ratios = {}, []
    title = f"Attention of an update, {model.name}"
    for rows, shared in ((SHARED, True), (PLAIN, False)):
        for name, kernel in ((VARLEN, updates.kernel), (MASKS, None)):
            how = {"shared": shared, "checkpointing": False, "kernel": kernel}
            sides[f"{name}, {rows}"] = partial(updates.turn, **how)
        label = f"{title}, {rows}, varlen against masks"
        ratios.append(Ratio(f"{VARLEN}, {rows}", f"{MASKS}, {rows}", label, kind="own"))
    return updates.row(
        f"gpu_update_by_attention_{model.key}", title, sides, ratios, options, time_left
    )


def attention(model: Model, sizes: Sizes, options: Namespace, time_left: TimeLeft) -> Row:
    """Measure attention over shared prompts alone, forward and backward, on random states.

    Notes how far results are from those of masks in fp32. Raises RuntimeError if torch has no
    varlen_attn.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kernel = varlen_kernel() if device.type == "cuda" else stand_in
    if kernel is None:
        raise RuntimeError("this torch has no varlen_attn")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    shape = model.shape(tiny=sizes.tiny)

    @cache
    def case(repetition: int) -> tuple[list[torch.Tensor], Packing, list[Group]]:
        groups = random_groups(sizes.groups(model), sizes, seed=1 + repetition)
        packing = packed(groups, device)
        generator = torch.Generator(device).manual_seed(repetition)
        heads = (shape.heads, shape.kv_heads, shape.kv_heads, shape.heads)
        count = len(packing.ids)
        states = [
            torch.randn(1, h, count, shape.head_dim, generator=generator, device=device)
            for h in heads
        ]
        return states, packing, groups

    def turn(repetition: int, *, by: Kernel | None) -> Measured:
        states, packing, groups = case(repetition)
        own = [state.to(dtype) for state in states]
        forget_peak(device)
        found, seconds = clocked(lambda: attended(own, packing, by), device)
        flop = 3 * shape.attention_flop(passed(groups, shared=True).pairs) / shape.layers
        notes = {"tflops": flop / seconds / 1e12, "peak_gib": peak_gib(device)}
        if repetition == 0:
            exact = attended(states, packing, None)
            pairs = zip(("output", "query", "key", "value"), found, exact, strict=True)
            notes["error"] = {n: float((a - b).norm() / b.norm()) for n, a, b in pairs}
        return Measured(seconds, sum(group.useful for group in groups), notes)

    sides = {VARLEN: partial(turn, by=kernel), MASKS: partial(turn, by=None)}
    title = f"Attention alone, {model.name}"
    kernels = {name: kernels_of(partial(side, -1), most=4) for name, side in sides.items()}
    results = alternate(sides, options.repetitions, time_left=time_left)
    ratios = [Ratio(VARLEN, MASKS, f"{title}, varlen against masks", kind="own")]
    details = {"kernels": kernels, "dtype": str(dtype)}
    return Row(
        f"gpu_attention_{model.key}", title, "tokens/s", results, ratios, details, options.tiny
    )


def packed(groups: Sequence[Group], device: torch.device) -> Packing:
    """Return the packing of `groups`, whose responses share their prompt."""
    rows = [(number, g.prompt, t) for number, g in enumerate(groups) for t in g.responses]
    numbers, prompts, responses = (torch.tensor(column) for column in zip(*rows, strict=True))
    steps = torch.arange(int(responses.max()))
    ids = torch.zeros(len(rows), int((prompts + responses).max()), dtype=torch.long)
    given = (ids, prompts, steps < responses[:, None], numbers)
    return Packing(*(tensor.to(device) for tensor in given))


def attended(
    states: Sequence[torch.Tensor], packing: Packing, kernel: Kernel | None
) -> list[torch.Tensor]:
    """Return the output of causal attention and the gradients of query, key and value, in fp32.

    `states` are query, key, value [1, heads, M, D], and the output's gradient [1, Q, M, D].
    """
    query, key, value = (state.detach().requires_grad_() for state in states[:3])
    if kernel is None:
        output, _ = packed_attention(None, query, key, value, None, packing=packing)
    else:
        output = packing.sequences.attend(kernel, query, key, value, scaling=None, window=None)
    output.backward(states[3].transpose(1, 2).to(output.dtype))
    found = (output.detach(), query.grad, key.grad, value.grad)
    return [tensor.float() for tensor in found if tensor is not None]


def adamw(model: Model, sizes: Sizes, options: Namespace, time_left: TimeLeft) -> Row:
    """Measure a step of AdamW on the model's parameters, with random gradients."""
    from transformers import AutoModelForCausalLM

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with torch.device("meta"):
        form = AutoModelForCausalLM.from_config(model.config(tiny=sizes.tiny))
    parameters = []
    for parameter in form.parameters():
        weight = torch.nn.Parameter(torch.randn(parameter.shape, device=device))
        weight.grad = torch.randn_like(weight)
        parameters.append(weight)
    count = sum(p.numel() for p in parameters)

    def turn(_: int, how: dict[str, Any]) -> Measured:
        forget_peak(device)
        optimizer = torch.optim.AdamW(parameters, lr=1e-12, **how)
        optimizer.step()  # allocates the moments
        seconds = clocked(optimizer.step, device)[1]
        notes = {"gb_per_second": 28 * count / seconds / 1e9, "peak_gib": peak_gib(device)}
        return Measured(seconds, count, notes)

    sides = {name: partial(turn, how=how) for name, how in WAYS.items()}
    kernels = {name: kernels_of(partial(side, -1), most=3) for name, side in sides.items()}
    results = alternate(sides, options.repetitions, time_left=time_left)
    title = f"AdamW on a GPU, {model.name}"
    ratios = [Ratio("fused", way, f"{title}, against {way}", kind="own") for way in list(WAYS)[1:]]
    copied = Ceilings(device=device.type, **({"longest": 0.01} if options.tiny else {})).copy()
    details = {"kernels": kernels, "parameters": count, "copy_gb_per_second": copied / 1e9}
    name = f"gpu_adamw_{model.key}"
    return Row(name, title, "parameters/s", results, ratios, details, options.tiny)


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
