"""Policies, rollouts and experiences that tests build their cases from."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    TopPLogitsWarper,
)

from mugrpo.config.engines import ContinuousOptions, HFOptions
from mugrpo.config.run import ModelOptions
from mugrpo.config.training import LoRAOptions
from mugrpo.disk.records import FinishReason, Rollout, Score, Status
from mugrpo.engines.base import Completion, Decoded, Engine, Request
from mugrpo.engines.continuous import ContinuousEngine
from mugrpo.engines.hf import HFEngine
from mugrpo.model.policy import Policy, load_policy
from mugrpo.optimize.experience import Experience
from mugrpo.optimize.trainer import Trainer

TINY_FORMS = ("llama", "qwen2", "gpt2")

ENGINE = "continuous"  # what `generated` uses; the tests of engines replace it

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}

# Prompts of 2 to 16 tokens, for ragged batches.
PROMPTS = ("3+2-1+3-2+1+1+2=", "1+2=", "2-1-1+3+2=", "3=", "1-3+2-2=", "2+2+2=")


def tiny_config(form: str) -> Any:
    """Return the config of a tiny model with grouped queries, tied embeddings, biases or dropout.
    One layer of gemma3 and both layers of mistral have a sliding window of five tokens."""
    shared = {"vocab_size": 24, "bos_token_id": None, "eos_token_id": 1, "initializer_range": 0.2}
    if form == "gpt2":
        sizes = {"n_positions": 128, "n_embd": 32, "n_layer": 2, "n_head": 4}
        return GPT2Config(resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5, **sizes, **shared)
    forms = {
        "llama": (LlamaConfig, {}),
        "qwen2": (Qwen2Config, {}),
        "qwen3": (Qwen3Config, {}),
        "qwen3_moe": (Qwen3MoeConfig, EXPERTS),
        "gemma3": (
            Gemma3TextConfig,
            {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]},
        ),
        "mistral": (MistralConfig, {"sliding_window": 5}),
    }
    config, own = forms[form]
    sizes = {"head_dim": 8, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
    return config(tie_word_embeddings=True, attention_dropout=0.5, **sizes, **shared, **own)


def tiny_policy(form: str, **options: Any) -> Policy:
    """Return a random model of `form`, always the same, with the embedded model's tokenizer."""
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(tiny_config(form))
    return Policy(model, chain_tokenizer(), ModelOptions(**options))


def chain_tokenizer() -> PreTrainedTokenizerBase:
    return load_policy(ModelOptions()).tokenizer


def encoded(policy: Policy, prompt: str) -> np.ndarray:
    return np.array(policy.tokenizer(prompt)["input_ids"], np.int32)


def generated(
    policy: Policy,
    requests: Sequence[Request],
    *,
    batch_size: int = 64,
    temperature: float = 1.0,
    max_new_tokens: int = 48,
    top_p: float = 1.0,
) -> list[Completion]:
    """Return all completions of `requests`, in order, from the engine that ENGINE names."""
    engine = engine_of(ENGINE, policy, batch_size)
    sampling = {"temperature": temperature, "max_new_tokens": max_new_tokens, "top_p": top_p}
    completions = collected(engine.generate(requests, **sampling))
    assert len(completions) == len(requests)
    return completions


def engine_of(name: str, policy: Policy, slots: int) -> Engine:
    if name == "hf":
        return HFEngine(policy, HFOptions(slots=slots))
    return ContinuousEngine(policy, ContinuousOptions(slots=slots))


def collected(
    steps: Iterable[Decoded], after: Callable[[int], object] = lambda done: None
) -> list[Completion]:
    """Return the completions by request index. Each index must occur once.

    `after` is called with how many are done.
    """
    completions: dict[int, Completion] = {}
    for decoded in steps:
        assert not completions.keys() & dict(decoded.completions).keys()
        completions.update(decoded.completions)
        after(len(completions))
    return [completions[index] for index in range(len(completions))]


def plain_logprobs(
    policy: Policy,
    prompt_ids: Sequence[int],
    response_ids: Sequence[int],
    temperature: float = 1.0,
    top_p: float = 1.0,
) -> torch.Tensor:
    """Return log_softmax(logits / temperature) at the response's ids. One row, all logits, no
    cache. If `top_p` < 1, transformers restricts the logits to their nucleus, and a token outside
    has the logprob -inf."""
    ids_1L = torch.tensor([[*prompt_ids, *response_ids]])
    logits_LV = policy.model(input_ids=ids_1L, use_cache=False).logits[0].float()
    start = len(prompt_ids) - 1
    tempered_TV = logits_LV[start:-1] / temperature
    if top_p < 1:
        tempered_TV = TopPLogitsWarper(top_p)(ids_1L, tempered_TV)
    logprobs_TV = torch.log_softmax(tempered_TV, -1)
    return logprobs_TV.gather(-1, ids_1L[0, start + 1 :, None])[:, 0]


