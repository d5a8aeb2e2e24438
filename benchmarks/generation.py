"""What the two generation rows share: our engine against `model.generate`, on the same prompts.

Both sample every token from softmax(logits) of the same weights, at temperature 1 and nothing else.
Where ours computes in bf16, theirs has its weights in bf16 too, as whoever generates would have it.
Useful tokens are those up to and with the end of a sequence; the seconds are of the whole call,
from requests to completions with log-probabilities (ours) or to token ids (theirs, without
log-probabilities). Outside the clock: loading, encoding of prompts, and a warm-up of both.

The random numbers differ, so the lengths do a little; useful tokens a second settle that.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ceilings import Ceilings, generation_floor
from cost_model import Group
from device import clocked
from mugrpo.config.load import build_config
from mugrpo.config.run import RunConfig
from mugrpo.disk.records import Problem
from mugrpo.engines import make_engine
from mugrpo.engines.base import Request
from mugrpo.model.policy import Policy, load_policy
from side_by_side import Measured, Ratio, Row, alternate, parser, publish
from workloads import (
    add_engine_options,
    encoder,
    engine_group,
    other_copy,
    requests,
    sampled,
    shape_of,
    slots_of,
)

OURS, PEER, FLOOR = "mugrpo engine", "model.generate", "floor"


def generation_config(options: Namespace, longest: int, **groups: Any) -> RunConfig:
    engine = engine_group(options.engine, options.engine_option)
    raw = {"engine": engine, "rollouts": {"max_new_tokens": longest}, **groups}
    return build_config(raw, "benchmark")


def peer_model(policy: Policy) -> Any:
    """The policy's weights in a model of its own, in the precision that the policy computes in."""
    model = other_copy(policy)
    if policy.precision == "bf16":
        for parameter in model.parameters():  # not the rotary frequencies, which are no parameters
            parameter.data = parameter.data.bfloat16()
    return model


@torch.no_grad()
def plainly_generated(
    model: Any, policy: Policy, asked: Sequence[Request], longest: int, batch: int
) -> tuple[list[int], int]:
    """Lengths of what `model.generate` samples in batches, and the token slots it decoded."""
    lengths, slots = [], 0
    for start in range(0, len(asked), batch):
        rows = [torch.as_tensor(r.prompt_ids).long() for r in asked[start : start + batch]]
        pad = torch.nn.utils.rnn.pad_sequence
        ids = pad(rows, batch_first=True, padding_value=policy.pad_id, padding_side="left")
        ones = [torch.ones_like(row) for row in rows]
        mask = pad(ones, batch_first=True, padding_value=0, padding_side="left")
        made = model.generate(
            input_ids=ids.to(policy.device),
            attention_mask=mask.to(policy.device),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=longest,
            pad_token_id=policy.pad_id,
            eos_token_id=policy.stop_ids,
        )[:, ids.shape[1] :].cpu()
        slots += made.numel()
        stops = torch.isin(made, torch.tensor(policy.stop_ids))
        first = torch.where(stops.any(-1), stops.int().argmax(-1) + 1, made.shape[1])
        lengths += first.tolist()
    return lengths, slots


def compare(
    name: str,
    title: str,
    policy: Policy,
    config: RunConfig,
    asked: Sequence[Request],
    options: Namespace,
    *,
    with_floor: bool = True,
    time_left: Callable[[], bool] = lambda: True,
) -> Row:
    """Both sides and, where it is wanted, the floor, alternating.

    `asked` holds `options.group_size` requests to a prompt, side by side; the first
    `options.warm_up` of them are the warm-up.
    """
    longest = config.rollouts.max_new_tokens
    model = peer_model(policy)
    lengths: list[int] = []  # of ours: the same in every repetition, its seeds are

    def ours(_: int) -> Measured:
        (completions, largest), seconds = clocked(
            lambda: sampled(policy, config, asked), policy.device
        )
        lengths[:] = [len(c.ids) for c in completions]
        return Measured(seconds, sum(lengths), {"largest_batch": largest})

    def theirs(repetition: int) -> Measured:
        torch.manual_seed(repetition)
        (made, slots), seconds = clocked(
            lambda: plainly_generated(model, policy, asked, longest, options.peer_batch),
            policy.device,
        )
        return Measured(seconds, sum(made), {"occupancy": sum(made) / slots})

    def floor(_: int) -> Measured:
        size = options.group_size
        prompts = [len(asked[start].prompt_ids) for start in range(0, len(asked), size)]
        groups = [Group(p, lengths[i * size : (i + 1) * size]) for i, p in enumerate(prompts)]
        ceilings = Ceilings(**({"longest": 0.01, "cold_bytes": 2**20} if options.tiny else {}))
        slots = min(slots_of(config), len(asked))
        seconds = generation_floor(ceilings, shape_of(policy), groups, slots)
        return Measured(seconds["total"], sum(lengths), {**seconds, **ceilings.described()})

    notices: list[str] = []  # of an engine that is not the one that was asked for
    make_engine(policy, config.engine, notices.append)
    warm = asked[: options.warm_up]
    sampled(policy, config, warm)
    plainly_generated(model, policy, warm, longest, options.peer_batch)
    sides = {OURS: ours, PEER: theirs}
    ratios = [Ratio(OURS, PEER, f"{title}, against model.generate", options.target)]
    if with_floor:
        sides[FLOOR] = floor
        ratios.append(Ratio(OURS, FLOOR, f"{title}, of the floor", kind="floor"))
    found = alternate(sides, options.repetitions, time_left=time_left)
    details = {
        "problems": len(asked) // options.group_size,
        "group_size": options.group_size,
        "max_new_tokens": longest,
        "engine": config.engine.model_dump(mode="json"),
        "engine_notices": notices,
        "peer_batch": options.peer_batch,
        "prompt_tokens": sum(len(r.prompt_ids) for r in asked) / len(asked),
    }
    return Row(name, title, "useful tokens/s", found, ratios, details, options.tiny)


def arguments(
    description: str, *, problems: int, peer_batch: int, target: float, given: Sequence[str] | None
) -> Namespace:
    made = parser(description)
    add_engine_options(made)
    made.add_argument("--problems", type=int, default=problems)
    made.add_argument("--group-size", type=int, default=8)
    made.add_argument("--peer-batch", type=int, default=peer_batch, help="of model.generate")
    made.set_defaults(target=target, warm_up=16)
    options = made.parse_args(given)
    if options.tiny:
        options.problems, options.group_size, options.peer_batch = 2, 4, 4
    return options


def run(name: str, title: str, config: RunConfig, problems: Sequence[Problem], options: Any) -> Any:
    policy = load_policy(config.model)
    asked = requests(encoder(policy, config), problems, options.group_size)
    return publish(compare(name, title, policy, config, asked, options), options.output)
