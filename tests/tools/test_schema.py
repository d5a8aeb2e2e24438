"""The JSON schema of a config file: it accepts what the loader accepts, and warns of a typo."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from mugrpo.cli import main
from mugrpo.config.base import Options, WorkerOptions, members_of
from mugrpo.config.load import build_config
from mugrpo.config.rewards import RegexOptions
from mugrpo.config.run import PRESETS, RunConfig
from mugrpo.disk.errors import UsageError
from mugrpo.tools.schema import schema
from tests.cases import table

ROOT = Path(__file__).parents[2]
FILES = sorted(
    file
    for pattern in ("configs/**/*.toml", "examples/**/*.toml", "src/**/presets/*.toml")
    for file in ROOT.glob(pattern)
    if file.name != "pyproject.toml"
)
DOCUMENT = schema()
VALIDATOR = Draft7Validator(DOCUMENT)
DATA = "[task]\nname = 'dataset'\ndata = 'd.jsonl'\n"


def accepted(raw: dict[str, Any]) -> tuple[bool, bool]:
    """Return whether the schema and the loader accept `raw`."""
    try:
        build_config(raw, "test")
    except UsageError:
        return VALIDATOR.is_valid(raw), False
    return VALIDATOR.is_valid(raw), True


def groups() -> Iterator[type[Options]]:
    """Yield every class of options, RunConfig last."""
    waiting: list[type[Options]] = [RunConfig]
    found: list[type[Options]] = []
    while waiting:
        found.append(waiting.pop())
        for field in found[-1].model_fields.values():
            kind = field.annotation
            waiting += members_of(kind).values()
            waiting += [kind] if isinstance(kind, type) and issubclass(kind, Options) else []
    return reversed(found)


def table_of(options: type[Options]) -> dict[str, Any]:
    return DOCUMENT if options is RunConfig else DOCUMENT["$defs"][options.__name__]


@table("file", FILES)
def test_a_committed_config_is_accepted(file: Path):
    assert [e.message for e in VALIDATOR.iter_errors(tomllib.loads(file.read_text()))] == []


@table("preset", PRESETS)
def test_every_preset_is_accepted_with_all_its_options_written_out(preset: str):
    resolved = build_config({"preset": preset}, "test").model_dump(mode="json", exclude_none=True)
    assert VALIDATOR.is_valid(resolved)


@table(
    "text",
    [
        "",
        "preset = 'mu-grpo'\n[objective]\nratio_clip = [0, 4]",  # the preset's choice stays
        "[objective]\ntaper = 'mean'",
        "[task]\nterms = 3",
        "[engine]\nprocesses = 2",  # an option of several engines
        "[optimizer]\nlr = 1",  # an integer for a float
        "[engine]\nname = 'vllm'\narguments = {max_model_len = 4096}",
        "[objective]\nname = 'file'\npath = 'mine.py'\noptions = {alpha = 0.5}",
        DATA + "rewards = 'm:f'",
        DATA + "rewards = ['exact', {name = 'regex', pattern = 'x'}]",
        DATA + "rewards = {function = 'm:f', weight = 2}",
        DATA + "[[task.rewards]]\nname = 'numeric'\ntolerance = 1",
    ],
)
def test_schema_and_loader_accept(text: str):
    assert accepted(tomllib.loads(text)) == (True, True)


@table(
    "text",
    [
        "sede = 3",
        "seed = '3'",
        "preset = 'gpro'",
        "[modle]\npath = 'chain'",
        "[optimizer]\nlearning_rate = 1e-5",
        "[optimizer]\nlr = 0",
        "[optimizer]\nbetas = [0.9]",
        "[optimizer]\nbetas = [0.9, '0.95']",
        "[schedule]\nstages = 2.5",
        "[model]\nprecision = 'fp16'",
        "[model]\neos_token = 3",
        "[engine]\nname = 'vlm'",
        "[engine]\nname = 'hf'\ntensor_parallel = 4",  # another engine's option
        "[task]\nname = 'dataset'",
        "[task]\ndata = 'd.jsonl'",  # without its name, it would be the chain task
        DATA + "rewards = 3",
        DATA + "rewards = {pattern = 'x'}",
        DATA + "rewards = [{name = 'math', tolerance = 1}]",
        DATA + "[workers]\ncores = 1",
    ],
)
def test_schema_and_loader_refuse(text: str):
    assert accepted(tomllib.loads(text)) == (False, False)


def test_every_table_is_closed_and_every_option_described():
    assert {RunConfig, WorkerOptions, RegexOptions} <= set(groups())
    for options in groups():
        table = table_of(options)
        assert table["additionalProperties"] is False, options
        for leaf, field in options.model_fields.items():
            assert table["properties"][leaf].get("description") == field.description, leaf


def test_defaults_are_those_of_a_config_without_a_preset():
    taper, growth = DOCUMENT["$defs"]["TOPROptions"], DOCUMENT["$defs"]["ScheduleOptions"]
    assert taper["properties"]["taper"]["default"] == "prefix"
    assert taper["properties"]["negative_weight"]["default"] == 0.25
    assert growth["properties"]["growth"]["default"] == 2.0
    assert DOCUMENT["$defs"]["GRPOOptions"]["properties"]["ratio_clip"]["default"] == [0.8, 1.2]
    assert DOCUMENT["properties"]["preset"]["default"] == "tapered-grpo"


def test_it_has_only_what_taplo_knows():
    """It validates by draft 7. TOML has no null, so none may be offered as a default."""
    Draft7Validator.check_schema(DOCUMENT)
    assert DOCUMENT["$schema"] == "http://json-schema.org/draft-07/schema#"
    text = json.dumps(DOCUMENT)
    for word in ("null", "prefixItems", "discriminator", "Undefined"):
        assert word not in text


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]):
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == DOCUMENT
