"""The policy-improvement bound: by hand, on enumerated policies, and through the trainer.

If each arm occurs among a group's responses in proportion to its probability, means over the group
are expectations under the behavior policy, so the estimates equal the closed forms.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mugrpo.config.run import ModelOptions
from mugrpo.model.policy import load_policy
from mugrpo.optimize import advantages
from mugrpo.optimize.bound import EPS, NAMES, improvement_bound, shortfall
from mugrpo.optimize.trainer import Trainer
from tests.builders import stale
from tests.cases import table
from tests.updates import config_of, part, step, with_stored

Tensor = torch.Tensor


def bound(
    ratios: list[list[float]],
    rewards: list[list[float]],
    proximal: list[list[float]] | None = None,
    counted: list[list[int]] | None = None,
    computed: list[list[int]] | None = None,
    **eps: float,
) -> dict[str, float | None]:
    rewards_PG = torch.tensor(rewards, dtype=torch.float64)
    ones = torch.ones_like(rewards_PG)
    return improvement_bound(
        torch.tensor(ratios, dtype=torch.float64).log(),
        torch.tensor(proximal or ratios, dtype=torch.float64).log(),
        rewards_PG,
        (ones if counted is None else torch.tensor(counted)).bool(),
        (ones if computed is None else torch.tensor(computed)).bool(),
        **eps,
    )


# ---- by hand ----

RATIOS = [[1.5, 0.5, 1.0, 0.8], [1.2, 0.6, 1.0, 1.0]]
PROXIMAL = [[1.2, 0.8, 1.0, 1.0], [1.0, 1.0, 0.9, 1.1]]
REWARDS = [[1.0, 0.0, 1.0, 0.0], [0.7, 0.3, 0.7, 0.3]]


def test_two_groups_by_hand():
    """eps = 0.

    First group: mean .5, variance .25, s = .5, (1-s)/s = 1, A = 1, -1, 1, -1.
      E[w A] = (1.5 - .5 + 1 - .8) / 4 = .3
      TV(pi) = (.5 + .2) / 4 = .175,  TV(pi_k) = .2 / 4 = .05
    Second: mean .5, variance .04, s = .2, (1-s)/s = 4, A = 1, -1, 1, -1.
      E[w A] = (1.2 - .6 + 1 - 1) / 4 = .15
      TV(pi) = .4 / 4 = .1,           TV(pi_k) = .1 / 4 = .025
    """
    numbers = bound(RATIOS, REWARDS, PROXIMAL, eps=0.0)
    expected = {
        "variance_weight": 2.5,  # (1 + 4) / 2
        "bound/surrogate": 0.225,  # (.3 + .15) / 2
        "bound/weighted_tv": 0.2875,  # (1 x .175 + 4 x .1) / 2
        "bound/tv_proximal": 0.0375,  # (.05 + .025) / 2
        "bound/stated": -0.425,  # .225 - .575 - .075
        "bound/factor_one": -0.1,  # .225 - .2875 - .0375
    }
    assert numbers == pytest.approx(expected, rel=1e-12)
    assert tuple(numbers) == NAMES


def test_eps_is_1e_4_inside_the_root():
    s = math.sqrt(0.25 + 1e-4)
    numbers = bound([[1.5, 0.5]], [[1.0, 0.0]])
    assert numbers["variance_weight"] == pytest.approx((1 - s) / s, rel=1e-12)
    assert numbers["bound/surrogate"] == pytest.approx(
        0.25 / s, rel=1e-12
    )  # (1.5 x .5 - .5 x .5) / 2


def test_a_group_without_variance_and_an_uncounted_response_have_no_effect():
    # Added: a third group, all right, and in the second group a failed response instead of padding.
    numbers = bound(
        [[*RATIOS[0], 9.0], [*RATIOS[1], 1e-9], [5.0, 5.0, 0.1, 0.1, 0.1]],
        [[*REWARDS[0], 0.0], [*REWARDS[1], 0.0], [1.0] * 5],
        [[*PROXIMAL[0], 9.0], [*PROXIMAL[1], 1e-9], [5.0, 5.0, 0.1, 0.1, 0.1]],
        counted=[[1, 1, 1, 1, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]],
        computed=[[1, 1, 1, 1, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]],
        eps=0.0,
    )
    assert numbers == pytest.approx(bound(RATIOS, REWARDS, PROXIMAL, eps=0.0), rel=1e-12)


def test_a_group_with_a_response_that_was_not_computed_has_no_effect():
    """A response at its group's mean has advantage 0, is not computed, and has no known ratio."""
    rewards = [REWARDS[0], [1.0, 0.5, 0.0, 0.5]]
    numbers = bound(RATIOS, rewards, computed=[[1, 1, 1, 1], [1, 0, 1, 0]])
    assert numbers == bound(RATIOS[:1], REWARDS[:1])


