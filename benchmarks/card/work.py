"""What the parts measure with: models with random weights, random rollouts, and tables of facts.

It imports only what every tree of mugrpo that is measured has.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
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
from mugrpo.model import norms
from mugrpo.model.adapter import Adapter
from mugrpo.model.half import halve_frozen
from mugrpo.model.hardware import precision_of
from mugrpo.model.loading import load_tokenizer
from mugrpo.model.policy import Policy
from mugrpo.optimize.experience import Experience
from side_by_side import RESULTS, ROOT, machine

FORMS = ROOT / "configs" / "recipes" / "forms"
SMALL, MEDIUM, LARGE = "qwen2.5-0.5b", "r1-distill-qwen-1.5b", "qwen2.5-7b"
TINY = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 4096,
    "max_position_embeddings": 512,
}
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def model_config(form: str, *, tiny: bool) -> Any:
    """Return a form's config. The tokenizer names the end-of-sequence token."""
    raw = json.loads((FORMS / form / "config.json").read_text()) | (TINY if tiny else {})
    raw.pop("layer_types", None)
    return AutoConfig.for_model(
        **{**raw, "bos_token_id": None, "eos_token_id": None, "architectures": None}
    )


def shape_of(form: str, *, tiny: bool) -> Shape:
    return Shape.of(model_config(form, tiny=tiny).to_dict())


def random_policy(model_config: Any, config: RunConfig) -> Policy:
    """Return a policy with random weights, on the GPU if there is one.

    Of the embedded model's tokenizer, only the end-of-sequence token is used.
    """
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = AutoModelForCausalLM.from_config(model_config, dtype=torch.float32)
    torch.backends.cuda.enable_cudnn_sdp(False)  # as `load_policy` does
    if DEVICE.type == "cpu" or hasattr(norms, "F"):  # an earlier tree's are for CPUs only
        norms.use_short_norms(model)
    adapter = Adapter(model, config.lora, "random", 0) if config.lora.rank else None
    if adapter and precision_of(config.model) == "bf16":
        halve_frozen(model)  # as well
    policy = Policy(model, load_tokenizer(config.model), config.model, adapter)
    policy.stop_ids = [policy.vocab_size - 1]  # which random weights almost never draw
    return policy


def run_config(precision: str = "bf16", **groups: Mapping[str, Any]) -> RunConfig:
    raw = {"preset": "grpo", **groups}
    raw["model"] = {"precision": precision, **groups.get("model", {})}
    return build_config(raw, "card")


def random_ids(rng: np.random.Generator, vocab: int, length: int) -> np.ndarray:
    return rng.integers(vocab, size=length, dtype=np.int32)


def random_requests(vocab: int, count: int, prompt: int, most: int | None = None) -> list[Request]:
    """Return requests of up to `most` tokens. Eight in a row have the same prompt."""
    rng = np.random.default_rng(0)
    prompts = [random_ids(rng, vocab - 1, prompt) for _ in range(-(-count // 8))]
    return [Request(prompts[i // 8], i, most) for i in range(count)]


def random_groups(count: int, prompts: int, tokens: int, seed: int) -> list[Group]:
    """Return groups of 8 responses, whose lengths differ from seed to seed."""
    rng = np.random.default_rng(seed)
    prompt_N = rng.integers(prompts // 2, prompts, count, endpoint=True)
    lengths_NG = rng.integers(tokens // 2, tokens, (count, 8), endpoint=True)
    return [Group(int(p), row) for p, row in zip(prompt_N, lengths_NG.tolist(), strict=True)]


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


@torch.no_grad()
def logprobs_apart(policy: Policy, requests: Sequence[Request], got: Mapping[int, Any]) -> float:
    """Return the mean distance of the completions' logprobs from the trainer's own pass."""
    from mugrpo.model.logprobs import response_logprobs

    apart = []
    for index in list(got)[:: max(1, len(got) // 24)]:
        prompt, ids = requests[index].prompt_ids, got[index].ids
        whole = torch.tensor(np.concatenate([prompt, ids]), device=policy.device).long()[None]
        mask = torch.ones(1, len(ids), dtype=torch.bool, device=policy.device)
        length = torch.tensor([len(prompt)], device=policy.device)
        ours, _ = response_logprobs(
            policy.working(), whole, length, mask, temperature=1.0, chunk=256
        )
        apart.append(np.abs(ours[0].float().cpu().numpy() - got[index].logprobs))
    return float(np.concatenate(apart).mean())


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
    """Return what `varlen_attn` does for causal attention. It replaces it on a CPU."""
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


def tell(name: str, title: str, rows: Sequence[Mapping[str, Any]], options: Any) -> list[Any]:
    """Print `rows` as a table, and write them to gpu_NAME.json with the machine. Return them.

    Raises SystemExit if a row says that it `failed`.
    """
    head = list(dict.fromkeys(key for row in rows for key in row))
    lines = [head, *([shown(row.get(key, "")) for key in head] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    print(f"\n{title}")
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))
    folder: Path | None = options.output or (None if options.tiny else RESULTS)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        document = {"name": f"gpu_{name}", "title": title, "tiny": options.tiny}
        document |= {"machine": machine(), "rows": list(rows)}
        (folder / f"gpu_{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    if any("failed" in row for row in rows):
        raise SystemExit(1)
    return list(rows)


def shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
