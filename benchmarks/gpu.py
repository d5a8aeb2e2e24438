"""Generation and updates on one big GPU: `benchmarks/gpu.sh`, which takes less than nine minutes.

The models have random weights in the shapes of SmolLM2-135M and Qwen2.5-1.5B. Prompts are random,
with 256 to 512 tokens, and groups have 8 responses. The precision is bf16; weights and optimizer
are in fp32.

    generation  Our engine against `model.generate` with bf16 weights; generation.py says what is
                compared. Random weights almost never end a sequence, so all responses are equally
                long. Batches have no gaps that continuous batching could fill, and the ratio shows
                only the speed of decoding and the gain from computing each prompt once.
    update      Trainer.step with and without shared prompts, on the same random rollouts with
                responses of 256 to 512 tokens. One trainer makes both kinds of update in turn. Peak
                memory includes weights, gradients and AdamW's state. MFU is the counted work of a
                side's forward and backward pass (docs/cost_model.md), divided by its seconds and by
                the best bf16 rate of large square matrices, which is measured just before.

The pieces run in order of importance. When time runs out, a piece starts no further repetition, the
remaining pieces are skipped, and the last lines name them. If a piece fails, the others still run.
--tiny shows on any machine that the pieces run.
"""

from __future__ import annotations

import gc
import time
import traceback
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

from ceilings import Ceilings
from device import clocked, forget_peak, peak_gib
from generation import compare
from mugrpo.config.load import build_config
from mugrpo.config.run import ModelOptions, RunConfig
from mugrpo.disk.records import FinishReason, Rollout, Score, Status
from mugrpo.engines.base import Request
from mugrpo.model.loading import load_tokenizer
from mugrpo.model.policy import Policy
from mugrpo.optimize.experience import Experience
from mugrpo.optimize.trainer import Trainer
from mugrpo.tools.plan.counts import Group, Shape, passed
from side_by_side import Measured, Ratio, Row, alternate, parser, publish, shown, spread

METRICS = ("loss", "skipped", "computed_tokens", "padding_share", "shared_prompt_share")
SHARED, PLAIN = "shared prompts", "a prompt for each response"


@dataclass(frozen=True)
class Model:
    """A model that is created with random weights."""

    name: str
    form: Callable[..., Any]  # class of its config
    shape: Shape

    @property
    def key(self) -> str:
        """Return the name in the form that file names use."""
        return self.name.lower().replace("-", "_").replace(".", "_")

    def config(self) -> Any:
        shape = self.shape
        return self.form(
            hidden_size=shape.hidden,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            intermediate_size=shape.intermediate,
            vocab_size=shape.vocab,
            tie_word_embeddings=shape.tied,
            max_position_embeddings=8192,
            bos_token_id=None,
            eos_token_id=None,  # the tokenizer's is used
        )

    def policy(self, options: ModelOptions) -> Policy:
        """Return a policy with random weights and the embedded model's tokenizer.

        Only the tokenizer's end-of-sequence token is used.
        """
        torch.manual_seed(0)
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            model = AutoModelForCausalLM.from_config(self.config(), dtype=torch.float32)
        return Policy(model, load_tokenizer(options), options)


SMOLLM2 = Model(
    "SmolLM2-135M",
    LlamaConfig,
    Shape(
        hidden=576,
        layers=30,
        heads=9,
        kv_heads=3,
        head_dim=64,
        intermediate=1536,
        vocab=49152,
        tied=True,
    ),
)
QWEN = Model(
    "Qwen2.5-1.5B",
    Qwen2Config,
    Shape(
        hidden=1536,
        layers=28,
        heads=12,
        kv_heads=2,
        head_dim=128,
        intermediate=8960,
        vocab=151936,
        tied=True,
    ),
)
TINY_SHAPE = Shape(
    hidden=32, layers=2, heads=4, kv_heads=2, head_dim=8, intermediate=48, vocab=4096, tied=True
)


@dataclass(frozen=True)
class Sizes:
    """The amount of work, and its precision."""

    prompts: int  # of generation
    groups: int  # of an update
    group_size: int
    lengths: tuple[int, int]  # fewest and most tokens of a prompt and of a response
    new_tokens: int
    slots: int  # sequences that each side of generation decodes together
    prefill_tokens: int
    micro_batch_tokens: int
    square: int  # rows of the square matrices that are multiplied to measure the ceiling
    precision: str = "bf16"


