"""What a resolved config derives from its groups, by hand for each kind of group."""

from __future__ import annotations

import pytest

from mugrpo.config.load import build_config, load_config
from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import UsageError
from tests.cases import table


def config_of(words: str) -> RunConfig:
    return load_config(None, [f"--{word}" for word in words.split()])


@table(
    ("words", "period"),
    [
        ("preset=mu-grpo", 1),
        ("preset=decoupled-ppo", 4),
        ("preset=cispo", 1),  # it uses no proximal policy
    ],
)
def test_the_proximal_period_is_the_objectives_or_1(words, period):
    assert config_of(words).proximal_period == period


@table(
    ("words", "period"),
    [
        ("reference.name=off", 0),
        ("reference.name=kl", 0),
        ("reference.name=kl reference.period=2", 2),
    ],
)
def test_the_reference_period_is_the_references_or_0(words, period):
    assert config_of(words).reference_period == period


@table(
    ("words", "length"),
    [
        ("engine.name=continuous", None),
        ("engine.name=vllm", None),
        ("engine.name=vllm engine.arguments={max_model_len=4096}", 4096),
    ],
)
def test_vllm_alone_limits_a_sequence(words, length):
    assert config_of(words).engine.max_model_len == length


@table(
    ("words", "inside"),
    [
        ("engine.name=continuous", True),
        ("engine.name=hf", True),
        ("engine.name=hf engine.processes=1", False),
        ("engine.name=continuous backend.name=ray", False),
        ("engine.name=vllm", False),
    ],
)
def test_an_engine_of_our_own_without_processes_runs_in_the_trainers_process(words, inside):
    assert config_of(words).engine_in_process is inside


@table(
    ("words", "fault"),
    [
        ("quantization='fp8'", "quantization changes the distribution"),
        ("quantization_config={linear='mxfp8'}", "quantization_config changes the distribution"),
    ],
)
def test_vllm_samples_with_the_weights_it_gets(words, fault):
    with pytest.raises(ValueError, match=fault):
        config_of(f"engine.name=vllm engine.arguments={{{words}}}")


@table("name", ["top_p", "top_k", "min_tokens", "generation_config"])
def test_arguments_that_change_the_distribution_are_refused(name: str):
    raw = {"engine": {"name": "vllm", "arguments": {name: 1}}}
    with pytest.raises(UsageError, match=f"{name} changes the distribution"):
        build_config(raw, "a file")


@table("temperature", [0.005, 2.5])
def test_temperatures_that_vllm_would_change_are_refused(temperature: float):
    raw = {"engine": {"name": "vllm"}, "rollouts": {"temperature": temperature}}
    with pytest.raises(UsageError, match=f"from 0.01 to 2, not at {temperature:g}"):
        build_config(raw, "a file")
    build_config({"rollouts": {"temperature": temperature}}, "a file")  # our own engine accepts it


def test_a_table_without_a_name_has_its_groups_default():
    config = RunConfig.model_validate({"engine": {"slots": 3}, "correction": {}, "task": {}})
    assert (config.engine.name, config.correction.name, config.task.name) == (
        "continuous",
        "off",
        "chain",
    )


@table(
    ("words", "slots"),
    [
        ("", 512),  # 48 tokens
        ("rollouts.max_new_tokens=128", 512),
        ("rollouts.max_new_tokens=300", 218),  # 218 * 300 = 65,400
        ("rollouts.max_new_tokens=1024", 128),
        ("rollouts.max_new_tokens=1024 engine.slots=1024", 1024),
    ],
)
def test_short_responses_have_more_slots(words: str, slots: int):
    assert config_of(words).engine.slots == slots


def test_options_may_be_given_as_objects():
    config = RunConfig()
    again = RunConfig(engine=config.engine, veto=config.veto, objective=config.objective)
    assert again == config
