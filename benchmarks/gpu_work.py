"""What `gpu.py` measures with: models with random weights, and random rollouts."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoModelForCausalLM

from counts import Group, Shape, forward_flop, passed
from mugrpo.config.load import build_config
from mugrpo.config.run import RunConfig
from mugrpo.disk.records import FinishReason, Rollout, Score, Status
from mugrpo.engines.base import Request
from mugrpo.model.adapter import Adapter
from mugrpo.model.loading import load_tokenizer
from mugrpo.model.policy import Policy
from mugrpo.optimize.experience import Experience
from side_by_side import ROOT

FORMS = ROOT / "configs" / "recipes" / "forms"
TINY_FORM = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 4096,
    "max_position_embeddings": 256,
}


@dataclass(frozen=True)
class Model:
    """A model that is created with random weights. With a `rank`, only an adapter is trained."""

    name: str
    form: str  # folder in configs/recipes/forms
    rank: int = 0

    @property
    def key(self) -> str:
        """Return the name in the form that file names use."""
        return self.name.lower().replace("-", "_").replace(".", "_")

    def config(self, *, tiny: bool) -> Any:
        """Return the form's config. The tokenizer names the end-of-sequence token."""
        form = json.loads((FORMS / self.form / "config.json").read_text())
        sizes = TINY_FORM if tiny else {}
        return AutoConfig.for_model(
            **{**form, **sizes, "bos_token_id": None, "eos_token_id": None, "architectures": None}
        )

    def shape(self, *, tiny: bool) -> Shape:
        return Shape.of(self.config(tiny=tiny).to_dict())

    def policy(self, config: RunConfig, *, tiny: bool) -> Policy:
        """Return a policy with random weights, on the GPU if there is one.

        Of the embedded model's tokenizer, only the end-of-sequence token is used.
        """
        torch.manual_seed(0)
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            model = AutoModelForCausalLM.from_config(self.config(tiny=tiny), dtype=torch.float32)
        torch.backends.cuda.enable_cudnn_sdp(False)  # as `load_policy` does
        adapter = Adapter(model, config.lora, self.name, 0) if self.rank else None
        return Policy(model, load_tokenizer(config.model), config.model, adapter)


@dataclass(frozen=True)
class Sizes:
    """The amount of work, and its precision."""

    tiny: bool
    prompts: int  # of generation
    tokens: int  # of the responses of an update of a model that is trained whole
    group_size: int
    lengths: tuple[int, int]  # fewest and most tokens of a prompt and of a response
    new_tokens: int
    slots: int  # sequences that each side of generation decodes together
    micro_batch_tokens: int
    square: int  # rows of the square matrices that are multiplied to measure the ceiling
    precision: str = "bf16"

    def groups(self, model: Model) -> int:
        """Return the groups of an update. An adapter's model is large, so it gets a quarter."""
        each = self.group_size * sum(self.lengths) // 2
        return max(2, self.tokens // each // (4 if model.rank else 1))


BIG = Sizes(
    tiny=False,
    prompts=64,
    tokens=16 * 8 * 384,
    group_size=8,
    lengths=(256, 512),
    new_tokens=256,
    slots=256,
    micro_batch_tokens=8192,
    square=8192,
)
TINY = Sizes(
    tiny=True,
    prompts=2,
    tokens=2 * 4 * 28,
    group_size=4,
    lengths=(24, 32),
    new_tokens=5,
    slots=4,
    micro_batch_tokens=512,
    square=64,
)


def run_config(sizes: Sizes, model: Model, *, checkpointing: bool = False) -> RunConfig:
    raw = {
        "preset": "grpo",
        "model": {"precision": sizes.precision, "gradient_checkpointing": checkpointing},
        "lora": {"rank": model.rank},
        "schedule": {
            "problems_per_update": sizes.groups(model),
            "group_size": sizes.group_size,
        },
        "rollouts": {"max_new_tokens": sizes.new_tokens},
        "engine": {
            "name": "continuous",
            "slots": sizes.slots,
        },
        "optimizer": {
            "lr": 1e-12,  # the weights do not change, so sides stay comparable
            "micro_batch_tokens": sizes.micro_batch_tokens // (2 if model.rank else 1),
        },
    }
    return build_config(raw, "benchmark")


def random_ids(rng: np.random.Generator, vocab: int, length: int) -> np.ndarray:
    return rng.integers(vocab, size=length, dtype=np.int32)


def random_groups(count: int, sizes: Sizes, seed: int = 0) -> list[Group]:
    """Return groups of random lengths, which differ from seed to seed."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(*sizes.lengths, size=(count, 1 + sizes.group_size), endpoint=True)
    return [Group(prompt, responses) for prompt, *responses in lengths.tolist()]


def random_requests(vocab: int, sizes: Sizes) -> list[Request]:
    """Return `group_size` requests for each of `prompts` random prompts."""
    rng = np.random.default_rng(0)
    prompts = [
        random_ids(rng, vocab, group.prompt) for group in random_groups(sizes.prompts, sizes)
    ]
    repeated = [ids for ids in prompts for _ in range(sizes.group_size)]
    return [Request(ids, seed) for seed, ids in enumerate(repeated)]


def random_experience(vocab: int, groups: Sequence[Group]) -> Experience:
    """Return uniformly random responses. Only the first response of each group is right."""
    rng = np.random.default_rng(0)
    rollouts, scores = [], []
    for number, group in enumerate(groups):
        prompt_ids = random_ids(rng, vocab, group.prompt)
        for sample, length in enumerate(group.responses):
            rollout = Rollout(
                problem_id=f"random-{number}",
                occurrence=0,
                sample=sample,
                seed=sample,
                prompt_ids=prompt_ids,
                response_ids=random_ids(rng, vocab, length),
                behavior_logprobs=np.full(length, -np.log(vocab), np.float32),
                finish_reason=FinishReason.STOP,
                temperature=1.0,
                policy_step=0,
            )
            rollouts.append(rollout)
            scores.append(Score(Status.WRONG, 0.0) if sample else Score(Status.RIGHT, 1.0))
    return Experience(rollouts, scores)


def update_flop(
    shape: Shape, groups: Sequence[Group], *, shared: bool, adapter: bool = False
) -> float:
    """Return the counted operations of the forward and backward pass over `groups`.

    Under an `adapter`, weights have no gradient, which leaves two of three products. The adapter's
    own operations are left out. So is what checkpointing computes twice.
    """
    work = passed(groups, shared=shared)
    forward = forward_flop(shape, work)
    return 2 * forward + (shape.attention_flop(work.pairs) if adapter else forward)


def mfu(flop: float, seconds: float, ceiling: float) -> float:
    """Return `flop` as a share of the operations possible in `seconds` at `ceiling` FLOP/s."""
    return flop / (seconds * ceiling)


def stand_in(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, 0),
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Return what `varlen_attn` does for causal attention. It replaces it on a CPU, with --tiny."""
    assert window_size == (-1, 0)
    outputs = []
    queries, keys = cu_seq_q.diff().tolist(), cu_seq_k.diff().tolist()
    for q, k, v in zip(query.split(queries), key.split(keys), value.split(keys), strict=True):
        seen = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
        rows = (states.transpose(0, 1)[None] for states in (q, k, v))
        output = F.scaled_dot_product_attention(
            *rows, attn_mask=seen, scale=scale, enable_gqa=enable_gqa
        )
        outputs.append(output[0].transpose(0, 1))
    return torch.cat(outputs)
