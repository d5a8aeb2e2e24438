"""Group-relative and other advantages: by hand, compared with TRL's, and their properties."""

import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from mugrpo.optimize import advantages
from tests.cases import table
from tests.trl_losses import trl_run

FAILED = 7.0  # the reward of a failed response, which must not be used


def of_group(rewards: list[float], valid: list[bool] | None = None, **knobs: object) -> list[float]:
    rewards_PG = torch.tensor([rewards], dtype=torch.float64)
    valid_PG = torch.tensor([valid or [True] * len(rewards)])
    return advantages.group(rewards_PG, valid_PG, **knobs)[0].tolist()


@table(
    ("rewards", "std", "deviations", "divisor"),
    [
        # mean 1, squares 4 + 1 + 1, unbiased variance 6 / 2 = 3
        ([3.0, 0.0, 0.0], "unbiased", [2, -1, -1], math.sqrt(3) + 1e-4),
        # mean 1/2, squares 4 / 4, unbiased variance 1 / 3
        ([1.0, 1.0, 0.0, 0.0], "unbiased", [0.5, 0.5, -0.5, -0.5], 0.5773502691896258 + 1e-4),
        # off-policy GRPO adds eps to the population variance, 6 / 3 = 2
        ([3.0, 0.0, 0.0], "population", [2, -1, -1], math.sqrt(2 + 1e-4)),
        ([3.0, 0.0, 0.0], "none", [2, -1, -1], 1),
    ],
)
def test_a_group_by_hand(rewards, std, deviations, divisor):
    expected = [deviation / divisor for deviation in deviations]
    assert of_group(rewards, std=std) == pytest.approx(expected, rel=1e-12)


@table("std", ["unbiased", "population", "none"])
def test_a_failed_response_is_left_out_and_gets_0(std):
    with_failure = of_group([1.0, FAILED, 0.0, 0.0], [True, False, True, True], std=std)
    without = of_group([1.0, 0.0, 0.0], std=std)
    assert with_failure == [without[0], 0.0, without[1], without[2]]
    assert without[0] > 0


def trl_advantages(rewards_PG: torch.Tensor, scale: str) -> torch.Tensor:
    """Return TRL's advantages. A reward of NaN is unknown."""
    scope = trl_run(
        "mean_grouped_rewards",
        self=SimpleNamespace(reward_weights=torch.ones(1).double(), scale_rewards=scale),
        rewards_per_func=rewards_PG.reshape(-1, 1),
        unscorable_mask=rewards_PG.reshape(-1).isnan(),
        num_generations=rewards_PG.shape[1],
        device="cpu",
    )
    return scope["advantages"].nan_to_num(nan=0.0).reshape(rewards_PG.shape)


@table(("scale", "std"), [("group", "unbiased"), ("none", "none")])
def test_advantages_equal_trls_even_if_rewards_are_unknown(scale, std):
    """TRL's come from the code of its `_generate_and_score_completions`."""
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        rewards_PG = torch.randint(0, 3, (6, 5), generator=generator).double() / 2
        unknown_PG = torch.rand(6, 5, generator=generator) < 0.2
        unknown_PG[:, 0] = False
        expected = trl_advantages(rewards_PG.masked_fill(unknown_PG, math.nan), scale)
        actual = advantages.group(rewards_PG, ~unknown_PG, std=std)
        # TRL's n / (n - 1) is in fp32
        torch.testing.assert_close(actual, expected, rtol=1e-7, atol=1e-12)


