"""Objectives that clip a ratio, by hand. (test_trl_equality has TRL's numbers.)"""

import math
from dataclasses import replace

import torch

from mugrpo.config.load import build_config
from mugrpo.optimize.loss import UpdateLoss
from mugrpo.optimize.objectives import cispo, ctpo, decoupled_ppo, grpo, minpro, reinforce
from tests.cases import table
from tests.objective_cases import evaluated, loss_of, seeded
from tests.updates import assert_response, of_ratios

NARROW, RELAXED = {"ratio_clip": (0.8, 1.2)}, {"ratio_clip": (0.0, 5.0)}
LOW, OPEN = {"ratio_clip": (0.2, 2.0)}, {"ratio_clip": (0.0, 1e9)}

# Losses, weights on grad log pi and clipped tokens of responses with these ratios and advantages.
RATIOS = [0.5, 1.0, 2.0, 6.0]  # with |A| = 2 a weight r A is twice the ratio
GRPO = [
    # above 1.2: -1.2 x 2
    (2.0, NARROW, [-1.0, -2.0, -2.4, -2.4], [1.0, 2.0, 0.0, 0.0], [0, 0, 1, 1]),
    # above 5: -5 x 2
    (2.0, RELAXED, [-1.0, -2.0, -4.0, -10.0], [1.0, 2.0, 4.0, 0.0], [0, 0, 0, 1]),
    # below 0.8: 0.8 x 2; above 1.2 min takes r A
    (-2.0, NARROW, [1.6, 2.0, 4.0, 12.0], [0.0, -2.0, -4.0, -12.0], [1, 0, 0, 0]),
    # never clipped
    (-2.0, RELAXED, [1.0, 2.0, 4.0, 12.0], [-1.0, -2.0, -4.0, -12.0], [0, 0, 0, 0]),
]
# Dual clip. A = -2, c = 3: loss = min(2 r, 6); beyond r = 3 it is flat.
DUAL = [(-2.0, {**RELAXED, "dual_clip": 3.0}, [1, 4, 6, 6], [-1, -4, 0, 0], [0, 0, 1, 1])]
# loss = -clip(r) A log pi, log pi = -1, -2, -3, -4; the weight is clip(r) A. Both hold for both
# signs of A, and beyond both bounds: clip(r) = .05, .5, 1, 5 and .2, .5, 1, 2.
CISPO = [
    (2.0, RELAXED, [0.1, 2.0, 6.0, 40.0], [0.1, 1.0, 2.0, 10.0], [0, 0, 0, 1]),
    (-2.0, RELAXED, [-0.1, -2.0, -6.0, -40.0], [-0.1, -1.0, -2.0, -10.0], [0, 0, 0, 1]),
    (1.0, LOW, [0.2, 1.0, 3.0, 8.0], [0.2, 0.5, 1.0, 2.0], [1, 0, 0, 1]),
    (-1.0, LOW, [-0.2, -1.0, -3.0, -8.0], [-0.2, -0.5, -1.0, -2.0], [1, 0, 0, 1]),
    (0.0, LOW, [0.0] * 4, [0.0] * 4, [1, 0, 0, 1]),
]
# -sg[prox / beta] min(q A, clip(q) A), q = pi / prox. prox/beta = 2, 2, .5; pi/beta = 3, 1, .5:
# q = 1.5, .5, 1 in [.8, 1.2].
TWO = {**NARROW, "proximal": [2.0, 2.0, 0.5]}
DECOUPLED = [
    (1.0, TWO, [-2.4, -1.0, -0.5], [0.0, 1.0, 0.5], [1, 0, 0]),  # 2 x 1.2; 2 x .5; .5 x 1
    (-1.0, TWO, [3.0, 1.6, 0.5], [-3.0, 0.0, -0.5], [0, 1, 0]),  # 2 x 1.5; 2 x .8; .5 x 1
]
# GRPO within [max(r' - .2, 0), r' + .2]. r' = prox / beta = 2, 2, 2, .1: [1.8, 2.2] and [0, .3].
CENTER = {**NARROW, "proximal": [2.0, 2.0, 2.0, 0.1], "clip_center": "proximal"}
CENTERED = [
    (1.0, CENTER, [-2.2, -2.1, -1.0, -0.01], [0.0, 2.1, 1.0, 0.01], [1, 0, 0, 0]),
    (-1.0, CENTER, [2.5, 2.1, 1.8, 0.01], [-2.5, -2.1, 0.0, -0.01], [0, 0, 1, 0]),
]
# MinPRO: w_t = r_t sg[min_{j<t} r_j], w_1 = r_1; the gradient is the token's own.
WEIGHTS = [
    ([0.5, 0.9, 2.0], [0.5, 0.45, 1.0]),  # minima before: -, .5, .5
    ([0.9, 0.5, 2.0], [0.9, 0.45, 1.0]),  # -, .9, .5
    ([2.0, 3.0, 0.5], [2.0, 6.0, 1.0]),  # -, 2, 2: the minimum is not capped at 1
    ([1.0, 1.0, 0.5], [1.0, 1.0, 0.5]),  # the minimum excludes the token's own ratio
]
FALLING, RISING = WEIGHTS[0][0], WEIGHTS[2][0]
MINPRO = [
    (ratios, (a, OPEN, [-a * x for x in w], [a * x for x in w], [0, 0, 0]))
    for ratios, w in WEIGHTS
    for a in (2.0, -2.0)
] + [
    (FALLING, (1.0, NARROW, [-0.5, -0.45, -1.0], [0.5, 0.45, 1.0], [0, 0, 0])),
    (FALLING, (-1.0, NARROW, [0.8, 0.8, 1.0], [0.0, 0.0, -1.0], [1, 1, 0])),
    (RISING, (1.0, NARROW, [-1.2, -1.2, -1.0], [0.0, 0.0, 1.0], [1, 1, 0])),
]
# CTPO: q_t = prod_{j<=t} r_j within [0.8^sqrt(t), 1.2^sqrt(t)]; the gradient is the token's own.
PREFIXES = [1.5, 2 / 3, 1.1, 5 / 11]  # q = 1.5, 1.0, 1.1, 0.5
ROOT = {"log_clip": (math.log(0.8), math.log(1.2))}
CTPO = [
    (1.0, ROOT, [-1.2, -1.0, -1.1, -0.5], [0.0, 1.0, 1.1, 0.5], [1, 0, 0, 0]),
    (-1.0, ROOT, [1.2, 1.0, 1.1, 0.64], [0.0, -1.0, -1.1, 0.0], [1, 0, 0, 1]),  # t = 4: 0.8^2
]
# Without a ratio: -A log pi, with the weight A whatever the ratio.
PLAIN = [(a, {}, [a, 2 * a, 3 * a, 4 * a], [a] * 4, [0] * 4) for a in (2.0, -0.5, 0.0)]
CASES = [
    *((grpo, RATIOS, case) for case in GRPO),
    *((grpo, [0.5, 2.0, 4.0, 6.0], case) for case in DUAL),
    *((cispo, [0.05, 0.5, 1.0, 6.0], case) for case in CISPO),
    *((decoupled_ppo, [3.0, 1.0, 0.5], case) for case in DECOUPLED),
    *((grpo, [2.5, 2.1, 1.0, 0.01], case) for case in CENTERED),
    *((minpro, *case) for case in MINPRO),
    *((ctpo, PREFIXES, case) for case in CTPO),
    *((reinforce, [9.0, 0.01, 1.0, 2.0], case) for case in PLAIN),
]