@table(
    ("rewards", "counted"),
    [
        ([[1.0, 1.0], [0.0, 0.0]], None),  # no variance anywhere
        ([[1.0, 0.0], [0.0, 1.0]], [[1, 0], [0, 1]]),  # none among those that count
        ([[1.0, 0.0], [1.5, 1.5]], None),  # a reward above 1 in any group
        ([[1.0, -0.1], [0.0, 1.0]], None),
    ],
)
def test_without_variance_or_with_rewards_outside_0_to_1_there_is_no_bound(rewards, counted):
    assert bound([[1.0, 2.0], [0.5, 1.0]], rewards, counted=counted) == dict.fromkeys(NAMES)


def test_an_uncounted_reward_may_be_outside_0_to_1():
    numbers = bound([[1.0, 1.0, 1.0]], [[1.0, 0.0, -7.0]], counted=[[1, 1, 0]])
    assert numbers["bound/surrogate"] == 0


@table("ratios", [[math.inf, 0.5], [math.inf, math.inf]])
def test_if_a_ratio_overflows_what_depends_on_it_is_none_and_variations_are_finite(ratios):
    numbers = bound([ratios], [[1.0, 0.0]])
    unknown = [name for name, value in numbers.items() if value is None]
    assert unknown == ["bound/surrogate", "bound/stated", "bound/factor_one"]
    assert numbers["bound/tv_proximal"] == (0.25 if ratios[1] == 0.5 else 0)


def test_a_policy_that_left_the_behavior_policy_has_variation_1():
    assert shortfall(torch.tensor([-3000.0, -math.inf, 3000.0, 0.0])).tolist() == [1, 1, 0, 0]


# ---- enumerated policies ----


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def enumerated(
    prompts: list[tuple[Tensor, Tensor, Tensor, Tensor]], eps: float = EPS
) -> dict[str, float]:
    """Return the bound's numbers for prompts, each (pi, pi_k, alpha's counts, rewards) by arm."""
    rows: list[list[Tensor]] = [[], [], [], []]
    for pi, pi_k, counts, rewards in prompts:
        arms = torch.repeat_interleave(torch.arange(len(counts)), counts)
        alpha = counts.double() / counts.sum()
        parts = ((pi / alpha).log(), (pi_k / alpha).log(), rewards, torch.ones(len(rewards)).bool())
        for row, values in zip(rows, parts, strict=True):
            row.append(values[arms])
    padded = [torch.nn.utils.rnn.pad_sequence(row, batch_first=True) for row in rows]
    values = improvement_bound(*padded, padded[-1], eps=eps)
    return {name: value for name, value in values.items() if value is not None}


def variation(p: Tensor, q: Tensor) -> Tensor:
    return (p - q).abs().sum() / 2