BIG = Sizes(
    prompts=64,
    groups=16,
    group_size=8,
    lengths=(256, 512),
    new_tokens=256,
    slots=256,
    prefill_tokens=16384,
    micro_batch_tokens=16384,
    square=8192,
)
TINY = Sizes(
    prompts=2,
    groups=2,
    group_size=4,
    lengths=(24, 32),
    new_tokens=5,
    slots=4,
    prefill_tokens=64,
    micro_batch_tokens=256,
    square=64,
)


def run_config(sizes: Sizes) -> RunConfig:
    raw = {
        "preset": "grpo",
        "model": {"precision": sizes.precision},
        "schedule": {"problems_per_update": sizes.groups, "group_size": sizes.group_size},
        "rollouts": {"max_new_tokens": sizes.new_tokens},
        "engine": {
            "name": "continuous",
            "slots": sizes.slots,
            "prefill_tokens": sizes.prefill_tokens,
        },
        "optimizer": {
            "lr": 1e-12,  # the weights do not change, so all updates are the same
            "micro_batch_tokens": sizes.micro_batch_tokens,
        },
    }
    return build_config(raw, "benchmark")


def random_ids(rng: np.random.Generator, vocab: int, length: int) -> np.ndarray:
    return rng.integers(vocab, size=length, dtype=np.int32)


def random_groups(count: int, sizes: Sizes) -> list[Group]:
    rng = np.random.default_rng(0)
    lengths = rng.integers(*sizes.lengths, size=(count, 1 + sizes.group_size), endpoint=True)
    return [Group(prompt, responses) for prompt, *responses in lengths.tolist()]


def random_requests(shape: Shape, sizes: Sizes) -> list[Request]:
    """Return `group_size` requests for each of `prompts` random prompts."""
    rng = np.random.default_rng(0)
    prompts = [
        random_ids(rng, shape.vocab, group.prompt) for group in random_groups(sizes.prompts, sizes)
    ]
    repeated = [ids for ids in prompts for _ in range(sizes.group_size)]
    return [Request(ids, seed) for seed, ids in enumerate(repeated)]


def random_experience(shape: Shape, groups: Sequence[Group]) -> Experience:
    """Return uniformly random responses. Only the first response of each group is right."""
    rng = np.random.default_rng(0)
    rollouts, scores = [], []
    for number, group in enumerate(groups):
        prompt_ids = random_ids(rng, shape.vocab, group.prompt)
        for sample, length in enumerate(group.responses):
            rollout = Rollout(
                problem_id=f"random-{number}",
                occurrence=0,
                sample=sample,
                seed=sample,
                prompt_ids=prompt_ids,
                response_ids=random_ids(rng, shape.vocab, length),
                behavior_logprobs=np.full(length, -np.log(shape.vocab), np.float32),
                finish_reason=FinishReason.STOP,
                temperature=1.0,
                policy_step=0,
            )
            rollouts.append(rollout)
            scores.append(Score(Status.WRONG, 0.0) if sample else Score(Status.RIGHT, 1.0))
    return Experience(rollouts, scores)


def update_flop(shape: Shape, groups: Sequence[Group], *, shared: bool) -> float:
    """Return the counted operations of the forward and backward pass over `groups`."""
    work = passed(groups, shared=shared)
    counted = (work.tokens, work.pairs, work.positions)
    return (shape.forward(*counted) + shape.backward(*counted)).flop


def mfu(flop: float, seconds: float, ceiling: float) -> float:
    """Return `flop` as a share of the operations possible in `seconds` at `ceiling` FLOP/s."""
    return flop / (seconds * ceiling)


TimeLeft = Callable[[], bool]


def generation(model: Model, sizes: Sizes, options: Namespace, time_left: TimeLeft) -> Row:
    config = run_config(sizes)
    policy = model.policy(config.model)
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
        random_requests(model.shape, sizes),
        compare_options,
        with_floor=False,
        time_left=time_left,
    )


