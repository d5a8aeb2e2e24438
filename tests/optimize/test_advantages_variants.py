"""Properties of every form of advantage, for any rewards and in edge cases.

Comparisons with numbers by hand and with TRL are in test_advantages.
"""

from collections.abc import Callable
from functools import partial

import torch

from mugrpo.optimize import advantages
from tests.cases import table

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
def test_permuting_a_group_or_the_groups_changes_nothing_but_order(form):
    for seed in range(10):
        rewards_PG, valid_PG = random_rewards(seed)
        actual = FORMS[form](rewards_PG, valid_PG)
        responses = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
        problems = torch.randperm(5, generator=torch.Generator().manual_seed(seed))
        other = FORMS[form](rewards_PG[problems][:, responses], valid_PG[problems][:, responses])
        torch.testing.assert_close(other, actual[problems][:, responses], rtol=1e-12, atol=1e-15)


@table("form", FORMS)
def test_what_an_unknown_reward_holds_changes_nothing_and_its_advantage_is_0(form):
    for seed in range(10):
        rewards_PG, valid_PG = random_rewards(seed)
        actual = FORMS[form](rewards_PG, valid_PG)
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