def test_on_enumerated_policies_every_number_is_its_closed_form():
    """Two prompts, of three and two arms. The closed forms are sums over arms, without ratios."""
    counts = (torch.tensor([10, 6, 4]), torch.tensor([1, 3]))
    alphas = [c.double() / c.sum() for c in counts]
    pis = [double(0.6, 0.1, 0.3), double(0.5, 0.5)]
    proximals = [double(0.55, 0.2, 0.25), double(0.3, 0.7)]
    rewards = [double(1.0, 0.2, 0.5), double(1.0, 0.0)]
    numbers = enumerated(list(zip(pis, proximals, counts, rewards, strict=True)))
    surrogates, weights, weighted, tvs = [], [], [], []
    for pi, pi_k, alpha, reward in zip(pis, proximals, alphas, rewards, strict=True):
        mean = (alpha * reward).sum()
        s = ((alpha * (reward - mean) ** 2).sum() + 1e-4).sqrt()
        surrogates.append((pi * (reward - mean)).sum() / s)
        weights.append((1 - s) / s)
        weighted.append((1 - s) / s * variation(pi, alpha))
        tvs.append(variation(pi_k, alpha))
    terms = [float(sum(values) / 2) for values in (weights, surrogates, weighted, tvs)]
    assert list(numbers.values())[:4] == pytest.approx(terms, rel=1e-12)


def test_the_surrogate_uses_the_group_advantages_with_eps_inside():
    ratios, rewards = torch.tensor(RATIOS).double(), torch.tensor([[1, 0, 1, 1], [0.2, 0.3, 0, 1]])
    valid = torch.ones(2, 4).bool()
    a = advantages.group(rewards, valid, std="population", eps=1e-4, eps_inside=True)
    numbers = bound(RATIOS, rewards.tolist())["bound/surrogate"]
    assert numbers == pytest.approx((ratios * a).mean().item(), rel=1e-6)


def test_the_factor_1_bound_is_attained_and_positive():
    """alpha = pi_k = (1/2, 1/2), rewards (1, 0): J(pi) - J(alpha) is the variation itself."""
    arms = (double(0.75, 0.25), double(0.5, 0.5), torch.tensor([4, 4]), double(1.0, 0.0))
    numbers = enumerated([arms])
    assert numbers["bound/factor_one"] == pytest.approx(0.25, rel=1e-12)
    # The stated bound is (2s - 1) / s TV, s = sqrt(.2501): positive only because of eps.
    s = math.sqrt(0.2501)
    assert numbers["bound/stated"] == pytest.approx(0.25 * (2 * s - 1) / s, rel=1e-9)


def policies(arms: int) -> st.SearchStrategy[Tensor]:
    logits = st.lists(st.floats(-6, 6), min_size=arms, max_size=arms)
    return logits.map(lambda values: torch.tensor(values, dtype=torch.float64).softmax(-1))


@st.composite
def prompt(draw: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """pi, pi_k, alpha's counts and rewards in [0, 1], not all equal, of two to five arms."""
    arms = draw(st.integers(2, 5))
    counts = torch.tensor(draw(st.lists(st.integers(1, 8), min_size=arms, max_size=arms)))
    alpha = counts.double() / counts.sum()
    pi, pi_k = draw(policies(arms)), draw(st.one_of(policies(arms), st.just(alpha)))
    pi = pi * (near := draw(st.sampled_from([0.01, 0.3, 1.0]))) + alpha * (1 - near)
    reward = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1))
    drawn = st.lists(reward, min_size=arms, max_size=arms)
    rewards = draw(drawn.filter(lambda values: max(values) > min(values)))
    return pi, pi_k, counts, torch.tensor(rewards, dtype=torch.float64)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.lists(prompt(), min_size=1, max_size=3))
def test_the_identity_holds_and_no_bound_is_ever_violated(prompts):
    numbers = enumerated(prompts)
    improvement, remainder = 0.0, 0.0
    for pi, pi_k, counts, rewards in prompts:
        alpha = counts.double() / counts.sum()
        j, j_k, j_alpha = (float((p * rewards).sum()) for p in (pi, pi_k, alpha))
        s = math.sqrt(float((alpha * (rewards - j_alpha) ** 2).sum()) + 1e-4)
        improvement += (j - j_k) / len(prompts)
        remainder += ((1 - s) / s * (j - j_alpha) + (j_k - j_alpha)) / len(prompts)
    assert numbers["bound/surrogate"] - improvement == pytest.approx(remainder, abs=1e-10)
    assert improvement >= numbers["bound/factor_one"] - 1e-10
    assert improvement >= numbers["bound/stated"] - 1e-10
    # L <= E TV / s, so the stated bound is at most E (2s - 1) / s TV, 4 eps for the largest s.
    assert numbers["bound/stated"] <= 4 * EPS


