"""How a config names its rewards."""

import pytest

from mugrpo.config.base import Options, RewardOption
from mugrpo.config.rewards import (
    ExactOptions,
    FunctionOptions,
    MathOptions,
    NumericOptions,
    Rewards,
)
from tests.cases import table


class Chosen(Options):
    rewards: Rewards = ()


def chosen(value: object) -> tuple[RewardOption, ...]:
    return Chosen.model_validate({"rewards": value}).rewards


def test_rewards_are_chosen_by_table_name_or_place():
    assert chosen("math") == (MathOptions(),)
    assert chosen("my/rewards.py:f") == (FunctionOptions(function="my/rewards.py:f"),)
    assert chosen({"name": "math", "weight": 2}) == (MathOptions(weight=2.0),)
    found = chosen(("exact", {"function": "a.b:f", "weight": 0.5}))
    assert found == (ExactOptions(), FunctionOptions(function="a.b:f", weight=0.5))
    dumped = Chosen(rewards=chosen(("numeric", "a:f"))).model_dump(mode="json")
    assert chosen(tuple(dumped["rewards"])) == (NumericOptions(), FunctionOptions(function="a:f"))


@table(
    ("value", "sentence"),
    [
        ("a.py:", 'write "module:name" or "path/to/file.py:name"'),
        (("math", "math"), "'math' cannot name two parts"),
        (("a:f", "b:f"), "'f' cannot name two parts"),
        ("a:answer", "'answer' cannot name two parts"),
        ({"name": "math", "weight": 0}, "every weight is 0"),
        ({"name": "math", "weight": float("inf")}, "finite number"),
        ({"name": "regex", "pattern": "("}, "it is not a regular expression: missing )"),
        ({"name": "math", "strickt": True}, "Extra inputs are not permitted"),
        (3, "Input should be a valid tuple"),
    ],
)
def test_rewards_that_make_no_sense_are_refused(value, sentence):
    with pytest.raises(ValueError) as refused:
        chosen(value)
    assert sentence in str(refused.value)