REWARDS = torch.tensor([[1.0, FAILED, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
VALID = torch.tensor([[True, False, True, True], [True] * 4])


def test_shifted_and_asymre_by_hand():
    actual = advantages.shifted(REWARDS, VALID, baseline=0.25)  # the same for every group
    assert actual.tolist() == [[0.75, 0.0, -0.25, -0.25], [0.75] * 4]
    # means 1/3 and 1; delta = -.1 lowers the baseline, so it raises every advantage by .1
    actual = advantages.asymre(REWARDS, VALID, delta=-0.1)
    expected = [[2 / 3 + 0.1, 0.0, -1 / 3 + 0.1, -1 / 3 + 0.1], [0.1] * 4]
    torch.testing.assert_close(actual, torch.tensor(expected).double(), rtol=0, atol=1e-7)
    assert actual[0, 1] == 0


@table(
    ("rewards", "valid", "expected"),
    [
        ([1.0, 0.0], [True, True], True),
        ([0.1, 0.1, 0.1], [True] * 3, False),
        ([0.1, 0.1 + 2**-50, 0.1], [True] * 3, True),  # compared exactly, without tolerance
        ([1.0, FAILED, 1.0], [True, False, True], False),
        ([1.0, FAILED], [True, False], False),
        ([FAILED, FAILED], [False, False], False),
        ([-1.0, -2.0], [True, True], True),
    ],
)
def test_a_group_is_varied_if_two_known_rewards_differ(rewards, valid, expected):
    rewards_PG = torch.tensor([rewards], dtype=torch.float64)
    assert advantages.varied(rewards_PG, torch.tensor([valid])).tolist() == [expected]


FORMS: dict[str, Callable[..., torch.Tensor]] = {
    "unbiased": partial(advantages.group, std="unbiased"),
    "population": partial(advantages.group, std="population"),
    "none": partial(advantages.group, std="none"),
    "shifted": partial(advantages.shifted, baseline=0.5),
    "asymre": partial(advantages.asymre, delta=-0.1),
}
GROUPS = ["unbiased", "population", "none"]


def random_rewards(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rewards_PG = torch.randint(-2, 3, (5, 6), generator=generator).double() / 4
    return rewards_PG, torch.rand(5, 6, generator=generator) < 0.8


@table("form", FORMS)
def test_neither_order_nor_what_an_unknown_reward_holds_changes_anything(form):
    for seed in range(10):
        rewards_PG, valid_PG = random_rewards(seed)
        actual = FORMS[form](rewards_PG, valid_PG)
        responses = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
        problems = torch.randperm(5, generator=torch.Generator().manual_seed(seed))
        other = FORMS[form](rewards_PG[problems][:, responses], valid_PG[problems][:, responses])
        torch.testing.assert_close(other, actual[problems][:, responses], rtol=1e-12, atol=1e-15)
        assert (actual[~valid_PG] == 0).all()
        for junk in (7.0, -1e9):
            other = FORMS[form](rewards_PG.masked_fill(~valid_PG, junk), valid_PG)
            assert torch.equal(other, actual)


@table("form", GROUPS)
def test_group_advantages_sum_to_0_and_ignore_a_shift_of_all_rewards(form):
    for seed in range(10):
        rewards_PG, valid_PG = random_rewards(seed)
        actual = FORMS[form](rewards_PG, valid_PG)
        assert actual.sum(-1).abs().max() < 1e-12
        shifted = FORMS[form](rewards_PG + 8.0, valid_PG)  # exact in binary
        torch.testing.assert_close(shifted, actual, rtol=1e-12, atol=1e-12)


@table("form", GROUPS)
@table("size", [1, 4])
def test_equal_rewards_and_a_group_of_one_give_0_and_no_nan(form, size):
    for reward in (0.0, 1.0, 0.1, -1e30, 1e-30):
        rewards_PG = torch.full((2, size), reward, dtype=torch.float64)
        actual = FORMS[form](rewards_PG, torch.ones(2, size, dtype=torch.bool))
        assert actual.tolist() == [[0.0] * size] * 2


def test_rewards_that_nearly_agree_are_told_apart_after_a_large_offset():
    """In float64: 2^20 + (0, 2^-20) has mean 2^20 + 2^-21 exactly."""
    rewards_PG = torch.tensor([[2.0**20, 2.0**20 + 2.0**-20]], dtype=torch.float64)
    actual = FORMS["none"](rewards_PG, torch.ones(1, 2, dtype=torch.bool))
    assert actual.tolist() == [[-(2.0**-21), 2.0**-21]]