# ---- through the trainer ----


def of_bound(metrics: dict[str, Any]) -> dict[str, float | None]:
    return {name: metrics[name] for name in ("tv_sequence", *NAMES)}


def test_at_ratio_1_surrogate_variations_and_both_bounds_are_0(experience):
    """The mean of A is 0 and nothing has moved, so all but the variance weight is 0."""
    update = part(experience, list(range(8)), [1, 0, 0, 0, 1, 1, 1, 1])
    numbers = of_bound(step(update, config_of())[0])
    s = math.sqrt(3 / 16 + 1e-4)
    assert numbers.pop("variance_weight") == pytest.approx((1 - s) / s, rel=1e-12)
    assert numbers == pytest.approx(dict.fromkeys(numbers, 0.0), abs=1e-4)


@table("budget", [4096, 1])
def test_an_updates_numbers_are_those_of_its_groups_however_it_is_cut(experience, budget):
    """Groups: one of four right; one with a failed response; all right; two of four at the mean.

    In the last group two responses have advantage 0 and are not computed, so the group is left out.
    """
    rewards = [1, 0, 0, 0, 1, None, 0, 1, 1, 1, 1, 1, 1, 0.5, 0, 0.5]
    moved = with_stored(experience, "proximal_logprobs", spread=0.1)
    update = replace(part(moved, list(range(16)), rewards), stored=moved.stored)
    seen: dict[int, Tensor] = {}
    config = config_of(
        {"name": "decoupled_ppo", "proximal_period": 2}, optimizer={"micro_batch_tokens": budget}
    )
    trainer = Trainer(load_policy(ModelOptions()), config)

    def watch(batch, logprobs_BT, _) -> None:
        log_ratios = ((logprobs_BT.detach() - batch.behavior_logprobs) * batch.mask).sum(-1)
        seen.update(zip(batch.places, log_ratios.double(), strict=True))

    numbers = of_bound(trainer.step(update, watch))
    rows = [[0, 1, 2, 3], [4, 6, 7]]
    proximal = [
        float((update.stored["proximal_logprobs"][r] - update.rollouts[r].behavior_logprobs).sum())
        for r in range(16)
    ]
    terms = []
    for group in rows:
        r = torch.tensor([float(rewards[i]) for i in group]).double()
        w = torch.stack([seen[i] for i in group]).exp()
        w_k = torch.tensor([proximal[i] for i in group]).double().exp()
        s = (r.var(correction=0) + 1e-4).sqrt()
        tv, tv_k = (1 - w).clamp(min=0).mean(), (1 - w_k).clamp(min=0).mean()
        terms.append([(1 - s) / s, (w * (r - r.mean()) / s).mean(), (1 - s) / s * tv, tv_k])
    weight, surrogate, weighted, tv_k = torch.tensor(terms).double().mean(0).tolist()
    every = torch.stack(list(seen.values())).exp()
    expected = {
        "tv_sequence": (1 - every).clamp(min=0).mean().item(),
        "variance_weight": weight,
        "bound/surrogate": surrogate,
        "bound/weighted_tv": weighted,
        "bound/tv_proximal": tv_k,
        "bound/stated": surrogate - 2 * weighted - 2 * tv_k,
        "bound/factor_one": surrogate - weighted - tv_k,
    }
    assert set(seen) == {0, 1, 2, 3, 4, 6, 7, 12, 14}
    assert numbers == pytest.approx(expected, rel=1e-4)
    assert numbers["bound/tv_proximal"] > 0.01 and numbers["tv_sequence"] > 0.1


def test_without_a_stored_proximal_policy_it_is_the_policy_itself(experience):
    numbers = of_bound(step(stale(part(experience, [0, 1, 2, 3], [1, 0, 0, 0])), config_of())[0])
    assert numbers["bound/tv_proximal"] == pytest.approx(numbers["tv_sequence"]) != 0


def test_an_update_without_variance_has_no_bound(experience):
    update = part(experience, list(range(8)), [0, 0, 0, 0, 1, 1, 1, 1])
    assert set(of_bound(step(update, config_of())[0]).values()) == {None}
