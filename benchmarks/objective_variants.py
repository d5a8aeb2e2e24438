"""The objectives and parts that objective_cost.py compares, and the rollouts for all of them."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mugrpo.config.load import build_config
from mugrpo.config.run import RunConfig
from mugrpo.config.tasks import ChainOptions
from mugrpo.disk.records import FinishReason
from mugrpo.engines.base import Completion
from mugrpo.model.policy import Policy
from mugrpo.optimize.experience import Experience
from mugrpo.optimize.forward import rollout_logprobs
from mugrpo.tasks.chain import Chain, demonstration

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.builders import encoded, rollout, verdict

GROUP = 8
OFF = {group: {"name": "off"} for group in ("veto", "sequence_mask", "correction", "reference")}
PLAIN = "reinforce"
SCOPES = ("suffix", "trigger", "post_trigger", "from_trigger", "response")
VETO = {"name": "negative_advantage", "kappa": 0.5}  # at 1e-2 no token here would trigger the veto


def _objective(name: str, **options: Any) -> dict[str, Any]:
    return {"objective": {"name": name, **options}}


VARIANTS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "grpo": _objective("grpo"),
    "grpo, dual clip": _objective("grpo", dual_clip=3.0),
    "grpo, sequence (GSPO)": _objective("grpo", level="sequence"),
    "grpo, proximal center": _objective("grpo", clip_center="proximal"),
    "grpo, proximal center, kept": _objective("grpo", clip_center="proximal", proximal_period=4),
    "decoupled_ppo": _objective("decoupled_ppo"),
    "decoupled_ppo, kept": _objective("decoupled_ppo", proximal_period=4),
    "kl_surrogate": _objective("kl_surrogate"),
    "cispo": _objective("cispo"),
    "cispo, sequence": _objective("cispo", level="sequence"),
    "topr": _objective("topr"),
    "topr, by prefix (tapered GRPO)": _objective("topr", taper="prefix"),
    "topr, ratio": _objective("topr", positives="ratio"),
    "oapl": _objective("oapl"),
    "tpo": _objective("tpo"),
    "vespo": _objective("vespo"),
    "minpro": _objective("minpro"),
    "pnpo": _objective("pnpo"),
    "pnpo, stopped": _objective("pnpo", stop_gradient=True),
    "m2po": _objective("m2po"),
    "m2po_released": _objective("m2po_released"),
    **{f"+ veto, {scope}": {"veto": {**VETO, "scope": scope}} for scope in SCOPES},
    "+ off-policy mask": {"sequence_mask": {"name": "off_policy", "delta": 0.05}},
    **{
        f"+ {name} correction, {level}": {"correction": {"name": name, "level": level}}
        for name in ("truncated", "masked")
        for level in ("token", "sequence")
    },
    "+ KL": {"reference": {"name": "kl"}},
    "+ KL, uncorrected": {"reference": {"name": "kl", "corrected": False}},
    "+ ess step": {"step": {"name": "ess"}},
    "mu-grpo (grpo + veto)": {**_objective("grpo", ratio_clip=(0.0, 5.0)), "veto": VETO},
    "minpro + veto + mask": {
        **_objective("minpro"),
        "veto": VETO,
        "sequence_mask": {"name": "off_policy", "delta": 0.05},
    },
}


def config_of(name: str) -> RunConfig:
    """Return the config of the variant `name`.

    The learning rate is too small to change the weights, so all variants see the same policy.
    """
    plain = {"preset": "grpo", "objective": {"name": PLAIN}, **OFF, "optimizer": {"lr": 1e-15}}
    return build_config({**plain, **VARIANTS[name]}, "benchmark")


def stored_of(config: RunConfig) -> tuple[str, ...]:
    """Return the names of the logprobs that a run stores.

    Those of a proximal policy of period 1 are not stored, because it is the policy itself.
    """
    kept = getattr(config.objective, "proximal_period", 1) > 1
    return tuple(name for name in config.needs if kept or name != "proximal_logprobs")


def synthetic(policy: Policy, tokens: int) -> Experience:
    """Return groups of demonstrations with wrong steps, with at least `tokens` response tokens.

    Rewards differ within every group, so every variant computes every response. Behavior and
    stored logprobs are the model's own plus noise.
    """
    rng, count = random.Random(0), 0
    rollouts, scores = [], []
    eos = policy.tokenizer.eos_token_id
    problems = iter(Chain(ChainOptions(train_problems=tokens // 250 + 1)).train_problems())
    while count < tokens:
        problem = next(problems)
        prompt_ids = encoded(policy, problem.prompt)
        right = rng.randrange(1, GROUP)
        for sample in range(GROUP):
            text = demonstration(problem.prompt, rng, wrong_steps=0.1)
            ids = np.append(encoded(policy, text), eos).astype(np.int32)
            completion = Completion(ids, np.zeros(len(ids), np.float32), FinishReason.STOP)
            rollouts.append(rollout(problem.id, sample, prompt_ids, completion))
            scores.append(verdict(float(sample < right)))
            count += len(ids)
    own = rollout_logprobs(policy, rollouts, config_of(PLAIN))
    noise = np.random.default_rng(0)

    def near(spread: float) -> list[Any]:
        return [(o + noise.normal(0, spread, o.shape)).astype(np.float32) for o in own]

    rollouts = [replace(r, behavior_logprobs=b) for r, b in zip(rollouts, near(0.3), strict=True)]
    names = ("trainer_behavior_logprobs", "proximal_logprobs", "reference_logprobs")
    return Experience(rollouts, scores, {name: near(0.1) for name in names})


def needed(experience: Experience, config: RunConfig) -> Experience:
    """Return `experience` with only the stored logprobs that a run with `config` has."""
    return replace(experience, stored={n: experience.stored[n] for n in stored_of(config)})
