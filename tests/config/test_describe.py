"""The list of options that --help shows."""

import tomllib
from collections import Counter
from collections.abc import Iterator

import pytest

from mugrpo.config.base import members_of
from mugrpo.config.describe import as_toml, describe, tables
from mugrpo.config.load import build_config
from mugrpo.config.rewards import Reward
from mugrpo.config.run import RunConfig
from mugrpo.config.tasks import SourceOptions
from mugrpo.config.training import SuiteUse

CHOICES = RunConfig.choices()


def leaves(tree: dict, prefix: str = "") -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, dict) and value:  # an empty one is an option that is a table
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def owners_by_name() -> dict[str, Counter[str]]:
    """Dotted name -> how often it is listed for each choice that has it ("" outside a choice)."""
    listed: dict[str, Counter[str]] = {}
    for option in describe():
        listed.setdefault(option.name, Counter()).update(list(option.defaults))
    return listed


def test_every_option_is_listed_once_for_each_choice_that_has_it(required):
    """Counted in resolved configs: options outside a choice once, others once for each choice."""
    default = RunConfig().model_dump()
    expected = {
        name: Counter([""]) for name in leaves(default) if name.partition(".")[0] not in CHOICES
    }
    for group, members in CHOICES.items():
        for choice in members:
            resolved = build_config({group: {"name": choice, **required.get(choice, {})}}, "test")
            for name in leaves(resolved.model_dump()[group], f"{group}."):
                expected.setdefault(name, Counter())[choice] += 1
    for choice, reward in members_of(Reward).items():
        for name in reward.model_fields:
            expected.setdefault(f"task.rewards[].{name}", Counter())[choice] += 1
    for name in SourceOptions.model_fields:  # what a source has besides its task
        expected[f"task.sources[].{name}"] = Counter([""])
    for name in SuiteUse.model_fields:  # a list whose tables are all of one kind
        expected[f"evaluation.suites[].{name}"] = Counter([""])
    lists = ("task.rewards[]",)
    for name in [f"{group}.name" for group in (*CHOICES, *lists)]:
        expected[name] = Counter([""])  # the choice itself is listed once for the group
    assert owners_by_name() == expected


def test_defaults_are_those_of_a_config_without_a_preset():
    config = RunConfig()
    listed = [
        option for table in tables({"": RunConfig}, values=config) for option in table.options
    ]
    shown = {(o.name, owner): default for o in listed for owner, default in o.defaults.items()}
    resolved = config.model_dump()
    for name in leaves(resolved):
        group, _, leaf = name.partition(".")
        value = resolved[group][leaf] if leaf else resolved[group]
        owner = "" if leaf == "name" or group not in CHOICES else resolved[group]["name"]
        assert shown[name, owner] == (value if isinstance(value, str) else as_toml(value)), name
    # tapered-grpo sets these
    assert shown["objective.name", ""] == "topr" and shown["objective.taper", "topr"] == "prefix"
    assert shown["schedule.batches_per_stage", ""] == "16" and shown["schedule.growth", ""] == "2.0"
    # an option of another choice than the preset's has its own default
    assert shown["objective.ratio_clip", "grpo"] == "[0.8, 1.2]"
    assert shown["task.data", "dataset"] == "required"


def test_every_option_and_table_has_a_description_of_sentences():
    listed = list(tables({"": RunConfig}))[1:]
    assert {"model", "engine", "workers", "task.rewards[]"} <= {table.name for table in listed}
    for each in [*listed, *(o for o in describe() if not o.name.endswith(".name"))]:
        assert len(each.meaning) >= 10 and each.meaning.endswith("."), (each.name, each.meaning)


def test_types_bounds_and_defaults_are_spelled_for_users():
    described = {option.name: (option.kind, option.default) for option in describe()}
    assert described["schedule.stages"] == ("int >= 1", "4")
    assert described["rollouts.temperature"] == ("float >= 0.001, <= 10", "1.0")
    assert described["optimizer.lr_schedule"] == ("constant|linear|cosine", "linear")
    assert described["optimizer.betas"] == ("[float, float]", "[0.9, 0.95]")
    assert described["model.eos_token"] == ("str|none", "none")
    assert described["prompt.chat_template"] == ("str|none", "none")
    assert described["overlap"] == ("bool", "false")
    assert described["task.data"] == ("str", "required")
    assert described["task.rewards"] == ("names or tables", '["math"]')
    assert described["engine.urls"] == ("[str, ...]", '["http://localhost:8000"]')
    assert described["engine.arguments"] == ("table", "{}")
    assert described["veto.name"] == ("name", "off")
    _, found = described["advantage.zero_variance_mask"]
    assert found == "true for group, file; false for shifted, asymre"
    _, given = described["objective.ratio_clip"]
    assert given == "[0.8, 1.2] for grpo, decoupled_ppo, minpro; [0.0, 5.0] for cispo"


@pytest.mark.parametrize("text", ["\U0001f600 plain", 'a "b"\n\t\\', "\x7f and \x01", "é"])
def test_any_text_is_valid_toml(text: str):
    assert tomllib.loads(f"value = {as_toml(text)}") == {"value": text}