@table(("objective", "ratios", "case"), CASES)
def test_losses_weights_and_clipped_tokens_by_hand(objective, ratios, case):
    advantage, knobs, *expected = case
    assert_response(of_ratios(objective.loss, ratios, advantage, **knobs), *expected)


def test_decoupled_ppo_is_grpo_if_the_proximal_policy_is_the_behavior_policy():
    for seed in range(5):
        update = seeded(seed)
        stored = {**update.batch.stored, "proximal_logprobs": update.batch.behavior_logprobs}
        ours, theirs = (
            evaluated(loss_of(form), replace(update.batch, stored=stored), update.logprobs)
            for form in ("decoupled_ppo", "grpo")
        )
        assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])
        assert torch.equal(ours[2]["clipped_fraction"], theirs[2]["clipped_fraction"])


@table("objective", [{"name": "decoupled_ppo"}, {"name": "grpo", "clip_center": "proximal"}])
def test_without_a_stored_proximal_policy_it_is_the_policy_and_nothing_is_clipped(objective):
    loss = UpdateLoss(build_config({"preset": "grpo", "objective": objective}, "test"))
    update = seeded(0)
    batch = replace(update.batch, varied=update.batch.varied | True)
    losses, gradient, metrics = evaluated(loss, replace(batch, stored={}), update.logprobs)
    ratio_BT = (update.logprobs - batch.behavior_logprobs).exp()
    expected = -ratio_BT * batch.advantages[:, None] * batch.mask
    torch.testing.assert_close(losses, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient, expected)
    assert not metrics["clipped_fraction"].any()
    _, _, metrics = evaluated(loss, batch, update.logprobs)
    assert metrics["clipped_fraction"].any()
