"""Our engine against `model.generate` on the same prompts: `python benchmarks/generation.py MODEL`.

With `chain` the work is a shard of the demo: 256 problems x 8 responses of up to 48 tokens. With
`smollm2` it is 64 word problems x 8 responses of up to 128 tokens, in fp32, through the chat
template; it needs `make smollm2`. --tiny runs the embedded model on its own task.

Both sides sample every token from softmax(logits) of the same weights: temperature 1, no top-k, no
penalties. If our side computes in bf16, the weights of the other side are in bf16 too, as is usual
for generation. Useful tokens are those up to and including the end of a sequence. The clock covers
the whole call, from requests to completions with logprobs (ours) or to token ids without logprobs
(`model.generate`). Loading, encoding of prompts and a warm-up of both sides are outside the clock.

The two sides draw different random numbers, so their response lengths differ a little. Useful
tokens per second correct for that.
"""

import tomllib
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ceilings import Ceilings, generation_floor
from counts import Group
from device import clocked
from mugrpo.arguments import DEMO
from mugrpo.config.load import build_config
from mugrpo.config.run import RunConfig
from mugrpo.config.tasks import ChainOptions
from mugrpo.engines.base import Request
from mugrpo.model.policy import Policy, load_policy
from mugrpo.tasks.embedded import Chain
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
    word_problems,
)

OURS, PEER, FLOOR = "mugrpo engine", "model.generate", "floor"


def generation_config(options: Namespace, longest: int, **groups: Any) -> RunConfig:
    engine = engine_group(options.engine, options.engine_option)
    raw = {"engine": engine, "rollouts": {"max_new_tokens": longest}, **groups}
    return build_config(raw, "benchmark")


def peer_model(policy: Policy) -> Any:
    """Return a copy of the policy's model in the precision that the policy computes in."""
    model = other_copy(policy)
    if policy.precision == "bf16":
        for parameter in model.parameters():  # rotary frequencies are buffers and stay in fp32
            parameter.data = parameter.data.bfloat16()
    return model


@torch.no_grad()
def plainly_generated(
    model: Any, policy: Policy, workload: Sequence[Request], longest: int, batch: int
) -> tuple[list[int], int]:
    """Return the lengths of the responses that `model.generate` samples, and its token slots.

    Token slots are all positions that it decodes, including padding after a response's end.
    """
    lengths, slots = [], 0
    for start in range(0, len(workload), batch):
        rows = [torch.as_tensor(r.prompt_ids).long() for r in workload[start : start + batch]]
        pad = torch.nn.utils.rnn.pad_sequence
        ids = pad(rows, batch_first=True, padding_value=policy.pad_id, padding_side="left")
        ones = [torch.ones_like(row) for row in rows]
        mask = pad(ones, batch_first=True, padding_value=0, padding_side="left")
        responses = model.generate(
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
        slots += responses.numel()
        stops = torch.isin(responses, torch.tensor(policy.stop_ids))
        first = torch.where(stops.any(-1), stops.int().argmax(-1) + 1, responses.shape[1])
        lengths += first.tolist()
    return lengths, slots


def compare(
    name: str,
    title: str,
    policy: Policy,
    config: RunConfig,
    workload: Sequence[Request],
    options: Namespace,
    *,
    with_floor: bool = True,
    time_left: Callable[[], bool] = lambda: True,
) -> Row:
    """Measure both sides in turn, and the floor if `with_floor`, and return the row.

    `workload` holds `options.group_size` requests per prompt, side by side. The warm-up takes the
    first `options.warm_up` of them.
    """
    longest = config.rollouts.max_new_tokens
    model = peer_model(policy)
    lengths: list[int] = []  # of our responses, equal in every repetition because the seeds are

    def ours(_: int) -> Measured:
        (completions, largest), seconds = clocked(
            lambda: sampled(policy, config, workload), policy.device
        )
        lengths[:] = [len(c.ids) for c in completions]
        return Measured(seconds, sum(lengths), {"largest_batch": largest})

    def theirs(repetition: int) -> Measured:
        torch.manual_seed(repetition)
        (peer_lengths, slots), seconds = clocked(
            lambda: plainly_generated(model, policy, workload, longest, options.peer_batch),
            policy.device,
        )
        return Measured(seconds, sum(peer_lengths), {"occupancy": sum(peer_lengths) / slots})

    def floor(_: int) -> Measured:
        size = options.group_size
        prompts = [len(workload[start].prompt_ids) for start in range(0, len(workload), size)]
        groups = [Group(p, lengths[i * size : (i + 1) * size]) for i, p in enumerate(prompts)]
        ceilings = Ceilings(**({"longest": 0.01, "cold_bytes": 2**20} if options.tiny else {}))
        slots = min(slots_of(config), len(workload))
        seconds = generation_floor(ceilings, shape_of(policy), groups, slots)
        return Measured(seconds["total"], sum(lengths), {**seconds, **ceilings.described()})

    warm = workload[: options.warm_up]
    sampled(policy, config, warm)
    plainly_generated(model, policy, warm, longest, options.peer_batch)
    sides = {OURS: ours, PEER: theirs}
    ratios = [Ratio(OURS, PEER, f"{title}, against model.generate", options.target)]
    if with_floor:
        sides[FLOOR] = floor
        ratios.append(Ratio(OURS, FLOOR, f"{title}, of the floor", kind="floor"))
    results = alternate(sides, options.repetitions, time_left=time_left)
    details = {
        "problems": len(workload) // options.group_size,
        "group_size": options.group_size,
        "max_new_tokens": longest,
        "engine": config.engine.model_dump(mode="json"),
        "peer_batch": options.peer_batch,
        "prompt_tokens": sum(len(r.prompt_ids) for r in workload) / len(workload),
    }
    return Row(name, title, "useful tokens/s", results, ratios, details, options.tiny)


def main(argv: Sequence[str] | None = None) -> Any:
    cli = parser(__doc__)
    cli.add_argument("model", choices=("chain", "smollm2"), help="the embedded model, or SmolLM2")
    add_engine_options(cli)
    cli.add_argument("--problems", type=int)
    cli.add_argument("--group-size", type=int, default=8)
    cli.add_argument("--peer-batch", type=int, help="batch size of model.generate")
    options = cli.parse_args(argv)
    small = options.tiny or options.model == "chain"
    options.warm_up, options.target = 16, 3.0 if options.model == "chain" else 2.0
    options.problems = options.problems or (256 if small else 64)
    options.peer_batch = options.peer_batch or (256 if small else 128)
    if options.tiny:
        options.problems, options.group_size, options.peer_batch = 2, 4, 4
    if options.model == "chain" and not (options.engine or options.engine_option):
        demo = tomllib.loads(DEMO.read_text()).get("engine", {})  # the demo's engine
        options.engine = demo.pop("name", None)
        options.engine_option = [f"{key}={value}" for key, value in demo.items()]
    if small:
        config = generation_config(options, 8 if options.tiny else 48)
        problems = Chain(ChainOptions()).train_problems()[: options.problems]
    else:
        config = generation_config(options, 128, model={"path": "smollm2"}, prompt={"form": "chat"})
        problems = word_problems(options.problems)
    title = {"chain": "embedded model", "smollm2": "SmolLM2-135M"}[options.model]
    policy = load_policy(config.model)
    workload = requests(encoder(policy, config), problems, options.group_size)
    name = f"generation_{options.model}"
    row = compare(name, f"Generation, {title}", policy, config, workload, options)
    return publish(row, options.output)


if __name__ == "__main__":
    main()