def sampled_experience(policy: Policy) -> Experience:
    """Return groups of four responses to the first four of PROMPTS, cut to unequal lengths. The
    rewards are fixed: group 0 has one right response, group 1 two, group 2 none (so no variance)
    and group 3 three."""
    rewards = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 1, 1]]
    prompts = [encoded(policy, prompt) for prompt in PROMPTS[:4]]
    requests = [Request(ids, 4 * i + k) for i, ids in enumerate(prompts) for k in range(4)]
    limits = [48, 33, 9, 21]  # by sample; a response cut short is still a response
    rollouts = [
        rollout(f"p{i // 4}", i % 4, request.prompt_ids, cut(completion, limits[i % 4]))
        for i, (request, completion) in enumerate(
            zip(requests, generated(policy, requests), strict=True)
        )
    ]
    return Experience(rollouts, [verdict(r) for row in rewards for r in row])


def cut(completion: Completion, limit: int) -> Completion:
    """Return `completion` as it would be with max_new_tokens = `limit`."""
    if len(completion.ids) <= limit:
        return completion
    ids, logprobs = completion.ids[:limit], completion.logprobs[:limit]
    return Completion(ids, logprobs, FinishReason.LENGTH)


def rollout(
    problem_id: str, sample: int, prompt_ids: np.ndarray, completion: Completion
) -> Rollout:
    ids, logprobs, reason = completion.ids, completion.logprobs, completion.finish_reason
    return Rollout(problem_id, 0, sample, sample, prompt_ids, ids, logprobs, reason, 1.0, 0)


def with_turns(experience: Experience) -> Experience:
    """Return `experience` as if an environment had said some of the tokens. Of every seven tokens
    it said the fifth and the sixth, but never the last one of a response. So turns begin at 0, 6,
    13, ..."""
    rollouts = []
    for r in experience.rollouts:
        places = np.arange(len(r.response_ids))
        mask = ~np.isin(places % 7, (4, 5)) | (places == places[-1])
        begins = np.flatnonzero(mask & np.append(True, ~mask[:-1]))
        logprobs = np.where(mask, r.behavior_logprobs, 0).astype(np.float32)
        turns = {"loss_mask": mask, "turns": begins.astype(np.int32)}
        rollouts.append(replace(r, behavior_logprobs=logprobs, **turns))
    return replace(experience, rollouts=rollouts)


def verdict(reward: float | None) -> Score:
    """Return a right (1), wrong (0) or failed (None) score."""
    if reward is None:
        return Score(Status.ERROR, None)
    return Score(Status.RIGHT if reward == 1 else Status.WRONG, float(reward))


def stale(experience: Experience, spread: float = 0.5) -> Experience:
    """Return `experience` with noise on its behavior logprobs, as if from an older policy. The
    noise is normal with the standard deviation `spread`."""
    rng = np.random.default_rng(3)
    moved = [
        replace(r, behavior_logprobs=_moved(r.behavior_logprobs, rng, spread))
        for r in experience.rollouts
    ]
    return Experience(moved, experience.scores)


def _moved(logprobs: np.ndarray, rng: np.random.Generator, spread: float) -> np.ndarray:
    noise = rng.normal(0, spread, len(logprobs))
    return (logprobs + noise).astype(np.float32)


def save(trainer: Trainer, folder: Path) -> None:
    """Write the trainer's part of a checkpoint to `folder`."""
    snapshot = trainer.snapshot()
    snapshot.write_model(folder)
    snapshot.write_rest(folder)


def saved_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights in a folder of a model or an adapter, however many files they are in."""
    files = sorted(folder.glob("*model*.safetensors"))
    assert files, folder
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def adapted_policy(form: str, folder: Path, lora: LoRAOptions) -> Policy:
    """Return a model with an adapter whose B is random. A tiny model is saved to `folder`."""
    if form == "chain":
        return with_adapter(ModelOptions(), lora)
    tiny_policy(form).save(folder)
    return with_adapter(ModelOptions(path=str(folder)), lora)


def with_adapter(options: ModelOptions, lora: LoRAOptions, std: float = 0.02) -> Policy:
    policy = load_policy(options, lora=lora)
    assert policy.adapter is not None
    generator = torch.Generator().manual_seed(8)
    for name, tensor in policy.adapter.tensors().items():
        if ".lora_B." in name:
            tensor.normal_(std=std, generator=generator)
    return policy