def update(model: Model, sizes: Sizes, options: Namespace, time_left: TimeLeft) -> Row:
    config = run_config(sizes)
    policy = model.policy(config.model)
    groups = random_groups(sizes.groups, sizes)
    experience = random_experience(model.shape, groups)
    useful = sum(group.useful for group in groups)
    trainer = Trainer(policy, config)
    if not trainer.share:
        raise RuntimeError(f"{model.name} cannot share prompts, so there is nothing to compare")
    ceilings = Ceilings(device=policy.device.type, dtype=torch.bfloat16)
    ceiling = ceilings.matmul("forward", sizes.square, sizes.square, sizes.square)
    flop = {shared: update_flop(model.shape, groups, shared=shared) for shared in (True, False)}

    def side(shared: bool, _: int) -> Measured:
        # One trainer makes both kinds of update, so its state is in memory only once.
        policy.can_share_prompts = shared
        forget_peak(policy.device)
        metrics, seconds = clocked(lambda: trainer.step(experience), policy.device)
        notes = {
            "mfu": mfu(flop[shared], seconds, ceiling),
            "peak_gib": peak_gib(policy.device),
            **{name: metrics[name] for name in METRICS},
        }
        return Measured(seconds, useful, notes)

    sides = {SHARED: partial(side, True), PLAIN: partial(side, False)}
    for warm_up in sides.values():
        warm_up(0)
    results = alternate(sides, options.repetitions, time_left=time_left)
    title = f"Update on a GPU, {model.name}"
    details = {
        "ceiling_tflops": ceiling / 1e12,
        "counted_tflop": {SHARED: flop[True] / 1e12, PLAIN: flop[False] / 1e12},
        "prompt_tokens": [group.prompt for group in groups],
        "response_tokens": useful,
        "micro_batch_tokens": sizes.micro_batch_tokens,
        "precision": config.model.precision,
    }
    ratios = [Ratio(SHARED, PLAIN, f"{title}, shared prompts against plain")]
    name = f"gpu_update_{model.key}"
    return Row(name, title, "useful tokens/s", results, ratios, details, options.tiny)


PIECES = ((generation, SMOLLM2), (update, SMOLLM2), (update, QWEN), (generation, QWEN))


def summary(documents: Sequence[Mapping[str, Any]]) -> str:
    """Return all rows in one table: medians, with the least and the greatest."""
    lines = [
        "| | side | seconds | useful tokens/s | times as fast | MFU | peak GiB |",
        "| - | - | - | - | - | - | - |",
    ]
    for document in documents:
        ratios = {ratio["side"]: shown(ratio) for ratio in document["ratios"]}
        for name, side in document["sides"].items():
            cells = [document["title"], name, shown(side["seconds"]), shown(side["rate"])]
            cells += [ratios.get(name, ""), noted(side, "mfu"), noted(side, "peak_gib")]
            lines.append(f"| {' | '.join(cells)} |")
    for document in documents:
        if "ceiling_tflops" in document["details"]:
            ceiling = document["details"]["ceiling_tflops"]
            lines += ["", f"{document['title']}: MFU relative to {ceiling:.4g} TFLOP/s, measured"]
    return "\n".join(lines)


def noted(side: Mapping[str, Any], name: str) -> str:
    """Return the spread of a note over a side's repetitions, or "" if it has no such note."""
    values = [note[name] for note in side["notes"] if note.get(name) is not None]
    return shown(spread(values)) if values else ""


def main(argv: Sequence[str] | None = None) -> Any:
    cli = parser(__doc__, output="folder for the JSON files")
    cli.add_argument(
        "--seconds", type=float, default=480, help="start nothing after this many seconds"
    )
    options = cli.parse_args(argv)
    if not (options.tiny or torch.cuda.is_available()):
        raise SystemExit("torch sees no GPU; --tiny runs on any machine")
    sizes, pieces = BIG, PIECES
    if options.tiny:
        sizes = TINY
        pieces = tuple((piece, replace(model, shape=TINY_SHAPE)) for piece, model in PIECES)
    end = time.monotonic() + options.seconds

    def time_left() -> bool:
        return time.monotonic() < end

    documents: list[dict[str, Any]] = []
    failed, skipped = [], []
    for piece, model in pieces:
        name = f"{piece.__name__}, {model.name}"
        if not time_left():
            skipped.append(name)
            continue
        try:
            row = piece(model, sizes, options, time_left)
            output = options.output and options.output / f"{row.name}.json"
            documents.append(publish(row, output))
            print(flush=True)
        except Exception:  # the other pieces still run
            traceback.print_exc()
            failed.append(name)
        gc.collect()
        torch.cuda.empty_cache()
    print(summary(documents))
    for what, names in (("skipped, out of time", skipped), ("failed", failed)):
        for name in names:
            print(f"\n{what}: {name}")
    if failed:
        raise SystemExit(1)
    return documents


if __name__ == "__main__":
    main()
